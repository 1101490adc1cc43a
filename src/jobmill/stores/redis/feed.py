"""What is set for a queue, as BullMQ's meta hash has it; and our own feed of what happens in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from jobmill.core.events import Event
from jobmill.core.values import QueueSettings, RateLimit
from jobmill.errors import InvalidValue
from jobmill.stores.redis.codec import fields
from jobmill.stores.redis.context import Base
from jobmill.stores.redis.ids import local_id, port_id

_FIELDS = ("paused", "concurrency", "max", "duration", "opts.maxLenEvents", "jmfeed")

_encode = msgspec.json.encode


class Feeds(Base):
    """publish and events."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Whether a queue's feed is on, by the last answer: facts of settlements are sent along only then.
        self._feeds: dict[str, bool] = {}

    async def _settings(self, queue: str) -> QueueSettings:
        key = f"{self._key(queue)}:meta"
        return settings_of(await self._link.call(key, "HMGET", key, *_FIELDS))

    async def publish(self, events: Sequence[Event]) -> None:
        """See the port."""
        for queue in dict.fromkeys(event.queue for event in events):
            said = await self._settings(queue)
            if said.feed:
                key = f"{self._key(queue)}:jobmill:feed"
                own = [event for event in events if event.queue == queue]
                most = ("MAXLEN", said.events_max_len)
                await self._link.many(key, [("XADD", key, *most, "*", *_entry(event)) for event in own])

    async def events(self, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
        """See the port: our own feed. BullMQ's stream, which is always written, is for Node's QueueEvents."""
        key = f"{self._key(queue)}:jobmill:feed"
        first = "-" if after is None else f"({_checked(after)}"
        if not (await self._settings(queue)).feed:
            return []
        entries = await self._link.call(key, "XRANGE", key, first, "+", "COUNT", limit)
        return [_event(queue, id, fields(flat)) for id, flat in entries]


def settings_of(said: list[bytes | None]) -> QueueSettings:
    """The fields of a meta hash, as the port knows them."""
    paused, concurrency, most, duration, events, feed = said
    return QueueSettings(
        paused=paused is not None,
        running_limit=None if concurrency is None else int(concurrency),
        rate_limit=None if most is None else RateLimit(int(most), int(duration or 0)),
        feed=feed is not None,
        events_max_len=10_000 if events is None else int(events),
    )


def _entry(event: Event) -> tuple[str | bytes | int, ...]:
    job = local_id(event.queue, event.job_id)
    told = ("type", event.type, "job", job, "name", event.name, "at", event.at_ms, "attempt", event.attempt)
    # A user's own event may be about no job of this queue: its id is shown as it was said.
    return (*told, "data", _encode(event.data), "id", event.job_id)


def _event(queue: str, id: bytes, h: dict[bytes, bytes]) -> Event:
    said = h.get(b"id")
    return Event(
        id=id.decode(),
        type=h[b"type"].decode(),
        job_id=port_id(queue, h[b"job"].decode(errors="replace"), h[b"ours"] == b"1")
        if said is None
        else said.decode(),
        name=h[b"name"].decode(errors="replace"),
        queue=queue,
        at_ms=int(h[b"at"]),
        attempt=int(h[b"attempt"]),
        data=msgspec.json.decode(h[b"data"]),
    )


def _checked(after: str) -> str:
    ms, dash, seq = after.partition("-")
    if not (ms.isascii() and ms.isdecimal() and (not dash or (seq.isascii() and seq.isdecimal()))):
        raise InvalidValue("after", "an after that this store gave", after)
    return after
