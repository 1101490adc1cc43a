"""The `opts` of a job: what Jobmill writes into them for Node to act by, and what it reads from those of Node."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Struct

from jobmill.core.durations import MAX_MS
from jobmill.core.job import NO_OPTIONS, JobOptions, Keep
from jobmill.core.recurrence import Recurrence
from jobmill.stores.redis.ids import scheduler_key

# What Node is told of a job of which nothing was said: three attempts, a second after the first, two after the next.
DEFAULT: dict[str, Any] = {"attempts": 3, "backoff": {"type": "exponential", "delay": 1000}}
# The largest number that is exact in JavaScript and in Lua.
MOST = 2**53 - 1
# Node's `maxStalledCount` is an option of its workers, 1 unless said otherwise: the second stall is the last.
NODE_CRASHES = 2

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class Said(Struct, frozen=True, omit_defaults=True):
    """The field `jmo`: what was said of a job of ours and BullMQ's fields cannot hold."""

    o: JobOptions | None = None
    t: str | None = None


NOTHING_SAID = Said()

decode_said = lru_cache(maxsize=1_000)(msgspec.json.Decoder(Said).decode)


@lru_cache(maxsize=1_000)
def written(options: JobOptions, priority: int) -> str:
    """The opts of an undelayed job without keys: the same text for all that were said the same of."""
    return msgspec.json.encode(as_opts(options, priority)).decode()


def as_opts(options: JobOptions, priority: int = 0, delay_ms: int = 0, deid: str | None = None) -> dict[str, Any]:
    """The opts of a job that we create."""
    opts = dict(DEFAULT)
    if options is not NO_OPTIONS:
        _write_said(opts, options)
    if priority:
        opts["priority"] = priority
    if delay_ms > 0:
        opts["delay"] = delay_ms
    if deid is not None:
        opts["de"] = {"id": deid}
    return opts


def _write_said(opts: dict[str, Any], options: JobOptions) -> None:
    if options.max_attempts is not None:
        opts["attempts"] = options.max_attempts
    if options.backoff is not None:
        backoff = options.backoff
        opts["backoff"] = {"type": backoff.type, "delay": backoff.delay_ms}
        if backoff.jitter:
            opts["backoff"]["jitter"] = backoff.jitter
    for field, keep in (("removeOnComplete", options.keep_succeeded), ("removeOnFail", options.keep_failed)):
        if keep is not None:
            opts[field] = _as_remove(keep)


def _as_remove(keep: Keep) -> bool | int | dict[str, int]:
    if keep.at_once:
        return True
    if keep.last is None and keep.age_ms is None:
        return False
    if keep.age_ms is None:
        return keep.last or 0
    # Node counts whole seconds: rather a moment longer than a moment too short.
    age = {"age": -(-keep.age_ms // 1000)}
    return age if keep.last is None else {**age, "count": keep.last}


# ---------------------------------------------------------------------------------------------------- Node's


class NodeOpts(Struct, frozen=True):
    """What the port knows of a job's opts that Node wrote."""

    options: JobOptions
    delay_ms: int
    repeat: dict[str, Any] | None


NOTHING = NodeOpts(JobOptions(max_attempts=1, max_crashes=NODE_CRASHES), 0, None)


@lru_cache(maxsize=1_000)
def read(opts_json: bytes) -> NodeOpts:
    """Node's opts as Node means them; ValueError for garbage."""
    opts = _decode(opts_json)
    repeat = opts.get("repeat")
    options = {
        "max_attempts": max(1, _whole(opts.get("attempts"))),
        "max_crashes": NODE_CRASHES,
        "backoff": _backoff(opts.get("backoff")),
        "keep_succeeded": _keep(opts.get("removeOnComplete")),
        "keep_failed": _keep(opts.get("removeOnFail")),
    }
    # Converted, not called: a store knows no policies, and so not what a backoff is made by.
    said = msgspec.convert(options, JobOptions)
    return NodeOpts(said, _whole(opts.get("delay")), repeat if isinstance(repeat, dict) else None)


def _whole(value: object) -> int:
    # Whoever writes a number without end means a large one.
    return int(max(-MOST, min(value, MOST))) if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _backoff(said: object) -> dict[str, Any]:
    """Node's has no cap. Without one, or with a delay of 0, it tries again at once; own strategies we do not have."""
    if not isinstance(said, dict):
        said = {"type": "fixed", "delay": said}
    jitter = said.get("jitter")
    return {
        "type": "exponential" if said.get("type") == "exponential" else "fixed",
        "delay_ms": max(0, min(_whole(said.get("delay")), MAX_MS)),
        "cap_ms": MAX_MS,
        "jitter": float(jitter) if isinstance(jitter, int | float) and 0 <= jitter <= 1 else 0.0,
    }


def _keep(said: object) -> dict[str, int]:
    """Without a word Node keeps jobs for ever."""
    if said is True:
        return {"last": 0}
    if isinstance(said, int | float) and not isinstance(said, bool):
        return {} if said < 0 else {"last": _whole(said)}
    keep = {}
    if isinstance(said, dict):
        if isinstance(said.get("age"), int | float):
            keep["age_ms"] = int(max(0, min(said["age"] * 1000, MAX_MS)))
        if isinstance(said.get("count"), int | float) and said["count"] >= 0:
            keep["last"] = _whole(said["count"])
    return keep


# ---------------------------------------------------------------------------------------------------- recurrence


def repeat_opts(rule: Recurrence) -> dict[str, Any]:
    """`opts.repeat` of a run, from which Node finds the next one."""
    repeat: dict[str, Any] = {}
    if rule.cron is not None:
        repeat |= {"pattern": rule.cron, "tz": rule.zone}
    else:
        repeat["every"] = rule.every_ms
    if rule.until_ms is not None:
        repeat["endDate"] = rule.until_ms
    return repeat


def node_runs(sid: str, name: str, repeat: dict[str, Any]) -> dict[str, Any]:
    """The recurrence of a scheduler that Node made, and how often it has run; ValueError for garbage."""
    zone = repeat.get("tz")
    if not isinstance(zone, str | None):
        raise ValueError(f"opts.repeat.tz: expected the name of a time zone, got {zone!r}")
    runs = max(0, _whole(repeat.get("count", 1)) - 1)
    return {"recurrence": node_recurrence(sid, name, repeat), "runs": runs}


def node_recurrence(sid: str, name: str, repeat: dict[str, Any]) -> Recurrence:
    """A scheduler that Node made, as a recurrence; what cannot be one is refused when its slots are asked for."""
    every = repeat.get("every")
    pattern = repeat.get("pattern")
    end = repeat.get("endDate")
    return Recurrence(
        key=scheduler_key(sid, name),
        cron=pattern if isinstance(pattern, str) and every is None else None,
        every_ms=None if every is None else max(1, _whole(every)),
        zone=repeat.get("tz") or "UTC",
        until_ms=_whole(end) if isinstance(end, int | float) else None,
    )
