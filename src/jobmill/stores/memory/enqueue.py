"""The verb enqueue: add jobs whose id is new and whose unique key is not taken."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from jobmill.core.changes import Cancel
from jobmill.core.events import job_event
from jobmill.core.unique_policy import Owner, Replace, when_taken
from jobmill.core.values import NewJob, Receipt
from jobmill.stores.common.whole_jobs import new_job, replaced_fields, updated_fields
from jobmill.stores.memory.change import change
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.feed import publish
from jobmill.stores.memory.flows import add_edges, check_dependencies


def enqueue(context: MemoryContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """Add jobs; a receipt for each, in order."""
    context.wakes = True
    if any(new.after for new in new_jobs):
        return _enqueue_flow(context, new_jobs)
    return [_enqueue_one(context, new) for new in new_jobs]


def _enqueue_flow(context: MemoryContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    check_dependencies(context, new_jobs)
    receipts = [_enqueue_one(context, new) for new in new_jobs]
    _add_edges(context, new_jobs, receipts)
    return receipts


def _add_edges(context: MemoryContext, new_jobs: Sequence[NewJob], receipts: Sequence[Receipt]) -> None:
    """Give the jobs that were created their edges: to the jobs that the others became."""
    became = {new.id: receipt.id for new, receipt in zip(new_jobs, receipts, strict=True)}
    for new, receipt in zip(new_jobs, receipts, strict=True):
        if new.after and receipt.created:
            afters = [structs.replace(after, id=became.get(after.id, after.id)) for after in new.after]
            add_edges(context, context.jobs.by_id[new.id], afters)


def _enqueue_one(context: MemoryContext, new: NewJob) -> Receipt:
    if new.id in context.jobs.by_id:
        return Receipt(new.id, "exists")
    if new.unique_key is not None and (receipt := _taken(context, new, new.unique_key)) is not None:
        return receipt
    job = new_job(new, context.now_ms)
    context.jobs.add(job)
    if job.queue in context.queues:
        publish(context, [job_event(job, "enqueued", context.now_ms)])
    return Receipt(job.id, "created")


def _taken(context: MemoryContext, new: NewJob, unique_key: str) -> Receipt | None:
    """The receipt of a new job whose unique key is taken; None if it is free for the job, which may take it for a time.

    Where both jobs are recurring, the new one updates the one that is there.
    """
    owner = context.jobs.owner(new.queue, new.name, unique_key)
    if owner is not None and new.recurrence is not None and owner.job.recurrence is not None:
        context.jobs.write(owner, **updated_fields(new, owner.job, context.now_ms))
        return Receipt(owner.job.id, "pinned" if owner.job.recurrence.pinned else "updated")
    if owner is not None:
        taken = when_taken(new.policy, new.due, Owner.of(owner.job), context.now_ms)
        if taken == "duplicate":
            return Receipt(owner.job.id, "duplicate")
        if isinstance(taken, Replace):
            context.jobs.write(owner, **replaced_fields(new, taken))
            return Receipt(owner.job.id, "updated")
        if taken == "cancel":
            change(context, [owner.job.id], Cancel())
        else:
            context.jobs.free_key(owner)
    holder = context.taken.take(new, context.now_ms)
    return None if holder is None else Receipt(holder, "duplicate")
