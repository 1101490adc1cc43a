"""What a queue looks like in Redis, as plain values, and what differs between Node's and ours.

Both sides run by one clock that stands still, so that times need no normalising: scores, `timestamp`, `delay` and the
rest must be equal to the millisecond. What is taken off a dump is said in `_strip`, and nowhere else.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from redis.asyncio import Redis

#: A server's own clock counts these down while a test runs.
TTL_TOLERANCE_MS = 5_000

_JSON_FIELDS = {"data", "opts", "parent", "progress", "returnvalue", "stacktrace"}
_SCORES = {"delayed": 4096, "prioritized": 2**32}


class Kept(NamedTuple):
    """One key: its type, its value in plain Python, and how long it still lives."""

    type: str
    value: Any
    ttl_ms: int | None


Dump = dict[str, Kept]


async def dump(redis: Redis, prefix: str) -> Dump:
    """Every key of a prefix, which is called `bull` in names and values, without what is meant to differ."""
    found = {}
    async for raw in redis.scan_iter(f"{prefix}:*", count=1_000):
        type = _plain(await redis.type(raw), prefix)
        ttl = await redis.pttl(raw)
        value = _plain(await _READ[type](redis, raw), prefix)
        found[_plain(raw, prefix)] = Kept(type, value, None if ttl < 0 else ttl)
    return _strip({key: kept._replace(value=_canonical(key, kept)) for key, kept in sorted(found.items())})


async def _zset(redis: Redis, key: bytes) -> Any:
    return [list(pair) for pair in await redis.zrange(key, 0, -1, withscores=True)]


async def _stream(redis: Redis, key: bytes) -> Any:
    return [fields for _, fields in await redis.xrange(key) or ()]


_READ: dict[str, Callable[[Redis, bytes], Any]] = {
    "string": lambda redis, key: redis.get(key),
    "hash": lambda redis, key: redis.hgetall(key),
    "list": lambda redis, key: redis.lrange(key, 0, -1),
    "set": lambda redis, key: redis.smembers(key),
    "zset": _zset,
    "stream": _stream,
}


def _renamed(text: str, prefix: str) -> str:
    return re.sub(rf"(?<![\w-]){re.escape(prefix)}(?=[:\"])", "bull", text)


def _plain(value: Any, prefix: str) -> Any:
    """Text for bytes, lists for what has no order of its own, and the prefix under its usual name."""
    match value:
        case bytes():
            return _renamed(value.decode(errors="backslashreplace"), prefix)
        case dict():
            return {_plain(name, prefix): _plain(one, prefix) for name, one in sorted(value.items())}
        case set():
            return sorted(_plain(one, prefix) for one in value)
        case list():
            return [_plain(one, prefix) for one in value]
        case float() if value.is_integer():
            return int(value)
    return value


def _canonical(key: str, kept: Kept) -> Any:
    """Scores taken apart into what they mean, and JSON text as the value that it stands for."""
    ending = key.rpartition(":")[2]
    if kept.type == "zset" and ending in _SCORES:
        return [[member, *divmod(score, _SCORES[ending])] for member, score in kept.value]
    if kept.type == "stream":
        return [{name: _parsed(name, text) for name, text in event.items()} for event in kept.value]
    if kept.type == "hash" and ending == "processed":
        return {name: _json(text) for name, text in kept.value.items()}
    if kept.type == "hash":
        return {name: _parsed(name, text) for name, text in kept.value.items()}
    if ending == "lock":
        return re.sub(r"^jm:(.*):\d{13}$", r"\1", kept.value)  # ours say until when they hold
    return kept.value


def _parsed(name: str, text: str) -> Any:
    return _json(text) if name in _JSON_FIELDS else text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return f"not JSON: {text}"


def _strip(whole: Dump) -> Dump:
    """Without what is ours alone, what is Node's alone, and what nobody may depend on."""
    stripped = {}
    for key, kept in whole.items():
        if ":jobmill:" in key:
            continue
        value = kept.value
        if kept.type == "hash":
            value = {name: one for name, one in value.items() if not name.startswith("jm")}
            # The id stands in the key.
            value |= {"opts": _without(value["opts"], "jobId")} if isinstance(value.get("opts"), dict) else {}
        if key.endswith(":meta"):
            value = _without(value, "version")  # written by the constructor of Node's Queue
        if key.endswith(":marker") and not _has_work(whole, key.rpartition(":")[0]):
            value = [pair for pair in value if pair[0] != "0"]  # a wake-up for nothing: harmless, and not promised
        if value or kept.type == "string":
            stripped[key] = kept._replace(value=value)
    return stripped


def _without(value: dict[str, Any], name: str) -> dict[str, Any]:
    return {one: kept for one, kept in value.items() if one != name}


def _has_work(whole: Dump, queue: str) -> bool:
    return f"{queue}:wait" in whole or f"{queue}:prioritized" in whole


# ---------------------------------------------------------------------------------------------------- differences


def differences(node: Dump, ours: Dump) -> dict[str, list[str]]:
    """What differs, in lines to read, by key."""
    found = {}
    for key in sorted(node.keys() | ours.keys()):
        lines = list(_differing(key, node.get(key), ours.get(key)))
        if lines:
            found[key] = lines
    return found


def by_job(whole: Dump) -> Dump:
    """A dump whose events are in order within each job only."""
    return {
        key: kept._replace(value=sorted(kept.value, key=lambda event: str(event.get("jobId", ""))))
        if kept.type == "stream"
        else kept
        for key, kept in whole.items()
    }


def _differing(key: str, node: Kept | None, ours: Kept | None) -> Iterator[str]:
    if node is None or ours is None:
        yield f"Node: {_shown(node)}"
        yield f"ours: {_shown(ours)}"
        return
    if node.type != ours.type:
        yield f"Node: a {node.type}; ours: a {ours.type}"
    elif node.type == "hash":
        for name in sorted(node.value.keys() | ours.value.keys()):
            if node.value.get(name, _ABSENT) != ours.value.get(name, _ABSENT):
                yield f"{name}: Node {node.value.get(name, _ABSENT)!r}, ours {ours.value.get(name, _ABSENT)!r}"
    elif node.type == "stream":
        yield from _events(node.value, ours.value)
    elif node.value != ours.value:
        yield f"Node: {node.value!r}"
        yield f"ours: {ours.value!r}"
    if not _same_ttl(node.ttl_ms, ours.ttl_ms):
        yield f"lives for: Node {node.ttl_ms} ms, ours {ours.ttl_ms} ms"


def _same_ttl(node: int | None, ours: int | None) -> bool:
    if node is None or ours is None:
        return node is ours
    return abs(node - ours) < TTL_TOLERANCE_MS


def _events(node: list[dict[str, Any]], ours: list[dict[str, Any]]) -> Iterator[str]:
    """All events from the first that differs on."""
    if node == ours:
        return
    same = 0
    while same < min(len(node), len(ours)) and node[same] == ours[same]:
        same += 1
    yield f"the first {same} are the same"
    yield from (f"Node: {_event(event)}" for event in node[same:])
    yield from (f"ours: {_event(event)}" for event in ours[same:])


def _event(event: dict[str, Any]) -> str:
    return " ".join([str(event.get("event")), *(f"{name}={v!r}" for name, v in event.items() if name != "event")])


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


_ABSENT = _Absent()


def _shown(kept: Kept | None) -> str:
    return "(no key)" if kept is None else f"{kept.type} {kept.value!r}"
