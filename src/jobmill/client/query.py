"""Queries of a client: jobs, results, counts, statistics, log lines, events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Unpack

from jobmill.client.filters import FilterOptions, make_filter
from jobmill.core import limits
from jobmill.core.durations import Duration, to_ms
from jobmill.core.events import Event
from jobmill.core.job import Job
from jobmill.core.values import Count, Filter, LogLine, Page, Stats
from jobmill.errors import InvalidValue, JobCancelled, JobFailed, JobNotFound, ResultTimeout
from jobmill.handlers.handler import Handler
from jobmill.handlers.signature import to_plain
from jobmill.runtime.batcher import Batcher
from jobmill.store import Store


class QueriesJobs:
    """The part of a client that reads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.handlers: dict[str, Handler[..., Any]] = {}
        self._is_open = False
        self._get: Batcher[str, Job | None] = Batcher(store.get)

    @property
    def store(self) -> Store:
        """The store of this client. It cannot be replaced: parts of the client keep it."""
        return self._store

    @store.setter
    def store(self, store: Store) -> None:
        """Refused."""
        raise AttributeError("a client keeps its store: make another client with jobmill.connect(store=...)")

    async def open(self) -> None:
        """Open the store. Every other call does this by itself."""
        if not self._is_open:
            await self.store.open()
            self._is_open = True

    async def get(self, id: str) -> Job:
        """One job; JobNotFound when it is not in the store."""
        limits.check_known_id(id)
        await self.open()
        job = (await self._get([id]))[0]
        if job is None:
            raise JobNotFound(
                f"there is no job {id!r} in the {self.store.name} store: never enqueued, or already removed"
            )
        return job

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Wait until a job is final and return its result, as the type that its handler returns.

        Raises JobFailed, JobCancelled, ResultTimeout or JobNotFound.
        """
        limit = None if timeout is None else to_ms(timeout, "timeout") / 1000
        # The first query is not timed: with timeout=0 it answers what is known now.
        job = await self.get(id)
        if not job.is_final:
            try:
                async with asyncio.timeout(limit):
                    job = await self._final(id)
            except TimeoutError:
                raise ResultTimeout(f"job {id!r} was not final after {timeout}; it is still {job.state}") from None
        if job.state == "failed":
            raise JobFailed(f"job {id!r} ({job.name}) failed: {job.error}", job)
        if job.state == "cancelled":
            raise JobCancelled(f"job {id!r} ({job.name}) was cancelled", job)
        handler = self.handlers.get(job.name)
        return job.result if handler is None else handler.decode_result(job.result_json)

    async def _final(self, id: str) -> Job:
        pause = 0.002
        while True:
            await asyncio.sleep(pause)
            job = await self.get(id)
            if job.is_final:
                return job
            pause = min(pause * 1.5, 0.25)

    async def find(self, *, cursor: str | None = None, limit: int = 100, **filters: Unpack[FilterOptions]) -> Page:
        """One page of the jobs that match; `page.next` and `page.previous` are cursors to the pages beside it."""
        wanted = make_filter(filters)
        limits.check_int(limit, "limit", 1, 10_000)
        if cursor is not None and not isinstance(cursor, str):
            raise InvalidValue("cursor", "a cursor that a page gave", cursor)
        await self.open()
        return await self.store.find(wanted, cursor, limit)

    async def find_all(self, **filters: Unpack[FilterOptions]) -> AsyncIterator[Job]:
        """All jobs that match, read page by page."""
        async for job in self._matches(make_filter(filters)):
            yield job

    async def _matches(self, wanted: Filter) -> AsyncIterator[Job]:
        await self.open()
        cursor: str | None = None
        while True:
            page = await self.store.find(wanted, cursor, 1_000)
            for job in page.jobs:
                yield job
            cursor = page.next
            if cursor is None:
                return

    async def count(self, **filters: Unpack[FilterOptions]) -> list[Count]:
        """How many jobs match, by queue, name and state."""
        wanted = make_filter(filters)
        await self.open()
        return await self.store.count(wanted)

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        """For each queue and name: counts, the age of the oldest waiting job, and how long jobs take.

        Runs of recurring jobs that ended in the last day count as succeeded or failed jobs.
        """
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
        """The event feed of a queue, and new events as they come unless `follow=False`.

        Switch the feed on with `jobs.queue(name).feed()`.
        """
        limits.check_queue(queue)
        if after is not None and not isinstance(after, str):
            raise InvalidValue("after", "the id of an event", after)
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

    async def publish(self, type: str, job: Job, /, **data: Any) -> None:
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
