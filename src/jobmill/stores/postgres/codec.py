"""Rows as Jobs, and new jobs and patches as columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec
from msgspec import Raw, Struct, structs

from jobmill.core.changes import Patch, Subject
from jobmill.core.due import Held
from jobmill.core.job import NO_OPTIONS, NULL, Attempt, Job, JobOptions, Progress, State, keep_cancelled
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Broken, Claim, Claimed, Lease, NewJob
from jobmill.stores.common.sql import COLUMN_OF
from jobmill.stores.common.unreadable import UnreadableJob

#: The columns that the tables jobs and history share.
SHARED_COLUMNS = (
    *("due_ms", "created_ms", "priority", "errors", "crashes", "claims", "updated_ms", "started_ms", "worker", "id"),
    *("queue", "name", "payload", "unique_key", "tenant", "options", "log_lines", "error", "result", "progress"),
    *("attempts", "tracebacks", "doomed", "recurrence", "revision", "slot_ms", "runs", "failed_runs", "last_error"),
    *("last_finished_ms", "unstarted", "has_dependents", "has_records", "dependencies", "flow", "lane"),
)


class _Extra(Struct, frozen=True, rename={"occurrence_ms": "slot_ms", "deferred_error": "doomed"}):
    """The columns of extra.sql by the fields of Job, and what a claim adds to them."""

    recovered_from: str | None = None
    uncounted: bool = False
    unique_key: str | None = None
    tenant: str | None = None
    options: JobOptions = NO_OPTIONS
    error: str | None = None
    result_json: Raw = NULL
    progress: Progress | None = None
    #: An older version of Jobmill has written texts.
    attempts: tuple[Attempt | str, ...] = ()
    held: Held | None = None
    unstarted: int = 0
    flow: str | None = None
    dependencies: int = 0
    waits_for: str | None = None
    lane: str | None = None
    deferred_error: str | None = None
    recurrence: Recurrence | None = None
    revision: int = 0
    occurrence_ms: int | None = None
    runs: int = 0
    failed_runs: int = 0
    last_error: str | None = None
    last_finished_ms: int | None = None


#: The lane in a text that cannot be read otherwise. In a string, the quotes would be escaped.
_LANE = re.compile(r'"lane":("(?:[^"\\]|\\.)*")')

_check_json = msgspec.json.Decoder(Raw).decode
_decode_extra = msgspec.json.Decoder(_Extra).decode
_decode_held = msgspec.json.Decoder(Held).decode
_decode_recurrence = msgspec.json.Decoder(Recurrence).decode
_encode = msgspec.json.Encoder().encode

# ---------------------------------------------------------------------------------------------------- rows


def claimed_job(row: asyncpg.Record, claim: Claim, now_ms: int) -> Claimed | Broken:
    """A row of an exchange; Broken where its payload, options or recurrence cannot be read."""
    lease = Lease(row[0], claim.token, row[1], row[2], now_ms + claim.lease_ms)
    try:
        job = Job(
            id=row[0],
            name=row[2],
            queue=row[1],
            payload_json=_payload(row[3]),
            state="running",
            priority=row[4],
            due_ms=abs(row[5]),
            created_ms=row[6],
            updated_ms=now_ms,
            started_ms=now_ms,
            errors=row[8],
            crashes=row[9],
            claims=row[10],
            worker=claim.worker,
        )
        if row[11] is None:
            return Claimed(job, lease)
        extra = _read_extra(row[11])
        lease = structs.replace(lease, lane=extra.lane)
        return Claimed(_with_extra(job, extra), lease, extra.recovered_from, extra.uncounted)
    except UnreadableJob as error:
        lane = _LANE.search(row[11] or "")
        return Broken(structs.replace(lease, lane=lane and msgspec.json.decode(lane[1])), str(error))


def _shown_due_ms(state: State, due_ms: int) -> int:
    """The due time of a row: a running job that is due later has it with a minus sign (`shown_due_ms` in small.sql)."""
    return abs(due_ms) if state == "running" else due_ms


def _payload(text: str) -> Raw:
    try:
        return _check_json(text.encode())
    except msgspec.MsgspecError as error:
        raise UnreadableJob(f"payload: {error}") from None


def _read_extra(text: str) -> _Extra:
    try:
        return _decode_extra("{" + text)
    except msgspec.MsgspecError as error:
        raise UnreadableJob(str(error)) from None


def _with_extra(job: Job, extra: _Extra) -> Job:
    fields = structs.asdict(extra)
    revision, _, _ = fields.pop("revision"), fields.pop("recovered_from"), fields.pop("uncounted")
    if extra.attempts:
        fields["attempts"] = tuple(Attempt(traceback=one) if isinstance(one, str) else one for one in extra.attempts)
    if extra.recurrence is not None:
        fields["recurrence"] = structs.replace(extra.recurrence, revision=revision)
    return structs.replace(job, **fields)


def stored_job(row: asyncpg.Record) -> Job:
    """A row with the columns of `read`; an unreadable job with what can be read, and the reason in `deferred_error`."""
    fields = dict(row)
    for other in ("seq", "ended"):
        fields.pop(other, None)
    payload, extra = fields.pop("payload"), fields.pop("extra")
    fields["due_ms"] = _shown_due_ms(fields["state"], fields["due_ms"])
    job = Job(payload_json=NULL, **fields)
    try:
        job = structs.replace(job, payload_json=_payload(payload))
        return job if extra is None else _with_extra(job, _read_extra(extra))
    except UnreadableJob as error:
        return structs.replace(job, deferred_error=f"the stored job cannot be read: {error}")


# ---------------------------------------------------------------------------------------------------- new jobs


def new_job_row(new: NewJob) -> tuple[object, ...]:
    """A new job as the functions that enqueue take it."""
    due, payload = new.due, new.payload_json.decode()
    is_plain = new.options is NO_OPTIONS or new.options == NO_OPTIONS
    options = None if is_plain else _encode(new.options).decode()
    job = (new.id, new.queue, new.name, new.priority, due.at_ms, due.after_ms, payload)
    return (*job, new.unique_key, new.tenant, options)


def new_job_columns(new_jobs: Sequence[NewJob]) -> list[list[object]]:
    """Rows of new jobs as columns; an empty one where no job has a value."""
    columns = [list(column) for column in zip(*map(new_job_row, new_jobs), strict=True)]
    return [[] if column[0] is None and column.count(None) == len(column) else column for column in columns]


# ---------------------------------------------------------------------------------------------------- changes


def encoded_rule(rule: Recurrence) -> str:
    """A recurrence as it is stored: its revision has a column of its own, so that rules can be compared as text."""
    return _encode(structs.replace(rule, revision=0)).decode()


def subject(row: asyncpg.Record) -> Subject:
    """A row with the columns of `subject` or `live_subject`."""
    id, name, queue, state, errors, options, due_ms, held, rule, revision, doomed, _, _, lane, *_ = row
    return Subject(
        id=id,
        name=name,
        queue=queue,
        state=state,
        due_ms=_shown_due_ms(state, due_ms),
        errors=errors,
        held=read_held(held),
        recurrence=None if rule is None else _recurrence(rule, revision),
        keep_failed=keep_cancelled(options),
        deferred_error=doomed,
        lane=lane,
    )


def read_held(text: str | None) -> Held | None:
    """What holds a job."""
    return None if text is None else _decode_held(text)


def _recurrence(text: str, revision: int | None) -> Recurrence | None:
    """A stored recurrence; None where it cannot be read."""
    try:
        return structs.replace(_decode_recurrence(text), revision=revision or 0)
    except msgspec.MsgspecError:
        return None


def patch_columns(id: str, patch: Patch, now_ms: int) -> dict[str, Any]:
    """The columns that a patch writes, and the id of its job."""
    columns = {"id": id, **{COLUMN_OF.get(field, field): value for field, value in patch.fields.items()}}
    if "result" in columns:
        result = bytes(columns["result"])
        columns["result"] = None if result == bytes(NULL) else result.decode()
    if columns.get("held") is not None:
        columns["held"] = _encode(columns["held"]).decode()
    if (rule := columns.get("recurrence")) is not None:
        columns |= {"recurrence": encoded_rule(rule), "revision": rule.revision}
    if patch.keep is not None:
        keep = patch.keep
        columns |= {"expires_ms": None if keep.age_ms is None else now_ms + keep.age_ms, "keep_last": keep.last}
    if patch.seize is not None:
        seize = patch.seize
        columns |= {"lease_until_ms": now_ms + seize.lease_ms, "token": seize.token}
    return columns
