"""`/metrics`: what this worker process did and how it is doing, in Prometheus' text format.

What is true of the whole store is not here, because every worker would report it again. No label holds a job id, a
tenant or the text of an error.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Container, Iterator

from jobmill._version import __version__
from jobmill.metrics.text import Labels, family, histograms
from jobmill.worker.context import WorkerContext
from jobmill.worker.counts import Counts


def worker_metrics(context: WorkerContext, *, is_started: bool) -> str:
    """All metrics of one worker process. Before the store has answered, there is nothing to say of its clock."""
    counts, queues = context.counts, context.settings.queues
    return "".join((*_of_jobs(counts, queues), *_of_exchanges(counts), *_of_worker(context, is_started)))


def _of_jobs(counts: Counts, queues: Container[str]) -> Iterator[str]:
    series = [
        ({"queue": queue, "name": name}, one)
        for queue, name, one in counts.all_series()
        if queue in queues or one.succeeded or any(one.runs.values())
    ]
    yield family(
        "jobmill_runs_total",
        "counter",
        "Runs by how they ended. A crash is counted by the worker that takes the job over.",
        [
            ({**of, "outcome": outcome}, count)
            for of, one in series
            for outcome, count in (("succeeded", one.succeeded), *one.runs.items())
        ],
    )
    yield family(
        "jobmill_jobs_finished_total",
        "counter",
        "Jobs, and runs of recurring jobs, that this worker settled as succeeded or failed.",
        [
            ({**of, "state": state}, count)
            for of, one in series
            for state, count in (("succeeded", one.succeeded), ("failed", one.failed))
        ],
    )
    yield histograms(
        "jobmill_run_seconds", "From the call of a handler to its end.", [(of, one.run_seconds) for of, one in series]
    )
    yield histograms(
        "jobmill_wait_seconds",
        "From the due time of a job to its claim.",
        [(of, one.wait_seconds) for of, one in series],
    )
    yield family(
        "jobmill_enqueued_total",
        "counter",
        "Jobs that this process enqueued outside of transactions, by what the store did.",
        [
            ({"queue": queue, "name": name, "status": status}, count)
            for queue, name, one in counts.all_series()
            if any(one.enqueued.values())
            for status, count in one.enqueued.items()
        ],
    )


def _of_exchanges(counts: Counts) -> Iterator[str]:
    yield histograms(
        "jobmill_exchange_seconds",
        "How long the store took to settle and claim jobs in one call.",
        [({}, counts.exchange_seconds)],
    )
    yield histograms(
        "jobmill_exchange_jobs", "Jobs that one such call settled and claimed.", [({}, counts.exchange_jobs)]
    )
    yield family(
        "jobmill_leases_lost_total",
        "counter",
        "Leases that ended before this worker could extend or settle them.",
        [({}, counts.leases_lost)],
    )
    yield family(
        "jobmill_outbox_flushed_total",
        "counter",
        "Dependencies of jobs that were settled in the background, after the job that ended.",
        [({}, counts.outbox_flushed)],
    )
    yield family(
        "jobmill_settlements_refused_total",
        "counter",
        "Settlements that the store could not write.",
        [({}, counts.settlements_refused)],
    )


def _of_worker(context: WorkerContext, is_started: bool) -> Iterator[str]:
    store = context.store
    is_up = is_started and context.watchdog.store_error is None
    ages = context.watchdog.ages().items()
    build = {"version": __version__, "store": store.name, "python": platform.python_version()}
    skew: list[tuple[Labels, float]] = [({}, store.now() / 1000 - time.time())] if is_started else []
    running = context.running.started
    for name, help, samples in (
        ("concurrency", "Maximum number of jobs that this worker runs at once.", [({}, context.settings.concurrency)]),
        ("running", "Jobs that this worker runs now.", [({}, running)]),
        ("loop_age_seconds", "Time since each loop began an iteration.", [({"loop": loop}, age) for loop, age in ages]),
        (
            "purge_age_seconds",
            "Time since this worker last finished a purge and nothing was left to remove.",
            [({}, time.monotonic() - context.counts.purged_at)],
        ),
        ("store_up", "Whether the store answered last time.", [({}, int(is_up))]),
        ("store_clock_skew_seconds", "How far the clock of the store is ahead of the clock of this machine.", skew),
        ("build_info", "Versions that run here; the value is always 1.", [(build, 1)]),
    ):
        yield family(f"jobmill_{name}", "gauge", help, samples)
