"""Rows of the jobs' table as Jobs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs

from jobmill.core.job import Job
from jobmill.stores.sqlite.context import Context

_encode = msgspec.json.Encoder().encode
_decode_jobs = msgspec.json.Decoder(list[Job]).decode
_decode_job = msgspec.json.Decoder(Job).decode


def read(context: Context, seqs: Sequence[int]) -> list[Job] | None:
    """These jobs, in order; None when one of them is unreadable, and so all together are."""
    (text,) = context.row("read", (_encode(seqs).decode(),))
    try:
        jobs = _decode_jobs(text or b"[]")
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    # A payload that is missing leaves its row out.
    return jobs if len(jobs) == len(seqs) else None


def read_one(context: Context, seq: int) -> tuple[tuple[str, str, str], Job | str]:
    """One job's id, queue and name; and the job, or why it is unreadable."""
    id, queue, name, text = context.row("read_one", (seq,))
    try:
        if text is None:
            raise msgspec.DecodeError("there is no payload")
        return (id, queue, name), _decode_job(text)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        return (id, queue, name), str(error)


def read_all(context: Context, seqs: Sequence[int]) -> list[Job]:
    """These jobs, for people to look at: one that is unreadable shows what can be read of it, and the reason."""
    jobs = read(context, seqs)
    return [_as_far_as_readable(context, seq) for seq in seqs] if jobs is None else jobs


def _as_far_as_readable(context: Context, seq: int) -> Job:
    _, job = read_one(context, seq)
    if isinstance(job, Job):
        return job
    plain = _decode_job(context.row("read_plain", (seq,))[0])
    return structs.replace(plain, doomed=f"the stored job cannot be read: {job}")
