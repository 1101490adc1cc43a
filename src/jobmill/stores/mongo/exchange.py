"""The hot verb: settle what is finished, then claim what is free."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bson import ObjectId
from pymongo.errors import PyMongoError

from jobmill.core.events import Event, settlement_events
from jobmill.core.values import Claim, Exchanged, Settled
from jobmill.stores.mongo import notes
from jobmill.stores.mongo.claim import QueueClaim
from jobmill.stores.mongo.connection import is_unavailable
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.leases import located
from jobmill.stores.mongo.outbox import flush_ended
from jobmill.stores.mongo.purge import rearm
from jobmill.stores.mongo.queues import NO_LIMITS, has_feed, limits_of
from jobmill.stores.mongo.runs import note_runs
from jobmill.stores.mongo.schema import RECURRING
from jobmill.stores.mongo.settle import Leasing, puts_back, settle
from jobmill.stores.mongo.steps import settle_suspended

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

log = logging.getLogger("jobmill")


async def exchange(ctx: MongoContext, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
    """See the port. Where the server becomes unavailable halfway, the response contains what was done until then.

    The leases of the first queue go into the bulk that settles. So the exchange of a busy worker is two round trips
    with one write to a majority, not five with two.
    """
    now_ms = ctx.now()
    given = list(zip(settlements, await located(ctx, [one.lease for one in settlements]), strict=True))
    put_back = {locator.id for one, locator in given if locator and puts_back(one, now_ms)}
    claims = _claims_of(ctx, claim, put_back, now_ms) if claim else []
    queues = {one.lease.queue for one in settlements} | {one.queue for one in claims}
    settled: list[Settled] | None = None
    dues: list[int | None] = []
    has_outbox = False
    note: ObjectId | None = None
    try:
        if claims and now_ms >= ctx.claims.rearm_from_ms and RECURRING in ctx.indexes:
            await _take_over(ctx, now_ms)
        limits = await (claims[0].find_first(queues) if claims else limits_of(ctx, queues))
        note = await notes.begin(ctx, given) if any(locator and locator.pin for _, locator in given) else None
        write = settle_suspended if any(one.children for one in settlements) else settle
        settled, ended = await write(ctx, given, now_ms, claims[0].leasing if claims else Leasing())
        has_outbox = await notes.set_noted_edges(ctx, note, ended) if note or ended else False
        if any(one.runs for one in settlements):
            await note_runs(ctx, settlements, settled, now_ms)
        left = claim.n if claim else 0
        for one in claims:
            dues.append(await one.run_within(limits.get(one.queue, NO_LIMITS), left))
            left -= len(one.claimed)
        if has_feed(limits):
            await publish(ctx, _events(settlements, settled, claims, now_ms), limits)
    except PyMongoError as error:
        if settled is None or not is_unavailable(error) or not (settlements or any(one.claimed for one in claims)):
            raise
        log.debug("MongoDB became unavailable during an exchange: %s", error)
        dues.append(now_ms)
        has_outbox = True  # perhaps
        if note is not None:
            ctx.flows.left_notes.add(note)
    finally:
        for one in claims:
            one.let_go(leased=False)
    claimed = [job for one in claims for job in one.claimed]
    next_due_ms = min((due_ms for due_ms in dues if due_ms is not None), default=None)
    return Exchanged(settled=settled, claimed=claimed, next_due_ms=next_due_ms, now_ms=now_ms, has_outbox=has_outbox)


async def _take_over(ctx: MongoContext, now_ms: int) -> None:
    """Do what Monque cannot do for jobs that it has ended."""
    await rearm(ctx, now_ms)
    if ctx.flows.has_ended or ctx.is_standalone:
        await flush_ended(ctx)


def _claims_of(ctx: MongoContext, claim: Claim, put_back: set[ObjectId], now_ms: int) -> list[QueueClaim]:
    """The claims of all queues, which share the room of each name."""
    ctx.names.update(claim.names)
    ctx.seen_rings[claim.queues] = ctx.bell.count(claim.queues)
    rooms = dict(claim.names)
    return [QueueClaim(ctx, queue, claim, rooms, put_back, now_ms) for queue in claim.queues]


def _events(
    settlements: Sequence[Settlement], settled: Sequence[Settled], claims: Sequence[QueueClaim], now_ms: int
) -> list[Event]:
    done = (one for one, response in zip(settlements, settled, strict=True) if response == "done")
    events = [event for one in done for event in settlement_events(one, now_ms)]
    return events + [event for one in claims for event in one.events]
