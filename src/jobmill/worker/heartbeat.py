"""The heartbeat: extends the leases of all runs in one call, every third of a lease, and ends the runs that are lost.

A worker does not wait to be told that it has lost a job: when its own lease time has run out without an extension (the
store is away, this process was stopped for a while), it stops the job itself, because another worker may run it by now.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from jobmill.core.events import EventType, job_event
from jobmill.core.job import Job
from jobmill.runtime.watchdog import Watchdog
from jobmill.store import Store
from jobmill.worker.hooks import HookQueue
from jobmill.worker.running import Run, RunningJobs
from jobmill.worker.usage import UsageLog

log = logging.getLogger("jobmill")

#: However long the lease: the watchdog wants to see every loop turn, and a cancelled job should end soon.
MOST_S = 10.0


class Heartbeat:
    """One turn a third of the lease."""

    def __init__(
        self,
        store: Store,
        running: RunningJobs,
        lease_ms: int,
        watchdog: Watchdog,
        hooks: HookQueue,
        usage: UsageLog | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._running = running
        self._lease_ms = lease_ms
        self._watchdog = watchdog
        self._hooks = hooks
        self._usage = usage
        self._monotonic = monotonic
        self.latest_delay = 0.0
        self._due = monotonic()

    async def turn(self) -> float:
        """Extend, stop what is lost, and say when to come again: sooner, when the store did not answer."""
        third = min(self._lease_ms / 3000, MOST_S)
        started = self._monotonic()
        self.latest_delay = max(0.0, started - self._due)
        self._stop_expired(started)
        # What is lost is not ours to extend, however long it takes to end.
        runs = [run for run in self._running.runs.values() if run.why != "lost"]
        wait = third
        if runs:
            try:
                async with asyncio.timeout(min(third, self._first_end() - started)):
                    lost = await self._store.extend([run.claimed.lease for run in runs], self._lease_ms)
            except Exception as error:
                away = self._watchdog.store_error = f"{type(error).__name__}: {error}"
                log.warning("leases of %d jobs could not be extended: %s; trying again", len(runs), away)
                wait = min(1.0, third / 5)
            else:
                self._watchdog.store_error = None
                await self._apply(runs, set(lost), started)
        self._stop_expired(self._monotonic())
        # Not a moment longer than the first lease that could not be extended: another worker may run its job then.
        now = self._monotonic()
        wait = max(0.0, min(wait - (now - started), self._first_end() - now))
        self._due = now + wait
        return wait

    async def _apply(self, runs: list[Run], lost: set[str], asked: float) -> None:
        for run in runs:
            if run.claimed.lease.id not in lost:
                run.expires = asked + self._lease_ms / 1000
        gone = [run for run in runs if run.claimed.lease.id in lost and not run.over]
        if not gone:
            return
        for run in gone:
            run.stop("lost")
        for run, why in zip(gone, await self._why_lost(gone), strict=True):
            self._tell(run, *why)

    async def _why_lost(self, gone: list[Run]) -> list[tuple[EventType, str]]:
        """Only for those who are told: whatever goes wrong here must not hold the next extension up."""
        try:
            async with asyncio.timeout(min(self._lease_ms / 3000, MOST_S)):
                jobs = await self._store.get([run.claimed.lease.id for run in gone])
        except Exception as error:
            self._hooks.error(error, None)
            return [("lease_lost", "the store says that it is not ours any more")] * len(gone)
        return [_why(job) for job in jobs]

    def _stop_expired(self, now: float) -> None:
        for run in self._ours():
            if run.expires <= now:
                run.stop("lost")
                self._tell(run, "lease_lost", "its lease could not be extended in time")

    def _first_end(self) -> float:
        """When the first of our own leases ends, if it is not extended."""
        return min((run.expires for run in self._ours()), default=math.inf)

    def _ours(self) -> list[Run]:
        return [run for run in self._running.runs.values() if not run.over and run.why != "lost"]

    def _tell(self, run: Run, fact: EventType, why: str) -> None:
        log.warning("job %s (%s) is stopped: %s", run.claimed.job.id, run.claimed.job.name, why)
        if self._usage is not None:
            self._usage.lost(run, fact)
        if self._hooks.wants_events:
            self._hooks.events([job_event(run.claimed.job, fact, self._store.now(), reason=why)])


def _why(job: Job | None) -> tuple[EventType, str]:
    """Why a job that we ran is not ours any more, by what has become of it."""
    if job is None:
        return "removed", "it was removed"
    if job.state == "cancelled":
        return "cancelled", "it was cancelled"
    return "lease_lost", "its lease had ended, and it may run elsewhere"
