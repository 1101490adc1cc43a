"""The verbs extend and report: what a worker says of jobs that it still runs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobmill.core.events import bare_job, progress_event
from jobmill.core.job import LOG_LINES_KEPT, Progress
from jobmill.core.values import Lease, Report
from jobmill.stores.sqlite.queues import tell
from jobmill.stores.sqlite.settling import held, locate
from jobmill.stores.sqlite.step import Step

_encode = msgspec.json.Encoder().encode


def extend(step: Step, leases: Sequence[Lease], for_ms: int) -> list[str]:
    """Prolong leases; the ids of those that are lost."""
    rows = [(locate(step, lease), lease.token) for lease in leases]
    if step.write_rows("extend", (step.now_ms, step.now_ms + for_ms), rows) == len(leases):
        return []
    # Extending does not change who holds a lease, unless it was extended by nothing.
    standing = held(step, leases) if for_ms > 0 else set()
    return [lease.id for index, lease in enumerate(leases) if index not in standing]


def report(step: Step, reports: Sequence[Report]) -> list[str]:
    """Keep progress and log lines; the ids of those whose lease is lost."""
    standing = held(step, [report.lease for report in reports])
    for index in sorted(standing):
        seq = locate(step, reports[index].lease)
        if reports[index].lines:
            _log(step, seq, reports[index].lines)
        if reports[index].progress is not None:
            _progress(step, seq, reports[index].lease, reports[index].progress)
    return [report.lease.id for index, report in enumerate(reports) if index not in standing]


def _log(step: Step, seq: int, lines: Sequence[str]) -> None:
    (last,) = step.row("log_last", (seq,))
    kept = list(enumerate(lines, last + 1))[-LOG_LINES_KEPT:]
    step.write_rows("log", (), [(seq, line, step.now_ms, text) for line, text in kept])
    step.write("log_trim", (seq, last + len(lines) - LOG_LINES_KEPT))


def _progress(step: Step, seq: int, lease: Lease, progress: Progress | None) -> None:
    assert progress is not None
    step.write("progress", (seq, step.now_ms, _encode(progress).decode()))
    if step.queues.feeds(step, lease.queue):
        (errors,) = step.row("errors_of", (seq,))
        job = bare_job(lease.id, lease.name, lease.queue, "running", errors)
        tell(step, lease.queue, lambda: [progress_event(job, progress, step.now_ms)])
