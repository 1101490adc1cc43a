"""The hot verb: settle what is finished, then claim what is free."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pymongo.errors import PyMongoError

from jobmill.core.events import Event, settlement_events
from jobmill.core.values import Broken, Claim, Claimed, Exchanged
from jobmill.stores.mongo.claim import Found, QueueClaim
from jobmill.stores.mongo.connection import is_unavailable
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.queues import NO_STATE, QueueState, queue_states
from jobmill.stores.mongo.settle import ClaimWrites, is_due, settle

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

log = logging.getLogger("jobmill")


async def exchange(ctx: MongoContext, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
    """See the port. Where the server becomes unavailable halfway, the response contains what was done until then."""
    run = _Exchange(ctx, settlements, claim)
    settled = []
    await run.search_first_queue()
    with ctx.claims.leasing(run.found.all):
        settled = await settle(ctx, settlements, run.now_ms, run.writes)
        done = [one for one, response in zip(settlements, settled, strict=True) if response == "done"]
        try:
            if claim is not None:
                await run.claim_queues(claim, {one.lease.id for one in done})
            if any(state.settings.feed for state in run.states.values()):
                events = [event for one in done for event in settlement_events(one, run.now_ms)]
                await publish(ctx, [*events, *run.events], run.states)
        except PyMongoError as error:
            if not is_unavailable(error) or not (settlements or run.claimed):
                raise
            log.debug("MongoDB became unavailable during an exchange: %s", error)
            ctx.claims.cursor.rewind()
            run.dues.append(run.now_ms)
    next_due_ms = min(run.dues, default=None)
    return Exchanged(settled=settled, claimed=run.claimed, next_due_ms=next_due_ms, now_ms=run.now_ms)


class _Exchange:
    """One exchange: what it has claimed, the events to publish, and when there may be more to claim."""

    def __init__(self, ctx: MongoContext, settlements: Sequence[Settlement], claim: Claim | None) -> None:
        self._ctx, self._settlements, self._claim = ctx, settlements, claim
        self.now_ms = ctx.now()
        self.states: dict[str, QueueState] = {}
        # The claim of the first queue; its leases go into the bulk that settles.
        self._first: QueueClaim | None = None
        self.found = Found()
        self.writes = ClaimWrites()
        self.claimed: list[Claimed | Broken] = []
        self.events: list[Event] = []
        self.dues: list[int] = []

    async def search_first_queue(self) -> None:
        """Read the states of the queues, and find jobs of the first queue.

        So the exchange of a busy worker is two round trips with one write to a majority, not five with two.
        """
        ctx, claim = self._ctx, self._claim
        queues = {one.lease.queue for one in self._settlements} | set(claim.queues if claim else ())
        if claim is None:
            self.states = await queue_states(ctx, queues)
            return
        ctx.names.update(claim.names)
        ctx.seen_rings[claim.queues] = ctx.bell.count(claim.queues)
        settled = {one.lease.id for one in self._settlements}
        first = QueueClaim(ctx, claim.queues[0], claim, claim.names, settled, self.now_ms)
        found, self.states = await first.find_first(claim.n, queues)
        limits = self.states.get(claim.queues[0], NO_STATE).limits
        if not limits.settings.paused and not limits.counts_claims:
            self._first, self.found = first, found
            if self._settlements:
                self.writes = ClaimWrites(first.writes(found), len(found.all))

    async def claim_queues(self, claim: Claim, settled: set[str]) -> None:
        """Claim from one queue after the other."""
        rooms = dict(claim.names)
        for queue in claim.queues:
            state = self.states.get(queue, NO_STATE)
            if state.settings.paused:
                continue
            n = claim.n - len(self.claimed)
            if queue == claim.queues[0] and self._first is not None:
                one = self._first
                one.settled(settled)
                running = one.run(n, None, self.found, self.writes)
            else:
                one = QueueClaim(self._ctx, queue, claim, rooms, settled, self.now_ms)
                running = one.run_limited(n) if state.limits.counts_claims else one.run(n)
            one.has_feed = state.settings.feed
            one.puts_back = any(it.state == "waiting" and is_due(it, self.now_ms) for it in self._settlements)
            try:
                due_ms = await running
            finally:
                self.claimed += one.claimed
                self.events += one.events
            if due_ms is not None:
                self.dues.append(due_ms)
            for claimed in one.claimed:
                rooms[claimed.lease.name] -= 1
