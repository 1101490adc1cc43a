"""The verb purge: remove final jobs that are past their retention."""

from __future__ import annotations

from collections import Counter

from jobmill.core.events import job_event
from jobmill.core.values import Purged
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.feed import publish
from jobmill.stores.memory.job_table import StoredJob


def purge(context: MemoryContext, limit: int) -> Purged:
    """Remove jobs that are too old, or not among the last of their queue and state."""
    found = []
    # For each queue and state: how many jobs finished later, or are this one.
    rank: Counter[tuple[str, str]] = Counter()
    final = [stored for stored in context.jobs.by_id.values() if stored.job.finished_ms is not None]
    for stored in sorted(final, key=lambda stored: (-(stored.job.finished_ms or 0), -stored.seq)):
        job, keep = stored.job, stored.keep
        rank[job.queue, job.state] += 1
        is_old = keep.age_ms is not None and (job.finished_ms or 0) + keep.age_ms <= context.now_ms
        if is_old or (keep.last is not None and rank[job.queue, job.state] > keep.last):
            found.append(stored)
    for stored in found[:limit]:
        remove(context, stored)
    return Purged(min(len(found), limit), more=len(found) > limit)


def remove(context: MemoryContext, stored: StoredJob) -> None:
    """Delete a job and publish that."""
    delete(context, stored)
    publish(context, [job_event(stored.job, "removed", context.now_ms)])


def delete(context: MemoryContext, stored: StoredJob) -> None:
    """Delete a job and its log lines."""
    context.jobs.remove(stored)
    context.logs.pop(stored.job.id, None)
