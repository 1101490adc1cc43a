"""SAQ on PostgreSQL and on Redis."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.queues import About, AsyncQueue, Handler, running

STOPS_WITHIN_S = 2.0


class Saq(AsyncQueue):
    """What both have in common."""

    apart = "saq"
    has_bulk = False
    fill_size = 200
    ready_after_s = 1.0

    def queue(self) -> Any:
        """Its queue on the store."""
        raise NotImplementedError

    @asynccontextmanager
    async def connected(self, callers: int = 1) -> AsyncIterator[None]:
        """Its queue makes its own connections."""
        self._queue = self.queue()
        await self._queue.connect()
        try:
            yield
        finally:
            await self._queue.disconnect()

    async def enqueue(self, number: int = 0) -> None:
        await self._queue.enqueue("job", number=number)

    @asynccontextmanager
    async def working(self, handler: Handler, slots: int) -> AsyncIterator[None]:
        """Stopped twice if need be: a task of it that waits for a connection heeds the second cancellation only."""
        from saq import Worker

        async def job(_: Any, *, number: int = 0) -> None:
            if (done := handler(number)) is not None:
                await done

        async with self.connected():
            worker: Any = Worker(self._queue, [("job", job)], concurrency=slots)

            async def stop(task: Any) -> None:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(worker.stop(), STOPS_WITHIN_S)
                await task

            async with running(worker.start(), stop):
                yield


class OnPostgres(Saq):
    """PostgresQueue: one call for each step of a job."""

    about = About(
        name="saq",
        settings="PostgresQueue.from_url with its default pool of 4 to 20, a Worker whose concurrency is the number of "
        "slots, asyncio's own event loop (as `saq`), other defaults: finished jobs are kept for 10 minutes; it has no "
        "bulk call",
        guarantee="lost: a job has one attempt by default, and the sweep of another worker (every 60 s, of jobs that "
        "started 10 s ago) aborts it",
        tried="the job of a killed worker was not started again within 100 s",
        docs="https://saq-py.readthedocs.io/",
    )
    on_uvloop = False
    left = "select exists (select from saq_jobs where status in ('new', 'queued', 'active'))"
    rate = (220, 550)

    def queue(self) -> Any:
        from saq.queue.postgres import PostgresQueue

        return PostgresQueue.from_url(self.url)


class OnRedis(Saq):
    """RedisQueue."""

    about = About(
        name="saq",
        settings="RedisQueue.from_url with hiredis, a Worker whose concurrency is the number of slots, on uvloop, "
        "other defaults: at most 20 enqueues at a time, finished jobs are kept for 10 minutes; it has no bulk call",
        guarantee="lost: a job has one attempt by default, so that the next sweep (once a minute, of jobs that have "
        "run for more than 10 s) aborts it; with `retries` it is enqueued again",
        tried="nobody ran it within 460 s, and it was no longer among the incomplete jobs",
        docs="https://github.com/tobymao/saq",
    )
    left = (("zcard", "saq:default:incomplete"), ("llen", "saq:default:active"))
    rate = (1_050, 2_450)

    def queue(self) -> Any:
        from saq import Queue

        return Queue.from_url(self.url, name="default")
