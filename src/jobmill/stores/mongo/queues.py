"""Settings and limits of queues (the collection jobmill_queues), and the lock for claims of a queue with limits."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from jobmill.core.queue_limits import QueueLimits
from jobmill.core.queue_settings import LaneRule
from jobmill.core.values import Pause, QueueChange, QueueSettings, RateLimit
from jobmill.stores.mongo.codec import Document, update_of
from jobmill.stores.mongo.context import MongoContext

#: The longest time that a lock is held, by the server's clock; writes under the lock check it by the same clock.
LOCK_MS = 5_000
#: A claim that does not get the lock in this time claims no job of the queue.
LOCK_WAIT_SECONDS = 2.0

_DEFAULTS = QueueSettings()
#: The fields of the document of a queue that has jobs with lanes, but no settings.
_ONLY_LANES = {"_id", "hasLanes", "hasOwnLanes"}


class MongoLimits(QueueLimits, frozen=True, kw_only=True):
    """The limits of a queue, and what is known about its lanes."""

    #: Whether the queue has, or had, jobs with lanes.
    has_lanes: bool = False
    #: Whether lanes may have documents of their own: settings, or windows of rates.
    has_lane_documents: bool = False
    #: The rule of all lanes has changed: the last lane whose slots are right. None: all are.
    lanes_to: str | None = None


#: The limits of a queue that has no document.
NO_LIMITS = MongoLimits()


def queue_limits(document: Document) -> MongoLimits:
    """The settings and limits in the document of a queue."""
    rate = document.get("rateLimit")
    settings = QueueSettings(
        paused=bool(document.get("paused", _DEFAULTS.paused)),
        pause=msgspec.convert(pause, Pause) if (pause := document.get("pause")) else None,
        rate_limit=RateLimit(int(rate["count"]), int(rate["perMs"])) if rate else None,
        running_limit=document.get("runningLimit"),
        feed=bool(document.get("feed", _DEFAULTS.feed)),
        events_max_len=int(document.get("eventsMaxLen", _DEFAULTS.events_max_len)),
        lanes=msgspec.convert(rule, LaneRule) if (rule := document.get("lanes")) is not None else None,
    )
    ends_ms, used = int(document.get("windowEndsMs", 0)), int(document.get("windowUsed", 0))
    if "hasLanes" not in document:
        return MongoLimits(settings=settings, window_ends_ms=ends_ms, window_used=used)
    return MongoLimits(
        settings=settings,
        window_ends_ms=ends_ms,
        window_used=used,
        has_lanes=True,
        has_lane_documents="hasOwnLanes" in document
        or (settings.lanes is not None and settings.lanes.rate is not None),
        lanes_to=document.get("lanesTo"),
    )


async def limits_of(ctx: MongoContext, queues: Iterable[str] | None) -> dict[str, MongoLimits]:
    """The settings and limits of these queues (None: of all queues), without queues that have no settings."""
    query: Document = {} if queues is None else {"_id": {"$in": list(queues)}}
    found = [one async for one in ctx.here.queues.find(query, {"lock": 0})]
    return {one["_id"]: queue_limits(one) for one in found if queues is not None or not one.keys() <= _ONLY_LANES}


def has_feed(limits: Mapping[str, QueueLimits]) -> bool:
    """Whether the feed of one of these queues is on."""
    return any(one.settings.feed for one in limits.values())


async def change_settings(ctx: MongoContext, queue: str, change: QueueChange) -> QueueSettings:
    """Change the settings of a queue, but not the slots of its lanes. Return the new settings."""
    rate = change.rate_limit
    pause = None if change.pause is UNSET and change.paused is not UNSET else change.pause
    given = {
        "paused": change.paused,
        "pause": msgspec.to_builtins(pause) if isinstance(pause, Pause) else pause,
        "runningLimit": change.running_limit,
        "feed": change.feed,
        "eventsMaxLen": change.events_max_len,
        "rateLimit": {"count": rate.count, "perMs": rate.per_ms} if rate else rate,
        "lanes": msgspec.to_builtins(change.lanes) if isinstance(change.lanes, LaneRule) else change.lanes,
    }
    if change.lanes is not UNSET:
        given |= {"hasLanes": True, "lanesTo": ""}
    # Count the changes, so that the change stream also reports a change that writes the same values.
    update = update_of({name: it for name, it in given.items() if it is not UNSET}) | {"$inc": {"changes": 1}}
    while True:
        with contextlib.suppress(DuplicateKeyError):  # another process inserted it at the same moment
            document = await ctx.here.queues.find_one_and_update(
                {"_id": queue}, update, upsert=True, return_document=ReturnDocument.AFTER
            )
            return queue_limits(document or {}).settings.at(ctx.now())


async def settings(ctx: MongoContext, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
    """The settings of these queues; None means all queues that have settings."""
    limits = await limits_of(ctx, queues)
    wanted = limits if queues is None else queues
    return {queue: limits.get(queue, NO_LIMITS).settings.at(ctx.now()) for queue in wanted}


async def resume(ctx: MongoContext, now_ms: int) -> None:
    """End pauses whose time has passed, because processes of older versions do not know when a pause ends."""
    over = {"pause.until_ms": {"$lte": now_ms}}
    await ctx.here.queues.update_many(over, update_of({"paused": False, "pause": None}) | {"$inc": {"changes": 1}})


# ---------------------------------------------------------------------------------------------------- limits


class QueueLock(Struct):
    """The lock of a queue, and the limits of the queue with the claims that were made under the lock."""

    queue: str
    token: str
    until: Any
    limits: QueueLimits

    @property
    def holds(self) -> Document:
        """A part of a filter: the lock still holds by the server's clock."""
        return {"$expr": {"$lt": ["$$NOW", self.until]}}

    async def count_claims(self, ctx: MongoContext, claims: int, now_ms: int) -> None:
        """Count claims against the rate limit; a negative number takes claims back."""
        counted = self.limits.after_claims(claims, now_ms)
        if counted is not self.limits:
            self.limits = counted
            window = {"windowEndsMs": counted.window_ends_ms, "windowUsed": counted.window_used}
            await ctx.here.queues.update_one({"_id": self.queue, "lock.token": self.token}, {"$set": window})


@contextlib.asynccontextmanager
async def locked(ctx: MongoContext, queue: str) -> AsyncIterator[QueueLock | None]:
    """Hold the lock for claims of a queue with limits. None if other claims have held the lock for too long."""
    lock = await _lock(ctx, queue)
    try:
        yield lock
    finally:
        if lock is not None:
            await ctx.here.queues.update_one({"_id": queue, "lock.token": lock.token}, {"$unset": {"lock": ""}})


async def _lock(ctx: MongoContext, queue: str) -> QueueLock | None:
    token = secrets.token_hex(8)
    free = {"$lte": [{"$ifNull": ["$lock.until", "$$NOW"]}, "$$NOW"]}
    take = [{"$set": {"lock": {"token": token, "until": {"$add": ["$$NOW", LOCK_MS]}}}}]
    give_up = asyncio.get_running_loop().time() + LOCK_WAIT_SECONDS
    pause = 0.001
    while True:
        document = await ctx.here.queues.find_one_and_update(
            {"_id": queue, "$expr": free}, take, return_document=ReturnDocument.AFTER
        )
        if document is not None:
            return QueueLock(queue, token, document["lock"]["until"], queue_limits(document))
        if asyncio.get_running_loop().time() > give_up:
            return None
        await asyncio.sleep(pause * (0.5 + random.random()))
        pause = min(0.02, pause * 1.5)
