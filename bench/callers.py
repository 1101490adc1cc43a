"""Callers that enqueue: each awaits its answer before it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from bench.figures import Ran
from bench.stopwatch import metering


async def one_by_one(enqueue: Callable[[], Awaitable[object]], callers: int, jobs: int, seconds: float) -> Ran:
    """So many callers enqueue one job a call, until all jobs are enqueued or the time is over."""
    begun = 0
    with metering() as watch:

        async def call() -> None:
            nonlocal begun
            while begun < jobs and watch.seconds < seconds:
                begun += 1
                await enqueue()

        await asyncio.gather(*(call() for _ in range(callers)))
        return watch.ran(begun)


async def bulk(enqueue: Callable[[], Awaitable[object]], size: int, jobs: int, seconds: float) -> Ran:
    """One caller enqueues so many jobs with each call."""
    done = 0
    with metering() as watch:
        while done < jobs and watch.seconds < seconds:
            await enqueue()
            done += size
        return watch.ran(done)
