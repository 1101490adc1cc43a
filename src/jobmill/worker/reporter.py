"""The reporter: progress and log lines of running jobs, collected for a moment and handed to the store in one call."""

from __future__ import annotations

import asyncio
import logging
from collections import deque

from jobmill.core.events import progress_event
from jobmill.core.job import LOG_LINES_KEPT, Progress
from jobmill.core.values import Claimed, Report
from jobmill.errors import StoreUnavailable
from jobmill.handlers.context import ReportFunction
from jobmill.store import Store
from jobmill.worker.hooks import HookQueue

log = logging.getLogger("jobmill")

COLLECT_S = 0.05


class Reporter:
    """Handlers tell from any thread; the loop writes."""

    def __init__(self, store: Store, hooks: HookQueue) -> None:
        self._store = store
        self._hooks = hooks
        self._told: deque[tuple[Claimed, Progress | str]] = deque()
        self._something = asyncio.Event()
        # Who settles waits for what is being written: a settlement must not overtake it.
        self._writing = asyncio.Lock()
        self._loop = asyncio.get_running_loop()

    def report_for(self, claimed: Claimed) -> ReportFunction:
        """The function through which a run reports."""

        def tell(what: Progress | str) -> None:
            self._told.append((claimed, what))
            if not self._something.is_set():
                self._loop.call_soon_threadsafe(self._something.set)

        return tell

    @property
    def has_something(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._told) or self._writing.locked()

    async def turn(self) -> float:
        """Wait for something, collect for a moment, write."""
        try:
            await asyncio.wait_for(self._something.wait(), 5)
        except TimeoutError:
            return 0
        await asyncio.sleep(COLLECT_S)
        await self.flush()
        return 0

    async def flush(self) -> None:
        """Write what was told so far; what is refused because a lease is lost is dropped."""
        async with self._writing:
            await self._flush()

    async def _flush(self) -> None:
        self._something.clear()
        told = [self._told.popleft() for _ in range(len(self._told))]
        if not told:
            return
        try:
            lost = await self._written(_reports(told))
        except BaseException:
            self._told.extendleft(reversed(told[-10 * LOG_LINES_KEPT :]))
            self._something.set()
            raise
        if self._hooks.wants_events:
            now_ms = self._store.now()
            for claimed, what in told:
                if isinstance(what, Progress) and claimed.job.id not in lost:
                    self._hooks.events([progress_event(claimed.job, what, now_ms)])

    async def _written(self, reports: list[Report]) -> set[str]:
        """The ids of those not written. One that the store chokes on holds nobody up, and does not come back."""
        try:
            return set(await self._store.report(reports))
        except StoreUnavailable:
            raise
        except Exception as error:
            if len(reports) > 1:
                return {id for report in reports for id in await self._written([report])}
            log.exception("what job %s told cannot be kept", reports[0].lease.id)
            self._hooks.error(error, None)
            return {reports[0].lease.id}


def _reports(told: list[tuple[Claimed, Progress | str]]) -> list[Report]:
    """One report a lease: the last progress, all lines. What a run told whose job was claimed again is too late."""
    progress: dict[str, Progress] = {}
    lines: dict[str, list[str]] = {}
    latest: dict[str, Claimed] = {}
    for claimed, _ in told:
        known = latest.get(claimed.job.id)
        if known is None or known.job.claims < claimed.job.claims:
            latest[claimed.job.id] = claimed
    for claimed, what in told:
        if latest[claimed.job.id].lease.token != claimed.lease.token:
            continue
        if isinstance(what, Progress):
            progress[claimed.job.id] = what
        else:
            lines.setdefault(claimed.job.id, []).append(what)
    return [
        Report(lease=claimed.lease, progress=progress.get(id), lines=tuple(lines.get(id, ())[-LOG_LINES_KEPT:]))
        for id, claimed in latest.items()
    ]
