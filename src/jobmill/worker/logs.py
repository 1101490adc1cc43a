"""Log lines about jobs. Each carries the job and the worker as `extra`, for log formats that keep fields."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from jobmill.core.durations import shown_ms
from jobmill.core.flows import is_dependency_error
from jobmill.core.job import Job
from jobmill.core.values import Claimed, Lease, Settlement
from jobmill.worker.outcomes import frames_of_handler

if TYPE_CHECKING:
    from jobmill.worker.running import Run

log = logging.getLogger("jobmill")

ERROR_SHOWN = 300


def about(job: Lease | Job, attempt: int, worker: str, run: Run | None = None) -> dict[str, Any]:
    """The fields of a log line about a job. (`name` would overwrite the name of the logger.)"""
    fields = {"job_id": job.id, "job_name": job.name, "queue": job.queue, "attempt": attempt, "worker": worker}
    if run is not None and run.trace_id is not None:
        fields["trace_id"] = run.trace_id
    return fields | {"fence": job.claims} if isinstance(job, Job) else fields


def log_recovered(claimed: Claimed, worker: str) -> None:
    """Log that this worker takes over a job of a worker that has died, or could not extend its lease."""
    lease, job = claimed.lease, claimed.job
    log.warning(
        "job %s (%s) was recovered from %s, whose lease had ended",
        lease.id,
        lease.name,
        f"worker {claimed.recovered_from}" if claimed.recovered_from else "a worker without a name",
        extra=about(job, job.attempt, worker),
    )


def log_settlement(settlement: Settlement, run: Run | None, worker: str, *, lost: bool) -> None:
    """Log how a run ended: a job that failed for good as an error with the traceback, one with a retry as a warning."""
    lease, error = settlement.lease, None if run is None else run.error
    extra = about(lease if run is None else run.claimed.job, settlement.attempt, worker, run)
    extra["outcome"] = "lost" if lost else settlement.outcome
    if run is not None:
        extra["took_ms"] = round((run.over - run.started) * 1000)
    job = f"job {lease.id} ({lease.name})"
    if lost:
        log.warning("%s: the settlement came too late", job, extra=extra)
    elif settlement.outcome in ("errored", "crashed"):
        text = " ".join((settlement.error or "").split())[:ERROR_SHOWN]
        if run is None and is_dependency_error(settlement.error):
            # The error itself is in the log already, of the job that failed first.
            log.warning("%s failed and did not run: %s", job, text, extra=extra)
            return
        state = tally_key(settlement)
        is_failed = state == "failed"
        delay_ms = 0 if settlement.due is None else settlement.due.after_ms
        shows_traceback = is_failed or log.isEnabledFor(logging.DEBUG)
        log.log(
            logging.ERROR if is_failed else logging.WARNING,
            "%s, attempt %d %s, %s: %s%s",
            job,
            settlement.attempt,
            settlement.outcome,
            f"retrying in {shown_ms(delay_ms)}" if state == "retrying" and delay_ms else state,
            text,
            # The exception of an isolated process is not here, but its traceback is.
            _traceback(settlement) if shows_traceback and error is None else "",
            exc_info=(type(error), error, frames_of_handler(error)) if shows_traceback and error is not None else None,
            extra=extra,
        )


def tally_key(settlement: Settlement) -> str:
    """The field of a tick's summary that counts this settlement."""
    if settlement.outcome in ("errored", "crashed"):
        return "retrying" if settlement.state == "waiting" and settlement.rearm is None else "failed"
    return "succeeded" if settlement.outcome == "succeeded" else "waiting"


def _traceback(settlement: Settlement) -> str:
    text = settlement.attempts[-1].traceback if settlement.attempts else None
    return f"\n{text.rstrip()}" if text else ""
