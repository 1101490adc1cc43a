"""The hot verb: settle what is finished, then claim what is free."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pymongo.errors import PyMongoError

from jobmill.core.events import settlement_events
from jobmill.core.values import Claim, Exchanged
from jobmill.stores.mongo.claim import QueueClaim
from jobmill.stores.mongo.claim_search import ClaimSearch
from jobmill.stores.mongo.connection import is_unavailable
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.queues import NO_STATE, has_feed, queue_states
from jobmill.stores.mongo.settle import is_due, settle

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

log = logging.getLogger("jobmill")


async def exchange(ctx: MongoContext, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
    """See the port. Where the server becomes unavailable halfway, the response contains what was done until then.

    The leases of the first queue go into the bulk that settles. So the exchange of a busy worker is two round trips
    with one write to a majority, not five with two.
    """
    now_ms = ctx.now()
    claims = _claims_of(ctx, claim, settlements, now_ms) if claim else []
    queues = {one.lease.queue for one in settlements} | {one.queue for one in claims}
    first = claims[0] if claims else None
    states = await (first.find_first(queues, settles=bool(settlements)) if first else queue_states(ctx, queues))
    with ctx.claims.leasing(first.found.all if first and first.found else ()):
        settled = await settle(ctx, settlements, now_ms, first.sent if first else None)
        done = [one for one, response in zip(settlements, settled, strict=True) if response == "done"]
        dues: list[int | None] = []
        try:
            left = claim.n if claim else 0
            for one in claims:
                one.only_settled({it.lease.id for it in done})
                dues.append(await one.run_within_limits(left, states.get(one.queue, NO_STATE)))
                left -= len(one.claimed)
            if has_feed(states):
                events = [event for one in done for event in settlement_events(one, now_ms)]
                await publish(ctx, [*events, *(event for one in claims for event in one.events)], states)
        except PyMongoError as error:
            if not is_unavailable(error) or not (settlements or any(one.claimed for one in claims)):
                raise
            log.debug("MongoDB became unavailable during an exchange: %s", error)
            ctx.claims.cursor.rewind()
            dues.append(now_ms)
    claimed = [job for one in claims for job in one.claimed]
    next_due_ms = min((due_ms for due_ms in dues if due_ms is not None), default=None)
    return Exchanged(settled=settled, claimed=claimed, next_due_ms=next_due_ms, now_ms=now_ms)


def _claims_of(ctx: MongoContext, claim: Claim, settlements: Sequence[Settlement], now_ms: int) -> list[QueueClaim]:
    """The claims of all queues, which share the room of each name."""
    ctx.names.update(claim.names)
    ctx.seen_rings[claim.queues] = ctx.bell.count(claim.queues)
    rooms, settled = dict(claim.names), {one.lease.id for one in settlements}
    puts_back = any(one.state == "waiting" and is_due(one, now_ms) for one in settlements)
    return [
        QueueClaim(ctx, queue, claim, rooms, settled, now_ms, ClaimSearch(ctx, queue, now_ms), puts_back=puts_back)
        for queue in claim.queues
    ]
