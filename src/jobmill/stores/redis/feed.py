"""Our own feed of the events of a queue. BullMQ's stream, which is always written, is for Node's QueueEvents."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobmill.core.events import Event
from jobmill.errors import InvalidValue
from jobmill.stores.redis.codec import fields
from jobmill.stores.redis.context import RedisContext
from jobmill.stores.redis.ids import port_id
from jobmill.stores.redis.queues import settings_of_queue


async def publish(c: RedisContext, events: Sequence[Event]) -> None:
    """See the port."""
    for queue in dict.fromkeys(event.queue for event in events):
        settings = await settings_of_queue(c, queue)
        if settings.feed:
            key = f"{c.key(queue)}:jobmill:feed"
            own = [event for event in events if event.queue == queue]
            add = ("XADD", key, "MAXLEN", settings.events_max_len, "*")
            await c.client.many(key, [(*add, *_entry(event)) for event in own])


async def events(c: RedisContext, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
    """See the port."""
    key = f"{c.key(queue)}:jobmill:feed"
    first = "-" if after is None else f"({check_stream_id(after, 'after')}"
    if not (await settings_of_queue(c, queue)).feed:
        return []
    entries = await c.client.call(key, "XRANGE", key, first, "+", "COUNT", limit)
    return [_event(queue, id, fields(flat)) for id, flat in entries]


def _entry(event: Event) -> tuple[str | bytes | int, ...]:
    # An event of the user's own may be about no job of this queue: its id is shown as it was given.
    job = ("type", event.type, "id", event.job_id, "name", event.name)
    return (*job, "at", event.at_ms, "attempt", event.attempt, "data", msgspec.json.encode(event.data))


def _event(queue: str, id: bytes, h: dict[bytes, bytes]) -> Event:
    given_id = h.get(b"id")
    if given_id is None:
        job_id = port_id(queue, h[b"job"].decode(errors="replace"), h[b"ours"] == b"1")
    else:
        job_id = given_id.decode()
    return Event(
        id=id.decode(),
        type=h[b"type"].decode(),
        job_id=job_id,
        name=h[b"name"].decode(errors="replace"),
        queue=queue,
        at_ms=int(h[b"at"]),
        attempt=int(h[b"attempt"]),
        data=msgspec.json.decode(h[b"data"]),
    )


def check_stream_id(id: str, field: str) -> str:
    """The number of an entry in a stream, as this store gave it."""
    ms, dash, seq = id.partition("-")
    if not (ms.isascii() and ms.isdecimal() and (not dash or (seq.isascii() and seq.isdecimal()))):
        raise InvalidValue(field, f"{'an' if field == 'after' else 'a'} {field} that this store gave", id)
    return id
