"""Settling: write what the core decided about a finished run, where its lease still owns the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobmill.core.events import settlement_events
from jobmill.core.job import Keep
from jobmill.core.values import Settled
from jobmill.stores.common.whole_jobs import finished_run, settled_fields
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.feed import publish
from jobmill.stores.memory.purge import remove

if TYPE_CHECKING:
    from jobmill.core.values import Settlement


def settle(context: MemoryContext, done: Settlement) -> Settled:
    """Write one settlement. Return "lost" if its lease no longer owns the job."""
    if (stored := context.jobs.held(done.lease, context.now_ms)) is None:
        return "lost"
    context.wakes = True
    if stored.job.queue in context.queues:
        publish(context, settlement_events(done, context.now_ms))
    stored.token, stored.keep = None, done.keep or Keep()
    before = stored.job
    job = context.jobs.write(stored, **settled_fields(before, done, context.now_ms))
    if done.runs is not None and job.state == "waiting":
        run = finished_run(before, done, context.now_ms)
        context.runs[run.id] = run
    if job.state != "waiting" and stored.keep.at_once:
        remove(context, stored)
    return "done"
