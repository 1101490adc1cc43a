"""The settings of queues, in BullMQ's meta hash: Node's workers follow them as well. Only the feed is our own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from msgspec import UNSET

from jobmill.core.values import QueueChange, QueueSettings, RateLimit
from jobmill.stores.common.chunks import chunks
from jobmill.stores.redis.context import RedisContext
from jobmill.stores.redis.scripts import CONFIGURE

T = TypeVar("T")

#: In the order of configure.lua's answer.
_FIELDS = ("paused", "concurrency", "max", "duration", "opts.maxLenEvents", "jmfeed")
_QUEUES_AT_ONCE = 100


async def configure(c: RedisContext, queue: str, change: QueueChange) -> QueueSettings:
    """See the port."""
    given: dict[str, Any] = {}
    if change.running_limit is not UNSET:
        given["concurrency"] = change.running_limit
    if change.rate_limit is not UNSET:
        limit = change.rate_limit
        given |= {"max": limit and limit.count, "duration": limit and limit.per_ms}
    if change.feed is not UNSET:
        given["jmfeed"] = 1 if change.feed else None
    if change.events_max_len is not UNSET:
        given["opts.maxLenEvents"] = change.events_max_len
    meta = await c.run(
        CONFIGURE,
        queue,
        c.clock.now(),
        set={field: value for field, value in given.items() if value is not None},
        clear=[field for field, value in given.items() if value is None],
        paused=None if change.paused is UNSET else change.paused,
        wakes=change.running_limit is not UNSET or change.rate_limit is not UNSET,
    )
    settings = _settings(meta)
    c.feeds[queue] = settings.feed
    return settings


async def settings(c: RedisContext, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
    """See the port."""
    names = await all_queues(c) if queues is None else queues
    return dict(zip(names, await for_each(names, lambda queue: settings_of_queue(c, queue)), strict=True))


async def settings_of_queue(c: RedisContext, queue: str) -> QueueSettings:
    """The settings of one queue."""
    key = f"{c.key(queue)}:meta"
    return _settings(await c.client.call(key, "HMGET", key, *_FIELDS))


def _settings(meta: list[bytes | None]) -> QueueSettings:
    paused, concurrency, rate, duration, max_len, feed = meta
    default = QueueSettings()
    return QueueSettings(
        paused=paused is not None,
        running_limit=None if concurrency is None else int(concurrency),
        rate_limit=None if rate is None else RateLimit(int(rate), int(duration or 0)),
        feed=feed is not None,
        events_max_len=default.events_max_len if max_len is None else int(max_len),
    )


async def all_queues(c: RedisContext, *, fresh: bool = True) -> list[str]:
    """All queues of this prefix, whichever program made them: each has a meta key. `fresh`: scan again."""
    if not fresh and c.scanned_queues is not None:
        return c.scanned_queues
    begin, end = f"{c.url.prefix}:", ":meta"
    keys = await c.client.scan(_escaped(begin) + "*" + end, "hash")
    names = {key.decode(errors="replace")[len(begin) : -len(end)] for key in keys}
    c.scanned_queues = sorted(name for name in names if name and ":" not in name)
    return c.scanned_queues


async def registered_queues(c: RedisContext) -> list[str]:
    """The queues that Jobmill has put jobs into."""
    return sorted([queue.decode() for queue in await c.client.call(c.registry, "SMEMBERS", c.registry)])


async def for_each(queues: Sequence[str], ask: Callable[[str], Awaitable[T]]) -> list[T]:
    """The answers of many queues to one question, which is sent to many of them at once."""
    answers: list[T] = []
    for some in chunks(queues, _QUEUES_AT_ONCE):
        answers += await asyncio.gather(*(ask(queue) for queue in some))
    return answers


def _escaped(text: str) -> str:
    """A text without special characters for SCAN."""
    return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in text)
