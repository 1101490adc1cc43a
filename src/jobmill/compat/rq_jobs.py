"""Reads RQ's jobs: the fields of the hash `rq:job:ID`."""

from __future__ import annotations

from collections.abc import Mapping

from jobmill.compat.found import ForeignJob, NotImportable, expect, expect_arguments
from jobmill.compat.plain import decompress, read_any, read_json

#: Fields with functions that RQ calls when a job has ended, and with runs that follow.
MORE_WORK = {
    "success_callback_name": "a success callback",
    "failure_callback_name": "a failure callback",
    "stopped_callback_name": "a stopped callback",
    "repeats_left": "repetitions",
    "webhooks": "webhooks",
}


def read_job(
    id: str, fields: Mapping[bytes, bytes], queue: str, *, due_ms: int | None = None, allow_pickle: bool = False
) -> ForeignJob:
    """One job, by its id and its fields. `due_ms` is when it is scheduled."""
    try:
        return _read(id, fields, queue, due_ms, allow_pickle)
    except NotImportable as error:
        raise NotImportable(error.reason, id) from None


def _read(id: str, fields: Mapping[bytes, bytes], queue: str, due_ms: int | None, allow_pickle: bool) -> ForeignJob:
    if b"data" not in fields:
        raise NotImportable("its data is gone: it has expired, or was removed")
    for field, what in MORE_WORK.items():
        if fields.get(field.encode(), b"") not in (b"", b"0", b"[]"):
            raise NotImportable(f"it has {what}, which would be lost")
    call = read_any(decompress(fields[b"data"], "application/x-gzip"), allow_pickle=allow_pickle)
    if not isinstance(call, list | tuple) or len(call) != 4:
        raise NotImportable("damaged: its data is not function, instance, args and kwargs")
    name, instance, args, kwargs = call
    if instance is not None:
        raise NotImportable("it calls a method of an object")
    given, named = expect_arguments(args, kwargs)
    retries = _number(fields, "retries_left") or 0
    timeout = _number(fields, "timeout")
    return ForeignJob(
        system="rq",
        id=id,
        queue=queue,
        name=expect(name, str, "the name of the function"),
        args=given,
        kwargs=named,
        due_ms=due_ms,
        max_attempts=retries + 1,
        backoff_ms=_longest_interval(fields) if retries else None,
        timeout_ms=None if timeout is None or timeout <= 0 else timeout * 1000,
    )


def _number(fields: Mapping[bytes, bytes], name: str) -> int | None:
    value = fields.get(name.encode(), b"")
    try:
        return int(value) if value not in (b"", b"None") else None
    except ValueError:
        raise NotImportable(f"damaged: {name} is not a whole number") from None


def _longest_interval(fields: Mapping[bytes, bytes]) -> int:
    """RQ has an interval for each retry, and a job of Jobmill one backoff: the longest, or at once (1 ms)."""
    intervals = expect(read_json(fields.get(b"retry_intervals") or b"[]", "retry_intervals"), list, "retry_intervals")
    return max((int(expect(one, (int, float), "retry_intervals")) * 1000 for one in intervals or ()), default=0) or 1
