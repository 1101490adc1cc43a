"""Jobmill itself, on every store: only the URL differs, and how to see that no job is live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from msgspec import structs

from bench.queues import About, AsyncQueue, Handler
from jobmill import Worker, connect

T = TypeVar("T")
AT_ONCE = 10_000


class Jobmill(AsyncQueue):
    """One worker process with async handlers, on the loop that `jobmill worker` takes."""

    about = About(
        name="jobmill",
        settings="one worker process, async no-op handlers, uvloop (as `jobmill worker`), other defaults: every job is "
        "kept for 7 days after it succeeded",
        guarantee="kept: another worker claims them when their lease has ended",
    )
    fill_size = AT_ONCE
    rate = (2_000, 30_000)

    async def install(self) -> None:
        """Its tables were made when it connected."""

    @asynccontextmanager
    async def connected(self, callers: int = 1) -> AsyncIterator[None]:
        """As a program does it."""
        async with self._opened(lambda _: None):
            yield

    @asynccontextmanager
    async def _opened(self, handler: Handler) -> AsyncIterator[None]:
        async def job(number: int = 0) -> None:
            if (done := handler(number)) is not None:
                await done

        self._client = connect(self.url)
        self._job: Any = self._client.handler(job)
        await self._client.store.migrate()
        async with self._client:
            yield

    async def enqueue(self, number: int = 0) -> None:
        """One job."""
        await self._job.enqueue(number)

    async def enqueue_many(self, size: int) -> None:
        """Jobs in one call."""
        await self._client.enqueue_many([self._job.draft() for _ in range(size)])

    def fill(self, jobs: int, delayed: int = 0) -> None:
        """Jobs that wait, and jobs that are due tomorrow."""

        async def fill() -> None:
            async with self.connected():
                later = self._job.options(delay="1d").draft()
                for number, draft in ((jobs, self._job.draft()), (delayed, later)):
                    for first in range(0, number, AT_ONCE):
                        await self._client.enqueue_many([draft] * min(AT_ONCE, number - first))

        self.run(fill())

    @asynccontextmanager
    async def working(self, handler: Handler, slots: int) -> AsyncIterator[None]:
        """One worker."""
        async with self._opened(handler), Worker(self._client, concurrency=slots):
            yield


class InMemory(Jobmill):
    """`memory://`: what waits there was enqueued by the same process."""

    rate = (25_000, 60_000)

    def drain(self, jobs: int, handler: Handler, slots: int, until: Callable[[], T]) -> T:
        """Fill, and then work."""

        async def work() -> T:
            async with self._opened(handler):
                await self._client.enqueue_many([self._job.draft()] * jobs)
                async with Worker(self._client, concurrency=slots):
                    return await asyncio.to_thread(until)

        return self.run(work())


class OnSqlite(Jobmill):
    """At `synchronous=FULL`, the default."""

    left = """
        SELECT EXISTS (SELECT 1 FROM jobmill_jobs INDEXED BY jobmill_waiting WHERE state = 'waiting')
        OR EXISTS (SELECT 1 FROM jobmill_jobs INDEXED BY jobmill_running WHERE state = 'running')
    """
    rate = (2_200, 37_000)


class OnPostgres(Jobmill):
    """Jobs that have ended lie in a history table."""

    left = "select exists (select from jobmill.jobs)"
    rate = (1_300, 30_000)


class OnRedis(Jobmill):
    """With BullMQ's names for the lists."""

    left = (("llen", "bull:default:wait"), ("llen", "bull:default:active"))
    rate = (4_000, 38_000)


class OnMongo(Jobmill):
    """With `indexes=lean`."""

    about = structs.replace(Jobmill.about, settings=Jobmill.about.settings + "; indexes=lean")
    left = (
        "monque_jobs",
        {"jobmill_claim": {"status": "pending"}, "jobmill_lease": {"status": "processing"}},
    )
    rate = (350, 4_300)


class OnMongoWithMonquesIndexes(OnMongo):
    """With `indexes=monque`, for a collection that Monque shares."""

    about = structs.replace(
        Jobmill.about, name="jobmill, Monque's indexes", settings=Jobmill.about.settings + "; indexes=monque"
    )
    rate = (250, 2_900)
