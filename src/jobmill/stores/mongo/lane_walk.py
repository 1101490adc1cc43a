"""Walks over the lanes of a queue: the verb lanes, changes of settings, and slots that nobody has given on."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from jobmill.core.lanes import LaneLimits
from jobmill.core.queue_settings import LaneChange, LaneSettings, QueueChange, QueueSettings
from jobmill.core.values import LANE_LIMIT, Lane
from jobmill.stores.mongo import lane_settings, queues
from jobmill.stores.mongo.codec import Document, date
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.lane_queries import in_turn, with_slot
from jobmill.stores.mongo.lane_settings import NO_STATE
from jobmill.stores.mongo.lanes import fill, look_at_windows, promote
from jobmill.stores.mongo.queues import MongoLimits
from jobmill.stores.mongo.read import aggregate
from jobmill.stores.mongo.schema import SLOTS, TURNS

#: How many lanes are examined in one step.
WALKED = 1_000
#: While Monque ends jobs, lanes are searched at this interval for slots that are free because of that.
HEAL_MS = 500
#: How many jobs are read to find the names of lanes, for each name.
JOBS_PER_LANE = 5
_LATER = {"$gte": date(0)}


# ---------------------------------------------------------------------------------------------------- settings


async def configure(ctx: MongoContext, queue: str, change: QueueChange) -> QueueSettings:
    """Change the settings of a queue. If that is the rule of its lanes, their slots are made right afterwards."""
    settings = await queues.change_settings(ctx, queue, change)
    limits = (await queues.limits_of(ctx, [queue])).get(queue)
    if limits is not None and limits.lanes_to is not None:
        await _continue_rule(ctx, queue, limits)
    return settings


async def configure_lane(ctx: MongoContext, queue: str, lane: str, change: LaneChange) -> LaneSettings:
    """Change the settings of a lane. Its slots are made right afterwards."""
    settings = await lane_settings.change_lane(ctx, queue, lane, change)
    ctx.lanes.touch(queue, lane)
    await fill(ctx)
    return settings


async def _continue_rule(ctx: MongoContext, queue: str, limits: MongoLimits) -> int:
    """Make the slots of the next lanes right after the rule of all lanes has changed; how many were given."""
    names = await lane_names(ctx, queue, limits.lanes_to or "", WALKED)
    for name in names:
        ctx.lanes.touch(queue, name)
    given = (await fill(ctx)).count
    next = {"$set": {"lanesTo": names[-1]}} if len(names) == WALKED else {"$unset": {"lanesTo": ""}}
    await ctx.here.queues.update_one({"_id": queue, "lanesTo": limits.lanes_to}, next)
    return given


# ---------------------------------------------------------------------------------------------------- heal


async def heal(ctx: MongoContext) -> int:
    """Do what processes have left that ended before they had given slots on; how many were given."""
    found = {one["_id"]: queues.queue_limits(one) async for one in ctx.here.queues.find({"hasLanes": True})}
    given, now_ms = 0, ctx.now()
    for queue, limits in sorted(found.items()):
        await promote(ctx, queue, now_ms)
        if limits.has_lane_documents:
            await look_at_windows(ctx, [queue], now_ms)
        changed: MongoLimits | None = limits
        while changed is not None and changed.lanes_to is not None:  # lanes may have more slots than the rule allows
            given += await _continue_rule(ctx, queue, changed)
            changed = (await queues.limits_of(ctx, [queue])).get(queue)
    await touch_ready(ctx, found)
    return given + (await fill(ctx)).count


async def touch_ready(ctx: MongoContext, found: Collection[str]) -> None:
    """Touch the next lanes of these queues that have ready jobs: a slot may be free that nobody has given on."""
    ctx.lanes.has_ended, ctx.lanes.heal_from_ms = False, ctx.now() + HEAL_MS
    left, (first, after) = WALKED, ctx.lanes.healed_to or ("", "")
    for queue in sorted(queue for queue in found if queue >= first):
        names = await ready_lanes(ctx, queue, after if queue == first else "", left)
        for name in names:
            ctx.lanes.touch(queue, name)
        left -= len(names)
        if left == 0:
            ctx.lanes.healed_to = (queue, names[-1])
            break
    else:
        ctx.lanes.healed_to = None


# ---------------------------------------------------------------------------------------------------- names


async def lane_names(ctx: MongoContext, queue: str, after: str, limit: int) -> list[str]:
    """The names of the first lanes after this one that have jobs with slots or ready jobs."""
    with_slots = await _distinct(ctx, SLOTS, with_slot(ctx, queue, {"$gt": after}), "lane", limit)
    return sorted({*with_slots, *await ready_lanes(ctx, queue, after, limit)})[:limit]


async def ready_lanes(ctx: MongoContext, queue: str, after: str, limit: int) -> list[str]:
    """The names of the first lanes after this one that have ready jobs."""
    query = {**in_turn(ctx, queue), "jobmill.turn.lane": {"$gt": after}}
    return await _distinct(ctx, TURNS, query, "turn.lane", limit)


async def _distinct(ctx: MongoContext, index: str, query: Document, field: str, limit: int) -> list[str]:
    """The first names of lanes in an index. A lane with very many jobs is passed over by a query of its own."""
    path, names = f"jobmill.{field}", list[str]()
    while len(names) < limit:
        size = JOBS_PER_LANE * (limit - len(names))
        found = await ctx.find_by(index, query, {"_id": 0, path: 1}, size, sort={path: 1})
        of_jobs = (one["jobmill"].get("turn", one["jobmill"])["lane"] for one in found)
        names += dict.fromkeys(of_jobs)
        if len(found) < size:
            break
        query = {**query, path: {"$gt": names[-1]}}
    return names[:limit]


# ---------------------------------------------------------------------------------------------------- lanes


async def lanes(
    ctx: MongoContext, queue: str, names: Sequence[str] | None = None, after: str | None = None, limit: int = 100
) -> list[Lane]:
    """The lanes of a queue, by name."""
    later = await _later(ctx, queue)
    if names is None:
        documents = await lane_settings.lane_documents(ctx, queue, after or "", WALKED)
        known = {name for name, state in documents.items() if state.settings != NO_STATE.settings}
        known |= {*await lane_names(ctx, queue, after or "", limit), *later}
        wanted = sorted(name for name in known if name > (after or ""))
    else:
        wanted = sorted({*names})
        found = await lane_settings.states_of(ctx, [(queue, name) for name in wanted])
        documents = {lane: state for (_, lane), state in found.items()}
    rule = (await queues.limits_of(ctx, [queue])).get(queue, queues.NO_LIMITS).settings.lanes
    listed: list[Lane] = []
    while wanted and len(listed) < limit:
        some, wanted = wanted[:WALKED], wanted[WALKED:]
        counts = await _counts(ctx, queue, some)
        for name in some:
            state, numbers = documents.get(name, NO_STATE), counts.get(name, {}) | {"later": later.get(name, 0)}
            lane = Lane(
                queue=queue,
                name=name,
                settings=state.settings,
                **{kind: min(count, LANE_LIMIT) for kind, count in numbers.items()},
                limited_until_ms=state.limited_until_ms if LaneLimits.of(rule, state.settings).rate else None,
            )
            listed += [lane] if lane != Lane(queue=queue, name=name) else []
    return listed[:limit]


async def _later(ctx: MongoContext, queue: str) -> dict[str, int]:
    """How many jobs of each lane are due later. The keys of the index are read, and no jobs."""
    group = {"_id": "$jobmill.turn.lane", "count": {"$sum": 1}}
    found = await aggregate(ctx, [{"$match": in_turn(ctx, queue, _LATER)}, {"$group": group}], TURNS)
    return {one["_id"]: one["count"] for one in found}


async def _counts(ctx: MongoContext, queue: str, lanes: Collection[str]) -> dict[str, dict[str, int]]:
    """How many jobs of these lanes run, are admitted, and are ready."""
    if not lanes:
        return {}

    def count(field: str, match: Document) -> Document:
        same = {"$expr": {"$eq": [f"$jobmill.{field}", "$$lane"]}}
        stages: list[Document] = [{"$match": {**match, **same}}, {"$limit": LANE_LIMIT}]
        stages.append({"$group": {"_id": "$status", "n": {"$sum": 1}}})
        return {"from": ctx.url.collection, "let": {"lane": "$lane"}, "pipeline": stages}

    slots = with_slot(ctx, queue, {"$exists": True})
    look: list[Document] = [
        {"$lookup": count("lane", {**slots, "status": "processing"}) | {"as": "running"}},
        {"$lookup": count("lane", {**slots, "status": "pending"}) | {"as": "admitted"}},
        {"$lookup": count("turn.lane", in_turn(ctx, queue)) | {"as": "ready"}},
    ]
    given = {"$documents": [{"lane": {"$literal": lane}} for lane in lanes]}
    cursor = await ctx.here.database.aggregate([given, *look], batchSize=len(lanes) + 1)
    kinds = ("running", "admitted", "ready")
    return {one["lane"]: {kind: one[kind][0]["n"] for kind in kinds if one[kind]} async for one in cursor}
