"""The hash of a job, read as a Job.

Own fields, which BullMQ leaves alone: `jm` our number of the job (Node's jobs have none), `jmo` what was said of it
(`opts.Said`), `jmd` due, `jmu` updated, `jme` errors where BullMQ's count does not tell them, `jmr` recurrence and what
its runs came to, `jmc` claims of earlier runs, `jmx` when an update while it ran wants the next run, `jmq` what the
last run returned, `jmt` times of log lines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
from msgspec import Raw, Struct, structs

from jobmill.core.job import NO_OPTIONS, NULL, Job, JobOptions, Progress, State
from jobmill.core.recurrence import Recurrence
from jobmill.stores.redis import bullmq_options as opts
from jobmill.stores.redis.ids import port_id, scheduler_key

T = TypeVar("T")

STALLED = "job stalled more than allowable limit"

# Beyond that a number is not what it says any more once it has been through Lua or JavaScript.
MOST = 2**53
# What reading something that nobody validated may raise.
_GARBAGE = (ValueError, TypeError, OverflowError, RecursionError)

_check_json = msgspec.json.Decoder(Raw).decode
_decode = msgspec.json.decode
_decode_rule = msgspec.json.Decoder(Recurrence).decode
_decode_stack = msgspec.json.Decoder(tuple[str, ...]).decode


class Runs(Struct, frozen=True):
    """The field `jmr`; counts may have gone through Lua, which has no other numbers than floats."""

    rule: str = ""
    revision: float = 0
    runs: float = 0
    failed_runs: float = 0
    last_error: str | None = None
    last_finished_ms: float | None = None


_decode_runs = msgspec.json.Decoder(Runs).decode


class Unreadable(Exception):
    """What is stored of a job is not what Jobmill or BullMQ write."""


def fields(flat: list[bytes]) -> dict[bytes, bytes]:
    """A reply of HGETALL within a script: name, value, name, value."""
    each = iter(flat)
    return dict(zip(each, each, strict=True))


#: The fields of a job of ours of which nothing special was said, and what happens to it in an ordinary life.
_PLAIN = frozenset((b"name", b"data", b"opts", b"timestamp", b"delay", b"priority", b"jm"))

#: And those that have no say in how it is settled.
SETTLED_PLAINLY = _PLAIN | {b"jmo", b"jmd", b"jmu", b"jmt", b"ats", b"processedOn", b"pb", b"progress"}


def claimed_job(queue: str, id: str, h: dict[bytes, bytes], worker: str, now_ms: int, crashed: bool, shown: str) -> Job:
    """A job as a claim made it of the hash that it found; Unreadable where it can only be failed."""
    try:
        if b"data" not in h or b"name" not in h:
            raise Unreadable(_missing(id, h))
        _check_json(h[b"data"])
        if _PLAIN.issuperset(h) and b"jm" in h:
            return _plain(queue, shown, h, worker, now_ms)
        job = job_of(queue, id, "running", h, shown=shown, strict=True)
        crashes = job.crashes + crashed
        return structs.replace(
            job,
            started_ms=now_ms,
            updated_ms=now_ms,
            worker=worker,
            claims=job.claims + 1,
            crashes=crashes,
            doomed=_doomed(h, crashes),
        )
    except (KeyError, *_GARBAGE) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error


def _missing(id: str, h: dict[bytes, bytes]) -> str:
    if b"jmaside" in h:
        kind = h[b"jmaside"].decode()
        return f"its key held a {kind} instead of a hash, which is at jobmill:aside:{id} of its queue now"
    return "its hash has no name" if b"data" in h else "its hash is missing, or has no data"


def _plain(queue: str, id: str, h: dict[bytes, bytes], worker: str, now_ms: int) -> Job:
    """What most claims bring: measured, 2 us where the long way takes 9."""
    created = int(h[b"timestamp"])
    return Job(
        id=id,
        name=h[b"name"].decode(),
        queue=queue,
        payload_json=Raw(h[b"data"]),
        state="running",
        priority=int(h[b"priority"]),
        due_ms=created,
        created_ms=created,
        updated_ms=now_ms,
        started_ms=now_ms,
        claims=1,
        worker=worker,
    )


def job_of(
    queue: str,
    id: str,
    state: State,
    h: dict[bytes, bytes],
    *,
    score: bytes = b"",
    shown: str | None = None,
    strict: bool = False,
) -> Job:
    """A job as it is stored, under the id `shown`; unless strict, garbage is shown as far as it can be read."""
    read = _Reader(h, strict)
    final = state in ("succeeded", "failed", "cancelled")
    name = read.text(b"name") or ""
    created, updated, started, finished = read.wholes(b"timestamp", b"jmu", b"processedOn", b"finishedOn")
    said = read.said()
    node = read.node()
    atm, stc = read.wholes(b"atm", b"stc")
    return Job(
        id=port_id(queue, id, b"jm" in h, is_latest=not final) if shown is None else shown,
        name=name,
        queue=queue,
        payload_json=Raw(h.get(b"data", b"null")),
        state=state,
        priority=read.whole(b"priority"),
        due_ms=_due(read, id, created, node, score),
        created_ms=created,
        updated_ms=max(created, updated, started, finished if final else 0),
        started_ms=started or None,
        finished_ms=finished if final else None,
        errors=read.whole(b"jme") if b"jme" in h else max(0, atm - (state == "succeeded")),
        crashes=stc,
        claims=sum(read.wholes(b"ats", b"jmc")),
        worker=read.text(b"pb"),
        progress=read.progress(),
        result_json=_result(h, state),
        # BullMQ leaves the last error of a job that has succeeded since; a cancelled one has none of its own.
        error=None if state in ("succeeded", "cancelled") else read.text(b"failedReason"),
        tracebacks=read.tracebacks(),
        tenant=said.t,
        options=_options(said, node),
        doomed=_doomed(h, stc),
        **_keys(read, id, name, node),
    )


def _result(h: dict[bytes, bytes], state: State) -> Raw:
    """Of a recurring job that goes on, what its last run returned."""
    result = h.get(b"returnvalue" if state == "succeeded" else b"jmq")
    return NULL if result is None else Raw(result)


def _options(said: opts.Said, node: opts.NodeOpts | None) -> JobOptions:
    if node is not None:
        return node.options
    return NO_OPTIONS if said.o is None else said.o


class _Reader:
    """The fields of a hash; strict, garbage raises ValueError, otherwise it is as if it were not there."""

    def __init__(self, h: dict[bytes, bytes], strict: bool) -> None:
        self.h = h
        self._strict = strict

    def _read(self, field: bytes, how: Callable[[bytes], T], otherwise: T) -> T:
        value = self.h.get(field)
        if value is None:
            return otherwise
        try:
            return how(value)
        except _GARBAGE as error:
            if self._strict:
                raise ValueError(f"{field.decode()}: {error}") from error
            return otherwise

    def whole(self, field: bytes) -> int:
        return self._read(field, _whole, 0)

    def wholes(self, *names: bytes) -> list[int]:
        return [self.whole(field) for field in names]

    def text(self, field: bytes) -> str | None:
        value = self.h.get(field)
        return None if value is None else value.decode(errors="replace")

    def said(self) -> opts.Said:
        return self._read(b"jmo", opts.decode_said, opts.Said())

    def node(self) -> opts.NodeOpts | None:
        """Of a job that Node made."""
        return None if b"jm" in self.h else self._read(b"opts", opts.read, opts.NOTHING)

    def runs(self) -> dict[str, Any]:
        return self._read(b"jmr", _runs, {})

    def node_runs(self, sid: str, name: str, node: opts.NodeOpts | None) -> dict[str, Any]:
        """Of a scheduler that Node made."""
        repeat = (node.repeat if node is not None else None) or {}
        return self._read(b"rjk", lambda _: opts.node_runs(sid, name, repeat), {})

    def tracebacks(self) -> tuple[str, ...]:
        return self._read(b"stacktrace", _tracebacks, ())

    def progress(self) -> Progress | None:
        return self._read(b"progress", _progress, None)


def _whole(value: bytes) -> int:
    try:
        number = int(value)
    except ValueError:
        number = int(float(value))
    if not -MOST < number < MOST:
        raise ValueError("expected a number below 2**53")
    return number


def _tracebacks(value: bytes) -> tuple[str, ...]:
    # cjson writes an empty list as {}.
    return () if value == b"{}" else _decode_stack(value)


def _progress(value: bytes) -> Progress | None:
    """BullMQ's is any JSON: a number, ours, or something of the user's own, which is shown as it is."""
    said = _decode(value)
    if isinstance(said, int | float) and not isinstance(said, bool):
        return Progress(said)
    if isinstance(said, dict) and isinstance(said.get("value"), int | float):
        message = said.get("message")
        return Progress(said["value"], message if isinstance(message, str) else None)
    return Progress(0, value.decode())


def _due(read: _Reader, id: str, created: int, node: opts.NodeOpts | None, score: bytes) -> int:
    if b"jmd" in read.h:
        return read.whole(b"jmd")
    if score:
        return int(float(score) / 4096)
    if b"rjk" in read.h and (slot := _slot(id)) is not None:
        return slot
    return created + (node.delay_ms if node is not None else 0)


def _slot(id: str) -> int | None:
    """The slot that a run stands for."""
    slot = id.rpartition(":")[2]
    return int(slot) if slot.isdecimal() else None


def _doomed(h: dict[bytes, bytes], crashes: int) -> str | None:
    """Why it must fail instead of running: somebody said so, or it is Node's and has stalled once too often."""
    if b"defa" in h:
        return h[b"defa"].decode(errors="replace")
    return STALLED if crashes >= opts.NODE_CRASHES and b"jm" not in h and b"rjk" not in h else None


def _keys(read: _Reader, id: str, name: str, node: opts.NodeOpts | None) -> dict[str, Any]:
    """Unique key, and recurrence with what its runs came to."""
    sid = read.text(b"rjk")
    if sid is None:
        deid = read.text(b"deid")
        return {} if deid is None else {"unique_key": deid.removeprefix(f"{name} ")}
    known: dict[str, Any] = {"slot_ms": _slot(id), "unique_key": scheduler_key(sid, name)}
    return known | (read.runs() or read.node_runs(sid, name, node))


def _runs(value: bytes) -> dict[str, Any]:
    runs = _decode_runs(value)
    if not runs.rule:
        return {}
    return {
        "recurrence": structs.replace(_decode_rule(runs.rule), revision=int(runs.revision)),
        "runs": int(runs.runs),
        "failed_runs": int(runs.failed_runs),
        "last_error": runs.last_error,
        "last_finished_ms": None if runs.last_finished_ms is None else int(runs.last_finished_ms),
    }
