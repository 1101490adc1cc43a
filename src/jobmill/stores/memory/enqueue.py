"""The verb enqueue: add jobs whose id is new and whose unique key no live job has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw, structs

from jobmill.core.events import job_event
from jobmill.core.job import Job
from jobmill.core.values import NewJob, Receipt
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.feed import publish
from jobmill.stores.memory.job_table import StoredJob

# The fields that a NewJob and its Job have in common.
_SHARED = ("id", "name", "queue", "priority", "unique_key", "tenant", "options", "recurrence")


def enqueue(context: MemoryContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """Add jobs; a receipt for each, in order."""
    context.wakes = True
    return [_enqueue_one(context, new) for new in new_jobs]


def _enqueue_one(context: MemoryContext, new: NewJob) -> Receipt:
    if new.id in context.jobs.by_id:
        return Receipt(new.id, "exists")
    if (owner := context.jobs.owner(new.queue, new.name, new.unique_key)) is not None:
        return _update(context, owner, new)
    now_ms, due_ms = context.now_ms, new.due.resolve(context.now_ms)
    fields: dict[str, Any] = {field: getattr(new, field) for field in _SHARED}
    fields |= {"due_ms": due_ms, "created_ms": now_ms, "updated_ms": now_ms}
    fields |= {} if new.recurrence is None else {"occurrence_ms": due_ms}
    job = Job(state="waiting", payload_json=Raw(new.payload_json), **fields)
    context.jobs.add(job)
    if job.queue in context.queues:
        publish(context, [job_event(job, "enqueued", now_ms)])
    return Receipt(job.id, "created")


def _update(context: MemoryContext, owner: StoredJob, new: NewJob) -> Receipt:
    """A live job has the unique key. Where both are recurring, the new job updates it."""
    old = owner.job.recurrence
    if new.recurrence is None or old is None:
        return Receipt(owner.job.id, "duplicate")
    context.jobs.write(owner, payload_json=Raw(new.payload_json), updated_ms=context.now_ms)
    if not (new.keeps_due and new.recurrence.same_rule(old)):
        due_ms = new.due.resolve(context.now_ms)
        recurrence = structs.replace(new.recurrence, revision=old.revision + 1)
        context.jobs.write(owner, recurrence=recurrence, due_ms=due_ms, occurrence_ms=due_ms)
    return Receipt(owner.job.id, "updated")
