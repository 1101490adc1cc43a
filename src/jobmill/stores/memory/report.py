"""The verb report: progress and log lines of running jobs."""

from __future__ import annotations

from collections.abc import Sequence

from jobmill.core.events import progress_event
from jobmill.core.values import LogLine, Report
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.feed import publish


def report(context: MemoryContext, reports: Sequence[Report]) -> list[str]:
    """Store progress and log lines; the ids of the jobs whose lease is lost."""
    lost = []
    for one in reports:
        if (stored := context.jobs.held(one.lease, context.now_ms)) is None:
            lost.append(one.lease.id)
            continue
        context.logs[stored.job.id].extend(LogLine(context.now_ms, text, one.attempt, one.level) for text in one.lines)
        if one.progress is not None:
            job = context.jobs.write(stored, progress=one.progress, updated_ms=context.now_ms)
            publish(context, [progress_event(job, one.progress, context.now_ms)])
    return lost
