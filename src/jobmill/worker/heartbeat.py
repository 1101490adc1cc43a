"""The heartbeat: extends the leases of all runs in one call, every third of a lease, and stops the runs that are lost.

The worker also stops a job when the lease ends on its own clock without an extension, because the store is unavailable
or this process was suspended: another worker may run the job by then.
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

#: Also with a long lease, the watchdog expects turns and a cancelled job should end soon.
MAX_WAIT_S = 10.0


class Heartbeat:
    """Runs one turn every third of the lease."""

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
        """Extend the leases and stop lost runs. Returns the wait for the next turn, shorter if the store failed."""
        third = min(self._lease_ms / 3000, MAX_WAIT_S)
        started = self._monotonic()
        self.latest_delay = max(0.0, started - self._due)
        self._stop_expired(started)
        # A lost lease must not be extended, even while its handler is still ending.
        runs = [run for run in self._running.runs.values() if run.why != "lost"]
        wait = third
        if runs:
            try:
                async with asyncio.timeout(min(third, self._first_expiry() - started)):
                    lost = await self._store.extend([run.claimed.lease for run in runs], self._lease_ms)
            except Exception as error:
                why = self._watchdog.store_error = f"{type(error).__name__}: {error}"
                log.warning("leases of %d jobs could not be extended: %s; trying again", len(runs), why)
                wait = min(1.0, third / 5)
            else:
                self._watchdog.store_error = None
                await self._apply(runs, set(lost), started)
        self._stop_expired(self._monotonic())
        # At most until the first lease ends that could not be extended: another worker may run that job then.
        now = self._monotonic()
        wait = max(0.0, min(wait - (now - started), self._first_expiry() - now))
        self._due = now + wait
        return wait

    async def _apply(self, runs: list[Run], lost: set[str], sent: float) -> None:
        for run in runs:
            if run.claimed.lease.id not in lost:
                run.expires = sent + self._lease_ms / 1000
        stopped = [run for run in runs if run.claimed.lease.id in lost and not run.over]
        if not stopped:
            return
        for run in stopped:
            run.stop("lost")
        for run, (event, why) in zip(stopped, await self._why_lost(stopped), strict=True):
            self._report(run, event, why)

    async def _why_lost(self, stopped: list[Run]) -> list[tuple[EventType, str]]:
        """The reasons, for log and hooks only: an error here must not delay the next extension."""
        try:
            async with asyncio.timeout(min(self._lease_ms / 3000, MAX_WAIT_S)):
                jobs = await self._store.get([run.claimed.lease.id for run in stopped])
        except Exception as error:
            self._hooks.error(error, None)
            return [("lease_lost", "the store says that its lease has ended")] * len(stopped)
        return [_why(job) for job in jobs]

    def _stop_expired(self, now: float) -> None:
        for run in self._held():
            if run.expires <= now:
                run.stop("lost")
                self._report(run, "lease_lost", "its lease could not be extended in time")

    def _first_expiry(self) -> float:
        """When the first lease of this worker ends unless it is extended."""
        return min((run.expires for run in self._held()), default=math.inf)

    def _held(self) -> list[Run]:
        return [run for run in self._running.runs.values() if not run.over and run.why != "lost"]

    def _report(self, run: Run, event: EventType, why: str) -> None:
        log.warning("job %s (%s) was stopped: %s", run.claimed.job.id, run.claimed.job.name, why)
        if self._usage is not None:
            self._usage.lost(run, event)
        if self._hooks.wants_events:
            self._hooks.events([job_event(run.claimed.job, event, self._store.now(), reason=why)])


def _why(job: Job | None) -> tuple[EventType, str]:
    """Why this worker has lost a job, by the state of the job now."""
    if job is None:
        return "removed", "it was removed"
    if job.state == "cancelled":
        return "cancelled", "it was cancelled"
    return "lease_lost", "its lease had ended, and another worker may run it"
