"""The servers as measures see them that run on each of them in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from msgspec import Struct

from bench.child import Child
from bench.figures import Ran
from bench.lab import Lab
from bench.metering import followed
from bench.ours.postgres import LEFT
from bench.peers.peer import Peer
from bench.postgres import contenders as on_postgres
from bench.postgres import history as postgres_history
from bench.postgres.metered import record_metered as record_on_postgres
from bench.postgres.server import Session
from bench.redis import contenders as on_redis
from bench.redis import history as redis_history
from bench.redis.draining import LIVE, looking
from bench.redis.metered import record_metered as record_on_redis


class Ground(Struct, frozen=True, kw_only=True):
    """A kind of server: who is measured on it, and what the harness asks it."""

    store: str
    title: str
    ours: Peer
    #: Whom our targets name.
    rival: Peer
    #: We are the first.
    peers: tuple[Peer, ...]
    #: lab, peer, jobs: the URL of a place with so many waiting jobs of this contender only.
    filled: Callable[[Lab, Peer, int], AbstractContextManager[str]]
    #: lab, peers: the URLs of empty places, one for each contender.
    apart: Callable[[Lab, list[Peer]], AbstractContextManager[dict[str, Peer]]]
    #: url: asks whether any job of ours is live.
    looking: Callable[[str], AbstractContextManager[Callable[[], bool]]]
    #: lab, what, who, child: follow a run and record its rate, and what it cost both sides.
    record: Callable[[Lab, str, str, Child[Ran]], None]
    #: lab, finished: the URL of a place of ours with so many finished jobs, the same each time it is asked for.
    kept: Callable[[Lab, int], AbstractContextManager[str]]
    #: url: what was done there so far costs a run from now on nothing.
    make_ready: Callable[[str], None]
    #: CPU seconds of the server until now.
    cpu_seconds: Callable[[Lab], float]

    def who(self, peer: Peer) -> str:
        """As a table says it that holds several servers."""
        return f"{peer.name} on {self.title}"


@contextmanager
def _postgres_apart(lab: Lab, peers: list[Peer]) -> Iterator[dict[str, Peer]]:
    with ExitStack() as databases:
        yield {databases.enter_context(on_postgres.database(lab, peer, 0)): peer for peer in peers}


@contextmanager
def _redis_apart(lab: Lab, peers: list[Peer]) -> Iterator[dict[str, Peer]]:
    server = lab.servers.redis
    with server.emptied():
        yield {server.url(number): peer for number, peer in enumerate(peers)}


@contextmanager
def _kept_on_postgres(lab: Lab, finished: int) -> Iterator[str]:
    """One database for all turns: a copy of so much would take longer than the turn."""

    def make(url: str) -> None:
        _run_one(on_postgres.OURS, url)
        postgres_history.multiply(url, finished)

    if finished:
        yield lab.servers.postgres.url(lab.template(f"jobmill, {finished:,} finished", make))
    else:
        with on_postgres.database(lab, on_postgres.OURS, 0) as url:
            yield url


@contextmanager
def _kept_on_redis(lab: Lab, finished: int) -> Iterator[str]:
    with lab.servers.redis.emptied() as url:
        if finished:
            lab.prepare(f"making {finished:,} finished jobs")
            _run_one(on_redis.OURS, url)
            redis_history.multiply(url, finished)
        yield url


def _run_one(peer: Peer, url: str) -> None:
    peer.fill(url, 1)
    followed(peer.drain(url, 1, 1), lambda: None)


@contextmanager
def _looking_at_postgres(url: str) -> Iterator[Callable[[], bool]]:
    with Session(url) as session:
        yield lambda: bool(session.value(LEFT))


@contextmanager
def _looking_at_redis(url: str) -> Iterator[Callable[[], bool]]:
    yield looking(url, LIVE)


POSTGRES = Ground(
    store="postgres",
    title="PostgreSQL",
    ours=on_postgres.OURS,
    rival=on_postgres.PGQUEUER,
    peers=on_postgres.PLAIN,
    filled=on_postgres.database,
    apart=_postgres_apart,
    looking=_looking_at_postgres,
    record=record_on_postgres,
    kept=_kept_on_postgres,
    make_ready=postgres_history.make_ready,
    cpu_seconds=lambda lab: lab.servers.postgres.spent().cpu_seconds,
)
REDIS = Ground(
    store="redis",
    title="Redis",
    ours=on_redis.OURS,
    rival=on_redis.NODE,
    peers=on_redis.PEERS,
    filled=on_redis.filled,
    apart=_redis_apart,
    looking=_looking_at_redis,
    record=record_on_redis,
    kept=_kept_on_redis,
    make_ready=lambda _: None,
    cpu_seconds=lambda lab: lab.servers.redis.cpu_seconds(),
)
GROUNDS = (POSTGRES, REDIS)


def grounds(lab: Lab) -> list[Ground]:
    """Those that were asked for."""
    return [ground for ground in GROUNDS if ground.store in lab.stores]
