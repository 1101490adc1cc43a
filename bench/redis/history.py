"""A long history on Redis: copies of a job of ours that has really run."""

from __future__ import annotations

from typing import Any

from redis import Redis

from bench.redis.draining import QUEUE

AT_ONCE = 5_000
COMPLETED = f"bull:{QUEUE}:completed"


def multiply(url: str, jobs: int) -> None:
    """So many more finished jobs like the one that is there, each finished a little earlier."""
    connection: Any = Redis.from_url(url, decode_responses=True)
    [(id, finished)] = connection.zrange(COMPLETED, 0, 0, withscores=True)
    for first in range(0, jobs, AT_ONCE):
        pipeline = connection.pipeline(transaction=False)
        ids = {f"01000000-0000-7000-8000-{number:012x}": number for number in range(first, min(jobs, first + AT_ONCE))}
        for copy in ids:
            pipeline.copy(f"bull:{QUEUE}:{id}", f"bull:{QUEUE}:{copy}")
        pipeline.zadd(COMPLETED, {copy: finished - 1 - number for copy, number in ids.items()})
        pipeline.execute()
    connection.close()
