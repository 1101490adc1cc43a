"""Queries for the jobs of lanes: those that have slots, and those that wait for one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jobmill.core.due import BY_LANE
from jobmill.stores.mongo.codec import LIVE, READY, Document
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.read import is_queue
from jobmill.stores.mongo.schema import SLOTS, TURNS

#: A filter: nothing but the lane holds the job. A process of an older version may have written another holder.
HELD_BY_LANE = {"jobmill.held.by": [BY_LANE]}
_SLOT_SHOWN = dict.fromkeys(
    ("status", "priority", "nextRunAt", "jobmill.lane", "jobmill.laneSlot", "jobmill.joined"), 1
)
_TURN_SHOWN = dict.fromkeys(("name", "priority", "jobmill.turn.lane", "jobmill.joined", "jobmill.slot"), 1)
_TURN_ORDER = {"priority": -1, "jobmill.joined": 1, "_id": 1}


def with_slot(ctx: MongoContext, queue: str, lane: Any) -> Document:
    """A filter for jobs that have a slot of lanes."""
    return {
        "jobmill.queue": is_queue(ctx, queue),
        "jobmill.lane": lane,
        "jobmill.laneSlot": {"$exists": True},
        "status": {"$in": LIVE},
    }


def in_turn(ctx: MongoContext, queue: str, after: Any = READY) -> Document:
    """A filter for jobs that lanes hold and that are ready; or due later, at these times."""
    return {"jobmill.queue": is_queue(ctx, queue), "jobmill.turn.after": after, "status": "pending"}


async def slots(ctx: MongoContext, queue: str, lanes: Sequence[str]) -> list[Document]:
    """The jobs of lanes that have slots."""
    query = with_slot(ctx, queue, {"$in": list(lanes)})
    find = ctx.here.jobs.find
    return await ctx.hinted(SLOTS, lambda hint: find(query, _SLOT_SHOWN, batch_size=10_000, **hint).to_list())


async def heads(ctx: MongoContext, queue: str, wanted: Mapping[str, int]) -> dict[str, list[Document]]:
    """The first ready jobs of lanes: of each at most this number."""
    if not wanted:
        return {}
    if len(wanted) == 1:
        ((lane, limit),) = wanted.items()
        query = {**in_turn(ctx, queue), "jobmill.turn.lane": lane, **HELD_BY_LANE}
        return {lane: await ctx.find_by(TURNS, query, _TURN_SHOWN, limit, sort=_TURN_ORDER)}
    # Where few jobs are ready, one query finds all. Otherwise the server seeks the first jobs of each lane. For that it
    # plans a query for each lane, and keeps no plan if none is ready. Measured at 50 lanes a call, server CPU a job:
    # 118 us with this query, 315 without it. Where many jobs are ready, this query costs 10 to 20 us of 220 to 250.
    most = sum(wanted.values()) + 1
    query = {**in_turn(ctx, queue), "jobmill.turn.lane": {"$in": list(wanted)}, **HELD_BY_LANE}
    found = await ctx.find_by(TURNS, query, _TURN_SHOWN, most, sort={"jobmill.turn.lane": 1, **_TURN_ORDER})
    if len(found) == most:
        return await _heads_of_each(ctx, queue, wanted)
    ready: dict[str, list[Document]] = {lane: [] for lane in wanted}
    for job in found:
        ready[job["jobmill"]["turn"]["lane"]].append(job)
    return {lane: jobs[: wanted[lane]] for lane, jobs in ready.items()}


async def _heads_of_each(ctx: MongoContext, queue: str, wanted: Mapping[str, int]) -> dict[str, list[Document]]:
    """The same for lanes with many ready jobs, in one round trip."""
    match = {**in_turn(ctx, queue), **HELD_BY_LANE, "$expr": {"$eq": ["$jobmill.turn.lane", "$$lane"]}}
    first: list[Document] = [{"$match": match}, {"$sort": _TURN_ORDER}, {"$limit": max(wanted.values())}]
    look: Document = {"from": ctx.url.collection, "let": {"lane": "$lane"}, "as": "jobs"}
    look["pipeline"] = [*first, {"$project": _TURN_SHOWN}]
    given = [{"lane": {"$literal": lane}} for lane in wanted]
    cursor = await ctx.here.database.aggregate([{"$documents": given}, {"$lookup": look}], batchSize=len(wanted) + 1)
    return {one["lane"]: one["jobs"][: wanted[one["lane"]]] for one in await cursor.to_list()}
