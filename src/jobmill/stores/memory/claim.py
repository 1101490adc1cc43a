"""Claiming: find due jobs in claim order, within all limits, and lease them."""

from __future__ import annotations

import msgspec

from jobmill.core.due import NEVER_MS
from jobmill.core.events import claim_events
from jobmill.core.values import Broken, Claim, Claimed, Lease
from jobmill.stores.common.whole_jobs import claimable_ms, claimed_fields, earliest, is_uncounted
from jobmill.stores.memory import lanes
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.feed import publish
from jobmill.stores.memory.job_table import StoredJob


def claim(context: MemoryContext, wish: Claim, excluded: set[str]) -> tuple[list[Claimed | Broken], int | None]:
    """Lease up to `wish.n` due jobs, none of `excluded`; and when the next claim may find something."""
    claimed: list[Claimed | Broken] = []
    rooms = dict(wish.names)
    for queue in wish.queues:
        running = context.jobs.running[queue].values()
        # A claim of a job whose lease has ended adds no running job, but it counts against the rate limit.
        ended = [stored for stored in running if stored.lease_until_ms <= context.now_ms]
        most = wish.n - len(claimed)
        if (state := context.queues.get(queue)) is not None:
            room = state.limits.room(len(running) - len(ended), context.now_ms)
            most = most if room is None else min(most, room)
        found = _find(context, queue, ended, rooms, excluded, most)
        claimed += [_lease(context, wish, stored) for stored in found]
        if state is not None:
            state.limits = state.limits.after_claims(len(found), context.now_ms)
    dues = [_next_due(context, queue, wish.names, counts_leases=not claimed) for queue in wish.queues]
    return claimed, earliest(*dues)


def _find(
    context: MemoryContext, queue: str, ended: list[StoredJob], rooms: dict[str, int], excluded: set[str], most: int
) -> list[StoredJob]:
    """Up to `most` jobs in claim order, within the room of each name. Reduces `rooms`."""
    candidates = [stored.claim_position() for stored in ended]
    for (_, name), positions in context.jobs.waiting[queue].items():
        first = positions.first(min(most, rooms.get(name, 0)) + len(excluded))
        candidates += [position for position in first if position[1] <= context.now_ms]
    found: list[StoredJob] = []
    for *_, id in sorted(candidates):
        stored = context.jobs.by_id[id]
        if len(found) < most and rooms.get(stored.job.name, 0) > 0 and id not in excluded:
            rooms[stored.job.name] -= 1
            found.append(stored)
    return found


def _lease(context: MemoryContext, wish: Claim, stored: StoredJob) -> Claimed | Broken:
    recovered_from = stored.job.worker or "" if stored.job.state == "running" else None
    uncounted = is_uncounted(stored.job, stored.token)
    job = context.jobs.write(stored, **claimed_fields(stored.job, wish, context.now_ms, uncounted=uncounted))
    stored.token, stored.lease_until_ms = wish.token, context.now_ms + wish.lease_ms
    if job.queue in context.queues:
        publish(context, claim_events(job, context.now_ms, lease_lost=recovered_from is not None))
    lease = Lease(job.id, wish.token, job.queue, job.name, stored.lease_until_ms, None, job.lane)
    try:
        msgspec.json.decode(job.payload_json)
    except msgspec.DecodeError as error:
        return Broken(lease, f"payload: {error}")
    return Claimed(job, lease, recovered_from, uncounted)


def _next_due(context: MemoryContext, queue: str, names: dict[str, int], *, counts_leases: bool) -> int | None:
    """The earliest instant at which a job of this queue that waits now, or runs, may be claimed."""
    ranges, runs, now_ms = context.jobs.waiting[queue].items(), context.jobs.running[queue].values(), context.now_ms
    due_ms = earliest(*[one[1] for (_, name), positions in ranges if name in names for one in positions.first(1)])
    if context.jobs.lanes:
        due_ms = earliest(None if due_ms == NEVER_MS else due_ms, lanes.next_ms(context, queue))
    ends = [r.lease_until_ms for r in runs if counts_leases and r.job.name in names and r.lease_until_ms > now_ms]
    if queue not in context.queues:
        return earliest(None if due_ms == NEVER_MS else due_ms, *ends)
    return claimable_ms(context.queues[queue].limits, due_ms, len(runs), now_ms, earliest(*ends))
