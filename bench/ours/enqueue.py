"""Enqueueing: by any number of concurrent callers, or many in a call."""

from __future__ import annotations

import asyncio

from bench import callers as drivers
from bench.figures import Ran
from bench.ours.noop import noops


def one_by_one(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    return asyncio.run(singly(url, callers, jobs, seconds))


async def singly(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """The same, on a loop that runs."""
    async with noops(url) as ours:
        return await drivers.one_by_one(ours.noop.enqueue, callers, jobs, seconds)


def bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    """One caller hands so many jobs in with each call."""
    return asyncio.run(in_bulk(url, size, jobs, seconds))


async def in_bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    """The same, on a loop that runs."""
    async with noops(url) as ours:
        return await drivers.bulk(
            lambda: ours.client.enqueue_many([ours.noop.draft() for _ in range(size)]), size, jobs, seconds
        )
