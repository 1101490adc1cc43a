"""The janitor: removes final jobs after their retention, in small batches, and warns of names that do not match.

These are jobs without a handler, and queues of the worker that no job and no handler has.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict

from jobmill.core.job import Job
from jobmill.core.nearest import nearest
from jobmill.core.values import Filter
from jobmill.handlers.options import DEFAULT_QUEUE
from jobmill.handlers.registry import Registry
from jobmill.worker.context import WorkerContext
from jobmill.worker.declared import end_undeclared
from jobmill.worker.logs import about

log = logging.getLogger("jobmill")

EVERY_S = 30.0
BATCH = 500
PAUSE_S = 0.05
#: The pause before a worker tries again to end a recurrence that is no longer declared and whose job was running.
UNDECLARED_S = 1.0

#: How often a worker warns of jobs that it has no handler for.
WARN_EVERY_MS = 600_000
#: A job that has been due for a shorter time may only wait for a worker. The first check is this long after the start.
OVERDUE_MS = 60_000
#: The maximum number of jobs, with their payloads, that a check reads from a queue, and of names that it warns of.
MAX_OVERDUE = 100
MAX_NAMES = 20


class Janitor:
    """One turn purges one batch. All workers may purge at the same time: the store removes each job only once."""

    def __init__(self, context: WorkerContext, registry: Registry, has_undeclared: bool, checks_queues: bool) -> None:
        self._context = context
        self._registry = registry
        self._has_undeclared = has_undeclared
        self._checks_queues = checks_queues
        self._warns_ms = context.store.now() + OVERDUE_MS

    async def turn(self) -> float:
        """Purge one batch. Return the pause: short if there is more to purge, otherwise half a minute with jitter."""
        context, now_ms = self._context, self._context.store.now()
        if self._checks_queues:
            self._checks_queues = False
            await _warn_of_unknown_queues(context)
        if now_ms >= self._warns_ms and context.handlers:
            self._warns_ms = now_ms + WARN_EVERY_MS
            for queue in context.settings.queues:
                await _warn_of_unhandled(context, queue, now_ms)
        if self._has_undeclared:
            self._has_undeclared = await end_undeclared(self._registry)
        purged = await context.store.purge(BATCH)
        if not purged.more:
            context.counts.purged_at = time.monotonic()
        if self._has_undeclared:
            return UNDECLARED_S
        return PAUSE_S if purged.more else EVERY_S * (0.5 + context.random.random())


async def _warn_of_unknown_queues(context: WorkerContext) -> None:
    """Warn of queues of this worker that no job and no handler has: their names may be wrong."""
    known = {DEFAULT_QUEUE, *(one.options_given.queue for one in context.handlers.values())}
    if not (unknown := [queue for queue in context.settings.queues if queue not in known]):
        return
    known.update(depth.queue for depth in await context.store.depths(limit=0))
    for queue in unknown:
        if queue not in known:
            near = nearest(queue, known)
            log.warning(
                "worker %s claims from the queue %r, which no job and no handler has%s",
                context.settings.name,
                queue,
                f"; the nearest name is {near!r}" if near else "",
            )


async def _warn_of_unhandled(context: WorkerContext, queue: str, now_ms: int) -> None:
    """Warn of each name that has jobs overdue, has no handler here, and does not run elsewhere."""
    overdue = Filter(queue=queue, states=("waiting",), due_before_ms=now_ms - OVERDUE_MS)
    page = await context.store.find(overdue, limit=MAX_OVERDUE)
    unhandled = defaultdict[str, list[Job]](list)
    for job in page.jobs:
        if job.name not in context.handlers:
            unhandled[job.name].append(job)
    for name, jobs in list(unhandled.items())[:MAX_NAMES]:
        if (await context.store.find(Filter(queue=queue, name=name, states=("running",)), limit=1)).jobs:
            continue
        near = nearest(name, context.handlers)
        log.warning(
            "this worker has no handler for %r, and such jobs in queue %r have been due for more than a minute "
            "(number of jobs: %d%s)%s",
            name,
            queue,
            len(jobs),
            "" if page.next is None else " or more",
            f"; the nearest name that it knows is {near!r}" if near else "",
            extra=about(jobs[0], jobs[0].attempt, context.settings.name),
        )
