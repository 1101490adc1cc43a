"""The peer on Redis and asyncio that polls: arq."""

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
from bench.peers import apart
from bench.peers.about import About
from bench.pickups import Pickups, Starts, one_after_the_other
from bench.redis.draining import draining

ABOUT = About(
    name="arq",
    package="arq",
    settings="a Worker with max_jobs as there are slots, for drains with poll_delay=0 (else it would look for jobs "
    "twice a second only, as it does for pickups), on uvloop, hiredis, logging at WARNING, other defaults: results are "
    "kept for an hour; it has no bulk call",
    guarantee="kept: another worker takes them up when the mark that they run has expired, 10 s after their timeout of "
    "300 s",
    tried="it was run again after 307 s",
    docs="https://arq-docs.helpmanual.io",
)

AT_ONCE = 200
LIVE = (("zcard", "arq:queue"),)
#: It does not say when its worker polls.
POLLS_AFTER_S = 1.0

Handler = Callable[..., Coroutine[Any, Any, None]]


def missing() -> str | None:
    """Why it cannot be measured."""
    return apart.missing("arq")


@asynccontextmanager
async def _pool(url: str) -> AsyncIterator[Any]:
    apart.use("arq")
    from arq import create_pool
    from arq.connections import RedisSettings

    pool = await create_pool(RedisSettings.from_dsn(url))
    try:
        yield pool
    finally:
        await pool.aclose()


@asynccontextmanager
async def _working(url: str, name: str, handler: Handler, slots: int, **settings: Any) -> AsyncIterator[None]:
    apart.use("arq")
    from arq import Worker, func
    from arq.connections import RedisSettings

    logging.getLogger("arq").setLevel(logging.WARNING)
    functions = [func(handler, name=name)]
    given = {"redis_settings": RedisSettings.from_dsn(url), "handle_signals": False, **settings}
    worker: Any = Worker(functions, max_jobs=slots, **given)
    running = asyncio.create_task(worker.main())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.wait([running, *worker.tasks.values()])
        await worker.pool.aclose()


@on_uvloop
async def fill(url: str, jobs: int) -> None:
    """So many waiting jobs."""
    async with _pool(url) as pool:
        for first in range(0, jobs, AT_ONCE):
            await asyncio.gather(*(pool.enqueue_job("noop") for _ in range(min(AT_ONCE, jobs - first))))


@on_uvloop
async def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many no-op jobs."""
    apart.use("arq")  # before the clock imports redis
    async with draining(url, jobs, LIVE) as clock:

        async def noop(_: Any) -> None:
            clock.run()

        async with _working(url, "noop", noop, slots, poll_delay=0):
            return await clock.settled()


@on_uvloop
async def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    async with _pool(url) as pool:
        return await drivers.one_by_one(lambda: pool.enqueue_job("noop"), callers, jobs, seconds)


@on_uvloop
async def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    starts = Starts(jobs)

    async def pick(_: Any, number: int) -> None:
        starts.start(number)

    async with _working(url, "pick", pick, slots):
        await asyncio.sleep(POLLS_AFTER_S)
        ready()
        await starts.wait(seconds)
    return starts.at


@on_uvloop
async def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    async with _pool(url) as pool:
        return await one_after_the_other(lambda number: pool.enqueue_job("pick", number), jobs, seed)


@on_uvloop
async def hold(url: str) -> None:
    """One job for `work`."""
    async with _pool(url) as pool:
        await pool.enqueue_job("hold")


@on_uvloop
async def work(url: str, slots: int, path: str) -> None:
    """A worker until it is killed."""

    async def held(_: Any) -> None:
        tell(path)
        await forever()

    async with _working(url, "hold", held, slots):
        ready()
        await forever()
