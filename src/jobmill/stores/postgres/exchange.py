"""The operation `exchange`: one statement settles finished jobs and claims due jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import asyncpg
from msgspec import structs

from jobmill.core.events import Event, settlement_events, written_events
from jobmill.core.values import Broken, Claim, Claimed, Exchanged, Settled
from jobmill.stores.common.claim_cursor import Start
from jobmill.stores.postgres import claim as claims
from jobmill.stores.postgres import settle, steps
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.feed import add_and_learn

if TYPE_CHECKING:
    from jobmill.core.values import Settlement


async def exchange(context: PostgresContext, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
    if any(one.children for one in settlements):
        return await _exchange_suspended(context, settlements, claim)
    return await _exchange(context, settlements, claim)


async def _exchange_suspended(
    context: PostgresContext, settlements: Sequence[Settlement], claim: Claim | None
) -> Exchanged:
    """Settle each of the runs that wait for children in a transaction of its own, with its children."""
    answers = [await steps.suspend(context, one) if one.children else None for one in settlements]
    suspended = [one.lease.id for one in settlements if one.children]
    exchanged = await _exchange(context, [one for one in settlements if not one.children], claim, suspended)
    others = iter(exchanged.settled)
    return structs.replace(exchanged, settled=[next(others) if one is None else one for one in answers])


async def _exchange(
    context: PostgresContext, settlements: Sequence[Settlement], claim: Claim | None, not_these: Sequence[str] = ()
) -> Exchanged:
    loop, start = context.loops.here(), None
    if claim is not None and not loop.lease_pool.is_connected:
        claim = claim if await loop.connect_for_leases(or_settle=bool(settlements)) else None
    if claim is not None:
        loop.notifications.exchange_begins(claim.queues)
        start = loop.cursor.start(claim.queues, claim.names)
    by_id, later = settle.first_of_each(settlements)
    excluded = [*not_these, *(id for id, one in by_id.items() if one.state == "waiting")]
    wish = claims.NO_CLAIM if claim is None or start is None else claims.parameters(claim, start, excluded)
    again = loop.lanes.take()
    try:
        rows = await _call(context, by_id, claim, (*wish, *again, loop.lanes.is_from_start(), True))
    except BaseException:
        loop.lanes.add(*again)
        raise
    head = rows[-1]
    released = settle.released(head[1])
    if released.again_lanes:
        loop.lanes.add(released.again_queues or (), released.again_lanes)
    if released.queues or released.given > claims.given_now(rows[:-1], head[6]):
        # Jobs that got slots, and that this call has not claimed: others may have their names.
        loop.notifications.notify([*(released.queues or ()), *(released.given_queues or ())])
    done, next_due_ms, now_ms = settle.done_ids(by_id, head[3]), head[5], head[6]
    claimed: list[Claimed | Broken] = []
    if claim is not None and start is not None:
        claimed, next_due_ms = await _claimed(context, claim, start, rows, skipped=bool(excluded))
    settled: list[Settled] = ["done"] * len(settlements)
    if len(done) < len(settlements):
        settled, has_settled_more = await _settle_rest(context, settlements, by_id, later, done)
        # A job that was settled after the claim may be due before all jobs that the claim has seen.
        next_due_ms = now_ms if has_settled_more else next_due_ms
    if excluded and (freed := settle.freed_queues(by_id[id] for id in done)):
        loop.notifications.notify(freed)
    if loop.notifications.hints.awaited and (ended := loop.notifications.hints.awaited_ends(by_id[id] for id in done)):
        loop.notifications.send_hint("ended", ended)
    more = released.has_more
    return Exchanged(settled=settled, claimed=claimed, next_due_ms=next_due_ms, now_ms=now_ms, has_outbox=more)


async def _call(
    context: PostgresContext, by_id: dict[str, Settlement], claim: Claim | None, wish: tuple[object, ...]
) -> list[asyncpg.Record]:
    """Call the function exchange. Return the claimed rows and then the head row, which exchange.sql describes.

    If the feed of a queue is on, the call and the new events share a transaction.
    """
    queues, feeds_on = {one.lease.queue for one in by_id.values()}, context.loops.here().feeds_on
    at_ms, parameters = context.clock.given_ms(), (*settle.parameters(by_id.values(), queues), *wish)
    text = context.statements.call("exchange", 2 + len(parameters))
    queues.update(claim.queues if claim is not None else ())
    if feeds_on.isdisjoint(queues):
        began = context.clock.start()
        rows = await context.use(lambda connection: connection.fetch(text, at_ms, False, *parameters))
        if rows[-1][11] != "feed":
            context.clock.learn(rows[-1][6], began)
            return rows
        feeds_on |= queues

    async def work(connection: Connection) -> list[asyncpg.Record]:
        *claimed, head = rows = await connection.fetch(text, at_ms, True, *parameters)
        now_ms, done = head[6], settle.done_ids(by_id, head[3])
        awaited = settle.released(head[1]).awaited or ()
        events: list[Event] = []
        for id, one in by_id.items():
            if id in done:
                events += (settlement_events if id in awaited else written_events)(one, now_ms)
        if claim is not None:
            events += claims.events_of(claimed, claim.worker, now_ms)
        await add_and_learn(context, connection, events)
        return rows

    return await context.transact(work)


async def _claimed(
    context: PostgresContext, claim: Claim, start: Start, rows: list[asyncpg.Record], *, skipped: bool
) -> tuple[list[Claimed | Broken], int | None]:
    """Return the claimed jobs, and when to claim again. Claim a second time if the cursor may have hidden a job."""
    *rows, head = rows
    cursor, next_due_ms, now_ms = context.loops.here().cursor, head[5], head[6]
    jobs, full = claims.claimed_jobs(rows, claim, now_ms), len(rows) >= claim.n
    cursor.learn(start, claims.positions(rows, now_ms), full=full, seen=head[2], pages=head[8], skipped=skipped)
    # No position hides the skipped jobs: they are due later, or their settlement has rewound the cursor.
    again_ms = None if skipped else cursor.look_again_ms(start)
    if again_ms == 0:
        rest = await exchange(context, [], claims.rest(claim, rows))
        return jobs + rest.claimed, rest.next_due_ms
    if again_ms is not None:
        next_due_ms = min(now_ms + again_ms, next_due_ms or now_ms + again_ms)
    return jobs, next_due_ms


async def _settle_rest(
    context: PostgresContext,
    settlements: Sequence[Settlement],
    by_id: dict[str, Settlement],
    later: list[Settlement],
    done: set[str],
) -> tuple[list[Settled], bool]:
    """Handle the settlements that the first call did not write. Return all answers, and whether this settled a job.

    If the recurrence of a job has changed since its settlement was decided, the settlement is written as overtaken. If
    the caller gave several settlements for one job, the second and later ones are written after the first.
    """
    overtaken = [one.overtaken() for id, one in by_id.items() if id not in done and settle.has_revision(one)]
    answers = (await exchange(context, overtaken, None)).settled if overtaken else []
    redone = {one.lease.id for one, answer in zip(overtaken, answers, strict=True) if answer == "done"}
    done |= redone
    further = iter((await exchange(context, later, None)).settled if later else [])
    settled: list[Settled] = [
        ("done" if one.lease.id in done else "lost") if by_id[one.lease.id] is one else next(further)
        for one in settlements
    ]
    return settled, bool(redone or later)
