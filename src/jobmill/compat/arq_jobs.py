"""Reads arq's jobs: the value of the key `arq:job:ID`."""

from __future__ import annotations

from jobmill.compat.found import ForeignJob, NotImportable, expect, expect_arguments
from jobmill.compat.plain import read_any


def read_job(
    id: str, data: bytes | None, queue: str, *, due_ms: int | None = None, allow_pickle: bool = False
) -> ForeignJob:
    """One job, by its id and its data. `due_ms` is its score in the queue."""
    try:
        return _read(id, data, queue, due_ms, allow_pickle)
    except NotImportable as error:
        raise NotImportable(error.reason, id) from None


def _read(id: str, data: bytes | None, queue: str, due_ms: int | None, allow_pickle: bool) -> ForeignJob:
    if data is None:
        raise NotImportable("its data is gone: it has expired, or was removed")
    if id.startswith("cron:"):
        raise NotImportable("it is a run of a cron job: declare it with @jobs.handler(cron=…)")
    call = expect(read_any(data, allow_pickle=allow_pickle), dict, "its data")
    args, kwargs = expect_arguments(call.get("a"), call.get("k"))
    return ForeignJob(
        system="arq",
        id=id,
        queue=queue,
        name=expect(call.get("f"), str, "the name of the function"),
        args=args,
        kwargs=kwargs,
        due_ms=due_ms,
    )
