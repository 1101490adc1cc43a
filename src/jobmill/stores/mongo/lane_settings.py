"""Settings of lanes, and windows of their rates (the collection jobmill_lanes).

_id           .queue and .lane
settings      the settings of the lane itself; what is missing, the rule of the queue says
windowEnds, windowUsed      the window of its rate
limitedUntil  when its rate allows the next job
again         when the lane must be examined, in milliseconds: its rate allows more jobs then. 0: its settings have
              changed, and its slots are not right so far

A queue whose lanes may have such documents says so in its own document: `hasLanes`, `hasOwnLanes`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from bson import MaxKey
from msgspec import Struct
from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from jobmill.core.lanes import LaneLimits, LaneWindow, changed_lane
from jobmill.core.queue_settings import LaneChange, LaneSettings
from jobmill.core.values import NewJob
from jobmill.errors import SchemaTooOld
from jobmill.stores.mongo.codec import Document, int_of, update_of
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.queues import NO_LIMITS, MongoLimits, limits_of
from jobmill.stores.mongo.schema import SLOTS

#: Queue and lane.
LaneKey: TypeAlias = tuple[str, str]
#: How many lanes are examined in one step because their rates allow more.
MAX_AGAIN = 1_000


class LaneDocument(Struct, frozen=True):
    """The document of a lane."""

    settings: LaneSettings = LaneSettings()
    window: LaneWindow = LaneWindow()
    limited_until_ms: int | None = None
    #: As in the document.
    again: int | None = None

    @staticmethod
    def of(document: Document) -> LaneDocument:
        """A document that was read."""
        window = LaneWindow(int_of(document.get("windowEnds")), int_of(document.get("windowUsed")))
        settings = msgspec.convert(document.get("settings", {}), LaneSettings)
        return LaneDocument(settings, window, document.get("limitedUntil"), document.get("again"))


NO_STATE = LaneDocument()


class LaneLimitsRead(Struct, frozen=True):
    """The limits of lanes as they were read, and the documents of these lanes."""

    queues: Mapping[str, MongoLimits]
    states: Mapping[LaneKey, LaneDocument]

    def of(self, key: LaneKey) -> LaneLimits:
        """The limits of a lane."""
        rule = self.queues.get(key[0], NO_LIMITS).settings.lanes
        return LaneLimits.of(rule, self.states.get(key, NO_STATE).settings)


async def read_limits(
    ctx: MongoContext, lanes: Collection[LaneKey], known: Mapping[str, MongoLimits] | None = None
) -> LaneLimitsRead:
    """The limits of these lanes. `known`: the limits of their queues, where a caller has read them."""
    queues = await limits_of(ctx, {queue for queue, _ in lanes}) if known is None else known
    wanted = [key for key in lanes if queues.get(key[0], NO_LIMITS).has_lane_documents]
    return LaneLimitsRead(queues, await states_of(ctx, wanted) if wanted else {})


async def states_of(ctx: MongoContext, lanes: Iterable[LaneKey]) -> dict[LaneKey, LaneDocument]:
    """The documents of these lanes, as far as they exist."""
    ids = [{"queue": queue, "lane": lane} for queue, lane in lanes]
    found = ctx.here.lanes.find({"_id": {"$in": ids}})
    return {(one["_id"]["queue"], one["_id"]["lane"]): LaneDocument.of(one) async for one in found}


async def write_state(
    ctx: MongoContext, key: LaneKey, before: LaneDocument, window: LaneWindow, again_ms: int | None
) -> bool:
    """Write the window of a lane, and when the lane is examined again; False if others have changed it meanwhile."""
    if (before.window, before.again, before.limited_until_ms) == (window, again_ms, again_ms):
        return True
    times = {"limitedUntil": again_ms, "again": again_ms}
    given = {"windowEnds": window.ends_ms, "windowUsed": window.used, **times}
    same: Document = {"_id": {"queue": key[0], "lane": key[1]}}
    zero_or_none = {name: {"$in": [0, None]} if value == 0 else value for name, value in _window_fields(before).items()}
    update = update_of(given)
    try:
        # If its settings are changed at this moment, `again` must stay 0.
        done = await ctx.here.lanes.update_one({**same, **zero_or_none, "again": before.again}, update, upsert=True)
    except DuplicateKeyError:
        return False
    return bool(done.matched_count or done.upserted_id)


def _window_fields(state: LaneDocument) -> Document:
    return {"windowEnds": state.window.ends_ms, "windowUsed": state.window.used}


async def give_back(ctx: MongoContext, key: LaneKey, window: LaneWindow, count: int) -> None:
    """Jobs that a window has counted did not get a slot."""
    same = {"_id": {"queue": key[0], "lane": key[1]}, "windowEnds": window.ends_ms}
    await ctx.here.lanes.update_one(same, {"$inc": {"windowUsed": -count}})


# ---------------------------------------------------------------------------------------------------- queues


async def note_lanes(ctx: MongoContext, new_jobs: Sequence[NewJob]) -> dict[str, MongoLimits]:
    """Before jobs with lanes are inserted: say that their queues have lanes. Return the limits of all queues."""
    limits = await limits_of(ctx, {new.queue for new in new_jobs})
    for queue in {new.queue for new in new_jobs if new.lane is not None}:
        if not limits.get(queue, NO_LIMITS).has_lanes:
            await _mark_queue(ctx, queue, {"hasLanes": True})
    return limits


async def _mark_queue(ctx: MongoContext, queue: str, fields: Document) -> None:
    if SLOTS not in ctx.indexes:
        raise SchemaTooOld(f"{ctx.url.address} has no index {SLOTS}, which lanes need; run `jobmill migrate`")
    while True:
        with contextlib.suppress(DuplicateKeyError):  # another process inserted it at the same moment
            await ctx.here.queues.update_one({"_id": queue}, {"$set": fields}, upsert=True)
            return


# ---------------------------------------------------------------------------------------------------- lanes


async def change_lane(ctx: MongoContext, queue: str, lane: str, change: LaneChange) -> LaneSettings:
    """Change the settings of a lane, but not its slots. Return the new settings."""
    await _mark_queue(ctx, queue, {"hasLanes": True, "hasOwnLanes": True})
    id = {"queue": queue, "lane": lane}
    while True:
        found = await ctx.here.lanes.find_one({"_id": id}) or {}
        settings = changed_lane(LaneDocument.of(found).settings, change)
        update = {"$set": {"settings": msgspec.to_builtins(settings), "again": 0}}
        same = {"_id": id, "settings": found.get("settings")}
        with contextlib.suppress(DuplicateKeyError):  # another process has changed or inserted it at the same moment
            if await ctx.here.lanes.find_one_and_update(
                same, update, upsert=True, return_document=ReturnDocument.AFTER
            ):
                return settings


async def lanes_to_look_at(ctx: MongoContext, queues: Collection[str], now_ms: int) -> set[LaneKey]:
    """Lanes of these queues whose rates allow more now, or whose settings have changed."""
    query = {"_id.queue": {"$in": list(queues)}, "again": {"$lte": now_ms}}
    found = ctx.here.lanes.find(query, {"_id": 1}).limit(MAX_AGAIN)
    return {(one["_id"]["queue"], one["_id"]["lane"]) async for one in found}


async def next_window_ms(ctx: MongoContext, queue: str) -> int | None:
    """When the rate of a lane of a queue allows more."""
    first = await ctx.here.lanes.find({"_id.queue": queue, "again": {"$gte": 0}}, {"again": 1}).sort("again").to_list(1)
    return first[0]["again"] if first else None


async def purge_windows(ctx: MongoContext, now_ms: int) -> None:
    """Remove documents of lanes that have no settings, and whose windows are over."""
    over: Document = {"again": None, "windowEnds": {"$lte": now_ms}, "settings": {"$in": [None, {}]}}
    await ctx.here.lanes.delete_many(over)


async def lane_documents(ctx: MongoContext, queue: str, after: str, limit: int) -> dict[str, LaneDocument]:
    """The first documents of lanes after this name, by name."""
    ids = {"$gt": {"queue": queue, "lane": after}, "$lt": {"queue": queue, "lane": MaxKey()}}
    found = ctx.here.lanes.find({"_id": ids}).sort("_id", 1).limit(limit)
    return {one["_id"]["lane"]: LaneDocument.of(one) async for one in found}
