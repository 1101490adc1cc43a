"""Claiming: find due jobs in claim order with a skip scan, lease them with one statement, read them with one more.

An index range is all waiting jobs of one queue, name and priority.
"""

from __future__ import annotations

import msgspec

from jobmill.core.due import NEVER_MS
from jobmill.core.events import Event, bare_job, claim_events
from jobmill.core.values import Broken, Claim, Claimed, Lease
from jobmill.stores.common.unreadable import UnreadableJob
from jobmill.stores.common.whole_jobs import claimable_ms, earliest
from jobmill.stores.sqlite.codec import as_json
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.feed import feeding, publish
from jobmill.stores.sqlite.lanes import known_lanes, lane_times
from jobmill.stores.sqlite.queues import count_claims, known_queues
from jobmill.stores.sqlite.read import read_job, read_jobs

# An index range: its priority, the due time of its first job, and its name.
Range = tuple[int, int, str]
_decode_ranges = msgspec.json.Decoder(list[Range]).decode

# Priority, due_ms, seq, name, the worker whose lease has ended (None if the job waits), and 1 if that is no crash.
# Sorted candidates are in claim order.
Candidate = tuple[int, int, int, str, str | None, int]
_decode_candidates = msgspec.json.Decoder(list[Candidate]).decode
_decode_ints = msgspec.json.Decoder(list[int]).decode


def claim(context: SqliteContext, wish: Claim, excluded: set[int]) -> tuple[list[Claimed | Broken], int | None]:
    """Lease up to `wish.n` due jobs that are not in `excluded`. Also return when the next claim may find a job."""
    claimed: list[Claimed | Broken] = []
    rooms = dict(wish.names)
    more_due_ms: int | None = None
    for queue in wish.queues:
        most = min(wish.n - len(claimed), _room(context, queue, wish.n))
        if most <= 0:
            continue
        found, left_due_ms = _find(context, queue, rooms, excluded, most)
        if found:
            claimed += _lease(context, wish, queue, found)
            count_claims(context, queue, len(found))
        if left_due_ms is not None and queue not in known_queues(context):
            more_due_ms = left_due_ms
    return claimed, _next_due(context, wish, not claimed) if more_due_ms is None else more_due_ms


def _room(context: SqliteContext, queue: str, most: int) -> int:
    """How many jobs the limits of a queue allow to be claimed, at most `most`.

    A job whose lease has ended does not count as running here, so claiming it again does not exceed the limit.
    """
    row = known_queues(context).get(queue)
    if row is None:
        return most
    running = 0 if row.settings.running_limit is None else _running(context, queue, context.now_ms)
    room = row.limits.room(running, context.now_ms)
    return most if room is None else room


def _running(context: SqliteContext, queue: str, after_ms: int) -> int:
    running: int = context.row("running", (queue, after_ms))[0]
    return running


def _find(
    context: SqliteContext, queue: str, rooms: dict[str, int], excluded: set[int], most: int
) -> tuple[list[Candidate], int | None]:
    """Find up to `most` jobs in claim order, and reduce `rooms`: the number of jobs of each name that may be claimed.

    The second result is the due time of the first job that was found beyond `most`. The queries leave out names without
    room, because ended leases of these names would fill the limit and hide other jobs. The query for a range asks for
    one job more than there is room for. This job shows whether the range is empty after the claim.
    """
    names = as_json([name for name, room in rooms.items() if room > 0])
    ranges, ended = context.row("ranges", (queue, names, context.now_ms, most + len(excluded)))
    due = [one for one in _decode_ranges(ranges) if one[1] <= context.now_ms]
    lost = _decode_candidates(ended)
    found: list[Candidate] = []
    for priority in sorted({one[0] for one in due} | {one[0] for one in lost}):
        candidates = [one for one in lost if one[0] == priority]
        for name in [one[2] for one in due if one[0] == priority and rooms[one[2]] > 0]:
            limit = min(rooms[name], most - len(found)) + len(excluded) + 1
            dues, seqs = context.row("due_jobs", (queue, name, priority, context.now_ms, limit))
            rows = zip(_decode_ints(dues), _decode_ints(seqs), strict=True)
            candidates += [(priority, due_ms, seq, name, None, 0) for due_ms, seq in rows]
        for candidate in sorted(candidates):
            _, due_ms, seq, name, *_ = candidate
            if seq in excluded:
                continue
            if len(found) == most:
                return found, due_ms
            if rooms[name] > 0:
                rooms[name] -= 1
                found.append(candidate)
        if len(found) == most:
            break
    return found, None


def _lease(context: SqliteContext, wish: Claim, queue: str, found: list[Candidate]) -> list[Claimed | Broken]:
    seqs = [candidate[2] for candidate in found]
    token, until_ms = wish.token, context.now_ms + wish.lease_ms
    if uncounted := [one[2] for one in found if one[5]]:
        context.write("count_unstarted", (as_json(uncounted),))
    context.write("claim", (as_json(seqs), token, until_ms, context.now_ms, wish.worker))
    claimed: list[Claimed | Broken]
    try:
        jobs = zip(read_jobs(context, seqs), found, strict=True)
        leased = [(job, Lease(job.id, token, queue, job.name, until_ms, one[2], job.lane), one) for job, one in jobs]
        claimed = [Claimed(job, lease, one[4], bool(one[5])) for job, lease, one in leased]
    except UnreadableJob:
        claimed = [_lease_one(context, token, until_ms, candidate) for candidate in found]
    if queue in feeding(context):
        ended = {candidate[2] for candidate in found if candidate[4] is not None}
        publish(context, [event for one in claimed for event in _events(one, wish.worker, ended, context.now_ms)])
    return claimed


def _lease_one(context: SqliteContext, token: str, until_ms: int, candidate: Candidate) -> Claimed | Broken:
    """Read one leased job separately, because at least one job of this claim cannot be read."""
    _, _, seq, _, worker, uncounted = candidate
    id, queue, name, lane, job = read_job(context, seq)
    lease = Lease(id, token, queue, name, until_ms, seq, lane)
    return Broken(lease, str(job)) if isinstance(job, UnreadableJob) else Claimed(job, lease, worker, bool(uncounted))


def _events(claimed: Claimed | Broken, worker: str, ended: set[int], now_ms: int) -> list[Event]:
    lease = claimed.lease
    if isinstance(claimed, Broken):
        job = bare_job(lease.id, lease.name, lease.queue, "running", 0, worker)
    else:
        job = claimed.job
    return claim_events(job, now_ms, lease_lost=lease.locator in ended)


# ---------------------------------------------------------------------------------------------------- when next


def _next_due(context: SqliteContext, wish: Claim, counts_leases: bool) -> int | None:
    """The earliest time at which the same claim may find one of the jobs that wait now, or run."""
    names = as_json(list(wish.names))
    return earliest(*[_queue_due(context, queue, names, counts_leases) for queue in wish.queues])


def _queue_due(context: SqliteContext, queue: str, names: str, counts_leases: bool) -> int | None:
    ranges = _decode_ranges(context.row("ranges", (queue, names, 0, 0))[0])
    due_ms = min((one[1] for one in ranges if one[1] != NEVER_MS), default=None)
    if known_lanes(context):
        due_ms = earliest(due_ms, *lane_times(context, queue))
    (end_ms,) = context.row("first_lease", (queue, names, context.now_ms)) if counts_leases else (None,)
    row = known_queues(context).get(queue)
    if row is None:
        return earliest(due_ms, end_ms)
    running = 0 if row.settings.running_limit is None else _running(context, queue, -1)
    return claimable_ms(row.limits, due_ms, running, context.now_ms, end_ms)
