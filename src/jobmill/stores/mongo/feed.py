"""The feed: events of each queue under consecutive numbers (the collection jobmill_events)."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import msgspec
from pymongo import ReturnDocument

from jobmill.core.cursors import read_position
from jobmill.core.events import Event
from jobmill.core.queue_limits import QueueLimits
from jobmill.stores.mongo.codec import Document, payload_of
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.queues import NO_LIMITS, limits_of, queue_limits

#: A writer takes its numbers before it writes: a number that is still missing after this time stays missing.
GAP_MS = 5_000


async def publish(
    ctx: MongoContext,
    events: Sequence[Event],
    limits: Mapping[str, QueueLimits] | None = None,
    insert: Callable[[list[Document]], Awaitable[None]] | None = None,
) -> None:
    """Add events to the feeds that are on. `insert` replaces the insert, for events of a transaction."""
    if not events:
        return
    if limits is None:
        limits = await limits_of(ctx, {event.queue for event in events})
    by_queue: dict[str, list[Event]] = {}
    for event in events:
        if limits.get(event.queue, NO_LIMITS).settings.feed:
            by_queue.setdefault(event.queue, []).append(event)
    for queue, own in by_queue.items():
        max_len = limits[queue].settings.events_max_len
        last = await _take_numbers(ctx, queue, len(own))
        numbered = enumerate(own, last - len(own) + 1)
        entries = [_entry(number, event) for number, event in numbered if number > last - max_len]
        if entries:
            await (ctx.here.events.insert_many(entries) if insert is None else insert(entries))
        await ctx.here.events.delete_many({"_id": {"$gte": _id(queue, 0), "$lte": _id(queue, last - max_len)}})


async def _take_numbers(ctx: MongoContext, queue: str, count: int) -> int:
    """Reserve the next numbers of a feed; the last of them."""
    update, shown = {"$inc": {"told": count}}, {"told": 1}
    document = await ctx.here.queues.find_one_and_update(
        {"_id": queue}, update, projection=shown, return_document=ReturnDocument.AFTER
    )
    return int(document["told"]) if document else 0


async def events(ctx: MongoContext, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
    """The events after this one, in the order of their numbers. A missing number is waited for a few seconds."""
    seen = 0 if after is None else read_position(after, "after", after)
    state = await ctx.here.queues.find_one({"_id": queue}) or {}
    settings = queue_limits(state).settings
    if not settings.feed:
        return []
    bounds = {"$gt": _id(queue, seen), "$lt": f"{queue};"}
    found = await ctx.here.events.find({"_id": bounds}).sort("_id", 1).limit(limit).to_list()
    kept_from = state.get("told", 0) - settings.events_max_len
    number = seen if after is not None and seen >= kept_from else None
    events: list[Event] = []
    for document in found:
        if number is not None and document["n"] != number + 1 and document["at"] > time.time() * 1000 - GAP_MS:
            break
        number = document["n"]
        events.append(_event(queue, document))
    return events


def _id(queue: str, number: int) -> str:
    # No queue contains a colon; ";" is the next character.
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
