"""What a client can look at: jobs, results, counts, statistics, log lines, events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Unpack

from jobmill.client.filters import FilterOptions, make_filter
from jobmill.core import limits
from jobmill.core.durations import to_ms
from jobmill.core.job import Job
from jobmill.core.values import Count, Filter, LogLine, Page, Stats
from jobmill.errors import JobCancelled, JobFailed, JobNotFound, ResultTimeout
from jobmill.handlers.handler import to_plain
from jobmill.handlers.hooks import Event
from jobmill.handlers.options import Duration
from jobmill.runtime.batcher import Batcher
from jobmill.store import Store


class Looks:
    """The part of a client that changes nothing."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._is_open = False
        self._get: Batcher[str, Job | None] = Batcher(store.get)

    async def open(self) -> None:
        """Open the store; every call does so by itself."""
        if not self._is_open:
            await self.store.open()
            self._is_open = True

    async def get(self, id: str) -> Job:
        """One job; JobNotFound when it is not there."""
        limits.check_known_id(id)
        await self.open()
        job = (await self._get([id]))[0]
        if job is None:
            raise JobNotFound(
                f"there is no job {id!r} in the {self.store.name} store: never enqueued, or already removed"
            )
        return job

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Wait until a job is final: its result, or JobFailed, JobCancelled, ResultTimeout, JobNotFound."""
        limit = None if timeout is None else to_ms(timeout, "timeout") / 1000
        # The first look is not timed: with timeout=0 it tells what there is to tell now.
        job = await self.get(id)
        if not job.is_final:
            try:
                async with asyncio.timeout(limit):
                    job = await self._final(id)
            except TimeoutError:
                raise ResultTimeout(f"job {id!r} was not final after {timeout}; it goes on") from None
        if job.state == "failed":
            raise JobFailed(f"job {id!r} ({job.name}) failed: {job.error}")
        if job.state == "cancelled":
            raise JobCancelled(f"job {id!r} ({job.name}) was cancelled")
        return job.result

    async def _final(self, id: str) -> Job:
        pause = 0.002
        while True:
            await asyncio.sleep(pause)
            job = await self.get(id)
            if job.is_final:
                return job
            pause = min(pause * 1.5, 0.25)

    async def find(self, *, cursor: str | None = None, limit: int = 100, **filters: Unpack[FilterOptions]) -> Page:
        """A page of matches; `page.next` and `page.previous` are cursors to go on from."""
        wanted = make_filter(filters)
        limits.check_int(limit, "limit", 1, 10_000)
        await self.open()
        return await self.store.find(wanted, cursor, limit)

    async def find_all(self, **filters: Unpack[FilterOptions]) -> AsyncIterator[Job]:
        """Every match, page by page."""
        wanted = make_filter(filters)
        await self.open()
        async for job in self._matches(wanted):
            yield job

    async def _matches(self, wanted: Filter) -> AsyncIterator[Job]:
        cursor: str | None = None
        while True:
            page = await self.store.find(wanted, cursor, 1_000)
            for job in page.jobs:
                yield job
            cursor = page.next
            if cursor is None:
                return

    async def count(self, **filters: Unpack[FilterOptions]) -> list[Count]:
        """How many match, by queue, name and state."""
        wanted = make_filter(filters)
        await self.open()
        return await self.store.count(wanted)

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        """Counts, the oldest waiting job, and how long jobs take, per queue and name."""
        await self.open()
        return await self.store.stats(queue, name)

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        """The last lines that a job logged."""
        limits.check_known_id(id)
        limits.check_int(limit, "limit", 1)
        await self.open()
        return await self.store.logs(id, limit)

    async def events(
        self, queue: str, *, after: str | None = None, follow: bool = True, every: Duration = 0.1
    ) -> AsyncIterator[Event]:
        """The feed of a queue (switch it on with `jobs.queue(name).feed()`), and what comes, unless `follow=False`."""
        limits.check_queue(queue)
        pause = to_ms(every, "every", least=1) / 1000
        await self.open()
        while True:
            events = await self.store.events(queue, after)
            for event in events:
                yield event
                after = event.id
            if not events:
                if not follow:
                    return
                await asyncio.sleep(pause)

    async def publish(self, type: str, job: Job, **data: Any) -> None:
        """Add an event of your own to the feed of the job's queue."""
        limits.check_name(type, "type")
        plain = to_plain(data, "data")
        await self.open()
        now_ms = self.store.now()
        event = Event(
            type=type, job_id=job.id, name=job.name, queue=job.queue, at_ms=now_ms, attempt=job.attempt, data=plain
        )
        await self.store.publish([event])

    async def queues(self) -> list[str]:
        """All queues that have jobs or settings."""
        await self.open()
        counted = {one.queue for one in await self.store.count(Filter())}
        return sorted(counted | set(await self.store.settings()))
