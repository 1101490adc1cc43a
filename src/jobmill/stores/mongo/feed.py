"""What is set for queues (the collection jobmill_queues), and the feed of what happens there (jobmill_events)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

import msgspec
from msgspec import Struct
from pymongo import ReturnDocument

from jobmill.core.cursors import read_position
from jobmill.core.events import Event
from jobmill.core.values import QueueSettings, RateLimit
from jobmill.stores.mongo.context import Base
from jobmill.stores.mongo.connection import Document, told_apart
from jobmill.stores.mongo.values import payload_of

#: Who tells takes numbers first and writes then: a number that is not there after so long will not come.
GAP_MS = 5_000


class Known(Struct, frozen=True, kw_only=True):
    """What a queue's document says."""

    settings: QueueSettings
    window_ends_ms: int = 0
    window_used: int = 0
    #: The number of the last event.
    told: int = 0

    @property
    def is_limited(self) -> bool:
        """Whether claims of it must be counted, and so be made one after the other."""
        return self.settings.rate_limit is not None or self.settings.running_limit is not None

    def left(self, now_ms: int) -> int | None:
        """How many claims the rate limit allows now; None: any number."""
        rate = self.settings.rate_limit
        if rate is None:
            return None
        return rate.count if now_ms >= self.window_ends_ms else max(0, rate.count - self.window_used)


UNKNOWN = Known(settings=QueueSettings())


def known_of(document: Document) -> Known:
    """A queue's document as a value."""
    rate = document.get("rateLimit")
    return Known(
        settings=QueueSettings(
            paused=bool(document.get("paused", False)),
            rate_limit=RateLimit(int(rate["count"]), int(rate["perMs"])) if rate else None,
            running_limit=document.get("runningLimit"),
            feed=bool(document.get("feed", False)),
            events_max_len=int(document.get("eventsMaxLen", 10_000)),
        ),
        window_ends_ms=int(document.get("windowEndsMs", 0)),
        window_used=int(document.get("windowUsed", 0)),
        told=int(document.get("told", 0)),
    )


class Feeds(Base):
    """publish and events."""

    async def _known(self, queues: Iterable[str]) -> dict[str, Known]:
        """What is set for those of these queues that have settings."""
        found = self._here.queues.find({"_id": {"$in": list(queues)}}, {"lock": 0})
        return {document["_id"]: known_of(document) async for document in found}

    async def publish(self, events: Sequence[Event]) -> None:
        """See the port."""
        with told_apart(self._place):
            if events:
                await self._tell(events, await self._known({event.queue for event in events}))

    async def _tell(
        self,
        events: Sequence[Event],
        known: Mapping[str, Known],
        insert: Callable[[list[Document]], Awaitable[None]] | None = None,
    ) -> None:
        """Add to the feeds that are on; `insert` is for what is told in a transaction."""
        by_queue: dict[str, list[Event]] = {}
        for event in events:
            if known.get(event.queue, UNKNOWN).settings.feed:
                by_queue.setdefault(event.queue, []).append(event)
        for queue, own in by_queue.items():
            most = known[queue].settings.events_max_len
            entries, last = await self._numbered(queue, own, most)
            if entries:
                await (self._here.events.insert_many(entries) if insert is None else insert(entries))
            await self._here.events.delete_many({"_id": {"$gte": _id(queue, 0), "$lte": _id(queue, last - most)}})

    async def _numbered(self, queue: str, events: list[Event], most: int) -> tuple[list[Document], int]:
        """Events as documents, under the next numbers of a feed; and the last number."""
        document = await self._here.queues.find_one_and_update(
            {"_id": queue},
            {"$inc": {"told": len(events)}},
            projection={"told": 1},
            return_document=ReturnDocument.AFTER,
        )
        last = int(document["told"]) if document else 0
        first = last - len(events) + 1
        # Of more than the feed keeps only the last are written.
        return [_entry(number, event) for number, event in enumerate(events, first) if number > last - most], last

    async def events(self, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
        """See the port. Numbers come in order; where one is missing, it is waited for a while."""
        seen = 0 if after is None else read_position(after, "after", after)
        bounds = {"$gt": _id(queue, seen), "$lt": f"{queue};"}
        told: list[Event] = []
        with told_apart(self._place):
            known = (await self._known([queue])).get(queue, UNKNOWN)
            if not known.settings.feed:
                return []
            found = await self._here.events.find({"_id": bounds}).sort("_id", 1).limit(limit).to_list()
        kept_from = known.told - known.settings.events_max_len
        number = seen if after is not None and seen >= kept_from else None
        for document in found:
            if number is not None and document["n"] != number + 1 and document["at"] > time.time() * 1000 - GAP_MS:
                break
            number = document["n"]
            told.append(_event(queue, document))
        return told


def _id(queue: str, number: int) -> str:
    # No queue has a colon in it; ";" is the character after it.
    return f"{queue}:{max(0, number):019d}"


def _entry(number: int, event: Event) -> Document:
    return {
        "_id": _id(event.queue, number),
        "n": number,
        "at": time.time() * 1000,
        "type": event.type,
        "job": event.job_id,
        "name": event.name,
        "atMs": event.at_ms,
        "attempt": event.attempt,
        "data": payload_of(event.data).decode(),
    }


def _event(queue: str, document: Document) -> Event:
    return Event(
        id=str(document["n"]),
        type=document["type"],
        job_id=document["job"],
        name=document["name"],
        queue=queue,
        at_ms=document["atMs"],
        attempt=document["attempt"],
        data=msgspec.json.decode(document["data"]),
    )
