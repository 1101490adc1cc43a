"""Redis for the measures that run on each server in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.ground import Ground, run_one
from bench.lab import Lab
from bench.peers.peer import Peer
from bench.redis.contenders import NODE, OURS, PEERS, filled
from bench.redis.draining import LIVE, looking
from bench.redis.history import multiply
from bench.redis.metered import record_metered


@contextmanager
def _apart(lab: Lab, peers: list[Peer]) -> Iterator[dict[str, Peer]]:
    server = lab.servers.redis
    with server.emptied():
        yield {server.url(number): peer for number, peer in enumerate(peers)}


@contextmanager
def _kept(lab: Lab, finished: int) -> Iterator[str]:
    with lab.servers.redis.emptied() as url:
        if finished:
            lab.prepare(f"making {finished:,} finished jobs")
            run_one(OURS, url)
            multiply(url, finished)
        yield url


@contextmanager
def _looking(url: str) -> Iterator[Callable[[], bool]]:
    yield looking(url, LIVE)


REDIS = Ground(
    store="redis",
    title="Redis",
    ours=OURS,
    rival=NODE,
    peers=PEERS,
    filled=filled,
    apart=_apart,
    looking=_looking,
    record=record_metered,
    kept=_kept,
    make_ready=lambda _: None,
    cpu_seconds=lambda lab: lab.servers.redis.cpu_seconds(),
    written=lambda lab: lab.servers.redis.appending(),
)
