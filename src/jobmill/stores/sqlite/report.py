"""The verb report: progress and log lines of running jobs."""

from __future__ import annotations

from collections.abc import Sequence

from jobmill.core.events import bare_job, progress_event
from jobmill.core.job import LOG_LINES_KEPT, Progress
from jobmill.core.values import Lease, Report
from jobmill.stores.sqlite.codec import as_json
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.feed import feeding, publish
from jobmill.stores.sqlite.leases import held, locate


def report(context: SqliteContext, reports: Sequence[Report]) -> list[str]:
    """Store progress and log lines; the ids of the jobs whose lease is lost."""
    standing = held(context, [report.lease for report in reports])
    for index in sorted(standing):
        one = reports[index]
        seq = locate(context, one.lease)
        if one.lines:
            _log(context, seq, one)
        if one.progress is not None:
            _progress(context, seq, one.lease, one.progress)
    return [report.lease.id for index, report in enumerate(reports) if index not in standing]


def _log(context: SqliteContext, seq: int, one: Report) -> None:
    (last,) = context.row("log_last", (seq,))
    kept = list(enumerate(one.lines, last + 1))[-LOG_LINES_KEPT:]
    rows = [(seq, number, context.now_ms, text, one.attempt, one.level) for number, text in kept]
    context.write_rows("log", (), rows)
    context.write("log_trim", (seq, last + len(one.lines) - LOG_LINES_KEPT))


def _progress(context: SqliteContext, seq: int, lease: Lease, progress: Progress) -> None:
    context.write("progress", (seq, context.now_ms, as_json(progress)))
    if lease.queue in feeding(context):
        errors = context.row("subject", (lease.id,))[5]
        job = bare_job(lease.id, lease.name, lease.queue, "running", errors)
        publish(context, [progress_event(job, progress, context.now_ms)])
