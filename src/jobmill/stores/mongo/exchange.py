"""The hot verb: settle what is finished, then claim what is free."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from bson import ObjectId
from msgspec import structs
from pymongo.errors import PyMongoError

from jobmill.core.events import Event, settlement_events
from jobmill.core.values import Claim, Exchanged, Settled
from jobmill.stores.mongo import notes
from jobmill.stores.mongo.claim import QueueClaim
from jobmill.stores.mongo.codec import Document
from jobmill.stores.mongo.connection import is_unavailable
from jobmill.stores.mongo.context import ANY_PRIORITY, NO_PRIORITY, MongoContext
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.lane_settings import read_limits
from jobmill.stores.mongo.lane_walk import touch_ready
from jobmill.stores.mongo.lanes import advance, fill, next_window_ms
from jobmill.stores.mongo.leases import MongoLocator, located
from jobmill.stores.mongo.outbox import flush_ended
from jobmill.stores.mongo.purge import rearm
from jobmill.stores.mongo.queues import NO_LIMITS, MongoLimits, has_feed, limits_of
from jobmill.stores.mongo.runs import note_runs
from jobmill.stores.mongo.schema import RECURRING
from jobmill.stores.mongo.settle import Leasing, puts_back, settle
from jobmill.stores.mongo.steps import settle_suspended

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

log = logging.getLogger("jobmill")

#: A settlement, and the locator of its job.
Located: TypeAlias = "tuple[Settlement, MongoLocator | None]"


async def exchange(ctx: MongoContext, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
    """See the port. Where the server becomes unavailable halfway, the response contains what was done until then.

    The leases of the first queue go into the bulk that settles. So the exchange of a busy worker is two round trips
    with one write to a majority, not five with two. Jobs that others wait for take three more: their note, their edges,
    and a look at the edges of their dependents. Their edges are read together with the jobs that are claimed.
    """
    now_ms = ctx.now()
    given: Sequence[Located] = list(
        zip(settlements, await located(ctx, [one.lease for one in settlements]), strict=True)
    )
    put_back = {locator.id for one, locator in given if locator and puts_back(one, now_ms)}
    ending = notes.ending(given) if any(locator and locator.pin for _, locator in given) else ()
    claims = _claims_of(ctx, claim, put_back, now_ms) if claim else []
    queues = {one.lease.queue for one in settlements} | {one.queue for one in claims}
    settled: list[Settled] | None = None
    dues: list[int | None] = []
    has_outbox = False
    note: ObjectId | None = None
    try:
        limits, edges = await _find(ctx, claims, queues, ending, now_ms)
        note = await notes.begin(ctx, ending) if ending else None
        write = settle_suspended if any(one.children for one in settlements) else settle
        if in_lanes := any(one.lease.lane for one in settlements):
            given = await _strict_marked(ctx, given, limits)
        settled, ended = await write(ctx, given, now_ms, claims[0].leasing if claims else Leasing())
        has_outbox = await notes.set_noted_edges(ctx, note, ended, edges) if note or ended else False
        if any(one.runs for one in settlements):
            await note_runs(ctx, settlements, settled, now_ms)
        if in_lanes or ctx.lanes.changed or any(limits[one].has_lanes for one in queues & limits.keys()):
            dues += await _fill_lanes(ctx, settlements, claims, limits, now_ms)
        dues += await _claim(claims, limits, claim.n if claim else 0)
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


async def _find(
    ctx: MongoContext, claims: Sequence[QueueClaim], queues: Collection[str], ending: Collection[ObjectId], now_ms: int
) -> tuple[Mapping[str, MongoLimits], Sequence[Document] | None]:
    """Find the first jobs. Return the limits of these queues, and the edges to the jobs that end, if they were read."""
    if not claims:
        return await limits_of(ctx, queues), None
    if now_ms >= ctx.claims.rearm_from_ms and RECURRING in ctx.indexes:
        await _take_over(ctx, now_ms)
    return await claims[0].find_first(queues, ending)


async def _take_over(ctx: MongoContext, now_ms: int) -> None:
    """Do what Monque cannot do for jobs that it has ended."""
    await rearm(ctx, now_ms)
    if ctx.flows.has_ended or ctx.is_standalone:
        await flush_ended(ctx)


async def _claim(claims: Sequence[QueueClaim], limits: Mapping[str, MongoLimits], n: int) -> list[int | None]:
    """Claim up to `n` jobs. Return when the next claim may find a job, by queue."""
    dues = []
    for one in claims:
        dues.append(await one.run_within(limits.get(one.queue, NO_LIMITS), n))
        n -= len(one.claimed)
    return dues


async def _strict_marked(
    ctx: MongoContext, given: Sequence[Located], limits: Mapping[str, MongoLimits]
) -> Sequence[Located]:
    """The same settlements; the locators say which jobs have a strict lane."""
    lanes = {(one.lease.queue, one.lease.lane) for one, _ in given if one.lease.lane is not None}
    read = await read_limits(ctx, lanes, limits)
    strict = {key for key in lanes if read.of(key).strict}
    return [
        (one, structs.replace(locator, is_strict=True))
        if locator and (one.lease.queue, one.lease.lane) in strict
        else (one, locator)
        for one, locator in given
    ]


async def _fill_lanes(
    ctx: MongoContext,
    settlements: Sequence[Settlement],
    claims: Sequence[QueueClaim],
    limits: Mapping[str, MongoLimits],
    now_ms: int,
) -> list[int | None]:
    """Give slots of lanes, before jobs are claimed. Return when lanes of the claimed queues may give more."""
    due_ms = None
    for one in settlements:
        # A job that is given back has not begun any more: ready jobs may be more urgent.
        priority = ANY_PRIORITY if one.state == "waiting" else NO_PRIORITY
        ctx.lanes.touch(one.lease.queue, one.lease.lane, priority)
    lanes = {one.queue: limits[one.queue] for one in claims if limits.get(one.queue, NO_LIMITS).has_lanes}
    if lanes:
        if ctx.lanes.has_ended and now_ms >= ctx.lanes.heal_from_ms:
            await touch_ready(ctx, lanes)
        due_ms = await advance(ctx, lanes, now_ms)
    is_known = all(queue in limits for queue, _ in ctx.lanes.changed)
    filled = await fill(ctx, limits if is_known else None)
    for claim in claims if filled.queues else ():
        claim.is_outdated = claim.queue in filled.queues
    return [due_ms, await next_window_ms(ctx, lanes, now_ms)]


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
