"""Settling: write what the core decided about a finished run, where its lease still owns the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobmill.core.events import settlement_events
from jobmill.core.flows import edge_state
from jobmill.core.job import Keep
from jobmill.core.values import Refused, Settled
from jobmill.errors import InvalidValue
from jobmill.stores.common.whole_jobs import finished_run, settled_fields
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.feed import publish
from jobmill.stores.memory.flows import check_children, hold_while_pending, is_pinned, set_edges
from jobmill.stores.memory.job_table import StoredJob
from jobmill.stores.memory.purge import remove
from jobmill.stores.memory.steps import suspend

if TYPE_CHECKING:
    from jobmill.core.values import Settlement


def settle(context: MemoryContext, done: Settlement) -> Settled:
    """Write one settlement. Return "lost" if its lease no longer owns the job."""
    if (stored := context.jobs.held(done.lease, context.now_ms)) is None:
        return "lost"
    if done.children:
        try:
            check_children(context, stored.job, done.children)
        except InvalidValue as error:
            return Refused(str(error))
    context.wakes = True
    if stored.job.queue in context.queues:
        publish(context, settlement_events(done, context.now_ms))
    stored.token, stored.keep = None, done.keep or Keep()
    before = stored.job
    job = context.jobs.write(stored, **settled_fields(before, done, context.now_ms))
    if done.runs is not None and job.state == "waiting":
        run = finished_run(before, done, context.now_ms)
        context.runs[run.id] = run
    if done.outcome == "suspended":
        suspend(context, stored, done)
    elif job.state != "waiting":
        _end(context, stored)
    elif job.dependencies:
        hold_while_pending(context, stored)
    return "done"


def _end(context: MemoryContext, stored: StoredJob) -> None:
    """A job is final: release the jobs that wait for it. It stays as long as they do."""
    if is_pinned(context, stored.job.id):
        set_edges(context, stored.job, edge_state(stored.job.state))
    elif stored.keep.at_once:
        remove(context, stored)
