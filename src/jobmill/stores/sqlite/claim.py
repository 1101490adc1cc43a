"""Claiming: a skip scan over what waits, merged in claim order, leased with one statement and read with one more."""

from __future__ import annotations

import msgspec

from jobmill.core.events import Event, bare_job, claim_events
from jobmill.core.values import Broken, Claim, Claimed, Lease
from jobmill.stores.sqlite.queues import Queue, tell, use_window
from jobmill.stores.sqlite.codec import read, read_one
from jobmill.stores.sqlite.context import Context

_encode = msgspec.json.Encoder().encode

# A line is the waiting jobs of one queue, name and priority: [priority, due_ms of its first, name].
Head = tuple[int, int, str]
_decode_heads = msgspec.json.Decoder(list[Head]).decode

# Priority, due_ms, seq, name: in claim order when sorted.
Candidate = tuple[int, int, int, str]
_decode_candidates = msgspec.json.Decoder(list[Candidate]).decode
_decode_ints = msgspec.json.Decoder(list[int]).decode


def claim(context: Context, wish: Claim, not_these: set[int]) -> tuple[list[Claimed | Broken], int | None]:
    """Lease up to `wish.n` due jobs, none of `not_these`; and when the next claim may bring something."""
    claimed: list[Claimed | Broken] = []
    rooms = dict(wish.names)
    more_due_ms: int | None = None
    for queue in wish.queues:
        most = wish.n - len(claimed)
        known = context.queues.get(context, queue)
        if known is not None:
            most = min(most, _room(context, queue, known))
        if most <= 0:
            continue
        # Without the names whose room is used up: their ended leases would fill the row and hide others.
        names = _encode([name for name, room in rooms.items() if room > 0]).decode()
        found, lost, left_due_ms = _candidates(context, queue, names, rooms, not_these, most)
        if found:
            claimed += _lease(context, wish, queue, found, lost)
            if known is not None:
                use_window(context, queue, known, len(found))
        if known is None and left_due_ms is not None:
            more_due_ms = left_due_ms
    if more_due_ms is not None:
        return claimed, more_due_ms
    return claimed, _next_due(context, wish, _encode(list(wish.names)).decode())


def _room(context: Context, queue: str, known: Queue) -> int:
    """How many jobs a queue with settings allows to be claimed; taking an ended lease over adds no running job."""
    running = 0
    if known.settings.running_limit is not None:
        (running,) = context.row("running", (queue, context.now_ms))
    room = known.room(running, context.now_ms)
    return 1 << 62 if room is None else room


def _candidates(
    context: Context, queue: str, names: str, rooms: dict[str, int], not_these: set[int], most: int
) -> tuple[list[Candidate], list[Candidate], int | None]:
    """Up to `most` jobs in claim order, within the room of each name, which is used up.

    Also those whose lease had ended, and the due time of one that is left over.
    """
    heads, ended = context.row("heads", (queue, names, context.now_ms, most + len(not_these)))
    lines = [head for head in _decode_heads(heads) if head[1] <= context.now_ms]
    lost = _decode_candidates(ended) if ended != "[]" else []
    found: list[Candidate] = []
    # Smaller priorities first, and only as many lines as needed.
    for priority in sorted({line[0] for line in lines} | {one[0] for one in lost}):
        ready = [one for one in lost if one[0] == priority]
        for _, _, name in [line for line in lines if line[0] == priority]:
            if (room := min(rooms.get(name, 0), most - len(found))) > 0:
                # One more than there is room for, to know whether the line is empty afterwards.
                ready += _line(context, queue, name, priority, room + len(not_these) + 1)
        ready.sort()
        for candidate in ready:
            if candidate[2] in not_these:
                continue
            if len(found) == most:
                return found, lost, candidate[1]
            if rooms[candidate[3]] <= 0:
                continue
            rooms[candidate[3]] -= 1
            found.append(candidate)
        if len(found) == most:
            break
    return found, lost, None


def _line(context: Context, queue: str, name: str, priority: int, most: int) -> list[Candidate]:
    dues, seqs = context.row("line", (queue, name, priority, context.now_ms, most))
    return [(priority, due_ms, seq, name) for due_ms, seq in zip(_decode_ints(dues), _decode_ints(seqs), strict=True)]


def _lease(
    context: Context, wish: Claim, queue: str, found: list[Candidate], lost: list[Candidate]
) -> list[Claimed | Broken]:
    seqs = [candidate[2] for candidate in found]
    until_ms = context.now_ms + wish.lease_ms
    context.write("claim", (_encode(seqs).decode(), wish.token, until_ms, context.now_ms, wish.worker))
    jobs = read(context, seqs)
    if jobs is None:
        claimed = [_one(context, wish.token, until_ms, seq) for seq in seqs]
    else:
        token = wish.token
        claimed = [
            Claimed(job, Lease(job.id, token, queue, job.name, until_ms, seq))
            for job, seq in zip(jobs, seqs, strict=True)
        ]
    if context.queues.feeds(context, queue):
        lost_seqs = {candidate[2] for candidate in lost}
        tell(context, queue, lambda: [event for one in claimed for event in _events(one, wish, lost_seqs, context.now_ms)])
    return claimed


def _one(context: Context, token: str, until_ms: int, seq: int) -> Claimed | Broken:
    """One job of a claim that holds something unreadable."""
    (id, queue, name), job = read_one(context, seq)
    lease = Lease(id, token, queue, name, until_ms, seq)
    return Broken(lease, job) if isinstance(job, str) else Claimed(job, lease)


def _events(claimed: Claimed | Broken, wish: Claim, lost_seqs: set[int], now_ms: int) -> list[Event]:
    lease = claimed.lease
    if isinstance(claimed, Broken):
        job = bare_job(lease.id, lease.name, lease.queue, "running", 0, wish.worker)
    else:
        job = claimed.job
    return claim_events(job, now_ms, lease_lost=lease.locator in lost_seqs)


# ---------------------------------------------------------------------------------------------------- when next


def _next_due(context: Context, wish: Claim, names: str) -> int | None:
    """The earliest instant at which this wish may find something that waits now."""
    dues = [due for queue in wish.queues if (due := _queue_due(context, queue, names)) is not None]
    return min(dues, default=None)


def _queue_due(context: Context, queue: str, names: str) -> int | None:
    known = context.queues.get(context, queue)
    if known is not None and known.settings.paused:
        return None
    heads = _decode_heads(context.row("heads", (queue, names, 0, 0))[0])
    due_ms = min((head[1] for head in heads), default=None)
    if known is None or due_ms is None:
        return due_ms
    limit = known.settings.running_limit
    if limit is not None and context.row("running", (queue, -1))[0] >= limit:
        return None
    if known.room(0, context.now_ms) == 0:
        return max(due_ms, known.window_ends_ms)
    return due_ms
