"""Settings of queues; and the one lock, which claims of a queue with limits take in turn."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
from collections.abc import AsyncIterator, Sequence
from typing import Any

from msgspec import UNSET, Struct
from pymongo import ReturnDocument
from pymongo.errors import DuplicateKeyError

from jobmill.core.values import QueueChange, QueueSettings
from jobmill.stores.mongo.feed import UNKNOWN, Feeds, Known, known_of
from jobmill.stores.mongo.connection import Document, told_apart

#: Nobody holds the lock for longer: by the server's clock, which what is written under it asks as well.
LOCK_MS = 5_000
#: Who does not get the lock in this time claims nothing of that queue now.
PATIENCE_S = 2.0


class Locked(Struct, frozen=True):
    """The lock of a queue, and what the queue's document said when it was taken."""

    token: str
    until: Any
    known: Known

    @property
    def holds(self) -> Document:
        """Part of a filter: that the lock still holds, by the server's clock, when that looks."""
        return {"$expr": {"$lt": ["$$NOW", self.until]}}


class Queues(Feeds):
    """configure and settings."""

    async def configure(self, queue: str, change: QueueChange) -> QueueSettings:
        """See the port."""
        told: Document = {}
        gone: Document = {}
        _put(told, gone, "paused", change.paused)
        _put(told, gone, "runningLimit", change.running_limit)
        _put(told, gone, "feed", change.feed)
        _put(told, gone, "eventsMaxLen", change.events_max_len)
        rate = change.rate_limit
        _put(told, gone, "rateLimit", {"count": rate.count, "perMs": rate.per_ms} if rate else rate)
        # Counted, so that a change which says what is so already is still seen by those who watch.
        update = {"$inc": {"changes": 1}} | ({"$set": told} if told else {}) | ({"$unset": gone} if gone else {})
        with told_apart(self._place):
            while True:
                with contextlib.suppress(DuplicateKeyError):  # another made it in the same moment
                    document = await self._here.queues.find_one_and_update(
                        {"_id": queue}, update, upsert=True, return_document=ReturnDocument.AFTER
                    )
                    return known_of(document or {}).settings

    async def settings(self, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
        """See the port."""
        with told_apart(self._place):
            if queues is None:
                found = self._here.queues.find({}, {"lock": 0})
                return {document["_id"]: known_of(document).settings async for document in found}
            known = await self._known(queues)
        return {queue: known.get(queue, UNKNOWN).settings for queue in queues}

    @contextlib.asynccontextmanager
    async def _locked(self, queue: str) -> AsyncIterator[Locked | None]:
        """Claims of a queue with limits, one after the other; None when others hold the lock for too long."""
        locked = await self._lock(queue)
        try:
            yield locked
        finally:
            if locked is not None:
                mine = {"_id": queue, "lock.token": locked.token}
                await self._here.queues.update_one(mine, {"$unset": {"lock": ""}})

    async def _lock(self, queue: str) -> Locked | None:
        token = secrets.token_hex(8)
        free = {"$lte": [{"$ifNull": ["$lock.until", "$$NOW"]}, "$$NOW"]}
        take = [{"$set": {"lock": {"token": token, "until": {"$add": ["$$NOW", LOCK_MS]}}}}]
        give_up = asyncio.get_running_loop().time() + PATIENCE_S
        wait_s = 0.001
        while True:
            document = await self._here.queues.find_one_and_update(
                {"_id": queue, "$expr": free}, take, return_document=ReturnDocument.AFTER
            )
            if document is not None:
                return Locked(token, document["lock"]["until"], known_of(document))
            if asyncio.get_running_loop().time() > give_up:
                return None
            await asyncio.sleep(wait_s * (0.5 + random.random()))
            wait_s = min(0.02, wait_s * 1.5)

    async def _count_claims(self, queue: str, locked: Locked, claims: int, now_ms: int, *, opens: bool) -> None:
        """Count against the rate limit; the first count after a window opens the next. Less than none gives back."""
        rate = locked.known.settings.rate_limit
        if rate is None or not claims:
            return
        if opens and now_ms >= locked.known.window_ends_ms:
            update: Document = {"$set": {"windowEndsMs": now_ms + rate.per_ms, "windowUsed": claims}}
        else:
            update = {"$inc": {"windowUsed": claims}}
        await self._here.queues.update_one({"_id": queue, "lock.token": locked.token}, update)


def _put(told: Document, gone: Document, field: str, value: Any) -> None:
    if value is None:
        gone[field] = ""
    elif value is not UNSET:
        told[field] = value
