"""The peer on PostgreSQL and psycopg: Procrastinate, with as many concurrent jobs as there are slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench import callers as drivers
from bench.child import ready
from bench.figures import Ran
from bench.peers.about import About, not_installed
from bench.pickups import Pickups, Starts, one_after_the_other
from bench.postgres.draining import draining

ABOUT = About(
    name="procrastinate",
    package="procrastinate",
    settings="PsycopgConnector with its default pool of 4 (10, 20 and 100 were not faster), concurrency as there are "
    "slots, asyncio's own event loop (as `procrastinate worker`), other defaults: what is done is kept",
    guarantee="kept, but as `doing` until a periodic task of yours retries what has stalled",
)

LEFT = "select exists (select from procrastinate_jobs where status in ('todo', 'doing'))"
AT_ONCE = 10_000
#: It does not say when its worker listens; one that does not yet would look up only after 5 s.
LISTENS_AFTER_S = 1.0


def missing() -> str | None:
    """Why it cannot be measured."""
    if said := not_installed("procrastinate"):
        return said
    try:
        import psycopg  # noqa: F401
    except ImportError as error:
        return f"psycopg does not load ({str(error).splitlines()[0]}); install psycopg[binary]"
    return None


@asynccontextmanager
async def _app(url: str) -> AsyncIterator[Any]:
    from procrastinate import App, PsycopgConnector

    app = App(connector=PsycopgConnector(conninfo=url))
    async with app.open_async():
        yield app


async def _nothing() -> None:
    """What a client needs not know of the handler."""


def fill(url: str, jobs: int) -> None:
    """Its tables and so many waiting jobs."""
    asyncio.run(_fill(url, jobs))


async def _fill(url: str, jobs: int) -> None:
    async with _app(url) as app:
        await app.schema_manager.apply_schema_async()
        noop = app.task(name="noop")(_nothing)
        for first in range(0, jobs, AT_ONCE):
            await noop.batch_defer_async(*[{}] * min(AT_ONCE, jobs - first))


@asynccontextmanager
async def _working(app: Any, slots: int) -> AsyncIterator[None]:
    running = asyncio.create_task(app.run_worker_async(concurrency=slots, install_signal_handlers=False))
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running])


def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many no-op jobs."""
    return asyncio.run(_drain(url, jobs, slots))


async def _drain(url: str, jobs: int, slots: int) -> Ran:
    async with draining(url, LEFT, jobs) as clock, _app(url) as app:

        async def noop() -> None:
            clock.run()

        app.task(name="noop")(noop)
        async with _working(app, slots):
            return await clock.settled()


def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    return asyncio.run(_enqueue(url, callers, jobs, seconds))


async def _enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    async with _app(url) as app:
        noop = app.task(name="noop")(_nothing)
        return await drivers.one_by_one(noop.defer_async, callers, jobs, seconds)


def bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    """One caller hands so many jobs in with each call."""
    return asyncio.run(_bulk(url, size, jobs, seconds))


async def _bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    async with _app(url) as app:
        noop = app.task(name="noop")(_nothing)
        return await drivers.bulk(lambda: noop.batch_defer_async(*[{}] * size), size, jobs, seconds)


def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    return asyncio.run(_pickup_work(url, jobs, seconds, slots))


async def _pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    starts = Starts(jobs)

    async def pick(number: int) -> None:
        starts.start(number)

    async with _app(url) as app:
        app.task(name="pick")(pick)
        async with _working(app, slots):
            await asyncio.sleep(LISTENS_AFTER_S)
            ready()
            await starts.wait(seconds)
    return starts.at


def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    return asyncio.run(_pickup_enqueue(url, jobs, seed))


async def _pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    async with _app(url) as app:
        pick = app.task(name="pick")(_nothing)
        return await one_after_the_other(lambda number: pick.defer_async(number=number), jobs, seed)
