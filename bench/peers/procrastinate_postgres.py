"""The peer on PostgreSQL and psycopg: Procrastinate, with as many concurrent jobs as there are slots."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench import callers as drivers
from bench.child import ready
from bench.figures import Ran
from bench.holding import forever, held
from bench.loop import on_asyncio
from bench.peers.about import About, not_installed
from bench.pickups import Pickups, Starts, one_after_the_other
from bench.postgres.draining import draining

ABOUT = About(
    name="procrastinate",
    package="procrastinate",
    settings="PsycopgConnector with its default pool of 4 (10, 20 and 100 were not faster), concurrency as there are "
    "slots, asyncio's own event loop (as `procrastinate worker`), other defaults: what is done is kept",
    guarantee="lost, unless a periodic task of yours retries what has stalled: until then it stays `doing`",
    tried="the job of a killed worker was not started again within 100 s",
    docs="https://procrastinate.readthedocs.io/",
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


@on_asyncio
async def fill(url: str, jobs: int) -> None:
    """Its tables and so many waiting jobs."""
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


@on_asyncio
async def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many no-op jobs."""
    async with draining(url, LEFT, jobs) as clock, _app(url) as app:

        async def noop() -> None:
            clock.run()

        app.task(name="noop")(noop)
        async with _working(app, slots):
            return await clock.settled()


@on_asyncio
async def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    async with _app(url) as app:
        noop = app.task(name="noop")(_nothing)
        return await drivers.one_by_one(noop.defer_async, callers, jobs, seconds)


@on_asyncio
async def bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    """One caller hands so many jobs in with each call."""
    async with _app(url) as app:
        noop = app.task(name="noop")(_nothing)
        return await drivers.bulk(lambda: noop.batch_defer_async(*[{}] * size), size, jobs, seconds)


@on_asyncio
async def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
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


@on_asyncio
async def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    async with _app(url) as app:
        pick = app.task(name="pick")(_nothing)
        return await one_after_the_other(lambda number: pick.defer_async(number=number), jobs, seed)


@on_asyncio
async def hold(url: str) -> None:
    """One job for `work`."""
    async with _app(url) as app:
        await app.task(name="hold")(_nothing).defer_async()


@on_asyncio
async def work(url: str, slots: int, path: str) -> None:
    """A worker until it is killed."""

    async def hold_it() -> None:
        await held(path)

    async with _app(url) as app:
        app.task(name="hold")(hold_it)
        async with _working(app, slots):
            ready()
            await forever()
