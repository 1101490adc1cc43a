"""Rows as Jobs."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec
from msgspec import Raw, Struct, structs

from jobmill.core.job import NO_OPTIONS, NULL, Job, JobOptions, Progress
from jobmill.core.recurrence import Recurrence


class Unreadable(Exception):
    """What is stored of a job is not what Jobmill writes."""


class _Extra(Struct, frozen=True):
    """What extra.sql says of a job, in the words of Job."""

    unique_key: str | None = None
    tenant: str | None = None
    options: JobOptions = NO_OPTIONS
    error: str | None = None
    result_json: Raw = NULL
    progress: Progress | None = None
    tracebacks: tuple[str, ...] = ()
    deferred_error: str | None = None
    recurrence: Recurrence | None = None
    revision: int = 0
    occurrence_ms: int | None = None
    runs: int = 0
    failed_runs: int = 0
    last_error: str | None = None
    last_finished_ms: int | None = None


class _Plain(Struct, frozen=True):
    """The part of it that no garbage can be in."""

    unique_key: str | None = None
    tenant: str | None = None
    error: str | None = None


_check_json = msgspec.json.Decoder(Raw).decode
_decode_extra = msgspec.json.Decoder(_Extra).decode
_decode_plain = msgspec.json.Decoder(_Plain).decode


def claimed_job(row: asyncpg.Record, worker: str, now_ms: int) -> Job:
    """A row of an exchange; Unreadable where its payload, options or recurrence are garbage."""
    payload = _payload(row[3])
    job = Job(
        id=row[0],
        name=row[2],
        queue=row[1],
        payload_json=payload,
        state="running",
        priority=row[4],
        due_ms=row[5],
        created_ms=row[6],
        updated_ms=now_ms,
        started_ms=now_ms,
        errors=row[8],
        crashes=row[9],
        claims=row[10],
        worker=worker,
    )
    return job if row[11] is None else _with_extra(job, row[11])


def _payload(text: str) -> Raw:
    try:
        return _check_json(text.encode())
    except msgspec.MsgspecError as error:
        raise Unreadable(f"payload: {error}") from None


def _with_extra(job: Job, text: str) -> Job:
    try:
        extra = _decode_extra("{" + text)
    except msgspec.MsgspecError as error:
        raise Unreadable(str(error)) from None
    given = structs.asdict(extra)
    revision = given.pop("revision")
    if extra.recurrence is not None:
        given["recurrence"] = structs.replace(extra.recurrence, revision=revision)
    return structs.replace(job, **given)


def looked_at(row: asyncpg.Record) -> Job:
    """A row of read.sql, for people to look at: one that is unreadable shows what can be read of it, and the reason."""
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
    except Unreadable as error:
        plain = structs.asdict(_decode_plain(row["plain"]))
        return structs.replace(job, **plain, deferred_error=f"the stored job cannot be read: {error}")


def looked_at_all(rows: Sequence[asyncpg.Record]) -> list[Job]:
    """Rows of read.sql, in their order."""
    return [looked_at(row) for row in rows]
