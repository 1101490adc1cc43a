"""The reporter: progress and log lines of running jobs, collected for a moment and handed to the store in one call."""

from __future__ import annotations

import asyncio
from collections import deque

from jobmill.context import Tell
from jobmill.core import facts
from jobmill.core.changes import Claimed, Report
from jobmill.core.job import LOG_LINES_KEPT, Progress
from jobmill.store import Store
from jobmill.worker.teller import Teller

COLLECT_S = 0.05


class Reporter:
    """Handlers tell from any thread; the loop writes."""

    def __init__(self, store: Store, teller: Teller) -> None:
        self._store = store
        self._teller = teller
        self._told: deque[tuple[Claimed, Progress | str]] = deque()
        self._something = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def teller_of(self, claimed: Claimed) -> Tell:
        """What a run's context tells through."""

        def tell(what: Progress | str) -> None:
            self._told.append((claimed, what))
            if not self._something.is_set():
                self._loop.call_soon_threadsafe(self._something.set)

        return tell

    @property
    def has_something(self) -> bool:
        """Whether anything waits to be written."""
        return bool(self._told)

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
        self._something.clear()
        told = [self._told.popleft() for _ in range(len(self._told))]
        if not told:
            return
        reports = _reports(told)
        try:
            lost = set(await self._store.report(list(reports.values())))
        except BaseException:
            self._told.extendleft(reversed(told[-10 * LOG_LINES_KEPT :]))
            self._something.set()
            raise
        if self._teller.wants_events:
            now_ms = self._store.now()
            for claimed, what in told:
                if isinstance(what, Progress) and claimed.job.id not in lost:
                    self._teller.facts([facts.of_progress(claimed.job, what, now_ms)])


def _reports(told: list[tuple[Claimed, Progress | str]]) -> dict[str, Report]:
    """One report a lease: the last progress, all lines."""
    progress: dict[str, Progress] = {}
    lines: dict[str, list[str]] = {}
    leases = {claimed.job.id: claimed.lease for claimed, _ in told}
    for claimed, what in told:
        if isinstance(what, Progress):
            progress[claimed.job.id] = what
        else:
            lines.setdefault(claimed.job.id, []).append(what)
    return {
        id: Report(lease=lease, progress=progress.get(id), lines=tuple(lines.get(id, ())[-LOG_LINES_KEPT:]))
        for id, lease in leases.items()
    }
