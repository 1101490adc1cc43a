"""The heartbeat: extends the leases of all runs in one call, every third of a lease, and stops the runs that are lost.

A hint of the store that a job was cancelled makes it beat at once. A missed hint only delays the end of that job.

The worker also stops a job when the lease ends on its own clock without an extension, because the store is unavailable
or this process was suspended: another worker may run the job by then.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time

from jobmill.core.events import EventType
from jobmill.core.job import Job
from jobmill.worker.context import WorkerContext
from jobmill.worker.running import Run

log = logging.getLogger("jobmill")

#: Also with a long lease, the watchdog expects turns and a cancelled job should end soon.
MAX_WAIT_S = 10.0
#: How long one call waits for hints.
WATCH_MS = 60_000
#: The store is asked for hints as soon as a job has run for this time.
SHORT_S = 0.1
#: The pause after a hint: many cancels in a short time cost few turns.
HINT_PAUSE_S = 0.005


class Heartbeat:
    """Beats every third of a lease, and at once when the store gives a hint that a running job was cancelled."""

    def __init__(self, context: WorkerContext, *, hints: bool) -> None:
        self._context = context
        #: Whether hints are waited for. A tick is too short for that.
        self._wants_hints = hints
        #: Whether a job has run for a while. Until then the store is not asked for hints: short jobs pay nothing.
        self._runs_long = False
        self._watching: asyncio.Task[None] | None = None

    async def turn(self) -> float:
        """Beat, then sleep until the next turn or a hint. Returns how long to sleep after that."""
        try:
            if self._watching is None and self._wants_hints:
                # From before the leases are extended on, so that no cancel is missed between the two.
                watch = self._wait_for_hint() if self._runs_long else self._wait_for_long_run()
                self._watching = asyncio.create_task(watch, name="jobmill heartbeat watch")
                await asyncio.sleep(0)
            wait = await _beat(self._context)
            return wait if self._watching is None else await self._sleep(self._watching, wait)
        except BaseException:
            if self._watching is not None:
                self._watching.cancel()
                self._watching = None
            raise

    async def _wait_for_long_run(self) -> None:
        running, known = self._context.running, set[str]()
        while known.isdisjoint(running.runs):
            if not running.runs:
                running.begun.clear()
                await running.begun.wait()
            known = set(running.runs)
            await asyncio.sleep(SHORT_S)
        self._runs_long = True

    async def _wait_for_hint(self) -> None:
        store, began = self._context.store, time.monotonic()
        await store.wait_for_cancel(self._context.running.ids, store.now() + WATCH_MS)
        self._runs_long = time.monotonic() - began < WATCH_MS / 1000

    async def _sleep(self, watching: asyncio.Task[None], wait: float) -> float:
        began = time.monotonic()
        await asyncio.wait((watching,), timeout=wait)
        if not watching.done():
            return 0.0
        self._watching = None
        error = None if watching.cancelled() else watching.exception()
        if error is None:
            return min(wait, HINT_PAUSE_S)
        # Without hints, a cancel is noticed at the next turn.
        log.debug("hints of cancelled jobs are not available: %s", error)
        return max(0.0, wait - (time.monotonic() - began))


async def _beat(context: WorkerContext) -> float:
    """Extend the leases and stop lost runs. Returns the wait for the next turn, shorter if the store failed."""
    lease_s = context.settings.lease_ms / 1000
    wait = third = min(lease_s / 3, MAX_WAIT_S)
    started = time.monotonic()
    _stop_expired(context, started)
    # A lost lease must not be extended, even while its handler is still ending.
    runs = [run for run in context.running.runs.values() if run.why != "lost"]
    if runs:
        try:
            async with asyncio.timeout(min(third, _first_expiry(context) - started)):
                lost = set(await context.store.extend([run.claimed.lease for run in runs], context.settings.lease_ms))
        except Exception as error:
            context.watchdog.store_failed(error)
            why = context.watchdog.store_error
            log.warning("leases could not be extended (number of jobs: %d): %s; trying again", len(runs), why)
            wait = min(1.0, third / 5)
        else:
            context.watchdog.store_answered(context.store.name)
            for run in runs:
                if run.claimed.lease.id not in lost:
                    run.expires = started + lease_s
            await _stop_lost(context, [run for run in runs if run.claimed.lease.id in lost and not run.over], third)
    now = time.monotonic()
    _stop_expired(context, now)
    # At most until the first lease ends that could not be extended: another worker may run that job then.
    return max(0.0, min(wait - (now - started), _first_expiry(context) - now))


async def _stop_lost(context: WorkerContext, lost: list[Run], timeout: float) -> None:
    for run in lost:
        run.stop("lost")
    if lost:
        for run, (event, why) in zip(lost, await _why_lost(context, lost, timeout), strict=True):
            context.stop_lost(run, event, why)


async def _why_lost(context: WorkerContext, lost: list[Run], timeout: float) -> list[tuple[EventType, str]]:
    """The reasons, for log and hooks only: an error here must not delay the next extension."""
    try:
        async with asyncio.timeout(timeout):
            jobs = await context.store.get([run.claimed.lease.id for run in lost])
    except Exception as error:
        context.hooks.error(error)
        return [("lease_lost", "the store says that its lease has ended")] * len(lost)
    return [_why(job) for job in jobs]


def _why(job: Job | None) -> tuple[EventType, str]:
    """Why this worker has lost a job, by the state of the job now."""
    if job is None:
        return "removed", "it was removed"
    if job.state == "cancelled":
        return "cancelled", "it was cancelled"
    return "lease_lost", "its lease had ended, and another worker may run it"


def _stop_expired(context: WorkerContext, now: float) -> None:
    for run in _held(context):
        if run.expires <= now:
            context.stop_lost(run, "lease_lost", "its lease could not be extended in time")


def _first_expiry(context: WorkerContext) -> float:
    """When the first lease of this worker ends unless it is extended."""
    return min((run.expires for run in _held(context)), default=math.inf)


def _held(context: WorkerContext) -> list[Run]:
    return [run for run in context.running.runs.values() if not run.over and run.why != "lost"]
