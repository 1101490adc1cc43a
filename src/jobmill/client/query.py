"""Queries of a client: jobs, results, counts, statistics, log lines, events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, Unpack

from jobmill.client.bound_store import BoundStore, StoreSwap, swapped
from jobmill.client.explain_facts import lane_facts
from jobmill.client.filters import FilterOptions, make_filter
from jobmill.core import limits
from jobmill.core.announcing import WorkerCard
from jobmill.core.audit import AuditFilter, AuditPage
from jobmill.core.durations import Duration, instant_ms, shown_ms, to_ms
from jobmill.core.events import Event
from jobmill.core.findings import Finding
from jobmill.core.job import Job
from jobmill.core.reasons import AHEAD_SHOWN, DEPENDENCIES_SHOWN, RECENT_MS, RUNNING_SHOWN, Facts, Reason
from jobmill.core.tallies import MINUTE_MS, Tally
from jobmill.core.values import Count, Depth, Filter, LogLine, Page, Stats
from jobmill.errors import InvalidValue, JobCancelled, JobFailed, JobmillError, JobNotFound, ResultTimeout
from jobmill.handlers.conversion import to_plain
from jobmill.handlers.handler import Handler
from jobmill.store import Store

log = logging.getLogger("jobmill")

#: The pause between two queries for a result, while hints come in.
MIN_PAUSE_S = 0.01


class QueriesJobs:
    """The part of a client that reads."""

    def __init__(self, store: Store, who: str = "code") -> None:
        self._own = BoundStore(store)
        #: The swaps that hold now, in any context.
        self._swaps: list[StoreSwap] = []
        #: The name in the audit log of what this client does.
        self.who = who
        self.handlers: dict[str, Handler[..., Any]] = {}

    @property
    def _bound(self) -> BoundStore:
        return (swapped(self._swaps) or self._own) if self._swaps else self._own

    @property
    def store(self) -> Store:
        """The store of this client; inside `using(store)`, that store."""
        return self._bound.store

    @store.setter
    def store(self, store: Store) -> None:
        """Refused."""
        raise AttributeError(
            "a client keeps its store: make another client with jobmill.connect(store=...), or use another store for a "
            "while: with jobs.using(store): ..."
        )

    async def open(self) -> None:
        """Open the store. Every other call does this by itself."""
        bound = self._bound
        if not bound.is_open:
            await bound.store.open()
            bound.is_open = True

    async def get(self, id: str) -> Job:
        """One job; JobNotFound when it is not in the store."""
        limits.check_known_id(id)
        await self.open()
        job = (await self._bound.get([id]))[0]
        if job is None:
            raise self._not_found(id)
        return job

    def _not_found(self, id: str) -> JobNotFound:
        return JobNotFound(f"there is no job {id!r} in the {self.store.name} store: it was removed, or never existed")

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Wait until a job is final and return its result, as the type that its handler returns.

        Raises JobFailed, JobCancelled, ResultTimeout or JobNotFound.
        """
        limit_ms = None if timeout is None else to_ms(timeout, "timeout")
        # The first query is not timed: with timeout=0 it answers what is known now.
        job = await self.get(id)
        if not job.is_final:
            try:
                async with asyncio.timeout(None if limit_ms is None else limit_ms / 1000):
                    job = await self._final(job)
            except TimeoutError:
                waited = shown_ms(limit_ms or 0)
                raise ResultTimeout(f"job {id!r} was not final after {waited}; it is still {job.state}") from None
        if job.state == "failed":
            raise JobFailed(f"job {id!r} ({job.name}) failed: {job.error}", job)
        if job.state == "cancelled":
            raise JobCancelled(f"job {id!r} ({job.name}) was cancelled", job)
        handler = self.handlers.get(job.name)
        return job.result if handler is None else handler.decode_result(job.result_json)

    async def _final(self, job: Job) -> Job:
        """Wait for hints of the store, and query the job at growing intervals, because a hint may be missed."""
        pause, hint = 0.002, self._hint_of_end(job, 0.002)
        try:
            while True:
                # A store may give many hints that concern other jobs.
                await asyncio.sleep(min(pause, MIN_PAUSE_S))
                await asyncio.wait((hint,), timeout=pause)
                pause = min(pause * 1.5, 0.25)
                hint.cancel()
                # Wait for the next hint from before the query on, so that an end between the two is not missed.
                hint = self._hint_of_end(job, pause)
                await asyncio.sleep(0)
                job = await self.get(job.id)
                if job.is_final:
                    return job
        finally:
            hint.cancel()

    def _hint_of_end(self, job: Job, seconds: float) -> asyncio.Task[None]:
        async def wait() -> None:
            store = self.store
            try:
                await store.wait_for_end(job.id, job.queue, store.now() + round(seconds * 1000))
            except Exception as error:
                log.debug("hints of the end of jobs are not available: %s", error)
                await asyncio.sleep(seconds)

        return asyncio.create_task(wait(), name="hint of an end")

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
        wanted = make_filter(filters)
        await self.open()
        async for job in matching(self.store, wanted):
            yield job

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

    async def depths(self, *queues: str) -> list[Depth]:
        """How many jobs these queues have in each state, or all queues; quick whatever the number of jobs.

        A state with 10,000 jobs or more counts as 10,000, and `exact` is False.
        """
        for queue in queues:
            limits.check_queue(queue)
        await self.open()
        return await self.store.depths(queues or None)

    async def workers(self) -> list[WorkerCard]:
        """The workers that run now. Each announces itself every ten seconds."""
        await self.open()
        return await self.store.workers()

    async def tallies(
        self,
        since: datetime | Duration = "1h",
        until: datetime | None = None,
        *,
        step: Duration = "1m",
        queue: str | None = None,
        name: str | None = None,
    ) -> list[Tally]:
        """What workers did, by time, queue and name, in steps. `since` is a time, or how long ago.

        Steps of a minute are kept for 8 hours, steps of 10 minutes for 3 days, steps of an hour for 35 days.
        """
        step_ms = to_ms(step, "step", least=MINUTE_MS)
        if step_ms % MINUTE_MS:
            raise InvalidValue("step", "whole minutes", step)
        await self.open()
        now_ms = self.store.now()
        since_ms = instant_ms(since, "since") if isinstance(since, datetime) else now_ms - to_ms(since, "since")
        until_ms = now_ms + 1 if until is None else instant_ms(until, "until")
        return await self.store.tallies(since_ms, until_ms, step_ms, queue, name)

    async def audit_log(
        self,
        *,
        who: str | None = None,
        what: str | None = None,
        queue: str | None = None,
        job_id: str | None = None,
        after: datetime | None = None,
        before: datetime | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> AuditPage:
        """Who changed what, newest first; kept for 90 days."""
        limits.check_int(limit, "limit", 1, 10_000)
        wanted = AuditFilter(
            who=who,
            what=what,
            queue=queue,
            job_id=job_id,
            after_ms=None if after is None else instant_ms(after, "after"),
            before_ms=None if before is None else instant_ms(before, "before"),
        )
        await self.open()
        return await self.store.audit_log(wanted, cursor, limit)

    async def explain(self, id: str) -> list[Reason]:
        """Why a job does not run: the reasons in order of importance, each with its evidence and a remedy."""
        from jobmill.core.explain import explain  # here, because workers and most commands never need it

        job = await self.get(id)
        return explain(await self._facts(job))

    async def examine(self) -> list[Finding]:
        """Check the store, its workers and its recurring jobs: what `jobmill doctor` shows."""
        from jobmill.client.doctor import examine

        await self.open()
        return await examine(self.store)

    async def _facts(self, job: Job) -> Facts:
        """What `explain` needs to know."""
        depths, workers, settings = await asyncio.gather(
            self.store.depths([job.queue]), self.store.workers(), self.store.settings([job.queue])
        )
        ahead, running, lease_until_ms = None, list[Job](), None
        if job.state == "running":
            (lease_until_ms,) = await self.store.lease_ends([job.id])
        if job.state == "waiting" and job.held is None:
            wanted = Filter(queue=job.queue, states=("waiting",))
            line, longest = await asyncio.gather(
                self.store.find(wanted, limit=AHEAD_SHOWN),
                self.store.find(Filter(queue=job.queue, states=("running",)), limit=RUNNING_SHOWN),
            )
            running = longest.jobs
            ids = [one.id for one in line.jobs]
            ahead = ids.index(job.id) if job.id in ids else len(ids)
        dependencies = await self._pending_dependencies(job) if job.held is not None and job.dependencies else []
        lane = await lane_facts(self.store, job)
        now_ms = self.store.now()
        recent = await self.store.tallies(now_ms - RECENT_MS, now_ms + 1, MINUTE_MS, job.queue)
        return Facts(
            job=job,
            now_ms=now_ms,
            settings=settings[job.queue],
            depth=depths[0],
            workers=workers,
            running=running,
            ahead=ahead,
            claimed_recently=sum(tally.claimed for tally in recent),
            lease_until_ms=lease_until_ms,
            dependencies=dependencies,
            lane=lane,
        )

    async def _pending_dependencies(self, job: Job) -> list[Job]:
        """The first jobs that a job waits for and that have not ended."""
        edges = await self.store.dependencies(job.id)
        pending = [edge.id for edge in edges if edge.state == "pending"][:DEPENDENCIES_SHOWN]
        return [one for one in await self.store.get(pending) if one is not None] if pending else []

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        """The last lines that a job logged."""
        limits.check_known_id(id)
        limits.check_int(limit, "limit", 1)
        await self.open()
        return await self.store.logs(id, limit)

    async def events(
        self, queue: str, *, after: str | None = None, follow: bool = True, every: Duration = 0.1
    ) -> AsyncIterator[Event]:
        """The events that the feed of a queue keeps, oldest first, and new ones as they come unless `follow=False`.

        Switch the feed on with `jobs.queue(name).feed()`: to follow a feed that is off raises a `JobmillError`.
        """
        limits.check_queue(queue)
        if after is not None and not isinstance(after, str):
            raise InvalidValue("after", "the id of an event", after)
        pause = to_ms(every, "every", least=1) / 1000
        await self.open()
        if follow and not (await self.store.settings([queue]))[queue].feed:
            advice = f"await jobs.queue({queue!r}).feed() turns it on"
            raise JobmillError(f"the feed of queue {queue!r} is off, so there will be no events: {advice}")
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
        return [one.queue for one in await self.store.depths(limit=0)]


async def matching(store: Store, wanted: Filter) -> AsyncIterator[Job]:
    """All jobs that match, read page by page."""
    cursor: str | None = None
    while True:
        page = await store.find(wanted, cursor, 1_000)
        for job in page.jobs:
            yield job
        cursor = page.next
        if cursor is None:
            return
