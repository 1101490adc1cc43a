"""The verb purge: remove final jobs that are past their retention."""

from __future__ import annotations

from jobmill.core.events import job_event
from jobmill.core.job import KEEP_RUN
from jobmill.core.values import Purged
from jobmill.stores.common.whole_jobs import expired
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.feed import publish
from jobmill.stores.memory.job_table import StoredJob


def purge(context: MemoryContext, limit: int = 1_000) -> Purged:
    """Remove jobs that are too old, or not among the last of their queue and state."""
    for id in expired(((0, run, KEEP_RUN) for run in context.runs.values()), context.now_ms):
        del context.runs[id]
    context.operations.purge(context.now_ms)
    ids = expired(((stored.seq, stored.job, stored.keep) for stored in context.jobs.by_id.values()), context.now_ms)
    for id in ids[:limit]:
        remove(context, context.jobs.by_id[id])
    return Purged(min(len(ids), limit), more=len(ids) > limit)


def remove(context: MemoryContext, stored: StoredJob) -> None:
    """Delete a job and publish that."""
    delete(context, stored)
    publish(context, [job_event(stored.job, "removed", context.now_ms)])


def delete(context: MemoryContext, stored: StoredJob) -> None:
    """Delete a job and its log lines."""
    context.jobs.remove(stored)
    context.logs.pop(stored.job.id, None)
