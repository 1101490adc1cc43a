"""The peer on Redis and Python: BullMQ's official port, the package `bullmq`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from bench import callers as drivers
from bench.child import ready
from bench.figures import Ran
from bench.holding import forever, tell
from bench.loop import on_uvloop
from bench.peers import apart
from bench.peers.about import About
from bench.pickups import Pickups, Starts, one_after_the_other
from bench.redis.draining import QUEUE, draining

ABOUT = About(
    name="bullmq, Python",
    package="bullmq",
    settings="a Worker with concurrency as there are slots and other defaults, on uvloop, redis-py with hiredis; "
    "enqueues by add and addBulk; every job is kept",
    guarantee="kept: another worker takes them up within 60 s after the end of their lock of 30 s",
    tried="it was run again after 74 s",
    docs="https://docs.bullmq.io/guide/workers/concurrency",
)

AT_ONCE = 1_000
#: It does not say when its worker sleeps.
SLEEPS_AFTER_S = 1.0


def missing() -> str | None:
    """Why it cannot be measured."""
    return apart.missing("bullmq")


@on_uvloop
async def fill(url: str, jobs: int) -> None:
    """So many waiting jobs."""
    async with _queue(url) as queue:
        for first in range(0, jobs, AT_ONCE):
            await queue.addBulk(_many(min(AT_ONCE, jobs - first)))


def _many(size: int) -> list[dict[str, Any]]:
    return [{"name": "noop", "data": {}} for _ in range(size)]


@asynccontextmanager
async def _queue(url: str) -> AsyncIterator[Any]:
    apart.use("bullmq")
    from bullmq import Queue

    queue = Queue(QUEUE, {"connection": url})
    try:
        await queue.isPaused()  # so that it is connected
        yield queue
    finally:
        await queue.close()


@asynccontextmanager
async def _worker(
    url: str, handler: Callable[[Any, str], Coroutine[Any, Any, None]], slots: int
) -> AsyncIterator[None]:
    apart.use("bullmq")
    from bullmq import Worker

    worker = Worker(QUEUE, handler, {"connection": url, "concurrency": slots})
    try:
        yield
    finally:
        await worker.close()


@on_uvloop
async def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many no-op jobs, at most so many at a time."""
    async with draining(url, jobs) as clock:

        async def noop(job: Any, token: str) -> None:
            clock.run()

        async with _worker(url, noop, slots):
            return await clock.settled()


@on_uvloop
async def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    async with _queue(url) as queue:
        return await drivers.one_by_one(lambda: queue.add("noop", {}), callers, jobs, seconds)


@on_uvloop
async def bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    """One caller hands so many jobs in with each call."""
    async with _queue(url) as queue:
        return await drivers.bulk(lambda: queue.addBulk(_many(size)), size, jobs, seconds)


@on_uvloop
async def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    starts = Starts(jobs)

    async def pick(job: Any, token: str) -> None:
        starts.start(job.data["number"])

    async with _worker(url, pick, slots):
        await asyncio.sleep(SLEEPS_AFTER_S)
        ready()
        await starts.wait(seconds)
    return starts.at


@on_uvloop
async def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    async with _queue(url) as queue:
        return await one_after_the_other(lambda number: queue.add("pick", {"number": number}), jobs, seed)


@on_uvloop
async def hold(url: str) -> None:
    """One job for `work`."""
    async with _queue(url) as queue:
        await queue.add("hold", {})


@on_uvloop
async def work(url: str, slots: int, path: str) -> None:
    """A worker until it is killed."""

    async def held(job: Any, token: str) -> None:
        tell(path)
        await forever()

    async with _worker(url, held, slots):
        ready()
        await forever()
