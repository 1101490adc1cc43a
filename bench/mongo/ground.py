"""MongoDB for the measures that run on each server in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

from pymongo import MongoClient

from bench.child import run as in_child
from bench.ground import Ground, run_one
from bench.lab import Lab
from bench.mongo.contenders import LEAN, MONQUE, OPTIONS, PLAIN, filled
from bench.mongo.copies import multiply_finished
from bench.mongo.draining import looking
from bench.mongo.metered import record_metered
from bench.peers.peer import Peer
from jobmill.stores.mongo.url import MongoUrl


@contextmanager
def _apart(lab: Lab, peers: list[Peer]) -> Iterator[dict[str, Peer]]:
    with ExitStack() as databases:
        yield {databases.enter_context(filled(lab, peer, 0)): peer for peer in peers}


@contextmanager
def _kept(lab: Lab, finished: int) -> Iterator[str]:
    """One database for all turns: making so much would take longer than the turn."""

    def make(url: str) -> None:
        lab.prepare(f"making {finished:,} finished jobs")
        run_one(LEAN, url)
        in_child(multiply_finished, url=url, total=finished)

    if finished:
        yield lab.servers.mongo.lasting(f"{finished} finished", make, **OPTIONS[LEAN.name])
    else:
        with filled(lab, LEAN, 0) as url:
            yield url


def _make_ready(url: str) -> None:
    """After a checkpoint, so that no run pays for what was done before it."""
    with MongoClient[dict[str, Any]](MongoUrl.read(url).driver_url) as client:
        client.admin.command("fsync")


MONGO = Ground(
    store="mongo",
    title="MongoDB",
    ours=LEAN,
    rival=MONQUE,
    peers=PLAIN,
    filled=filled,
    apart=_apart,
    looking=looking,
    record=record_metered,
    kept=_kept,
    make_ready=_make_ready,
    cpu_seconds=lambda lab: lab.servers.mongo.cpu_seconds(),
    written=lambda lab: nullcontext(lambda *_: lab.servers.mongo.journal_bytes()),
)
