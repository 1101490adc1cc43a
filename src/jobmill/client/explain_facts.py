"""Collects from a store what `explain` needs to know about the lane of a job."""

from __future__ import annotations

import asyncio

from jobmill.core.due import in_lane
from jobmill.core.job import Job
from jobmill.core.reasons import AHEAD_SHOWN, SLOTS_SHOWN, LaneFacts
from jobmill.core.values import Filter, Lane
from jobmill.store import Store

#: A page of a search may be short or empty.
MAX_PAGES = 5


async def lane_facts(store: Store, job: Job) -> LaneFacts | None:
    """The lane of a job that waits for a slot: how many jobs it has, which of them have a slot, which come first."""
    if job.lane is None or job.held is None or not in_lane(job.held):
        return None
    waiting = Filter(queue=job.queue, lane=job.lane, states=("waiting",), held=False)
    running = Filter(queue=job.queue, lane=job.lane, states=("running",))
    found, admitted, runs, ahead = await asyncio.gather(
        store.lanes(job.queue, [job.lane]), _some(store, waiting), _some(store, running), _ahead(store, job)
    )
    lane = found[0] if found else Lane(queue=job.queue, name=job.lane)
    return LaneFacts(lane=lane, holders=[*runs, *admitted], ahead=ahead)


async def _some(store: Store, wanted: Filter) -> list[Job]:
    """The first jobs that match."""
    found: list[Job] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await store.find(wanted, cursor, SLOTS_SHOWN - len(found))
        found += page.jobs
        cursor = page.next
        if cursor is None or len(found) >= SLOTS_SHOWN:
            break
    return found


async def _ahead(store: Store, job: Job) -> int | None:
    """How many jobs of the lane come before this one; None if they are too many to read."""
    page = await store.find(Filter(queue=job.queue, lane=job.lane, states=("waiting",), held=True), limit=AHEAD_SHOWN)
    ids = [one.id for one in sorted(page.jobs, key=_position) if one.held is not None and in_lane(one.held)]
    return None if page.next is not None or job.id not in ids else ids.index(job.id)


def _position(job: Job) -> tuple[int, int]:
    """Where a job stands in its lane. Jobs with the same position are in the order of the store, as enqueued."""
    return job.priority, 0 if job.held is None else job.held.due.resolve(0)
