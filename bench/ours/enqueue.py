"""Enqueueing: by any number of concurrent callers, or many in a call."""

from __future__ import annotations

import asyncio

from bench.figures import Ran
from bench.ours.noop import noops
from bench.stopwatch import Stopwatch


def one_by_one(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    return asyncio.run(_one_by_one(url, callers, jobs, seconds))


async def _one_by_one(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    async with noops(url) as ours:
        begun = 0
        watch = Stopwatch()

        async def call() -> None:
            nonlocal begun
            while begun < jobs and watch.seconds < seconds:
                begun += 1
                await ours.noop.enqueue()

        await asyncio.gather(*(call() for _ in range(callers)))
        return watch.ran(begun)


def bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    """One caller hands so many jobs in with each call."""
    return asyncio.run(_bulk(url, size, jobs, seconds))


async def _bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    async with noops(url) as ours:
        done = 0
        watch = Stopwatch()
        while done < jobs and watch.seconds < seconds:
            done += len(await ours.client.enqueue_many([ours.noop.job() for _ in range(size)]))
        return watch.ran(done)
