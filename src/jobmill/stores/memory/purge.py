"""The verb purge: remove final jobs that are past their retention."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import islice, takewhile

from jobmill.core.events import job_event
from jobmill.core.job import RUNS_KEPT_MS
from jobmill.core.values import Purged
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.feed import publish
from jobmill.stores.memory.flows import drop_edges, is_pinned
from jobmill.stores.memory.job_table import StoredJob
from jobmill.stores.memory.queues import forget_lanes


def purge(context: MemoryContext, limit: int = 1_000) -> Purged:
    """Remove jobs that are too old, or not among the last of their queue and state."""
    _purge_runs(context)
    context.operations.purge(context.now_ms)
    context.taken.purge(context.now_ms)
    forget_lanes(context)
    # One more shows whether there are more.
    free = [(id for id in found if not is_pinned(context, id)) for found in (_old(context), _surplus(context))]
    ids = list(dict.fromkeys(id for found in free for id in islice(found, limit + 1)))
    # Those that they had waited for may go now.
    frees = any(id in context.edges for id in ids[:limit])
    for id in ids[:limit]:
        remove(context, context.jobs.by_id[id])
    context.jobs.prune()
    return Purged(min(len(ids), limit), more=frees or len(ids) > limit)


def _purge_runs(context: MemoryContext) -> None:
    """Runs are in the order in which they finished."""
    old = takewhile(lambda run: (run.finished_ms or 0) + RUNS_KEPT_MS <= context.now_ms, context.runs.values())
    for id in [run.id for run in old]:
        del context.runs[id]


def _old(context: MemoryContext) -> Iterator[str]:
    """Jobs past the age until which they are kept."""
    for ranges in context.jobs.final.values():
        for (*_, keep), positions in ranges.items():
            if keep.age_ms is not None:
                yield from (id for *_, id in positions.between(high=(context.now_ms - keep.age_ms + 1,)))


def _surplus(context: MemoryContext) -> Iterator[str]:
    """Jobs that are kept as one of the last of their queue and state, and are older than those."""
    for ranges in context.jobs.final.values():
        for (state, _, keep), positions in ranges.items():
            if keep.last is None:
                continue
            if keep.last == 0:  # other jobs waited for it, or it would have been removed at once
                yield from (id for *_, id in positions.between())
                continue
            same_state = [others.between(descending=True) for (other, *_), others in ranges.items() if other == state]
            last = islice(heapq.merge(*same_state, reverse=True), keep.last - 1, keep.last)
            for position in last:
                yield from (id for *_, id in positions.between(high=position))


def remove(context: MemoryContext, stored: StoredJob) -> None:
    """Delete a job and publish that."""
    delete(context, stored)
    publish(context, [job_event(stored.job, "removed", context.now_ms)])


def delete(context: MemoryContext, stored: StoredJob) -> None:
    """Delete a job with its log lines, edges and steps."""
    id = stored.job.id
    context.jobs.remove(stored)
    context.logs.pop(id, None)
    drop_edges(context, id)
    context.steps.pop(id, None)
    context.signals.pop(id, None)
