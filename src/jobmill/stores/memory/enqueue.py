"""The verb enqueue: add jobs whose id is new and whose unique key no live job has."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import structs

from jobmill.core.events import job_event
from jobmill.core.values import NewJob, Receipt
from jobmill.stores.common.whole_jobs import new_job, updated_fields
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.feed import publish
from jobmill.stores.memory.flows import add_edges, check_dependencies
from jobmill.stores.memory.job_table import StoredJob


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
    if (owner := context.jobs.owner(new.queue, new.name, new.unique_key)) is not None:
        return _update(context, owner, new)
    job = new_job(new, context.now_ms)
    context.jobs.add(job)
    if job.queue in context.queues:
        publish(context, [job_event(job, "enqueued", context.now_ms)])
    return Receipt(job.id, "created")


def _update(context: MemoryContext, owner: StoredJob, new: NewJob) -> Receipt:
    """A live job has the unique key. Where both are recurring, the new job updates it."""
    rule = owner.job.recurrence
    if new.recurrence is None or rule is None:
        return Receipt(owner.job.id, "duplicate")
    context.jobs.write(owner, **updated_fields(new, owner.job, context.now_ms))
    return Receipt(owner.job.id, "pinned" if rule.pinned else "updated")
