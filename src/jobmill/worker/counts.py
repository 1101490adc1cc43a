"""The counts of one worker: what is measured about its jobs is recorded here, and nowhere else.

The counts only grow: a reader that needs the numbers of a period subtracts the earlier ones. Every job is counted, so
the counts are plain numbers without locks, which belong to the event loop of the worker, and a run has its series at
hand.
"""

from __future__ import annotations

import hashlib
import threading
import time
from bisect import bisect_left
from collections.abc import Container, Iterable, Sequence
from typing import Any, Final

from msgspec import Struct, field

from jobmill.core.job import Job
from jobmill.core.tallies import BUCKETS, MAX_ERROR_GROUPS, ErrorGroup
from jobmill.core.values import NewJob, Receipt, Settlement
from jobmill.handlers.handler import Handler
from jobmill.metrics.histogram import Histogram, add_counts

#: How a run can end without success. A crash is counted by the worker that takes the job over.
OUTCOMES: Final = ("errored", "crashed", "snoozed", "released", "suspended", "cancelled", "lost")

#: What a store can answer to a new job.
STATUSES: Final = ("created", "exists", "duplicate", "updated", "pinned")

#: How runs end that a tally counts, beside success.
TALLIED_RUNS: Final = ("errored", "crashed", "cancelled", "snoozed", "lost")
TALLIED: Final = ("enqueued", "claimed", "failed", "run_ms", "wait_ms", "succeeded", *TALLIED_RUNS)

#: The name of all jobs that have no handler in this worker, and the queue of all that MAX_QUEUES leaves out.
OTHER = "other"
#: An application may have a queue per customer. Above this number, further queues are counted together; above half of
#: it, those that this worker only enqueues to.
MAX_QUEUES = 200

#: After this number of jobs, the values of histograms are counted.
FOLD_AFTER = 1_000

JOB_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 7200)
EXCHANGE_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
EXCHANGE_JOBS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


#: The bounds of the buckets of tallies, which are powers of two of a millisecond.
LOG2_SECONDS = tuple((2 << index) / 1000 for index in range(BUCKETS - 1))


class Durations(Histogram):
    """A histogram that also counts by the buckets of tallies, which all workers share."""

    __slots__ = ("_log2_counts",)

    def __init__(self, bounds: Sequence[float]) -> None:
        super().__init__(bounds)
        self._log2_counts = [0] * BUCKETS

    @property
    def log2_counts(self) -> list[int]:
        """How many values are in each bucket of a tally."""
        self.fold()
        return self._log2_counts

    def _count(self, values: list[float]) -> None:
        super()._count(values)
        add_counts(self._log2_counts, values, LOG2_SECONDS, bisect_left)


class Series(Struct, eq=False):
    """The counts of one queue and name."""

    #: Jobs, and runs of recurring jobs, that failed for good. (Each run that succeeded ended its job.)
    failed: int = 0
    #: How runs ended that did not succeed.
    runs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    #: From the call of the handler to its end.
    run_seconds: Durations = field(default_factory=lambda: Durations(JOB_SECONDS))
    #: From the due time to the claim; not of jobs that were taken over.
    wait_seconds: Durations = field(default_factory=lambda: Durations(JOB_SECONDS))
    #: What the store answered when this process enqueued such jobs.
    enqueued: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    #: Errors since they were last read, by fingerprint.
    error_groups: dict[str, ErrorGroup] = field(default_factory=dict)

    @property
    def succeeded(self) -> int:
        """All other runs. (A crashed run was another worker's: its time is not known here.)"""
        return sum(self.run_seconds.counts) - sum(self.runs.values()) + self.runs["crashed"]

    def as_counts(self) -> list[int]:
        """All numbers that a tally has, in the order of `TALLIED`, and then its two histograms."""
        run, wait, runs = self.run_seconds, self.wait_seconds, self.runs
        claimed = sum(wait.counts) + runs["crashed"]
        own = (self.enqueued["created"], claimed, self.failed, round(run.sum * 1000), round(wait.sum * 1000))
        return [*own, self.succeeded, *(runs[one] for one in TALLIED_RUNS), *run.log2_counts, *wait.log2_counts]


class Counts:
    """What one worker did since its start."""

    def __init__(self, handlers: dict[str, Handler[..., Any]], queues: Container[str]) -> None:
        #: By queue, and then by name: two lookups of a text are faster than one of a pair.
        self.series: dict[str, dict[str, Series]] = {}
        self._names = handlers
        self._queues = queues
        # A counter that is seen before it grows: Prometheus does not see the first step of a new one.
        for handler in handlers.values():
            if handler.options_given.queue in queues:
                self.series_of(handler.options_given.queue, handler.name)
        self.exchange_seconds = Histogram(EXCHANGE_SECONDS)
        self.exchange_jobs = Histogram(EXCHANGE_JOBS)
        self.leases_lost = 0
        #: Edges that `flush_outbox` has set: jobs that others had to release.
        self.outbox_flushed = 0
        self.settlements_refused = 0
        #: When a purge left nothing to remove, on the clock of this machine.
        self.purged_at = time.monotonic()
        self._unfolded = 0
        self._enqueueing = threading.Lock()

    def series_of(self, queue: str, name: str) -> Series:
        """The counts of jobs of this queue and name, perhaps together with others."""
        room = MAX_QUEUES if queue in self._queues else MAX_QUEUES // 2
        is_own = queue in self.series or len(self.series) < room
        names = self.series.setdefault(queue if is_own else OTHER, {})
        known = name if name in self._names else OTHER
        return names.get(known) or names.setdefault(known, Series())

    def exchanged(self, jobs: int, seconds: float) -> None:
        """The store has settled and claimed this number of jobs."""
        self.exchange_seconds.values.append(seconds)
        self.exchange_jobs.values.append(jobs)
        self._unfolded += jobs + 1
        if self._unfolded > FOLD_AFTER:
            self._fold()

    def _fold(self) -> None:
        self._unfolded = 0
        for histogram in (self.exchange_seconds, self.exchange_jobs):
            histogram.fold()
        for _, _, series in self.all_series():
            series.run_seconds.fold()
            series.wait_seconds.fold()

    def all_series(self) -> list[tuple[str, str, Series]]:
        """All series with their queue and name. (Copied, because a thread that enqueues may add one.)"""
        queues = list(self.series.items())
        return [(queue, name, series) for queue, names in queues for name, series in list(names.items())]

    def not_succeeded(self, settlement: Settlement, *, lost: bool) -> None:
        """A settlement was lost, or ended a run or a job otherwise than by success."""
        self.leases_lost += lost
        if not lost and (settlement.state == "failed" or settlement.runs is not None):
            self.series_of(settlement.lease.queue, settlement.lease.name).failed += 1

    def errored(self, series: Series, job: Job, error_type: str | None, location: str | None, now_ms: int) -> None:
        """A handler raised an error: count it with others of the same type, handler and line."""
        groups = series.error_groups
        parts = (error_type or "error", location or "", job.name)
        fingerprint = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]
        if fingerprint not in groups and len(groups) >= MAX_ERROR_GROUPS:
            return
        count = 1 + (groups[fingerprint].count if fingerprint in groups else 0)
        groups[fingerprint] = ErrorGroup(
            fingerprint=fingerprint,
            error_type=parts[0],
            location=parts[1],
            count=count,
            last_job_id=job.id,
            last_ms=now_ms,
        )

    @property
    def has_any(self) -> bool:
        """Whether anything was claimed or enqueued."""
        return any(any(series.as_counts()) for *_, series in self.all_series())

    def enqueued(self, new_jobs: Sequence[NewJob], receipts: Iterable[Receipt]) -> None:
        """This process has enqueued jobs, perhaps in the thread of a handler."""
        with self._enqueueing:
            for new_job, receipt in zip(new_jobs, receipts, strict=True):
                self.series_of(new_job.queue, new_job.name).enqueued[receipt.status] += 1
