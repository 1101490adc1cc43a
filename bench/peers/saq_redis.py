"""The peer on Redis and asyncio with one call for each step of a job: SAQ's RedisQueue."""

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
from bench.redis.draining import draining

ABOUT = About(
    name="saq",
    package="saq",
    settings="RedisQueue.from_url with hiredis, a Worker with concurrency as there are slots, on uvloop, other "
    "defaults: at most 20 enqueues at a time, what is done is kept for 10 minutes; it has no bulk call",
    guarantee="lost: a job has one attempt where nothing is said, so that the next sweep (once a minute, of what has "
    "run for more than 10 s) aborts it; with `retries` it is enqueued again",
    tried="nobody ran it within 460 s, and it was no longer among the incomplete jobs",
    docs="https://github.com/tobymao/saq",
)

QUEUE = "default"
AT_ONCE = 200
LIVE = (("zcard", f"saq:{QUEUE}:incomplete"), ("llen", f"saq:{QUEUE}:active"))
#: It does not say when its worker waits.
WAITS_AFTER_S = 1.0

Handler = Callable[..., Coroutine[Any, Any, None]]


def missing() -> str | None:
    """Why it cannot be measured."""
    return apart.missing("saq")


@asynccontextmanager
async def _queue(url: str) -> AsyncIterator[Any]:
    apart.use("saq")
    from saq import Queue

    queue = Queue.from_url(url, name=QUEUE)
    await queue.connect()
    try:
        yield queue
    finally:
        await queue.disconnect()


@asynccontextmanager
async def _working(url: str, name: str, handler: Handler, slots: int) -> AsyncIterator[None]:
    apart.use("saq")
    from saq import Worker

    async with _queue(url) as queue:
        worker: Any = Worker(queue, [(name, handler)], concurrency=slots)
        running = asyncio.create_task(worker.start())
        try:
            yield
        finally:
            await worker.stop()
            await running


@on_uvloop
async def fill(url: str, jobs: int) -> None:
    """So many waiting jobs."""
    async with _queue(url) as queue:
        for first in range(0, jobs, AT_ONCE):
            await asyncio.gather(*(queue.enqueue("noop") for _ in range(min(AT_ONCE, jobs - first))))


@on_uvloop
async def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many no-op jobs."""
    apart.use("saq")  # before the clock imports redis
    async with draining(url, jobs, LIVE) as clock:

        async def noop(_: Any) -> None:
            clock.run()

        async with _working(url, "noop", noop, slots):
            return await clock.settled()


@on_uvloop
async def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    async with _queue(url) as queue:
        return await drivers.one_by_one(lambda: queue.enqueue("noop"), callers, jobs, seconds)


@on_uvloop
async def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    starts = Starts(jobs)

    async def pick(_: Any, *, number: int) -> None:
        starts.start(number)

    async with _working(url, "pick", pick, slots):
        await asyncio.sleep(WAITS_AFTER_S)
        ready()
        await starts.wait(seconds)
    return starts.at


@on_uvloop
async def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    async with _queue(url) as queue:
        return await one_after_the_other(lambda number: queue.enqueue("pick", number=number), jobs, seed)


@on_uvloop
async def hold(url: str) -> None:
    """One job for `work`."""
    async with _queue(url) as queue:
        await queue.enqueue("hold")


@on_uvloop
async def work(url: str, slots: int, path: str) -> None:
    """A worker until it is killed."""

    async def held(_: Any) -> None:
        tell(path)
        await forever()

    async with _working(url, "hold", held, slots):
        ready()
        await forever()
