"""The part of fsck about lanes. An older version, or Monque, does not know lanes, and may leave such damage."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from jobmill.core.due import BY_LANE, NEVER_MS
from jobmill.core.findings import IDS_SHOWN, Finding
from jobmill.stores.mongo import queues
from jobmill.stores.mongo.codec import LANE_MARKS, LIVE, Document, date
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.lane_walk import WALKED, heal, ready_lanes
from jobmill.stores.mongo.lanes import free_slots

#: Jobs that have stood in a lane for this time have got its free slots, where a worker lives.
LOST_MS = 60_000
_EXISTS, _ABSENT = {"$exists": True}, {"$exists": False}
_LANE = {"jobmill.lane": _EXISTS, "jobmill.staged": None}
_WAITS = {"status": "pending", **_LANE}


class LaneCheck(Struct, frozen=True):
    """What is wrong with the jobs that match, and the update that repairs them."""

    name: str
    text: str
    query: Document
    repair: Any


def lane_checks(now_ms: int) -> list[LaneCheck]:
    """What can be wrong with single jobs."""
    by = {"$sortArray": {"input": {"$setUnion": ["$jobmill.held.by", [BY_LANE]]}, "sortBy": 1}}
    joined = {"$toDate": {"$ifNull": ["$jobmill.held.due.at_ms", now_ms]}}
    return [
        LaneCheck(
            "held_without_lane",
            "jobs are held by a lane, but have none",
            {"status": "pending", "jobmill.held.by": BY_LANE, "jobmill.lane": None},
            {
                "$set": {"nextRunAt": date(now_ms)},
                "$unset": dict.fromkeys((f"jobmill.{name}" for name in ("held", "due", "dueOf", *LANE_MARKS)), ""),
            },
        ),
        LaneCheck(
            "lane_lost_hold",
            "jobs with a lane are held by others, but not by their lane, so that they would run without a slot",
            {**_WAITS, "jobmill.held": _EXISTS, "jobmill.held.by": {"$ne": BY_LANE}},
            [
                {"$set": {"jobmill.held.by": by, "jobmill.due": date(NEVER_MS), "jobmill.dueOf": "$nextRunAt"}},
                {"$unset": [f"jobmill.{name}" for name in LANE_MARKS]},
            ],
        ),
        LaneCheck(
            "lane_lost_turn",
            "jobs are held by their lanes, but do not stand in the order of them",
            {**_WAITS, "jobmill.held.by": [BY_LANE], "jobmill.turn": None},
            # A claim finds them by the time at which they joined the lane.
            [{"$set": {"jobmill.joined": joined, "jobmill.turn": {"lane": "$jobmill.lane", "after": joined}}}],
        ),
        LaneCheck(
            "lane_turn_of_held",
            "jobs stand in the order of their lanes, although others hold them, or nothing does",
            {**_WAITS, "jobmill.turn": _EXISTS, "jobmill.held.by": {"$ne": [BY_LANE]}},
            {"$unset": {"jobmill.turn": ""}},
        ),
        LaneCheck(
            "lane_slot_of_held",
            "held jobs have a slot of their lanes",
            {**_WAITS, "jobmill.held.by": BY_LANE, "jobmill.laneSlot": _EXISTS},
            {"$unset": {"jobmill.laneSlot": ""}},
        ),
        LaneCheck(
            "lane_without_slot",
            "jobs wait or run without a slot of their lanes, so that limits do not count them",
            {**_LANE, "status": {"$in": LIVE}, "jobmill.held": _ABSENT, "jobmill.laneSlot": _ABSENT},
            [{"$set": {"jobmill.laneSlot": "$_id"}}],
        ),
    ]


async def check_lanes(ctx: MongoContext, repair: bool) -> list[Finding]:
    """What can be wrong with lanes as a whole."""
    return [await _unknown_lanes(ctx, repair), await _twice(ctx), await _lost_slots(ctx, repair)]


async def _unknown_lanes(ctx: MongoContext, repair: bool) -> Finding:
    """Queues with lanes whose documents do not say so: nobody gives slots there."""
    found = await ctx.here.jobs.distinct("jobmill.queue", {**_LANE, "status": {"$in": LIVE}})
    has_home = await ctx.here.jobs.find_one({**_LANE, "status": {"$in": LIVE}, "jobmill.queue": None}, {"_id": 1})
    names = {str(queue) for queue in found} | ({ctx.url.queue} if has_home else set())
    limits = await queues.limits_of(ctx, names)
    unknown = sorted(name for name in names if not limits.get(name, queues.NO_LIMITS).has_lanes)
    for name in unknown if repair else ():
        await ctx.here.queues.update_one({"_id": name}, {"$set": {"hasLanes": True}}, upsert=True)
    text = "queues have jobs with lanes, but do not say so"
    return _finding("lanes_unknown", text, unknown, len(unknown) if repair else 0)


async def _twice(ctx: MongoContext) -> Finding:
    """Jobs with the same slot: the index that refuses them was missing for a time."""
    live = {**_LANE, "jobmill.laneSlot": _EXISTS, "status": {"$in": LIVE}}
    key = {"queue": "$jobmill.queue", "lane": "$jobmill.lane", "slot": "$jobmill.laneSlot"}
    group = {"_id": key, "ids": {"$push": {"$ifNull": ["$jobmill.id", {"$toString": "$_id"}]}}}
    several: list[Document] = [{"$match": live}, {"$group": group}, {"$match": {"ids.1": _EXISTS}}]
    found = await (await ctx.here.jobs.aggregate(several)).to_list()
    ids = sorted(str(id) for one in found for id in one["ids"])
    remedy = "wait for the end of all but one of them, or cancel them; then run `jobmill migrate`"
    return _finding("lane_slot_twice", "live jobs have the slot of another job of their lane", ids, remedy=remedy)


async def _lost_slots(ctx: MongoContext, repair: bool) -> Finding:
    """Free slots that no process gives to jobs which have been ready for a long time."""
    lanes: list[str] = []
    async for one in ctx.here.queues.find({"hasLanes": True}):
        queue, after = one["_id"], ""
        while names := await ready_lanes(ctx, queue, after, WALKED):
            free = await free_slots(ctx, queue, names, ctx.now() - LOST_MS)
            lanes += [f"{queue}: {name}" for name in free]
            after = names[-1]
    repaired = 0
    if repair and lanes:
        while await heal(ctx):
            pass
        repaired = len(lanes)
    return _finding(
        "lane_lost_slot", "lanes have free slots, and jobs that have been ready for a minute", lanes, repaired
    )


def _finding(check: str, text: str, ids: list[str], repaired: int | None = None, remedy: str | None = None) -> Finding:
    count = len(ids)
    is_bad = count > (repaired or 0)
    advice = remedy or "repair them: `jobmill fsck --repair`"
    return Finding(
        check=check,
        level="error" if is_bad else "ok",
        text=f"{count or 'no'} {text}",
        evidence={"ids": ids[:IDS_SHOWN]} if ids else {},
        remedy=advice if is_bad else None,
        count=count,
        can_repair=remedy is None,
        repaired=repaired or 0,
    )
