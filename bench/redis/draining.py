"""In the child: the clock of a drain on Redis, where the lengths of some keys tell whether any job is left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from bench.draining import Draining

QUEUE = "default"
#: Of BullMQ, and of us, who share its names.
LIVE = (("llen", f"bull:{QUEUE}:wait"), ("llen", f"bull:{QUEUE}:active"))

#: Commands that tell a length, or what is pending of a stream.
Lengths = Sequence[tuple[str, ...]]


@asynccontextmanager
async def draining(url: str, jobs: int, live: Lengths = LIVE) -> AsyncIterator[Draining]:
    """The clock of so many jobs; none is live when all these lengths are 0."""
    from redis.asyncio import Redis  # here, because a peer may bring its own version

    connection = Redis.from_url(url)

    async def is_left() -> bool:
        async with connection.pipeline(transaction=True) as all_lengths:
            for command in live:
                all_lengths.execute_command(*command)
            return any(map(_length, await all_lengths.execute()))

    try:
        await is_left()
        yield Draining(is_left, jobs)
    finally:
        await connection.aclose()


def looking(url: str, live: Lengths) -> Callable[[], bool]:
    """The same question, for peers whose handlers are threads."""
    from redis import Redis

    connection: Any = Redis.from_url(url)

    def is_left() -> bool:
        pipeline = connection.pipeline(transaction=True)
        for command in live:
            pipeline.execute_command(*command)
        return any(map(_length, pipeline.execute()))

    return is_left


def _length(answer: Any) -> int:
    return int(answer["pending"] if isinstance(answer, dict) else answer)
