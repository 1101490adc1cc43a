"""The verb change: write what the core decides about a job without a lease."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import islice

from msgspec import structs

from jobmill.core.changes import (
    NO_SUCH_JOB,
    Cancel,
    Change,
    Changed,
    Patch,
    Remove,
    Requeue,
    Subject,
    decide,
    kept,
    key_taken,
    states_for,
)
from jobmill.core.values import Filter
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.feed import publish
from jobmill.stores.memory.filters import matching
from jobmill.stores.memory.flows import is_pinned, refreshed_edges, reopen_edges, set_edges
from jobmill.stores.memory.job_table import StoredJob
from jobmill.stores.memory.purge import delete


def change(context: MemoryContext, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
    """Change jobs by id, or those that match a filter; at most `limit`."""
    changed: list[str] = []
    refused: dict[str, str] = {}
    if isinstance(which, Filter):
        which = structs.replace(which, states=states_for(change, which))
        # One more shows whether there are more.
        ids = list(islice((job.id for job in matching(context.jobs, which)), limit + 1))
    else:
        ids = list(dict.fromkeys(which))
    for id in ids[:limit]:
        refusal = _change_one(context, context.jobs.by_id.get(id), change, len(changed))
        if refusal is None:
            changed.append(id)
        else:
            refused[id] = refusal
    context.wakes = True
    if isinstance(change, Cancel | Remove):
        context.taken.free(changed)
        context.cancels.tell(changed)
        context.ends.tell(changed)
    return Changed(ids=changed, refused=refused, more=len(ids) > limit)


def _change_one(context: MemoryContext, stored: StoredJob | None, change: Change, index: int) -> str | None:
    """Change one job, or return why it is refused."""
    if stored is None:
        return NO_SUCH_JOB
    subject = Subject.of(stored.job)
    if isinstance(change, Requeue) and stored.job.dependencies:
        subject = structs.replace(subject, edges=refreshed_edges(context, stored.job.id))
    patch = decide(change, subject, context.now_ms, index)
    if not isinstance(patch, Patch):
        return patch
    owner = context.jobs.owner(stored.job.queue, stored.job.name, stored.job.unique_key)
    if patch.becomes_live and owner is not None:
        return key_taken(owner.job.id)
    if subject.edges:
        context.edges[stored.job.id] = list(subject.edges)
    if is_pinned(context, stored.job.id):
        patch = _prepare_dependents(context, stored, change, patch)
    _write(context, stored, patch)
    publish(context, patch.events)
    return None


def _prepare_dependents(context: MemoryContext, stored: StoredJob, change: Change, patch: Patch) -> Patch:
    """Other jobs wait for this one: tell them what becomes of it. The patch to write."""
    if isinstance(change, Cancel):
        set_edges(context, stored.job, "cancelled")
        return kept(patch)
    if isinstance(change, Remove) and not stored.job.is_final:
        set_edges(context, stored.job, "cancelled", limit=sys.maxsize)  # no job is left that could stay in the outbox
    elif patch.becomes_live:
        reopen_edges(context, stored.job)
    return patch


def _write(context: MemoryContext, stored: StoredJob, patch: Patch) -> None:
    if patch.keep is not None:
        stored.keep = patch.keep
    context.jobs.write(stored, **patch.fields)
    if patch.ends_lease:
        stored.token = None
    if patch.seize is not None:
        stored.token, stored.lease_until_ms = patch.seize.token, context.now_ms + patch.seize.lease_ms
        context.jobs.write(stored, claims=stored.job.claims + 1)
    if patch.clears_steps:
        context.steps.pop(stored.job.id, None)
        context.signals.pop(stored.job.id, None)
    if patch.removes:
        delete(context, stored)
