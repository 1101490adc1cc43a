"""The peer on Redis and asyncio with a stream: taskiq, and taskiq-redis' RedisStreamBroker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from bench import callers as drivers
from bench.child import ready
from bench.figures import Ran
from bench.holding import forever, tell
from bench.loop import on_uvloop
from bench.peers.about import About, not_installed
from bench.pickups import Pickups, Starts, one_after_the_other
from bench.redis.draining import draining

ABOUT = About(
    name="taskiq",
    package="taskiq",
    settings="RedisStreamBroker, which acknowledges and is the example of its page, without a result backend, "
    "a receiver with max_async_tasks as there are slots, on uvloop (as `taskiq worker` takes it), one process, other "
    "defaults; it has no bulk call, and what is done stays in the stream",
    guarantee="repeated: what is not acknowledged after 10 min is taken over when the next job comes",
    tried="nobody ran it within 626 s; then another job came, and it was run again within 2 s",
    docs="https://github.com/taskiq-python/taskiq-redis",
)

LIVE = (("xpending", "taskiq", "taskiq"),)
AT_ONCE = 200
#: It does not say when its worker listens.
LISTENS_AFTER_S = 1.0
#: Told to stop while it looks for what others left, it may go on; the end of its connections ends it then.
STOPS_WITHIN_S = 2.0

Handler = Callable[..., Coroutine[Any, Any, None]]


def missing() -> str | None:
    """Why it cannot be measured."""
    return not_installed("taskiq_redis")


@asynccontextmanager
async def _broker(url: str) -> AsyncIterator[Any]:
    from taskiq_redis import RedisStreamBroker

    logging.getLogger("taskiq").setLevel(logging.ERROR)
    broker = RedisStreamBroker(url)
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


@asynccontextmanager
async def _working(url: str, name: str, handler: Handler, slots: int) -> AsyncIterator[None]:
    """As `taskiq worker` runs a receiver, and stops it."""
    from taskiq.receiver import Receiver

    async with _broker(url) as broker:
        broker.task(task_name=name)(handler)
        broker.is_worker_process = True
        stop = asyncio.Event()
        receiver = Receiver(broker, max_async_tasks=slots, run_startup=False)
        running = asyncio.create_task(receiver.listen(stop))
        try:
            yield
        finally:
            stop.set()
            await asyncio.wait([running], timeout=STOPS_WITHIN_S)


async def _nothing(number: int = 0) -> None:
    """What a client needs not know of the handler."""


@on_uvloop
async def fill(url: str, jobs: int) -> None:
    """So many waiting tasks."""
    async with _broker(url) as broker:
        noop = broker.task(task_name="noop")(_nothing)
        for first in range(0, jobs, AT_ONCE):
            await asyncio.gather(*(noop.kiq() for _ in range(min(AT_ONCE, jobs - first))))


@on_uvloop
async def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many no-op tasks."""
    async with draining(url, jobs, LIVE) as clock:

        async def noop() -> None:
            clock.run()

        async with _working(url, "noop", noop, slots):
            return await clock.settled()


@on_uvloop
async def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one task, awaits the answer, and enqueues the next."""
    async with _broker(url) as broker:
        noop = broker.task(task_name="noop")(_nothing)
        return await drivers.one_by_one(noop.kiq, callers, jobs, seconds)


@on_uvloop
async def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each task."""
    starts = Starts(jobs)

    async def pick(number: int) -> None:
        starts.start(number)

    async with _working(url, "pick", pick, slots):
        await asyncio.sleep(LISTENS_AFTER_S)
        ready()
        await starts.wait(seconds)
    return starts.at


@on_uvloop
async def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    async with _broker(url) as broker:
        return await one_after_the_other(broker.task(task_name="pick")(_nothing).kiq, jobs, seed)


@on_uvloop
async def hold(url: str) -> None:
    """One task for `work`."""
    async with _broker(url) as broker:
        await broker.task(task_name="hold")(_nothing).kiq()


@on_uvloop
async def work(url: str, slots: int, path: str) -> None:
    """A worker until it is killed."""

    async def held() -> None:
        tell(path)
        await forever()

    async with _working(url, "hold", held, slots):
        ready()
        await forever()
