"""BullMQ's official Python port, on Redis."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.queues import About, AsyncQueue, Handler

QUEUE = "default"


class BullMQ(AsyncQueue):
    """A queue and a worker."""

    about = About(
        name="bullmq, Python",
        settings="a Worker whose concurrency is the number of slots, other defaults, on uvloop, redis-py with hiredis; "
        "enqueues by add and addBulk; every job is kept",
        guarantee="kept: another worker takes them up within 60 s after the end of their lock of 30 s",
        tried="it was run again after 74 s",
        docs="https://docs.bullmq.io/guide/workers/concurrency",
    )
    apart = "bullmq"
    left = (("llen", f"bull:{QUEUE}:wait"), ("llen", f"bull:{QUEUE}:active"))
    ready_after_s = 1.0
    rate = (1_950, 2_300)

    @asynccontextmanager
    async def connected(self, callers: int = 1) -> AsyncIterator[None]:
        from bullmq import Queue

        self._queue: Any = Queue(QUEUE, {"connection": self.url})
        try:
            await self._queue.isPaused()  # opens the connection
            yield
        finally:
            await self._queue.close()

    async def enqueue(self, number: int = 0) -> None:
        await self._queue.add("job", {"number": number})

    async def enqueue_many(self, size: int) -> None:
        await self._queue.addBulk([{"name": "job", "data": {}} for _ in range(size)])

    @asynccontextmanager
    async def working(self, handler: Handler, slots: int) -> AsyncIterator[None]:
        """It starts by itself."""
        from bullmq import Worker

        async def job(given: Any, token: str) -> None:
            if (done := handler(given.data.get("number", 0))) is not None:
                await done

        worker = Worker(QUEUE, job, {"connection": self.url, "concurrency": slots})
        try:
            yield
        finally:
            await worker.close()
