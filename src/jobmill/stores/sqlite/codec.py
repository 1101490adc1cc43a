"""Rows of the tables as values, and values as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from jobmill.core.changes import Patch, Subject, new_hold
from jobmill.core.due import BY_LANE, NEVER_MS, Held, in_lane, lane_fields
from jobmill.core.job import NO_OPTIONS, NULL, Job, State, keep_cancelled
from jobmill.core.queue_limits import QueueLimits
from jobmill.core.queue_settings import LaneRule
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import NewJob, Pause, QueueSettings, RateLimit
from jobmill.stores.common.sql import COLUMN_OF
from jobmill.stores.common.unreadable import UnreadableJob

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

T = TypeVar("T")

# A larger payload is stored in a table of its own: SQLite rewrites the whole row at each claim and settlement.
LARGE_PAYLOAD = 2_048

_encode = msgspec.json.Encoder().encode
_decode_jobs = msgspec.json.Decoder(list[Job]).decode
_decode_job = msgspec.json.Decoder(Job).decode


def as_json(value: object) -> str:
    """A value as JSON text."""
    return _encode(value).decode()


# ---------------------------------------------------------------------------------------------------- jobs


def decode_jobs(text: bytes | None, count: int) -> list[Job]:
    """Jobs from the JSON that read.sql returns; raises UnreadableJob where one of them cannot be read."""
    try:
        jobs = _decode_jobs(text or b"[]")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnreadableJob(str(error)) from None
    if len(jobs) != count:  # a missing payload makes the JSON of its job NULL, and leaves it out
        raise UnreadableJob("a payload is missing")
    return jobs


def decode_job(text: bytes | None) -> Job:
    """One job from its JSON; raises UnreadableJob."""
    if text is None:
        raise UnreadableJob("there is no payload")
    try:
        return _decode_job(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UnreadableJob(str(error)) from None


def new_job_row(new: NewJob, now_ms: int) -> tuple[object, ...]:
    """The parameters of insert.sql for one job."""
    due_ms = new.due.resolve(now_ms)
    options = None if new.options is NO_OPTIONS or new.options == NO_OPTIONS else as_json(new.options)
    recurrence = None if new.recurrence is None else as_json(new.recurrence)
    payload = None if len(new.payload_json) > LARGE_PAYLOAD else new.payload_json.decode()
    given = (new.id, new.queue, new.name, new.priority, due_ms, new.unique_key, new.tenant)
    return (*given, options, recurrence, None if recurrence is None else due_ms, payload)


def held_job_row(new: NewJob, now_ms: int) -> tuple[object, ...]:
    """The parameters of insert_held.sql for one job."""
    row = new_job_row(new, now_ms)
    held = new_hold(new.due, now_ms, new.lane) if new.after else None
    if new.lane is not None and held is None:
        held = lane_fields(None, new.due, now_ms)["held"]
    if held is None:
        return (*row, new.flow, None, None, None, None, None)
    place = (new.lane, *lane_columns(held, now_ms).values()) if new.lane is not None else (None, None, None)
    return (*row[:4], NEVER_MS, *row[5:], new.flow, as_json(held), len(new.after) or None, *place)


def lane_columns(held: Held | None, now_ms: int) -> dict[str, object]:
    """The columns that say where a job with this hold stands in its lane; a job that nothing holds has a slot."""
    if held is None:
        return {"slot": 0}
    joined_ms = held.due.at_ms if in_lane(held) else None
    return {"slot": None if joined_ms is None else -1 if joined_ms <= now_ms else -2, "joined_ms": joined_ms}


# ---------------------------------------------------------------------------------------------------- settlements


def plain_success(done: Settlement) -> tuple[object, ...] | None:
    """Token, errors, crashes, result and retention of a success that writes nothing else; None for all others."""
    extra = done.runs or done.error is not None or done.attempts is not None or done.due
    if done.state != "succeeded" or extra:
        return None
    age_ms, last = (None, None) if done.keep is None else (done.keep.age_ms, done.keep.last)
    return (done.lease.token, done.errors, done.crashes, _json_or_null(done.result_json), age_ms, last)


def settlement_row(done: Settlement, seq: int, now_ms: int) -> tuple[object, ...]:
    """The parameters of settle.sql for one settlement."""
    keep, runs, rearm = done.keep, done.runs, done.rearm
    return (
        seq,
        done.lease.token,
        done.state,
        done.errors,
        done.crashes,
        done.error,
        _json_or_null(done.result_json),
        None if done.attempts is None else as_json(done.attempts),
        keep and keep.age_ms,
        keep and keep.last,
        None if done.due is None else done.due.resolve(now_ms),
        rearm and rearm.occurrence_ms,
        runs and runs.runs,
        runs and runs.failed_runs,
        runs and runs.last_error,
        done.waits_for,
    )


def _json_or_null(json: bytes) -> str | None:
    return None if json == b"null" else json.decode()


# ---------------------------------------------------------------------------------------------------- changes

#: What a change or a purge reads of a job: seq, id, name, queue, state, errors, options, due_ms, held, recurrence,
#: the error that it will fail with, its lane, the number of its edges.
SubjectRow: TypeAlias = tuple[
    int, str, str, str, State, int, str | None, int, str | None, str | None, str | None, str | None, int | None
]

_JSON_COLUMNS = {"result", "progress", "recurrence", "held"}


def subject_of(row: SubjectRow) -> Subject:
    """A row as the subject of a change."""
    _, id, name, queue, state, errors, options, due_ms, held, recurrence, doomed, lane, _ = row
    return Subject(
        id=id,
        name=name,
        queue=queue,
        state=state,
        due_ms=due_ms,
        errors=errors,
        held=readable(held, Held),
        recurrence=readable(recurrence, Recurrence),
        keep_failed=keep_cancelled(options),
        deferred_error=doomed,
        lane=lane,
    )


def readable(text: str | None, type: type[T]) -> T | None:
    """A value from its JSON; None where there is none, or where it cannot be read."""
    try:
        return None if text is None else msgspec.json.decode(text, type=type)
    except msgspec.MsgspecError:
        return None


def columns_of(fields: Mapping[str, object]) -> dict[str, object]:
    """Fields of a Job as columns."""
    columns = {COLUMN_OF.get(field, field): value for field, value in fields.items()}
    for column in _JSON_COLUMNS.intersection(columns):
        columns[column] = None if columns[column] in (None, NULL) else as_json(columns[column])
    return columns


def held_columns(fields: Mapping[str, object], now_ms: int) -> dict[str, object]:
    """Fields of a Job as columns, with its place in its lane, if a lane holds it."""
    held = fields.get("held")
    if not isinstance(held, Held) or BY_LANE not in held.by:
        return columns_of(fields)
    return columns_of(fields) | lane_columns(held, now_ms)


def patched_columns(patch: Patch, now_ms: int) -> dict[str, object]:
    """The columns that a patch writes."""
    columns = held_columns(patch.fields, now_ms)
    if "state" in columns:
        columns["keep_age_ms"] = patch.keep and patch.keep.age_ms
        columns["keep_last"] = patch.keep and patch.keep.last
    if patch.seize is not None:
        # A slot counts only if the job has a lane.
        columns |= {"token": patch.seize.token, "lease_until_ms": now_ms + patch.seize.lease_ms, "slot": 0}
    elif patch.ends_lease:
        columns |= {"token": None, "lease_until_ms": None}
    return columns


# ---------------------------------------------------------------------------------------------------- queues


class QueueRow(Struct, frozen=True):
    """One row of the queue table: settings, rate-limit window, and the number of the last event in the feed."""

    limits: QueueLimits = QueueLimits()
    last_event: int = 0
    #: The rule of its lanes has changed, and the slots of the lanes after this one are not right yet.
    after_lane: str | None = None

    @property
    def settings(self) -> QueueSettings:
        """What is set for the queue."""
        return self.limits.settings


def queue_from_row(row: Sequence[Any]) -> QueueRow:
    """A row of the queue table, without its first column."""
    paused, rate_count, rate_per_ms, running_limit, feed, events_max_len, window_ends_ms, window_used, *rest = row
    last_event, pause, lanes, after_lane = rest
    settings = QueueSettings(
        paused=bool(paused),
        pause=readable(pause, Pause),
        rate_limit=None if rate_count is None else RateLimit(rate_count, rate_per_ms),
        running_limit=running_limit,
        feed=bool(feed),
        events_max_len=events_max_len,
        lanes=readable(lanes, LaneRule),
    )
    limits = QueueLimits(settings=settings, window_ends_ms=window_ends_ms, window_used=window_used)
    return QueueRow(limits, last_event, after_lane)


def queue_to_row(row: QueueRow) -> tuple[object, ...]:
    """The columns of the queue table, without the first. The pause and the rule of lanes have tables of their own."""
    limits, settings, rate = row.limits, row.settings, row.settings.rate_limit
    return (
        *(settings.paused, rate and rate.count, rate and rate.per_ms, settings.running_limit),
        *(settings.feed, settings.events_max_len, limits.window_ends_ms, limits.window_used, row.last_event),
    )
