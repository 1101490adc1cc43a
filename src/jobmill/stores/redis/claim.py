"""A claim on its way over the queues, and the jobs that it has taken."""

from __future__ import annotations

from typing import Any

from jobmill.core.recurrence import next_occurrence
from jobmill.core.values import Broken, Claim, Claimed, Lease
from jobmill.stores.common.unreadable import UnreadableJob
from jobmill.stores.redis.bullmq_options import repeat_opts
from jobmill.stores.redis.codec import (
    COUNTED,
    POSITION_LENGTH,
    SETTLED_PLAINLY,
    UNCOUNTED,
    claimed_job,
    fields,
    foreign_job,
    stored_rule,
)
from jobmill.stores.redis.context import MAX_JOBS_PER_CALL, RedisContext, as_json
from jobmill.stores.redis.ids import LocalId, port_id, readable_id
from jobmill.stores.redis.scripts import RECOVER, SCHEDULE

# Where a handler has a limit of its own and the queue is long: after a claim has read this number of jobs and taken
# none, the next claims read few jobs, for a while.
FRUITLESS_JOBS = 100
FEW_JOBS = 20
FRUITLESS_MS = 1_000


class ClaimProgress:
    """What a claim may still take, and what it has."""

    def __init__(self, claim: Claim, settled: set[LocalId]) -> None:
        self.claim = claim
        self.n = claim.n
        self.names = frozenset(claim.names)
        self.room_by_name = dict(claim.names)
        #: The jobs that the same exchange settles: none of them is claimed.
        self.settled = settled
        self.claimed: list[Claimed | Broken] = []
        self.next_due_ms: int | None = None

    def request(self, skip: int = 0, scan: int | None = None, first_end_ms: int | None = None) -> dict[str, Any]:
        """As claim.lua takes it. `skip`: how many jobs an earlier call has read; `scan`: how many this one may read."""
        claim = self.claim
        return {
            "n": min(MAX_JOBS_PER_CALL, self.n) if self.room_by_name else 0,
            "token": claim.token,
            "ahead": claim.is_ahead or None,
            "lease_ms": claim.lease_ms,
            "worker": claim.worker,
            "names": self.room_by_name,
            "skip": skip or None,
            "scan": scan,
            "first_end": None if self.claimed else first_end_ms,
        }

    def take(self, queue: str, taken: list[Any], now_ms: int) -> None:
        """Jobs that a script has put under the lease."""
        claim = self.claim
        until_ms = now_ms + claim.lease_ms
        for raw_id, flat, crashed, is_older in taken:
            h = fields(flat)
            id, local = readable_id(raw_id)
            name = h.get(b"name", b"").decode(errors="replace")
            is_plain = local is id and not crashed and b"jm" in h and SETTLED_PLAINLY.issuperset(h)
            shown = port_id(queue, id, b"jm" in h, is_latest=not is_older)
            if b"jmz" in h:
                locator = (local, is_plain and b"jmj" in h, h.get(b"jmj", b"")[:POSITION_LENGTH].decode())
                lease = Lease(shown, claim.token, queue, name, until_ms, locator, h[b"jmz"].decode(errors="replace"))
            else:
                lease = Lease(shown, claim.token, queue, name, until_ms, (local, is_plain))
            try:
                job = claimed_job(queue, local, h, claim.worker, now_ms, crashed, shown)
                recovered_from = h.get(b"pb", b"").decode(errors="replace") if crashed else None
                self.claimed.append(Claimed(job, lease, recovered_from, crashed == UNCOUNTED))
            except UnreadableJob as error:
                foreign = foreign_job(queue, local, h, now_ms, crashed == COUNTED, shown)
                self.claimed.append(Broken(lease, str(error), foreign))
            if name in self.room_by_name:
                self.room_by_name[name] -= 1
        self.n -= len(taken)

    def due(self, next_due_ms: int | None) -> None:
        """Claiming again may bring something then; None or less than 0: nothing is known."""
        if next_due_ms is not None and next_due_ms >= 0:
            self.next_due_ms = next_due_ms if self.next_due_ms is None else min(self.next_due_ms, next_due_ms)


async def recover(c: RedisContext, queue: str, progress: ClaimProgress, now_ms: int) -> None:
    """Take running jobs whose lease has ended over."""
    # Idle workers, too, notice a clock that was set meanwhile.
    await c.learn_time()
    request, settled = progress.request(), list(progress.settled)
    taken, next_end_ms, left, stopped = await c.run(RECOVER, queue, now_ms, claim=request, not_these=settled)
    progress.take(queue, taken, now_ms)
    c.scans.done(queue, progress.names, now_ms, next_end_ms, bool(left))
    if taken:
        c.scans.leased(queue, now_ms + progress.claim.lease_ms)
    for sid, occurrence_ms, runs in stopped:
        await _rearm(c, queue, sid.decode(), int(occurrence_ms), runs, now_ms)


async def _rearm(c: RedisContext, queue: str, sid: str, occurrence_ms: int, runs: bytes, now_ms: int) -> None:
    """Add the next run of a recurring job that Node has no words for."""
    rule = stored_rule(runs)
    next_ms = next_occurrence(rule, occurrence_ms, now_ms)
    if next_ms is None:
        await c.run(SCHEDULE, queue, now_ms, sid=sid, remove=True)
    else:
        repeat = as_json(repeat_opts(rule))
        await c.run(SCHEDULE, queue, now_ms, sid=sid, passed=occurrence_ms, next=next_ms, repeat_opts=repeat)


def jobs_to_scan(c: RedisContext, queue: str, progress: ClaimProgress, now_ms: int) -> int | None:
    """How many waiting jobs a claim may read: few where a scan was fruitless a moment ago."""
    scanned_ms = c.fruitless_scan_ms.get((queue, progress.names))
    return None if scanned_ms is None or scanned_ms + FRUITLESS_MS <= now_ms else FEW_JOBS
