"""New jobs as the scripts take them."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from jobmill.core.changes import new_hold
from jobmill.core.due import BY_LANE, Held
from jobmill.core.job import NO_OPTIONS
from jobmill.core.recurrence import Recurrence
from jobmill.core.unique_policy import Owner, Replace, Taken, when_taken
from jobmill.core.values import NOW, NewJob
from jobmill.stores.redis import bullmq_options
from jobmill.stores.redis.context import as_json, flat
from jobmill.stores.redis.ids import deduplication_id, local_id, scheduler_id

#: The kinds of jobs that may have a unique key. The core decides for all, and the script sees which of them it is.
_OWNERS = {
    "waiting": Owner(id="", state="waiting"),
    "held": Owner(id="", state="waiting", held=Held(by=())),
    "suspended": Owner(id="", state="waiting", is_suspended=True),
    "running": Owner(id="", state="running"),
    "recurring": Owner(id="", state="waiting", is_recurring=True),
}


def job_request(new: NewJob, now_ms: int) -> tuple[Any, ...]:
    """A job as enqueue.lua takes it."""
    due_ms = now_ms if new.due is NOW else new.due.resolve(now_ms)
    id, data, own = local_id(new.queue, new.id), new.payload_json.decode(), None
    if new.options is not NO_OPTIONS or new.tenant is not None or due_ms != now_ms or new.flow is not None or new.after:
        own = _own_fields(new, due_ms, now_ms)
    if new.unique_key is None and due_ms <= now_ms and new.options.headers is None and new.lane is None:
        opts_json = bullmq_options.opts_json(new.options, new.priority)
        return (id, new.name, data, opts_json, 0, due_ms, new.priority, own)
    delay_ms = max(0, due_ms - now_ms)
    opts_json, special = _special(new, due_ms, delay_ms, now_ms)
    if new.lane is not None:
        special = {**(special or {}), "lane": new.lane}
    return (id, new.name, data, opts_json, delay_ms, due_ms, new.priority, own, special)


def _own_fields(new: NewJob, due_ms: int, now_ms: int) -> list[Any]:
    own: list[Any] = []
    if new.flow is not None and new.recurrence is None:
        own += ["jmy", new.flow]  # the first one: see enqueue.lua
    if new.options != NO_OPTIONS or new.tenant is not None:
        # Write this field even if BullMQ's opts have all options: a job without the field is read without options.
        given = bullmq_options.without_trace(new.options)
        own += ["jmo", as_json(bullmq_options.OwnOptions(o=None if given == NO_OPTIONS else given, t=new.tenant))]
    if new.after:
        own += ["jmh", as_json(structs.replace(new_hold(new.due, now_ms), by=() if new.lane is None else (BY_LANE,)))]
    elif due_ms != now_ms and new.recurrence is None:
        own += ["jmd", due_ms]
    return own


def _special(new: NewJob, due_ms: int, delay_ms: int, now_ms: int) -> tuple[str, dict[str, Any] | None]:
    """The opts of a job with a delay, a key or headers, and the ids that enqueue.lua needs for its unique key."""
    if new.unique_key is None:
        return as_json(bullmq_options.as_opts(new.options, new.priority, delay_ms)), None
    deid = deduplication_id(new.name, new.unique_key)
    special: dict[str, Any] = {"deid": deid, "sid": scheduler_id(new.name, new.unique_key)}
    if new.recurrence is None:
        dedup = bullmq_options.deduplication(deid, new.policy)
        if new.policy is not None:
            special |= {"dedup": dedup, "taken": _when_taken(new, now_ms)}
        return as_json(bullmq_options.as_opts(new.options, new.priority, delay_ms, dedup)), special
    # A run belongs to its scheduler, and has no deduplication id.
    opts_json = as_json(bullmq_options.as_opts(new.options, new.priority))
    run = run_request(new.recurrence, due_ms, opts_json)
    run |= {"sid": scheduler_id(new.name, new.recurrence.key), "keeps_due": new.keeps_due}
    return opts_json, special | {"run": run}


def _when_taken(new: NewJob, now_ms: int) -> dict[str, Any]:
    """What the core decides for each kind of job that may have the unique key, as policy.lua takes it."""
    return {kind: _decision(when_taken(new.policy, new.due, owner, now_ms)) for kind, owner in _OWNERS.items()}


def _decision(taken: Taken) -> str | dict[str, Any]:
    if not isinstance(taken, Replace):
        return taken
    held = taken.fields.get("held")
    return {"due": taken.fields.get("due_ms"), "held": None if held is None else held.due}


def run_request(rule: Recurrence, occurrence_ms: int, opts_json: str) -> dict[str, Any]:
    """A recurrence as the scripts take it: the record of its scheduler, and the rule that codec.py reads again."""
    repeat = bullmq_options.repeat_opts(rule)
    offset = occurrence_ms % repeat.get("every", 1)
    return {
        "rule": as_json(structs.replace(rule, revision=0, pinned=False, stated=None)),
        "rule_opts": as_json(repeat),
        "record": [*flat(repeat), "offset", offset, "opts", opts_json],
        "declared": rule.declared,
    }
