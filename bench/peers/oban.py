"""Oban on PostgreSQL and psycopg."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.queues import About, AsyncQueue, Handler

QUEUE = "bench"
OLDEST = (3, 12)


class Oban(AsyncQueue):
    """Only for Python 3.12 and newer."""

    about = About(
        name="oban",
        settings="a queue whose limit is the number of slots, the default pool of 1 to 10, uvloop (as `oban start`), "
        "other defaults: finished jobs are written when the next jobs are fetched, and kept for a day",
        guarantee="repeated: every minute jobs that have run for longer than 5 minutes are put back",
        tried="told by its source; nobody waited for it",
        docs="https://oban.pro/docs/py",
    )
    apart = "oban"
    left = "select exists (select from oban_jobs where state in ('available', 'scheduled', 'executing', 'retryable'))"
    ready_after_s = 1.5

    @classmethod
    def missing(cls) -> str | None:
        if sys.version_info[:2] < OLDEST:
            return f"it needs Python 3.12, and this is {sys.version.split()[0]}: run dev.py with a newer one"
        return super().missing()

    async def install(self) -> None:
        from oban.schema import install

        await install(self._pool)

    @asynccontextmanager
    async def opened(self, handler: Handler, **options: Any) -> AsyncIterator[None]:
        from oban import Oban as App
        from oban import worker

        class Bench:
            async def process(self, job: Any) -> None:
                if (done := handler(job.args.get("number", 0))) is not None:
                    await done

        self._new: Any = worker(queue=QUEUE)(Bench).new
        self._pool: Any = await App.create_pool(self.url)
        try:
            self._oban: Any = App(pool=self._pool, **options)
            if options:
                await self._oban.__aenter__()
            yield
            if options:
                await self._oban.__aexit__(None, None, None)
        finally:
            await self._pool.close()

    async def enqueue(self, number: int = 0) -> None:
        await self._oban.enqueue(self._new({"number": number}))

    async def enqueue_many(self, size: int) -> None:
        await self._oban.enqueue_many([self._new({}) for _ in range(size)])

    @asynccontextmanager
    async def working(self, handler: Handler, slots: int) -> AsyncIterator[None]:
        async with self.opened(handler, queues={QUEUE: slots}):
            yield
