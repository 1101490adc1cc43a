"""Chancy on PostgreSQL and psycopg."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.queues import About, AsyncQueue, Handler

QUEUE = "bench"
#: The handler of this process: a job names a function that can be imported.
handlers: list[Handler] = []


async def job(number: int = 0) -> None:
    """What jobs name."""
    if (done := handlers[-1](number)) is not None:
        await done


class Chancy(AsyncQueue):
    """A queue with the AsyncExecutor."""

    about = About(
        name="chancy",
        settings="a queue with the AsyncExecutor and eager_polling, concurrency is the number of slots, its default "
        "pool of 1 to 10, asyncio's own event loop (as `chancy worker`), logging at WARNING, other defaults: finished "
        "jobs are written once a second, and kept for a day",
        guarantee="kept: every minute another worker puts back the jobs of one that was without a heartbeat for 90 s",
        tried="the job of a killed worker was started again after 121 s",
        docs="https://tkte.ch/chancy/",
    )
    package = "chancy"
    on_uvloop = False
    left = "select exists (select from chancy_jobs where state in ('pending', 'running', 'retrying'))"
    rate = (250, 1_800)

    async def install(self) -> None:
        await self._chancy.migrate()

    @asynccontextmanager
    async def connected(self, callers: int = 1) -> AsyncIterator[None]:
        from chancy import Chancy as App

        log = logging.getLogger("chancy")
        log.setLevel(logging.WARNING)
        async with App(self.url, log=log) as app:
            self._chancy: Any = app
            yield

    def _job(self, **given: Any) -> Any:
        from chancy import Job

        return Job(func=f"{__name__}.job", queue=QUEUE, kwargs=given)

    async def enqueue(self, number: int = 0) -> None:
        await self._chancy.push(self._job(number=number))

    async def enqueue_many(self, size: int) -> None:
        async for _ in self._chancy.push_many([self._job()] * size):
            pass

    @asynccontextmanager
    async def working(self, handler: Handler, slots: int) -> AsyncIterator[None]:
        """Its worker declares the queue."""
        from chancy import Queue, Worker

        handlers.append(handler)
        async with self.connected():
            queue = Queue(QUEUE, concurrency=slots, executor=self._chancy.Executor.Async, eager_polling=True)
            await self._chancy.declare(queue, upsert=True)
            async with Worker(self._chancy, register_signal_handlers=False):
                yield
