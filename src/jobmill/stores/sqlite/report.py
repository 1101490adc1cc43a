"""The verbs extend and report: what a worker says of jobs that it still runs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobmill.core.events import bare_job, progress_event
from jobmill.core.job import LOG_LINES_KEPT, Progress
from jobmill.core.values import Lease, Report
from jobmill.stores.sqlite.queues import tell
from jobmill.stores.sqlite.settle import held, locate
from jobmill.stores.sqlite.context import Context

_encode = msgspec.json.Encoder().encode


def extend(context: Context, leases: Sequence[Lease], for_ms: int) -> list[str]:
    """Prolong leases; the ids of those that are lost."""
    rows = [(locate(context, lease), lease.token) for lease in leases]
    if context.write_rows("extend", (context.now_ms, context.now_ms + for_ms), rows) == len(leases):
        return []
    # Extending does not change who holds a lease, unless it was extended by nothing.
    standing = held(context, leases) if for_ms > 0 else set()
    return [lease.id for index, lease in enumerate(leases) if index not in standing]


def report(context: Context, reports: Sequence[Report]) -> list[str]:
    """Keep progress and log lines; the ids of those whose lease is lost."""
    standing = held(context, [report.lease for report in reports])
    for index in sorted(standing):
        seq = locate(context, reports[index].lease)
        if reports[index].lines:
            _log(context, seq, reports[index].lines)
        if reports[index].progress is not None:
            _progress(context, seq, reports[index].lease, reports[index].progress)
    return [report.lease.id for index, report in enumerate(reports) if index not in standing]


def _log(context: Context, seq: int, lines: Sequence[str]) -> None:
    (last,) = context.row("log_last", (seq,))
    kept = list(enumerate(lines, last + 1))[-LOG_LINES_KEPT:]
    context.write_rows("log", (), [(seq, line, context.now_ms, text) for line, text in kept])
    context.write("log_trim", (seq, last + len(lines) - LOG_LINES_KEPT))


def _progress(context: Context, seq: int, lease: Lease, progress: Progress | None) -> None:
    assert progress is not None
    context.write("progress", (seq, context.now_ms, _encode(progress).decode()))
    if context.queues.feeds(context, lease.queue):
        (errors,) = context.row("errors_of", (seq,))
        job = bare_job(lease.id, lease.name, lease.queue, "running", errors)
        tell(context, lease.queue, lambda: [progress_event(job, progress, context.now_ms)])
