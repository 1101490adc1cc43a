"""The settings of queues, in BullMQ's meta hash: Node's workers follow them as well. Only the feed is our own."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from jobmill.core.queue_settings import LaneRule
from jobmill.core.values import Pause, QueueChange, QueueSettings, RateLimit
from jobmill.errors import InvalidValue
from jobmill.stores.redis.context import RedisContext, as_json
from jobmill.stores.redis.scripts import CONFIGURE, HEAL_LANES

#: In the order of configure.lua's answer.
_FIELDS = ("paused", "concurrency", "max", "duration", "opts.maxLenEvents", "jmfeed", "jmpause", "jmlanes")

# How often all keys are scanned for queues of other programs, and how long the result is used.
SCAN_MS = 60_000
SCAN_KEPT_MS = 120_000
# A new rule applies to this many lanes at once, in calls of some lanes each. The others follow when workers claim.
MAX_LANES_AT_ONCE = 1_000
LANES_PER_CALL = 250


class _ScannedQueues(Struct, frozen=True):
    """The result of a scan, as all processes share it."""

    at_ms: int
    queues: list[str]


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
    pause = change.pause
    if pause is UNSET and change.paused is not UNSET:
        pause = None  # of an earlier one
    if pause is not UNSET:
        given["jmpause"] = None if pause is None else as_json(pause)
    lane_rule = None
    if change.lanes is not UNSET:
        lane_rule = "" if change.lanes is None else as_json(change.lanes)
    await c.register(queue)
    done, more, *meta = await c.run(
        CONFIGURE,
        queue,
        c.clock.now(),
        set={field: value for field, value in given.items() if value is not None},
        clear=[field for field, value in given.items() if value is None],
        paused=None if change.paused is UNSET else change.paused,
        wakes=change.running_limit is not UNSET or change.rate_limit is not UNSET,
        lane_rule=lane_rule,
        max_lanes=LANES_PER_CALL,
    )
    while more and done < MAX_LANES_AT_ONCE:
        count, more = await c.run(HEAL_LANES, queue, c.clock.now(), limit=LANES_PER_CALL, sweeps=True)
        done += count
    settings = _settings(meta, c.clock.now())
    c.feeds[queue] = settings.feed
    return settings


async def settings(c: RedisContext, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
    """See the port."""
    names = await all_queues(c) if queues is None else queues
    replies = await c.each(names, [("HMGET", ":meta", *_FIELDS), ("EXISTS", ":meta")])
    found = zip(names, replies, strict=True)
    return {name: _settings(meta, c.clock.now()) for name, (meta, exists) in found if exists or queues is not None}


async def settings_of_queue(c: RedisContext, queue: str) -> QueueSettings:
    """The settings of one queue."""
    key = f"{c.key(queue)}:meta"
    return _settings(await c.client.call(key, "HMGET", key, *_FIELDS), c.clock.now())


def _settings(meta: list[bytes | None], now_ms: int) -> QueueSettings:
    paused, concurrency, rate, duration, max_len, feed, pause, lanes = meta
    default = QueueSettings()
    return QueueSettings(
        paused=paused is not None,
        # Where Node has ended the pause, its description stays until the next call of a script.
        pause=None if paused is None or pause is None else msgspec.json.decode(pause, type=Pause),
        running_limit=None if concurrency is None else int(concurrency),
        rate_limit=None if rate is None else RateLimit(int(rate), int(duration or 0)),
        feed=feed is not None,
        events_max_len=default.events_max_len if max_len is None else int(max_len),
        lanes=msgspec.json.decode(lanes, type=LaneRule) if lanes else None,
    ).at(now_ms)


async def all_queues(c: RedisContext) -> list[str]:
    """The queues of this prefix, by name: those that Jobmill uses, and those of other programs that a scan has found.

    A scan of all keys takes long, and all processes share its result. When this is a minute old, a scan begins in the
    background. The caller waits for a scan only where there has been none for two minutes.
    """
    registered, found = await asyncio.gather(registered_queues(c), c.client.call(c.other_queues, "GET", c.other_queues))
    others = _ScannedQueues(0, []) if found is None else msgspec.json.decode(found, type=_ScannedQueues)
    now_ms = c.clock.now()
    if found is None:
        others = await c.client.here().share("scan", lambda: _scan(c, registered))
    elif min(now_ms - others.at_ms, now_ms - c.scan_began_ms) >= SCAN_MS:
        c.client.here().begin("scan", lambda: _scan(c, registered))
    return sorted({*registered, *others.queues}) if others.queues else registered


async def _scan(c: RedisContext, registered: Sequence[str]) -> _ScannedQueues:
    """Look for queues that no Jobmill has used: each queue has a meta key."""
    c.scan_began_ms = c.clock.now()
    begin, end = f"{c.url.prefix}:", ":meta"
    keys = await c.client.scan(escaped(begin) + "*" + end, "hash")
    names = {key.decode(errors="replace")[len(begin) : -len(end)] for key in keys}.difference(registered)
    others = [name for name in sorted(names) if name and ":" not in name and _is_usable(c, name)]
    result = _ScannedQueues(c.scan_began_ms, others)
    await c.client.call(c.other_queues, "SET", c.other_queues, msgspec.json.encode(result), "PX", SCAN_KEPT_MS)
    return result


def _is_usable(c: RedisContext, queue: str) -> bool:
    """On a cluster, nobody can use a queue whose keys are in several slots."""
    try:
        c.url.check_queue(queue)
    except InvalidValue:
        return False
    return True


async def registered_queues(c: RedisContext) -> list[str]:
    """The queues that Jobmill uses."""
    return sorted([queue.decode() for queue in await c.client.call(c.registry, "SMEMBERS", c.registry)])


def escaped(text: str) -> str:
    """A text without special characters for SCAN."""
    return "".join(f"\\{letter}" if letter in "*?[]^\\" else letter for letter in text)
