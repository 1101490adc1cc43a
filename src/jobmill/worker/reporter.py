"""The reporter: collects progress and log lines of running jobs, and writes them in one call to the store."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from itertools import groupby

from msgspec import Struct, structs

from jobmill.core.events import progress_event
from jobmill.core.job import LOG_LINES_KEPT, LogEntry, Progress
from jobmill.core.values import Claimed, Report
from jobmill.errors import StoreUnavailable
from jobmill.store import Store
from jobmill.worker.hooks import HookQueue

log = logging.getLogger("jobmill")

COLLECT_S = 0.05


class Reporter:
    """Handlers report from any thread; one loop writes."""

    def __init__(self, store: Store, hooks: HookQueue) -> None:
        self._store = store
        self._hooks = hooks
        self._waiting: deque[tuple[Claimed, Progress | LogEntry]] = deque()
        self._something = asyncio.Event()
        # A settlement waits for the write in flight: it must not overtake the reports.
        self._writing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    def report(self, claimed: Claimed, what: Progress | LogEntry) -> None:
        """Add a report of one run; from any thread."""
        self._waiting.append((claimed, what))
        if not self._something.is_set():
            self._loop.call_soon_threadsafe(self._something.set)

    @property
    def has_something(self) -> bool:
        """Whether any report is not written yet."""
        return bool(self._waiting) or self._writing.locked()

    async def turn(self) -> float:
        """Wait for a report, wait a moment for more, and write them."""
        try:
            await asyncio.wait_for(self._something.wait(), 5)
        except TimeoutError:
            return 0
        await asyncio.sleep(COLLECT_S)
        await self.flush()
        return 0

    async def flush(self) -> None:
        """Write all reports up to now. Reports under a lost lease are dropped."""
        async with self._writing:
            self._something.clear()
            items = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if items:
                await self._write(items)

    async def _write(self, items: list[tuple[Claimed, Progress | LogEntry]]) -> None:
        try:
            lost = await self._send(_reports(items))
        except BaseException:
            self._waiting.extendleft(reversed(items[-10 * LOG_LINES_KEPT :]))
            self._something.set()
            raise
        if self._hooks.wants_events:
            now_ms = self._store.now()
            for claimed, what in items:
                if isinstance(what, Progress) and claimed.job.id not in lost:
                    self._hooks.events([progress_event(claimed.job, what, now_ms)])

    async def _send(self, reports: list[Report]) -> set[str]:
        """The ids of jobs whose report was not written. A report that raises in the store does not block the others."""
        try:
            return set(await self._store.report(reports))
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(reports) > 1:
                return {id for report in reports for id in await self._send([report])}
            log.exception("the progress and log lines of job %s cannot be stored", reports[0].lease.id)
            self._hooks.error(error)
            return {reports[0].lease.id}


class _Collected(Struct):
    claimed: Claimed
    progress: Progress | None = None
    lines: list[LogEntry] = []


def _reports(items: list[tuple[Claimed, Progress | LogEntry]]) -> list[Report]:
    """The last progress and all lines of each lease. Reports of an older claim of a job are dropped."""
    latest: dict[str, _Collected] = {}
    for claimed, what in items:
        known = latest.get(claimed.job.id)
        if known is None or known.claimed.job.claims < claimed.job.claims:
            known = latest[claimed.job.id] = _Collected(claimed)
        if known.claimed.lease.token != claimed.lease.token:
            continue
        if isinstance(what, Progress):
            known.progress = what
        else:
            known.lines.append(what)
    return [report for one in latest.values() for report in _reports_of(one)]


def _reports_of(one: _Collected) -> Iterator[Report]:
    """One report, or one for each change of the level of the lines. The first one has the progress."""
    common = Report(lease=one.claimed.lease, progress=one.progress, attempt=one.claimed.job.attempt)
    if not one.lines:
        yield common
    for level, lines in groupby(one.lines[-LOG_LINES_KEPT:], lambda line: line.level):
        yield structs.replace(common, lines=tuple(line.text for line in lines), level=level)
        common = structs.replace(common, progress=None)
