"""Reads of the store that all open tabs share: the same query is sent once for all who ask at about the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from jobmill.client.client import Client
from jobmill.core.announcing import WorkerCard
from jobmill.core.audit import AuditEntry, AuditFilter, AuditPage
from jobmill.core.findings import Finding
from jobmill.core.flows import Dependency, Dependent, Recorded
from jobmill.core.job import DAY_MS, LIVE, Job
from jobmill.core.tallies import MINUTE_MS, Tally
from jobmill.core.values import Count, CountUpTo, Depth, Filter, FlowCount, Lane, LogLine, Page, QueueSettings
from jobmill.errors import StoreUnavailable

T = TypeVar("T")

#: How long an answer is given again. Live updates come once a second: each of them reads again.
SHARED_S: Final = 0.9
#: Checks of the database are expensive, and their results change slowly.
FINDINGS_SHARED_S: Final = 30.0
#: How long a page waits for them. It shows the last ones then, and gets the new ones when they are there.
FINDINGS_AWAITED_S: Final = 0.05
#: Marks, late recurring jobs, the number of recurring jobs and tallies of long steps change slowly too. The loop of
#: live updates reads all but the last again each ten seconds.
SLOW_SHARED_S: Final = 9.0
#: How long an answer counts as known after that, for figures beside the page.
_KNOWN_S: Final = 60.0
#: A job that has been due for longer is late.
LATE_MS: Final = 60_000
#: Marks of this time are shown in charts, and at most this many late jobs are read.
MARKS_MS: Final = 30 * DAY_MS
MAX_LATE: Final = 20
#: The navigation says how many recurring jobs there are, up to this number.
MAX_RECURRING: Final = 1_000
#: The last answers to these are kept, for the figures that pages show while the store is unavailable. They are the same
#: for all who may see the jobs of all tenants.
_REMEMBERED: Final = frozenset({"depths", "settings", "workers", "hour", "marks", "late"})
_HOUR_MS: Final = 60 * MINUTE_MS
_MAX_ENTRIES: Final = 1_000


class Checked(NamedTuple):
    """What `jobmill doctor` found, and when: a time of the clock of the reads."""

    at: float
    findings: list[Finding]


class Reads:
    """The queries of the pages. After an act (`forget`) every query reads again."""

    def __init__(self, jobs: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self.jobs = jobs
        self._clock = clock
        self._entries: dict[Any, tuple[float, asyncio.Future[Any]]] = {}
        self._checked: Checked | None = None
        #: Each with the time of the store.
        self._last: dict[Any, tuple[int, Any]] = {}
        #: Since when the store has not answered; None if it answered last time.
        self.down_since_ms: int | None = None

    def forget(self) -> None:
        """Something was changed: read again."""
        self._entries.clear()

    async def depths(self) -> list[Depth]:
        """The depths of all queues."""
        return await self._shared("depths", self.jobs.depths)

    async def settings(self) -> dict[str, QueueSettings]:
        """The settings of all queues that have some, as they apply now."""

        async def read() -> dict[str, QueueSettings]:
            now_ms = self.jobs.store.now()
            return {queue: one.at(now_ms) for queue, one in (await self.jobs.store.settings()).items()}

        return await self._shared("settings", read)

    async def lanes(self, queue: str, names: Sequence[str] | None, after: str | None, limit: int) -> list[Lane]:
        """Lanes of a queue, by name."""
        key = ("lanes", queue, None if names is None else tuple(names), after, limit)
        return await self._shared(key, lambda: self.jobs.store.lanes(queue, names, after, limit))

    async def workers(self) -> list[WorkerCard]:
        """The workers that run now."""
        return await self._shared("workers", self.jobs.workers)

    async def tallies(
        self, since_ms: int, until_ms: int, step_ms: int, queue: str | None = None, name: str | None = None
    ) -> list[Tally]:
        """What workers did, in steps."""
        # Bounds of whole steps: tabs that ask at about the same time ask for the same.
        since_ms -= since_ms % step_ms
        key = ("tallies", since_ms, until_ms - until_ms % step_ms, step_ms, queue, name)
        # Long steps are many tallies, and a part of a minute changes little in them.
        shared_s = SHARED_S if step_ms <= MINUTE_MS else SLOW_SHARED_S
        return await self._shared(
            key, lambda: self.jobs.store.tallies(since_ms, until_ms, step_ms, queue, name), shared_s
        )

    async def last_hour(self) -> list[Tally]:
        """What workers did in the last hour, by minutes."""
        now_ms = self.jobs.store.now()
        since_ms = now_ms - _HOUR_MS
        since_ms -= since_ms % MINUTE_MS
        return await self._shared("hour", lambda: self.jobs.store.tallies(since_ms, now_ms + 1, MINUTE_MS, None, None))

    async def get(self, id: str) -> Job:
        """One job, or JobNotFound."""
        return await self._shared(("get", id), lambda: self.jobs.get(id))

    async def lease_end(self, id: str) -> int | None:
        """When the lease of a running job ends."""
        return (await self._shared(("lease", id), lambda: self.jobs.store.lease_ends([id])))[0]

    async def find(self, wanted: Filter, cursor: str | None = None, limit: int = 50) -> Page:
        """One page of jobs."""
        return await self._shared(
            ("find", repr(wanted), cursor, limit), lambda: self.jobs.store.find(wanted, cursor, limit)
        )

    async def count(self, wanted: Filter) -> list[Count]:
        """How many jobs match, by queue, name and state."""
        return await self._shared(("count_all", repr(wanted)), lambda: self.jobs.store.count(wanted))

    async def flows(self, before: str | None, limit: int) -> list[str]:
        """The ids of flows, the newest first."""
        return await self._shared(("flows", before, limit), lambda: self.jobs.store.flows(before, limit))

    async def flow_counts(self, ids: Sequence[str]) -> dict[str, FlowCount]:
        """How many jobs of these flows are in each state."""
        return await self._shared(("flow_counts", tuple(ids)), lambda: self.jobs.store.flow_counts(ids))

    async def edges(self, ids: Sequence[str]) -> set[tuple[str, str]]:
        """Which of these jobs wait for which."""
        return await self._shared(("edges", tuple(ids)), lambda: self.jobs.store.edges(ids))

    async def dependencies(self, id: str, limit: int) -> list[Dependency]:
        """The jobs that a job waits for, or has waited for."""
        return await self._shared(("dependencies", id, limit), lambda: self.jobs.store.dependencies(id, 0, limit))

    async def dependents(self, id: str, limit: int) -> list[Dependent]:
        """The jobs that wait for a job, or have waited for it."""
        return await self._shared(("dependents", id, limit), lambda: self.jobs.store.dependents(id, limit))

    async def recorded(self, id: str) -> Recorded:
        """The steps and signals of a job."""
        return await self._shared(("recorded", id), lambda: self.jobs.store.recorded(id))

    async def count_up_to(self, wanted: Filter, limit: int) -> CountUpTo:
        """How many jobs match, at most `limit`."""
        return await self._shared(("count", repr(wanted), limit), lambda: self.jobs.store.count_up_to(wanted, limit))

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        """The last log lines of a job."""
        return await self._shared(("logs", id, limit), lambda: self.jobs.store.logs(id, limit))

    async def audit_log(self, wanted: AuditFilter, cursor: str | None = None, limit: int = 50) -> AuditPage:
        """One page of the audit log."""
        key = ("audit", wanted, cursor, limit)
        return await self._shared(key, lambda: self.jobs.store.audit_log(wanted, cursor, limit))

    async def checked(self) -> Checked:
        """What `jobmill doctor` finds: what it found in the last 30 s, or new checks."""
        return await self._shared("checked", self._check, FINDINGS_SHARED_S)

    async def last_checked(self) -> Checked | None:
        """What it found last time. New checks begin after 30 s; a page does not wait for them longer than a moment."""
        checks = asyncio.ensure_future(self.checked())
        checks.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({checks}, timeout=FINDINGS_AWAITED_S)
        return checks.result() if checks.done() else self._checked

    def is_checking(self) -> bool:
        """Whether checks run now."""
        entry = self._entries.get("checked")
        return entry is not None and not entry[1].done()

    def age_ms(self, checked: Checked) -> int:
        """How long ago that was."""
        return max(0, round((self._clock() - checked.at) * 1000))

    async def _check(self) -> Checked:
        at = self._clock()
        self._checked = Checked(at, await self.jobs.examine())
        return self._checked

    def known(self, key: Any) -> Any:
        """The last answer to a query, if it was read in the last minute; None otherwise. It never reads the store."""
        until, done = self._entries.get(key, (0.0, None))
        if done is None or not done.done() or done.cancelled() or done.exception() is not None:
            return None
        return done.result() if self._clock() < until + _KNOWN_S else None

    async def marks(self) -> list[AuditEntry]:
        """The marks of the last 30 days, the newest first, at most 100."""

        async def read() -> list[AuditEntry]:
            wanted = AuditFilter(what="mark", after_ms=self.jobs.store.now() - MARKS_MS)
            return (await self.jobs.store.audit_log(wanted, None, 100)).entries

        return await self._shared("marks", read, SLOW_SHARED_S)

    async def late(self) -> list[Job]:
        """Recurring jobs that have been due for more than a minute, at most `MAX_LATE`."""

        async def read() -> list[Job]:
            before_ms = self.jobs.store.now() - LATE_MS
            wanted = Filter(recurring=True, states=("waiting",), held=False, due_before_ms=before_ms)
            return (await self.jobs.store.find(wanted, None, MAX_LATE)).jobs

        return await self._shared("late", read, SLOW_SHARED_S)

    async def recurring_count(self) -> CountUpTo:
        """How many recurring jobs there are."""
        wanted = Filter(recurring=True, states=LIVE)
        return await self._shared(
            "recurring", lambda: self.jobs.store.count_up_to(wanted, MAX_RECURRING), SLOW_SHARED_S
        )

    def known_marks(self) -> list[AuditEntry]:
        """The marks, if they were read a short time ago: for pages that have made all the queries that they may."""
        return self.known("marks") or []

    def known_late(self) -> list[Job]:
        """The late recurring jobs, if they were read a short time ago."""
        return self.known("late") or []

    async def _shared(self, key: Any, read: Callable[[], Awaitable[T]], shared_s: float = SHARED_S) -> T:
        now = self._clock()
        entry = self._entries.get(key)
        if entry is None or entry[0] <= now or entry[1].get_loop() is not asyncio.get_running_loop():
            if len(self._entries) >= _MAX_ENTRIES:
                self._entries = {key: one for key, one in self._entries.items() if one[0] > now}
            entry = (now + shared_s, asyncio.ensure_future(self._answered(key, read)))
            # An error that nobody waits for any more is no news.
            entry[1].add_done_callback(lambda done: done.cancelled() or done.exception())
            self._entries[key] = entry
        try:
            # A visitor who goes away does not end the query of the others.
            answer: T = await asyncio.shield(entry[1])
        except BaseException:
            if entry[1].done() and self._entries.get(key) is entry:
                del self._entries[key]  # an error is not given again
            raise
        return answer

    async def _answered(self, key: Any, read: Callable[[], Awaitable[T]]) -> T:
        try:
            await self.jobs.open()
            answer = await read()
        except StoreUnavailable:
            if self.down_since_ms is None:
                self.down_since_ms = self.jobs.store.now()
            raise
        self.down_since_ms = None
        if key in _REMEMBERED:
            self._last[key] = (self.jobs.store.now(), answer)
        return answer

    def last(self, error: StoreUnavailable) -> LastReads | None:
        """The last answers; None if the figures were never read. What was not kept raises this error."""
        return LastReads(self.jobs, self._last, error) if "depths" in self._last else None

    async def get_many(self, ids: Sequence[str]) -> list[Job | None]:
        """Jobs by their ids, in one call."""
        return await self._shared(("get_many", tuple(ids)), lambda: self.jobs.store.get(ids))


class LastReads(Reads):
    """The last answers of the store, while it does not answer. It never reads the store."""

    def __init__(self, jobs: Client, last: dict[Any, tuple[int, Any]], error: StoreUnavailable) -> None:
        super().__init__(jobs)
        self._last = last
        self._error = error
        #: When the figures of the queues were read.
        self.at_ms: int = last["depths"][0]

    async def _shared(self, key: Any, read: Callable[[], Awaitable[T]], shared_s: float = SHARED_S) -> T:
        if key not in self._last:
            raise self._error
        answer: T = self._last[key][1]
        return answer

    def known(self, key: Any) -> Any:
        """The last answer, whatever its age."""
        return self._last.get(key, (0, None))[1]

    async def marks(self) -> list[AuditEntry]:
        """The last marks; the figures do not depend on them."""
        return self.known_marks()

    async def late(self) -> list[Job]:
        """The last late jobs; the figures do not depend on them."""
        return self.known_late()
