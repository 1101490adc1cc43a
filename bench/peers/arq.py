"""arq on Redis."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.queues import About, AsyncQueue, Handler, running


class Arq(AsyncQueue):
    """It polls, without a delay here."""

    about = About(
        name="arq",
        settings="a Worker whose max_jobs is the number of slots, with poll_delay=0 (by default it looks for jobs "
        "twice a second only), on uvloop, hiredis, logging at WARNING, other defaults: results are kept for an hour; "
        "it has no bulk call",
        guarantee="kept: another worker takes them up when the mark that they run has expired, 10 s after their "
        "timeout of 300 s",
        tried="it was run again after 307 s",
        docs="https://arq-docs.helpmanual.io",
    )
    apart = "arq"
    left = (("zcard", "arq:queue"),)
    has_bulk = False
    fill_size = 200
    ready_after_s = 1.0
    rate = (900, 1_900)

    @asynccontextmanager
    async def connected(self, callers: int = 1) -> AsyncIterator[None]:
        from arq import create_pool
        from arq.connections import RedisSettings

        self._pool: Any = await create_pool(RedisSettings.from_dsn(self.url))
        try:
            yield
        finally:
            await self._pool.aclose()

    async def enqueue(self, number: int = 0) -> None:
        await self._pool.enqueue_job("job", number)

    @asynccontextmanager
    async def working(self, handler: Handler, slots: int) -> AsyncIterator[None]:
        """Cancelled at the end, with its tasks."""
        from arq import Worker, func
        from arq.connections import RedisSettings

        async def job(_: Any, number: int = 0) -> None:
            if (done := handler(number)) is not None:
                await done

        logging.getLogger("arq").setLevel(logging.WARNING)
        settings = {"redis_settings": RedisSettings.from_dsn(self.url), "handle_signals": False, "poll_delay": 0}
        worker: Any = Worker([func(job, name="job")], max_jobs=slots, **settings)

        async def stop(task: Any) -> None:
            task.cancel()
            await asyncio.wait([task, *worker.tasks.values()])
            await worker.pool.aclose()

        async with running(worker.main(), stop):
            yield
