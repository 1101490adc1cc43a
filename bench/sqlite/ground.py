"""SQLite for the measures that run on each store in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from bench.ground import Ground, run_one
from bench.lab import Lab, sqlite_url
from bench.peers.peer import Peer
from bench.sqlite.contenders import HUEY, OURS, PEERS, filled
from bench.sqlite.files import checkpoint, looking, multiply
from bench.sqlite.metered import record_metered
from bench.sqlite.written import written


@contextmanager
def _apart(lab: Lab, peers: list[Peer]) -> Iterator[dict[str, Peer]]:
    with ExitStack() as files:
        yield {files.enter_context(filled(lab, peer, 0)): peer for peer in peers}


@contextmanager
def _kept(lab: Lab, finished: int) -> Iterator[str]:
    """One file for all turns: a copy of so much would take longer than the turn."""

    def make(url: str) -> None:
        run_one(OURS, url)
        multiply(url, finished)

    if finished:
        yield sqlite_url(lab.prepared(f"jobmill, {finished} finished.db", lambda path: make(sqlite_url(path))))
    else:
        with filled(lab, OURS, 0) as url:
            yield url


SQLITE = Ground(
    store="sqlite",
    title="SQLite",
    ours=OURS,
    rival=HUEY,
    peers=PEERS,
    filled=filled,
    apart=_apart,
    looking=looking,
    record=record_metered,
    kept=_kept,
    make_ready=checkpoint,
    cpu_seconds=None,
    written=written,
)
