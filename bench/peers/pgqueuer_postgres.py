"""The peer on PostgreSQL and asyncpg: PgQueuer, as its page on performance tuning sets it up for one process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from bench import callers as drivers
from bench.child import ready
from bench.figures import Ran
from bench.holding import forever, held
from bench.loop import on_uvloop, run
from bench.peers.about import About, not_installed
from bench.pickups import Pickups, Starts, one_after_the_other
from bench.postgres.draining import draining

ABOUT = About(
    name="pgqueuer",
    package="pgqueuer",
    settings="durability `durable` and `pgq autovac` (the former is the default), a worker on one asyncpg connection "
    "and uvloop (as `pgq run`): max_concurrent_tasks as there are slots and half of that as batch_size (it must be "
    "twice the batch), batch_size=100 without a limit beside it (the better one counts), batch_size=1 for 1 slot; "
    "enqueues on one connection, from 50 callers on a pool of 20; what is done is deleted and logged in a table",
    guarantee="kept: another worker picks them up when their heartbeat is 30 s old",
    docs="https://janbjorge.github.io/pgqueuer/",
)

LEFT = "select exists (select from pgqueuer)"
AT_ONCE = 10_000
#: The docs' own example of a pool for producers.
POOL = (5, 20)
#: It does not say when its worker listens; one that does not yet would look up only after 30 s.
LISTENS_AFTER_S = 1.0


def missing() -> str | None:
    """Why it cannot be measured."""
    return not_installed("pgqueuer")


@on_uvloop
async def fill(url: str, jobs: int) -> None:
    """Its tables, tuned by `pgq autovac`, and so many waiting jobs."""
    async with _queries(url) as queries:
        await queries.install()
        await queries.optimize_autovacuum()
        for first in range(0, jobs, AT_ONCE):
            await _enqueue_many(queries, min(AT_ONCE, jobs - first))


@asynccontextmanager
async def _queries(url: str, pool: tuple[int, int] | None = None) -> AsyncIterator[Any]:
    import asyncpg
    from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
    from pgqueuer.queries import Queries

    if pool is None:
        connection = await asyncpg.connect(url)
        try:
            yield Queries(AsyncpgDriver(connection))
        finally:
            await connection.close()
    else:
        async with asyncpg.create_pool(url, min_size=pool[0], max_size=pool[1]) as connections:
            yield Queries(AsyncpgPoolDriver(connections))


async def _enqueue_many(queries: Any, size: int) -> None:
    await queries.enqueue(["noop"] * size, [b"{}"] * size, [0] * size)


@asynccontextmanager
async def _worker(
    url: str, name: str, handler: Callable[[Any], Coroutine[Any, Any, None]], batch: int, most: int | None
) -> AsyncIterator[None]:
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgDriver

    connection = await asyncpg.connect(url)
    queuer = PgQueuer(AsyncpgDriver(connection))
    queuer.entrypoint(name)(handler)
    running = asyncio.create_task(queuer.run(batch_size=batch, max_concurrent_tasks=most))
    try:
        yield
    finally:
        queuer.shutdown.set()
        await running
        await connection.close()


def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many no-op jobs."""
    return run(_drain(url, jobs, *_batch_and_most(slots)))


def drain_without_limit(url: str, jobs: int, batch: int) -> Ran:
    """One worker runs so many no-op jobs; it fetches as many as the batch whatever runs already."""
    return run(_drain(url, jobs, batch, None))


def _batch_and_most(slots: int) -> tuple[int, int | None]:
    return (1, None) if slots == 1 else (slots // 2, slots)


async def _drain(url: str, jobs: int, batch: int, most: int | None) -> Ran:
    async with draining(url, LEFT, jobs) as clock:

        async def noop(job: Any) -> None:
            clock.run()

        async with _worker(url, "noop", noop, batch, most):
            return await clock.settled()


@on_uvloop
async def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    async with _queries(url, POOL if callers > 1 else None) as queries:
        return await drivers.one_by_one(lambda: queries.enqueue("noop", b"{}"), callers, jobs, seconds)


@on_uvloop
async def bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    """One caller hands so many jobs in with each call."""
    async with _queries(url) as queries:
        return await drivers.bulk(lambda: _enqueue_many(queries, size), size, jobs, seconds)


@on_uvloop
async def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    starts = Starts(jobs)

    async def pick(job: Any) -> None:
        starts.start(int(job.payload))

    async with _worker(url, "pick", pick, *_batch_and_most(slots)):
        await asyncio.sleep(LISTENS_AFTER_S)
        ready()
        await starts.wait(seconds)
    return starts.at


@on_uvloop
async def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    async with _queries(url) as queries:
        return await one_after_the_other(lambda number: queries.enqueue("pick", str(number).encode()), jobs, seed)


@on_uvloop
async def hold(url: str) -> None:
    """One job for `work`."""
    async with _queries(url) as queries:
        await queries.enqueue("hold", b"{}")


@on_uvloop
async def work(url: str, slots: int, path: str) -> None:
    """A worker until it is killed."""

    async def hold_it(_: Any) -> None:
        await held(path)

    async with _worker(url, "hold", hold_it, *_batch_and_most(slots)):
        ready()
        await forever()
