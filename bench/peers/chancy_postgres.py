"""The peer on PostgreSQL and psycopg with jobs by the names of importable functions: Chancy, in one process."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
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
    name="chancy",
    package="chancy",
    settings="a queue with the AsyncExecutor, concurrency as there are slots and eager_polling, its default pool of 1 "
    "to 10, asyncio's own event loop (as `chancy worker`), logging at WARNING, other defaults: what is done is written "
    "once a second, and kept for a day",
    guarantee="kept: every minute another worker puts back what one has that was without a heartbeat for 90 s",
    tried="the job of a killed worker was started again after 121 s",
    docs="https://tkte.ch/chancy/",
)

QUEUE = "bench"
LEFT = "select exists (select from chancy_jobs where state in ('pending', 'running', 'retrying'))"

Handler = Callable[..., Awaitable[None] | None]
#: The one of this process: a job names a function that can be imported.
_handlers: list[Handler] = []


async def handle(**given: Any) -> None:
    """The job."""
    done = _handlers[-1](**given)
    if done is not None:
        await done


def missing() -> str | None:
    """Why it cannot be measured."""
    return not_installed("chancy")


@asynccontextmanager
async def _chancy(url: str) -> AsyncIterator[Any]:
    from chancy import Chancy

    log = logging.getLogger("chancy")
    log.setLevel(logging.WARNING)
    async with Chancy(url, log=log) as chancy:
        yield chancy


@asynccontextmanager
async def _working(url: str, handler: Handler, slots: int) -> AsyncIterator[None]:
    from chancy import Queue, Worker

    _handlers.append(handler)
    async with _chancy(url) as chancy:
        queue = Queue(QUEUE, concurrency=slots, executor=chancy.Executor.Async, eager_polling=True)
        await chancy.declare(queue, upsert=True)
        async with Worker(chancy, register_signal_handlers=False):
            yield


def _job(**given: Any) -> Any:
    from chancy import Job

    return Job(func=f"{__name__}.handle", queue=QUEUE, kwargs=given)


async def _push_many(chancy: Any, size: int) -> None:
    async for _ in chancy.push_many([_job()] * size):
        pass


@on_asyncio
async def fill(url: str, jobs: int) -> None:
    """Its tables and so many waiting jobs."""
    async with _chancy(url) as chancy:
        await chancy.migrate()
        await _push_many(chancy, jobs)


@on_asyncio
async def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many no-op jobs."""
    async with draining(url, LEFT, jobs) as clock, _working(url, clock.run, slots):
        return await clock.settled()


@on_asyncio
async def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    async with _chancy(url) as chancy:
        return await drivers.one_by_one(lambda: chancy.push(_job()), callers, jobs, seconds)


@on_asyncio
async def bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    """One caller hands so many jobs in with each call."""
    async with _chancy(url) as chancy:
        return await drivers.bulk(lambda: _push_many(chancy, size), size, jobs, seconds)


@on_asyncio
async def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    starts = Starts(jobs)
    async with _working(url, starts.start, slots):
        ready()
        await starts.wait(seconds)
    return starts.at


@on_asyncio
async def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    async with _chancy(url) as chancy:
        return await one_after_the_other(lambda number: chancy.push(_job(number=number)), jobs, seed)


@on_asyncio
async def hold(url: str) -> None:
    """One job for `work`."""
    async with _chancy(url) as chancy:
        await chancy.push(_job())


@on_asyncio
async def work(url: str, slots: int, path: str) -> None:
    """A worker until it is killed."""
    async with _working(url, lambda: held(path), slots):
        ready()
        await forever()
