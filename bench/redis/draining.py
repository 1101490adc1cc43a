"""In the child: the clock of a drain on Redis, where two lengths tell whether any job is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from bench.draining import Draining

QUEUE = "default"
#: Of everybody: the peers have these names, and we share them.
LIVE = (f"bull:{QUEUE}:wait", f"bull:{QUEUE}:active")


@asynccontextmanager
async def draining(url: str, jobs: int) -> AsyncIterator[Draining]:
    """The clock of so many jobs."""
    connection = Redis.from_url(url)

    async def is_left() -> bool:
        async with connection.pipeline(transaction=True) as both:
            for key in LIVE:
                both.llen(key)
            return any(await both.execute())

    try:
        await is_left()
        yield Draining(is_left, jobs)
    finally:
        await connection.aclose()
