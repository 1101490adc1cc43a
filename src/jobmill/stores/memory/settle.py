"""Settling: write what the core decided about a finished run, where its lease still owns the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobmill.core.events import settlement_events
from jobmill.core.flows import edge_state
from jobmill.core.job import Keep
from jobmill.core.values import Refused, Settled
from jobmill.stores.common.whole_jobs import finished_run, settled_fields
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.feed import publish
from jobmill.stores.memory.flows import hold_while_pending, is_pinned, set_edges, why_not_children
from jobmill.stores.memory.job_table import StoredJob
from jobmill.stores.memory.purge import remove
from jobmill.stores.memory.queues import lane_limits
from jobmill.stores.memory.steps import suspend

if TYPE_CHECKING:
    from jobmill.core.values import Settlement


def settle(context: MemoryContext, done: Settlement) -> Settled:
    """Write one settlement. Return "lost" if its lease no longer owns the job."""
    if (stored := context.jobs.held(done.lease, context.now_ms)) is None:
        return "lost"
    if done.children and (why := why_not_children(context, stored.job, done.children)):
        return Refused(why)
    context.wakes = True
    if stored.job.queue in context.queues:
        publish(context, settlement_events(done, context.now_ms))
    stored.token, stored.keep = None, done.keep or Keep()
    before = stored.job
    strict = before.lane is not None and lane_limits(context, before.queue, before.lane).strict
    job = context.jobs.write(stored, **settled_fields(before, done, context.now_ms, strict=strict))
    if done.runs is not None and job.state == "waiting":
        run = finished_run(before, done, context.now_ms)
        context.runs[run.id] = run
    if job.flow is not None or done.outcome == "suspended" or job.id in context.edges_to or job.id in context.edges:
        _end_in_flow(context, stored, done)
    elif job.state != "waiting" and stored.keep.at_once:
        remove(context, stored)
    return "done"


def _end_in_flow(context: MemoryContext, stored: StoredJob, done: Settlement) -> None:
    """Release the jobs that wait for this one, if it is final. It stays as long as they do."""
    if done.outcome == "suspended":
        suspend(context, stored, done)
    elif stored.job.state == "waiting" and stored.job.dependencies:
        hold_while_pending(context, stored)
    elif stored.job.state != "waiting" and is_pinned(context, stored.job.id):
        set_edges(context, stored.job, edge_state(stored.job.state))
    elif stored.job.state != "waiting" and stored.keep.at_once:
        remove(context, stored)
