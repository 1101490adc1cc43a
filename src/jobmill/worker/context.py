"""What the loops of one worker share, from its start to its stop."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from jobmill.core.events import EventType, job_event
from jobmill.core.usage import RunEnded
from jobmill.core.values import Settlement
from jobmill.handlers.handler import Handler
from jobmill.runtime.threads import Threads
from jobmill.runtime.watchdog import Watchdog
from jobmill.store import Store
from jobmill.worker.counts import Counts
from jobmill.worker.deadlines import Deadlines
from jobmill.worker.hooks import HookQueue
from jobmill.worker.lifespans import Lifespans
from jobmill.worker.logs import about
from jobmill.worker.options import WorkerSettings
from jobmill.worker.reporter import Reporter
from jobmill.worker.running import Run, RunningJobs
from jobmill.worker.usage import UsageLog

if TYPE_CHECKING:
    from jobmill.worker.isolate.isolation import Isolation

log = logging.getLogger("jobmill")

MAX_REMEMBERED = 1_000


class WorkerContext(Struct, eq=False, kw_only=True):
    """The store, the handlers, the running jobs, and what reports on them."""

    store: Store
    handlers: dict[str, Handler[..., Any]]
    settings: WorkerSettings
    random: Random
    watchdog: Watchdog
    running: RunningJobs
    threads: Threads
    deadlines: Deadlines
    hooks: HookQueue
    lifespans: Lifespans
    reporter: Reporter
    counts: Counts
    #: None without usage recorders.
    usage: UsageLog | None
    #: Whether all tasks were cancelled at once, as asyncio.run does at its end.
    cut_off: Callable[[], bool]
    #: Called with the reason when a limit of this process is reached: it finishes its jobs, and ends.
    recycle: Callable[[str], None]
    #: Set when an exchange has left jobs in the outbox of the store.
    outbox: asyncio.Event
    #: Runs isolated handlers; None until the first of them runs.
    isolation: Isolation | None = None
    #: The jobs about which `warn_given_back` has logged a warning.
    given_back: set[str] = set()

    def stop_lost(self, run: Run, event: EventType, why: str) -> None:
        """Stop a run whose lease this worker has lost, and report the loss."""
        run.stop("lost")
        job = run.claimed.job
        extra = about(job, job.attempt, self.settings.name, run)
        log.warning("job %s (%s) was stopped: %s", job.id, job.name, why, extra=extra)
        ended: RunEnded = "cancelled" if event in ("cancelled", "removed") else "lost"
        self.counts.leases_lost += ended == "lost"
        if run.started:
            run.series.runs[ended] += 1
            run.series.run_seconds.values.append((run.over or time.monotonic()) - run.started)
        if self.usage is not None:
            self.usage.lost(run, ended)
        if self.hooks.wants_events:
            self.hooks.events([job_event(run.claimed.job, event, self.store.now(), reason=why)])

    def warn_given_back(self, decided: Settlement) -> None:
        """Log once that this worker gives a job back each time it claims it, for a program that can read the job."""
        lease = decided.lease
        if lease.id not in self.given_back:
            if len(self.given_back) >= MAX_REMEMBERED:
                self.given_back.clear()
            self.given_back.add(lease.id)
            extra = about(lease, decided.attempt, self.settings.name)
            log.warning("job %s (%s) is left to other programs: %s", lease.id, lease.name, decided.error, extra=extra)
