"""Rows as Jobs, and patches as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec
from msgspec import Raw, Struct, structs

from jobmill.core.changes import Patch, Subject
from jobmill.core.job import NO_OPTIONS, NULL, Job, JobOptions, Progress
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Broken, Claim, Claimed, Lease
from jobmill.stores.common.unreadable import UnreadableJob

#: The columns that the tables jobs and history share.
SHARED_COLUMNS = (
    *("due_ms", "created_ms", "priority", "errors", "crashes", "claims", "updated_ms", "started_ms", "worker", "id"),
    *("queue", "name", "payload", "unique_key", "tenant", "options", "log_lines", "error", "result", "progress"),
    *("tracebacks", "doomed", "recurrence", "revision", "slot_ms", "runs", "failed_runs", "last_error"),
    "last_finished_ms",
)
HISTORY_COLUMNS = (*SHARED_COLUMNS, "state", "finished_ms", "expires_ms", "keep_last")


class _Extra(Struct, frozen=True):
    """What extra.sql selects, by the fields of Job."""

    unique_key: str | None = None
    tenant: str | None = None
    options: JobOptions = NO_OPTIONS
    error: str | None = None
    result_json: Raw = NULL
    progress: Progress | None = None
    tracebacks: tuple[str, ...] = ()
    doomed: str | None = None
    recurrence: Recurrence | None = None
    revision: int = 0
    occurrence_ms: int | None = None
    runs: int = 0
    failed_runs: int = 0
    last_error: str | None = None
    last_finished_ms: int | None = None


class _Plain(Struct, frozen=True):
    """The part of it that is always readable."""

    unique_key: str | None = None
    tenant: str | None = None
    error: str | None = None


_check_json = msgspec.json.Decoder(Raw).decode
_decode_extra = msgspec.json.Decoder(_Extra).decode
_decode_plain = msgspec.json.Decoder(_Plain).decode
_decode_options = msgspec.json.Decoder(JobOptions).decode

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
            due_ms=row[5],
            created_ms=row[6],
            updated_ms=now_ms,
            started_ms=now_ms,
            errors=row[8],
            crashes=row[9],
            claims=row[10],
            worker=claim.worker,
        )
        return Claimed(job if row[11] is None else _with_extra(job, row[11]), lease)
    except UnreadableJob as error:
        return Broken(lease, str(error))


def _payload(text: str) -> Raw:
    try:
        return _check_json(text.encode())
    except msgspec.MsgspecError as error:
        raise UnreadableJob(f"payload: {error}") from None


def _with_extra(job: Job, text: str) -> Job:
    try:
        extra = _decode_extra("{" + text)
    except msgspec.MsgspecError as error:
        raise UnreadableJob(str(error)) from None
    fields = structs.asdict(extra)
    revision = fields.pop("revision")
    if extra.recurrence is not None:
        fields["recurrence"] = structs.replace(extra.recurrence, revision=revision)
    return structs.replace(job, **fields)


def stored_jobs(rows: Sequence[asyncpg.Record]) -> list[Job]:
    """Rows with the columns of `read`, in their order."""
    return [_stored_job(row) for row in rows]


def _stored_job(row: asyncpg.Record) -> Job:
    """A row as a Job; an unreadable one with what can be read of it, and the reason in `doomed`."""
    job = Job(
        id=row["id"],
        name=row["name"],
        queue=row["queue"],
        payload_json=NULL,
        state=row["state"],
        priority=row["priority"],
        due_ms=row["due_ms"],
        created_ms=row["created_ms"],
        updated_ms=row["updated_ms"],
        started_ms=row["started_ms"] or None,
        finished_ms=row["finished_ms"],
        errors=row["errors"],
        crashes=row["crashes"],
        claims=row["claims"],
        worker=row["worker"] or None,
    )
    try:
        job = structs.replace(job, payload_json=_payload(row["payload"]))
        return job if row["extra"] is None else _with_extra(job, row["extra"])
    except UnreadableJob as error:
        plain = structs.asdict(_decode_plain(row["plain"]))
        return structs.replace(job, **plain, deferred_error=f"the stored job cannot be read: {error}")


# ---------------------------------------------------------------------------------------------------- changes


def subject(row: asyncpg.Record) -> Subject:
    """A row with the columns of `subject` or `live_subject`; options that cannot be read count as none."""
    id, name, queue, state, errors, options = row
    try:
        keep = None if options is None else _decode_options(options).keep_failed
    except msgspec.MsgspecError:
        keep = None
    return Subject(id=id, name=name, queue=queue, state=state, errors=errors, keep_failed=keep)


def patch_columns(id: str, patch: Patch, now_ms: int) -> dict[str, Any]:
    """The columns that a patch writes, and the id of its job."""
    columns = {"id": id, **patch.fields}
    if "result_json" in columns:
        result = bytes(columns.pop("result_json"))
        columns["result"] = None if result == NULL else result.decode()
    if patch.keep is not None:
        keep = patch.keep
        columns |= {"expires_ms": None if keep.age_ms is None else now_ms + keep.age_ms, "keep_last": keep.last}
    if patch.seize is not None:
        seize = patch.seize
        columns |= {"lease_until_ms": now_ms + seize.lease_ms, "token": seize.token}
    return columns
