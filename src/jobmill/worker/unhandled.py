"""Warns of due jobs that no worker seems to have a handler for: a name that was renamed or misspelled."""

from __future__ import annotations

import difflib
import logging

from jobmill.core.values import Filter
from jobmill.worker.context import WorkerContext

log = logging.getLogger("jobmill")

EVERY_S = 600.0
#: Jobs that have been due for a shorter time may just wait for a free worker.
OVERDUE_MS = 60_000
MAX_NAMES = 20


async def warn_of_unhandled(context: WorkerContext) -> float:
    """Warn once per name; again in ten minutes."""
    now_ms = context.store.now()
    for queue in context.settings.queues:
        overdue = Filter(queue=queue, states=("waiting",), due_before_ms=now_ms - OVERDUE_MS)
        unknown = [one for one in await context.store.count(overdue) if one.name not in context.handlers]
        for one in unknown[:MAX_NAMES]:
            if not await _is_handled_elsewhere(context, queue, one.name, now_ms):
                near = difflib.get_close_matches(one.name, context.handlers, 1)
                advice = f"; did you mean {near[0]!r}?" if near else ""
                text = "%d due jobs named %r in the queue %r wait, and no worker seems to have a handler for them%s"
                log.warning(text, one.count, one.name, queue, advice)
    return EVERY_S


async def _is_handled_elsewhere(context: WorkerContext, queue: str, name: str, now_ms: int) -> bool:
    running = Filter(queue=queue, name=name, states=("running",))
    finished = Filter(queue=queue, name=name, finished_after_ms=now_ms - round(EVERY_S * 1000))
    return bool(await context.store.count(running) or await context.store.count(finished))
