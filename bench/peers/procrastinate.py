"""Procrastinate on PostgreSQL and psycopg."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bench.queues import About, AsyncQueue, Handler, cancel, job_of, running


class Procrastinate(AsyncQueue):
    """With as many concurrent jobs as there are slots."""

    about = About(
        name="procrastinate",
        settings="PsycopgConnector with its default pool of 4 (10, 20 and 100 were not faster), concurrency is the "
        "number of slots, asyncio's own event loop (as `procrastinate worker`), other defaults: finished jobs are kept",
        guarantee="lost, unless a periodic task of yours retries stalled jobs: until then it stays `doing`",
        tried="the job of a killed worker was not started again within 100 s",
        docs="https://procrastinate.readthedocs.io/",
    )
    package = "procrastinate"
    on_uvloop = False
    left = "select exists (select from procrastinate_jobs where status in ('todo', 'doing'))"
    fill_size = 10_000
    ready_after_s = 1.0
    rate = (450, 600)

    async def install(self) -> None:
        await self._app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def opened(self, handler: Handler) -> AsyncIterator[None]:
        from procrastinate import App, PsycopgConnector

        self._app: Any = App(connector=PsycopgConnector(conninfo=self.url))
        self._job: Any = self._app.task(name="job")(job_of(handler))
        async with self._app.open_async():
            yield

    async def enqueue(self, number: int = 0) -> None:
        await self._job.defer_async(number=number)

    async def enqueue_many(self, size: int) -> None:
        await self._job.batch_defer_async(*[{}] * size)

    @asynccontextmanager
    async def working(self, handler: Handler, slots: int) -> AsyncIterator[None]:
        """Cancelled at the end."""
        async with self.opened(handler):
            worker = self._app.run_worker_async(concurrency=slots, install_signal_handlers=False)
            async with running(worker, cancel):
                yield
