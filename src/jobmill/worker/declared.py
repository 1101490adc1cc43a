"""Declared recurrences: a starting worker states those of its handlers, and ends those that are declared no longer."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from jobmill.core.changes import Cancel
from jobmill.core.job import LIVE, Job
from jobmill.core.values import Filter

if TYPE_CHECKING:
    from jobmill.handlers.draft import Draft
    from jobmill.handlers.registry import Registry
    from jobmill.store import Store

log = logging.getLogger("jobmill")

_PAGE = 1_000


#: The store to which the last worker of a registry stated recurrences, and the names of the handlers.
_stated: WeakKeyDictionary[Registry, tuple[Store, list[str]]] = WeakKeyDictionary()


async def state_declared(registry: Registry, *, once: bool = False) -> bool:
    """Enqueue what the handlers declare, and end the rest; whether something is left for `end_undeclared`.

    With `once`, nothing happens where an earlier worker of this registry did all of it: ticks may be frequent.
    """
    now = registry.store, list(registry.handlers)
    if once and _stated.get(registry) == now:
        return False
    drafts = [handler.declared for handler in registry.handlers.values() if handler.declared is not None]
    stated = await registry.enqueue_many(drafts) if drafts else []
    for draft, enqueued in zip(drafts, stated, strict=True):
        if enqueued.status == "duplicate":
            log.warning(
                "the recurrence that the handler %s declares does not run: job %s has its unique key %r and is not a "
                "recurring job; cancel that job, or declare another key",
                draft.name,
                enqueued.id,
                draft.options.unique_key,
            )
    is_left = await end_undeclared(registry)
    if not is_left:
        _stated[registry] = now
    return is_left


async def end_undeclared(registry: Registry) -> bool:
    """End recurrences of own handlers that are declared no longer; whether some run now, and so are left for later."""
    undeclared = [job async for job in _undeclared(registry)]
    waiting = {job.id: job for job in undeclared if job.state == "waiting"}
    ended = (await registry.store.change(list(waiting), Cancel())).ids if waiting else []
    for id in ended:
        job = waiting[id]
        log.info("ended the recurrence %r of the handler %s: it is no longer declared", job.unique_key, job.name)
    return len(ended) < len(undeclared)


async def _undeclared(registry: Registry) -> AsyncIterator[Job]:
    cursor: str | None = None
    while registry.handlers:
        page = await registry.store.find(Filter(declared=True, states=LIVE), cursor, _PAGE)
        for job in page.jobs:
            handler = registry.handlers.get(job.name)
            if handler is not None and not _is_declared(job, handler.declared):
                yield job
        cursor = page.next
        if cursor is None:
            return


def _is_declared(job: Job, draft: Draft[Any] | None) -> bool:
    return draft is not None and (job.queue, job.unique_key) == (draft.options.queue, draft.options.unique_key)
