"""Recurring jobs that should have run already."""

from __future__ import annotations

import asyncio

from msgspec import structs

from jobmill.core.due import due_of
from jobmill.core.job import Job
from jobmill.core.values import Filter
from jobmill.store import Store


async def late_recurrences(store: Store, before_ms: int, limit: int) -> list[tuple[Job, int]]:
    """Waiting recurring jobs that have been due since before this time, with their due times; at most this number.

    A lane may hold such a job, which is due in the store when it gets a slot.
    """
    waiting = Filter(recurring=True, states=("waiting",))
    pages = await asyncio.gather(
        store.find(structs.replace(waiting, held=False, due_before_ms=before_ms), limit=limit),
        store.find(structs.replace(waiting, held=True), limit=limit),
    )
    found = [(job, due_ms) for page in pages for job in page.jobs if (due_ms := due_of(job)) is not None]
    return [(job, due_ms) for job, due_ms in found if due_ms < before_ms][:limit]
