"""PostgreSQL for the measures that run on each server in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext

from bench.ground import Ground, run_one
from bench.lab import Lab
from bench.ours.postgres import LEFT
from bench.peers.peer import Peer
from bench.postgres.contenders import OURS, PGQUEUER, PLAIN, database
from bench.postgres.history import make_ready, multiply
from bench.postgres.metered import record_metered
from bench.postgres.server import Session


@contextmanager
def _apart(lab: Lab, peers: list[Peer]) -> Iterator[dict[str, Peer]]:
    with ExitStack() as databases:
        yield {databases.enter_context(database(lab, peer, 0)): peer for peer in peers}


@contextmanager
def _kept(lab: Lab, finished: int) -> Iterator[str]:
    """One database for all turns: a copy of so much would take longer than the turn."""

    def make(url: str) -> None:
        run_one(OURS, url)
        multiply(url, finished)

    if finished:
        yield lab.servers.postgres.url(lab.template(f"jobmill, {finished:,} finished", make))
    else:
        with database(lab, OURS, 0) as url:
            yield url


@contextmanager
def _looking(url: str) -> Iterator[Callable[[], bool]]:
    with Session(url) as session:
        yield lambda: bool(session.value(LEFT))


POSTGRES = Ground(
    store="postgres",
    title="PostgreSQL",
    ours=OURS,
    rival=PGQUEUER,
    peers=PLAIN,
    filled=database,
    apart=_apart,
    looking=_looking,
    record=record_metered,
    kept=_kept,
    make_ready=make_ready,
    cpu_seconds=lambda lab: lab.servers.postgres.spent().cpu_seconds,
    written=lambda lab: nullcontext(lambda *_: lab.servers.postgres.spent().wal_bytes),
)
