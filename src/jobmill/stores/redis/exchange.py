"""The hot verb: settle, then claim, in one script call per queue."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from jobmill.core.events import settlement_events
from jobmill.core.values import Claim, Exchanged, Refused, Settled
from jobmill.errors import InvalidValue, StoreError
from jobmill.stores.common.chunks import chunks
from jobmill.stores.redis.circuit_breaker import QueueError
from jobmill.stores.redis.claim import FRUITLESS_JOBS, ClaimProgress, jobs_to_scan, recover
from jobmill.stores.redis.context import MAX_BYTES_PER_CALL, MAX_JOBS_PER_CALL, RedisContext, by_queue
from jobmill.stores.redis.feed import publish
from jobmill.stores.redis.flows import TEXTS
from jobmill.stores.redis.scripts import EXCHANGE
from jobmill.stores.redis.settle import id_of, settle_requests, undo_request
from jobmill.stores.redis.steps import suspend
from jobmill.stores.redis.wake import ignore_marker, show_worker

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

# See settle.lua.
_LATER = "later: "
# Why a claim took no more jobs: see exchange.lua.
ONLY_FOREIGN, LIMITED = 1, 2
# In place of a position: jobs wait for a settled job and are not told yet.
HAS_OUTBOX = -1
_SETTLED: dict[bytes, Literal["done", "lost"]] = {b"done": "done", b"lost": "lost"}


async def exchange(c: RedisContext, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
    """See the port. Each queue is a step of its own. A queue with an error does not stop the others."""
    now_ms = c.clock.now()
    positions: dict[str, list[int]] = {}
    for position, settlement in enumerate(settlements):
        positions.setdefault(settlement.lease.queue, []).append(position)
    progress = None if claim is None else ClaimProgress(claim, {id_of(one.lease) for one in settlements})
    queues = list(dict.fromkeys((*(claim.queues if claim else ()), *positions)))
    tried = c.breaker.usable(queues, positions, now_ms) if c.breaker.open_until_ms else queues
    settled: dict[int, Settled] = {}
    failures: dict[str, QueueError] = {}
    for queue in tried:
        own = {n: settlements[n] for n in positions.get(queue, ())}
        claims = progress if claim and queue in claim.queues else None
        try:
            await _exchange_queue(c, queue, own, settled, claims, now_ms)
        except (StoreError, InvalidValue) as error:
            failures[queue] = error
            if not settled.keys() >= own.keys() or (claim is None and len(failures) == len(tried)):
                await _undo_claims(c, progress, now_ms)
                raise
    if progress and (failures or c.breaker.open_until_ms):
        _note_failures(c, progress, tried, failures, now_ms)
    answers = [settled[position] for position in range(len(settlements))]
    return Exchanged(
        settled=answers,
        claimed=progress.claimed if progress else [],
        next_due_ms=progress.next_due_ms if progress else None,
        now_ms=now_ms,
        has_outbox=HAS_OUTBOX in settled,
    )


def _note_failures(
    c: RedisContext, progress: ClaimProgress, tried: list[str], failures: dict[str, QueueError], now_ms: int
) -> None:
    """Errors of some queues are raised only where the claim has brought nothing at all."""
    if len(failures) == len(tried) and not progress.claimed:
        raise next(iter(failures.values()))
    c.breaker.note(tried, failures, now_ms)
    progress.due(c.breaker.next_try_ms(progress.claim.queues))


async def _undo_claims(c: RedisContext, progress: ClaimProgress | None, now_ms: int) -> None:
    """The caller gets an error instead of the claimed jobs: they need not wait for the end of their leases."""
    for queue, some in by_queue(progress.claimed if progress else (), lambda one: one.lease.queue):
        requests = [undo_request(one) for one in some]
        with contextlib.suppress(StoreError):
            await c.run(EXCHANGE, queue, now_ms, plain=[], settle=requests, claim=None, not_these=[])


async def _exchange_queue(
    c: RedisContext,
    queue: str,
    settlements: dict[int, Settlement],
    settled: dict[int, Settled],
    progress: ClaimProgress | None,
    now_ms: int,
) -> None:
    """As many calls as their limits require. The last settlements go with the first claim."""
    if progress is not None:
        show_worker(c, queue, progress.claim.worker)
        if progress.n > 0 and c.scans.is_due(queue, progress.names, progress.claim.lease_ms, now_ms):
            await recover(c, queue, progress, now_ms)
    suspended = [position for position, one in settlements.items() if one.children]
    for position in suspended:
        settled[position] = await suspend(c, settlements.pop(position), now_ms)
    items, size = list(settlements.items()), lambda item: len(item[1].result_json)
    parts = [dict(part) for part in chunks(items, MAX_JOBS_PER_CALL, MAX_BYTES_PER_CALL, size)]
    for part in parts[:-1]:
        await _call(c, queue, part, settled, None, now_ms)
    skip = await _call(c, queue, parts[-1] if parts else {}, settled, progress, now_ms)
    while skip is not None:
        skip = await _call(c, queue, {}, settled, progress, now_ms, skip)


def _read_codes(settled: dict[int, Settled], positions: Sequence[int], codes: Sequence[bytes], outbox: int) -> None:
    for position, code in zip(positions, codes, strict=True):
        settled[position] = _SETTLED.get(code) or _refused(code.decode())
    if outbox:
        settled[HAS_OUTBOX] = "done"


def _refused(why: str) -> Refused:
    return Refused(why.removeprefix(_LATER), is_temporary=why.startswith(_LATER))


async def _call(
    c: RedisContext,
    queue: str,
    settlements: dict[int, Settlement],
    settled: dict[int, Settled],
    progress: ClaimProgress | None,
    now_ms: int,
    skip: int = 0,
) -> int | None:
    """One call. How many waiting jobs the next call of the same claim is to skip; None where there is none."""
    feed_on = c.feeds.get(queue, False)
    plain, others = settle_requests(settlements, now_ms, feed_on)
    scan = jobs_to_scan(c, queue, progress, now_ms) if progress and c.fruitless_scan_ms else None
    claim = progress.request(skip, scan, c.scans.first_end(queue)) if progress else None
    requests: dict[str, Any] = {"plain": list(plain.values()), "settle": list(others.values())}
    requests |= {"texts": TEXTS} if others else {}
    # The script itself leaves the jobs alone that it settles.
    settled_before = list(progress.settled) if progress and len(progress.settled) > len(settlements) else []
    plain_codes, other_codes, taken, next_due_ms, foreign, feed, skip, fruitless, outbox = await c.run(
        EXCHANGE, queue, now_ms, **requests, claim=claim, not_these=settled_before
    )
    _read_codes(settled, (*plain, *others), (*plain_codes, *other_codes), outbox)
    c.feeds[queue] = bool(feed)
    if feed and not feed_on:
        # The feed was turned on since the last call: the events of this one follow right after it.
        done = [one for position, one in settlements.items() if settled[position] == "done"]
        await publish(c, [event for one in done for event in settlement_events(one, now_ms)])
    if progress is None or claim is None:
        return None
    progress.take(queue, taken, now_ms)
    if taken:
        c.scans.leased(queue, now_ms + progress.claim.lease_ms)
    if foreign == ONLY_FOREIGN or c.marker_ignored_until_ms:
        ignore_marker(c, queue, foreign == ONLY_FOREIGN, now_ms)
    if foreign == LIMITED:
        c.limited.add(queue)
    elif c.limited:
        c.limited.discard(queue)
    if fruitless >= FRUITLESS_JOBS:
        c.fruitless_scan_ms[queue, progress.names] = now_ms
    # Behind jobs with names that nobody here knows there may be others.
    if progress.n > 0 and (skip or len(taken) == claim["n"] == MAX_JOBS_PER_CALL):
        return int(skip)
    progress.due(next_due_ms)
    return None
