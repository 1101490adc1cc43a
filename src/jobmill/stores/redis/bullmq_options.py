"""BullMQ's `opts` of a job: what Jobmill writes there for Node, and what it reads of Node's."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeGuard

import msgspec
from msgspec import Struct, structs

from jobmill.core.durations import MAX_MS
from jobmill.core.job import NO_OPTIONS, JobOptions, Keep
from jobmill.core.recurrence import Recurrence, is_occurrence
from jobmill.core.unique_policy import UniquePolicy
from jobmill.errors import InvalidValue
from jobmill.stores.common.node_cron import for_node
from jobmill.stores.redis.ids import scheduler_key

# Node retries a job without options as Jobmill does. A test compares this with the default policy of the core, which a
# store may not import.
DEFAULT: dict[str, Any] = {"attempts": 3, "backoff": {"type": "exponential", "delay": 1000}}
#: The headers that Node carries as well: see https://www.w3.org/TR/trace-context and https://www.w3.org/TR/baggage.
TRACE = frozenset(("traceparent", "tracestate", "baggage"))
# The largest whole number that JavaScript and Lua represent exactly.
MAX_WHOLE = 2**53 - 1
# `maxStalledCount` is an option of Node's workers, by default 1: a job fails at its second stall.
NODE_CRASHES = 2

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class OwnOptions(Struct, frozen=True, omit_defaults=True):
    """The field `jmo`: options and tenant of a job of ours, which no field of BullMQ can hold."""

    o: JobOptions | None = None
    t: str | None = None


NO_OWN_OPTIONS = OwnOptions()

decode_own = lru_cache(maxsize=1_000)(msgspec.json.Decoder(OwnOptions).decode)


@lru_cache(maxsize=1_000)
def opts_json(options: JobOptions, priority: int) -> str:
    """The opts of a job without delay, keys and headers: the same text for all jobs with the same options."""
    return msgspec.json.encode(as_opts(options, priority)).decode()


def as_opts(
    options: JobOptions, priority: int = 0, delay_ms: int = 0, deduplication: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The opts of a job that we create."""
    opts = dict(DEFAULT)
    if options is not NO_OPTIONS:
        _write_options(opts, options)
    if priority:
        opts["priority"] = priority
    if delay_ms > 0:
        opts["delay"] = delay_ms
    if deduplication is not None:
        opts["de"] = deduplication
    return opts


def deduplication(deid: str, policy: UniquePolicy | None) -> dict[str, Any]:
    """BullMQ's option for a unique key with this policy."""
    if policy is None or policy.when_live == "cancel":
        return {"id": deid}
    if policy.when_live == "replace":
        return {"id": deid, "replace": True}
    if policy.debounce_ms is not None:
        return {"id": deid, "ttl": policy.debounce_ms, "extend": True, "replace": True}
    return {"id": deid} if policy.for_ms is None else {"id": deid, "ttl": policy.for_ms}


def _write_options(opts: dict[str, Any], options: JobOptions) -> None:
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
    if trace := {name: text for name, text in (options.headers or {}).items() if name in TRACE}:
        opts["tm"] = msgspec.json.encode(trace).decode()


def without_trace(options: JobOptions) -> JobOptions:
    """The options that no field of BullMQ's has: the context of a trace is in `opts`."""
    if options.headers is None:
        return options
    own = {name: text for name, text in options.headers.items() if name not in TRACE}
    return structs.replace(options, headers=own or None)


def with_trace(options: JobOptions, opts: bytes) -> JobOptions:
    """The reverse, for a job of ours."""
    if b'"tm"' not in opts:
        return options
    headers = {**(options.headers or {}), **_trace(_decode(opts))}
    return structs.replace(options, headers=headers or None)


def _trace(opts: dict[str, Any]) -> dict[str, str]:
    """BullMQ's telemetry of a job: the context of the trace in which it was added, unless it is not to be continued."""
    text = opts.get("tm")
    if not isinstance(text, str) or opts.get("omc"):
        return {}
    try:
        carrier = _decode(text)
    except (ValueError, RecursionError):
        return {}
    return {name: value for name, value in carrier.items() if isinstance(value, str)}


def _as_remove(keep: Keep) -> bool | int | dict[str, int]:
    if keep.at_once:
        return True
    if keep.last is None and keep.age_ms is None:
        return False
    if keep.age_ms is None:
        return keep.last or 0
    # Node counts whole seconds: rounded up.
    age = {"age": -(-keep.age_ms // 1000)}
    return age if keep.last is None else {**age, "count": keep.last}


# ---------------------------------------------------------------------------------------------------- Node's


class NodeOptions(Struct, frozen=True):
    """The opts of a job that Node wrote, as far as the port knows them."""

    options: JobOptions
    delay_ms: int
    repeat: dict[str, Any] | None


NO_NODE_OPTIONS = NodeOptions(JobOptions(max_attempts=1, max_crashes=NODE_CRASHES), 0, None)


@lru_cache(maxsize=1_000)
def read_node(text: bytes) -> NodeOptions:
    """Node's opts as Node means them; ValueError where they cannot be read."""
    opts = _decode(text)
    repeat = opts.get("repeat")
    # Converted, because a store may not import the class of a backoff.
    options = {
        "max_attempts": max(1, _whole(opts.get("attempts"))),
        "max_crashes": NODE_CRASHES,
        "backoff": _backoff(opts.get("backoff")),
        "keep_succeeded": _keep(opts.get("removeOnComplete")),
        "keep_failed": _keep(opts.get("removeOnFail")),
        "headers": _trace(opts) or None,
    }
    converted = msgspec.convert(options, JobOptions)
    return NodeOptions(converted, _whole(opts.get("delay")), repeat if isinstance(repeat, dict) else None)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _whole(value: object) -> int:
    # An infinite number means a large one.
    return int(max(-MAX_WHOLE, min(value, MAX_WHOLE))) if _is_number(value) else 0


def _backoff(given: object) -> dict[str, Any]:
    """Node's backoff has no cap, and no delay by default. A strategy of the user's own is read as a fixed delay."""
    if not isinstance(given, dict):
        given = {"type": "fixed", "delay": given}
    jitter = given.get("jitter")
    return {
        "type": "exponential" if given.get("type") == "exponential" else "fixed",
        "delay_ms": max(0, min(_whole(given.get("delay")), MAX_MS)),
        "cap_ms": MAX_MS,
        "jitter": float(jitter) if isinstance(jitter, int | float) and 0 <= jitter <= 1 else 0.0,
    }


def _keep(given: object) -> dict[str, int]:
    """By default Node keeps jobs for ever."""
    if given is True:
        return {"last": 0}
    if _is_number(given):
        return {} if given < 0 else {"last": _whole(given)}
    keep = {}
    if isinstance(given, dict):
        if isinstance(given.get("age"), int | float):
            keep["age_ms"] = int(max(0, min(given["age"] * 1000, MAX_MS)))
        if isinstance(given.get("count"), int | float) and given["count"] >= 0:
            keep["last"] = _whole(given["count"])
    return keep


# ---------------------------------------------------------------------------------------------------- recurrence


#: The end of a rule that Node has no words for: Node runs such a job, and adds no next run before it reads the rule.
ENDED_FOR_NODE = 1


def repeat_opts(rule: Recurrence) -> dict[str, Any]:
    """`opts.repeat` of a run, from which Node computes the next run."""
    node = for_node(rule)
    if node is None:
        return {"pattern": rule.cron, "tz": rule.timezone, "endDate": ENDED_FOR_NODE}
    repeat: dict[str, Any] = (
        {"every": node.every_ms} if node.cron is None else {"pattern": node.cron, "tz": node.timezone}
    )
    if node.until_ms is not None:
        repeat["endDate"] = node.until_ms
    return repeat


def node_runs(sid: str, name: str, repeat: dict[str, Any], occurrence_ms: int | None) -> dict[str, Any]:
    """The recurrence of a scheduler that Node made, and its number of runs; ValueError where it cannot be read.

    An invalid recurrence is refused when its next run is computed. So is a pattern without a time zone, which means the
    one of the process in Node, if the occurrence that Node computed is none in UTC.
    """
    every, pattern, end, zone = (repeat.get(field) for field in ("every", "pattern", "endDate", "tz"))
    if not isinstance(zone, str | None):
        raise ValueError(f"opts.repeat.tz: expected the name of a time zone, got {zone!r}")
    rule = Recurrence(
        key=scheduler_key(sid, name),
        cron=pattern if isinstance(pattern, str) and every is None else None,
        every_ms=None if every is None else max(1, _whole(every)),
        timezone=zone or ("UTC" if every is not None or _fits_utc(pattern, occurrence_ms) else ""),
        until_ms=_whole(end) if isinstance(end, int | float) else None,
    )
    return {"recurrence": rule, "runs": max(0, _whole(repeat.get("count", 1)) - 1)}


def _fits_utc(pattern: object, occurrence_ms: int | None) -> bool:
    try:
        return occurrence_ms is None or is_occurrence(Recurrence(key="", cron=str(pattern)), occurrence_ms)
    except InvalidValue:
        return True  # refused for its own reason
