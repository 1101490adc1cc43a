"""The outbox loop: releases jobs that wait for others, where the call that ended those could not do so.

That is rare: a job with more than a thousand dependents, a process that died between two writes on a database without
transactions, a job that another program has ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets

from jobmill.core.changes import Seize
from jobmill.core.lifecycle import DEFAULT_POLICY, begin
from jobmill.core.values import Claimed, Filter, Lease
from jobmill.worker.context import WorkerContext

#: How often a worker looks, with jitter. Its first look is earlier, because processes may have died before it started,
#: but not at once: a connection and the statements for it would be 1/10 of the round trips of a worker with few jobs.
EVERY_S = 10.0
FIRST_S = 2.0
#: The pause while there is more to release: other loops run in between.
AGAIN_S = 0.001

#: A job that must fail, because a job that it waited for has failed, needs a worker that knows its name. If there is
#: none for this time, any worker of its queue fails it, so that a flow comes to its end.
UNCLAIMED_MS = 60_000
#: The maximum number of jobs of a queue that are examined for that.
MAX_EXAMINED = 100


class OutboxLoop:
    """One turn waits until an exchange leaves something, or for some seconds, and releases one batch."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._pause_s = FIRST_S
        self._fails_ms = context.store.now() + UNCLAIMED_MS

    async def turn(self) -> float:
        """Wait, and release one batch."""
        context = self._context
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pause_s * (0.5 + context.random.random())):
                await context.outbox.wait()
        context.outbox.clear()
        flushed = await context.store.flush_outbox()
        context.counts.outbox_flushed += flushed
        self._pause_s = AGAIN_S if flushed else EVERY_S
        now_ms = context.store.now()
        if not flushed and now_ms >= self._fails_ms:
            self._fails_ms = now_ms + UNCLAIMED_MS
            for queue in context.settings.queues:
                await fail_unclaimed(context, queue, now_ms)
        return 0


async def fail_unclaimed(context: WorkerContext, queue: str, now_ms: int) -> None:
    """Fail jobs that must fail because of another job, and that no worker claims."""
    overdue = Filter(queue=queue, states=("waiting",), due_before_ms=now_ms - UNCLAIMED_MS)
    jobs = (await context.store.find(overdue, limit=MAX_EXAMINED)).jobs
    waiting = [job for job in jobs if job.deferred_error is not None and job.dependencies]
    if not waiting:
        return
    known = {name for card in await context.store.workers() for name in card.names}
    for job in waiting:
        if job.name in known or job.updated_ms > now_ms - UNCLAIMED_MS:
            continue
        seize = Seize(token=secrets.token_hex(16), worker=context.settings.name, lease_ms=context.settings.lease_ms)
        if (await context.store.change([job.id], seize)).ids:
            lease = Lease(job.id, seize.token, job.queue, job.name, now_ms + seize.lease_ms, None, job.lane)
            decided = begin(Claimed(job, lease), DEFAULT_POLICY, now_ms)
            if decided is not None:
                await context.store.exchange([decided], None)
