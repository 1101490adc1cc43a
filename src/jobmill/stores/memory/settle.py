"""Settling: write what the core decided about a finished run, where its lease still owns the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Raw

from jobmill.core.events import settlement_events
from jobmill.core.values import Settled
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.feed import publish
from jobmill.stores.memory.purge import remove

if TYPE_CHECKING:
    from jobmill.core.values import Settlement


def settle(context: MemoryContext, done: Settlement) -> Settled:
    """Write one settlement; "lost" where another has the job, or nobody."""
    if (stored := context.jobs.held(done.lease, context.now_ms)) is None:
        return "lost"
    context.wakes = True
    if stored.job.queue in context.queues:
        publish(context, settlement_events(done, context.now_ms))
    recurrence = stored.job.recurrence
    if done.runs is not None and recurrence is not None and recurrence.revision != done.runs.revision:
        done = done.overtaken()
    stored.token = None
    context.jobs.write(stored, **_fields(done, context.now_ms))
    if done.keep is not None:
        stored.keep = done.keep
        if done.keep.at_once:
            remove(context, stored)
    return "done"


def _fields(done: Settlement, now_ms: int) -> dict[str, object]:
    """The fields of a job that a settlement writes."""
    fields: dict[str, object] = {"state": done.state, "error": done.error, "result_json": Raw(done.result_json)}
    fields |= {"errors": done.errors, "crashes": done.crashes, "updated_ms": now_ms}
    fields |= {"progress": None} if done.state == "waiting" else {"finished_ms": now_ms}
    if done.due is not None:
        fields["due_ms"] = done.due.resolve(now_ms)
    if done.tracebacks is not None:
        fields["tracebacks"] = done.tracebacks
    if done.rearm is not None:
        fields["occurrence_ms"] = done.rearm.occurrence_ms
    if (runs := done.runs) is not None:
        fields |= {"runs": runs.runs, "failed_runs": runs.failed_runs}
        fields |= {"last_error": runs.last_error, "last_finished_ms": now_ms}
    return fields
