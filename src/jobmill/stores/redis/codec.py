"""The hash of a job, read as a Job.

Jobmill adds these fields, which BullMQ does not read or change:

- `jm`: the number that Jobmill gave to the job. Jobs that Node made have no such field.
- `jmo`: the options that were given (`OwnOptions`).
- `jmd`: the due time that was last given. In `delayed` the score counts instead, because Node may change it.
- `jms`: the due time of a job that was seized before it was due. `jmu`: the time of the last update.
- `jme`: the number of errors, if it differs from the count of BullMQ.
- `jmr`: the recurrence and the results of its runs. `jmc`: the number of claims of earlier runs.
- `jmx`: the time of the next run, if an update has set it while the job ran.
- `jmq`: the result of the last run.
- `jmf`: the last error with its type. BullMQ's reason is the message alone.
- `jmk`: how long the job is kept after its end, if that is not the default.
- `jmt`: the times, attempts and levels of the log lines (`log_lines`).
- `jma`: the attempts that errored or crashed, with checksums of their tracebacks, which are in BullMQ's `stacktrace`.
- `jmh`: what holds the job while it is in `waiting-children` (`Held`). That its children do is not in it.
- `jmn`: the time until which claims leave the job to Node.
- `jmg`: the edges of a job that waits for others, or has waited: [[queue, id, policy of BullMQ, 1 if ours]] in order.
  Scripts that read the parent of a flow that Node made add `jmchildren`, the number of its children.
- `jmb:<key>`: how a dependency ended without success: state, policy and the first line of its error.
- `jmy`: the flow that the job belongs to. `jmv`: the signal that it waits for.
- `jms:<n>`: a step that the job has recorded. `jmi:<name>`: a signal that it has got.
- `jmz`: the lane of the job. `jmj`: its position in the lane: priority, when it joined, number. Then "+" if it
  has a slot of the lane, otherwise "-".
- `jmw`: the last claim was a claim ahead. `jml`: the first lease of such a claim was lost, which was no crash.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar
from zlib import crc32

import msgspec
from msgspec import Raw, Struct, structs

from jobmill.core.due import BY_LANE, NEVER_MS, Held, after, at
from jobmill.core.job import (
    ATTEMPTS_KEPT,
    NO_OPTIONS,
    NULL,
    Attempt,
    Job,
    Progress,
    State,
    attempts_from_tracebacks,
)
from jobmill.core.recurrence import Recurrence
from jobmill.stores.common.unreadable import UnreadableJob
from jobmill.stores.redis import bullmq_options as opts
from jobmill.stores.redis.ids import LocalId, port_id, scheduler_key

T = TypeVar("T")

STALLED = "job stalled more than allowable limit"

#: In place of a score: the job is in `waiting-children`, and perhaps not only because of its children.
HELD, HELD_BY_JOBS = b"held", b"held jobs"

# What reading an unvalidated value may raise.
_GARBAGE = (ValueError, TypeError, OverflowError, RecursionError)

# The fields that JavaScript writes as JSON. Its text may contain half of a surrogate pair, as in "🎉".slice(0, 1).
_NODE_JSON = (b"data", b"opts", b"returnvalue", b"progress", b"stacktrace")
_SURROGATES = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)

_check_json = msgspec.json.Decoder(Raw).decode
_decode = msgspec.json.decode
_decode_rule = msgspec.json.Decoder(Recurrence).decode
_decode_stack = msgspec.json.Decoder(tuple[str, ...]).decode
_decode_held = msgspec.json.Decoder(Held).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode
_decode_attempts = msgspec.json.Decoder(list[tuple[Attempt, int | None]]).decode


class StoredRuns(Struct, frozen=True):
    """The field `jmr`. Its counts are floats because Lua writes them, and Lua has only floats."""

    rule: str = ""
    revision: float = 0
    runs: float = 0
    failed_runs: float = 0
    last_error: str | None = None
    last_finished_ms: float | None = None
    #: Of a rule that a person has pinned: the rule itself, and what code stated last. A process of an older version
    #: replaces the rule and leaves these: then the pin has ended.
    pinned: str | None = None
    stated: str | None = None


_decode_runs = msgspec.json.Decoder(StoredRuns).decode


def fields(flat: list[bytes]) -> dict[bytes, bytes]:
    """A reply of HGETALL: name, value, name, value."""
    each = iter(flat)
    return dict(zip(each, each, strict=True))


def without_lone_surrogates(h: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The hash with U+FFFD for each half of a surrogate pair, which JSON in Python cannot have."""
    escaped = [field for field in _NODE_JSON if b"\\u" in h.get(field, b"")]
    return h | {field: _SURROGATES.sub(lambda found: found[1] or rb"\ufffd", h[field]) for field in escaped}


#: The fields of a job that Jobmill made and that has no options.
_PLAIN = frozenset((b"name", b"data", b"opts", b"timestamp", b"delay", b"priority", b"jm"))

#: The same, of a job that others wait for, or that has waited for others.
_READ_PLAINLY = _PLAIN | {b"jmy", b"parentKey", b"parent", b"jmg", b"jmu"}
#: The same, of a job with a lane.
_IN_LANE = _READ_PLAINLY | {b"jmz", b"jmj", b"jmd"}

#: All fields that have no influence on how a job is settled.
SETTLED_PLAINLY = _PLAIN | {
    *(b"jmo", b"jmd", b"jmu", b"jmt", b"jmw", b"jml", b"ats", b"processedOn", b"pb", b"progress"),
    *(b"jmg", b"jmy", b"parentKey", b"parent", b"jmz", b"jmj"),
}

#: The field `jmj` begins with a position of this length: see lanes.lua.
POSITION_LENGTH = 38

#: How claim.lua says that a job was running: it has crashed, or not, because the lost lease was its first one of a
#: claim ahead.
COUNTED, UNCOUNTED = 1, 2


def claimed_job(
    queue: str, id: LocalId, h: dict[bytes, bytes], worker: str, now_ms: int, crashed: int, shown: str
) -> Job:
    """The job after a claim. `h` is its hash before the claim. UnreadableJob if the hash cannot be read."""
    try:
        _check_json(h[b"data"])
        lane = h.get(b"jmz")
        if b"jm" in h and (_READ_PLAINLY if lane is None else _IN_LANE).issuperset(h):
            # Most claimed jobs are of this kind. Measured: 2 us, instead of 9 us with job_of.
            created_ms = int(h[b"timestamp"])
            job = Job(
                id=shown,
                name=h[b"name"].decode(),
                queue=queue,
                payload_json=Raw(h[b"data"]),
                state="running",
                priority=int(h[b"priority"]),
                due_ms=created_ms,
                created_ms=created_ms,
                updated_ms=now_ms,
                started_ms=now_ms,
                claims=1,
                worker=worker,
            )
            return _in_flow(job, h, lane) if b"jmy" in h or b"jmg" in h or lane is not None else job
        if not isinstance(id, str):
            raise UnreadableJob("its id is not UTF-8 text")
        after = {b"name": h[b"name"], **h, b"processedOn": b"%d" % now_ms}
        job = job_of(queue, id, "running", after, now_ms, shown=shown, strict=True)
        crashes, unstarted = job.crashes + (crashed == COUNTED), job.unstarted + (crashed == UNCOUNTED)
        counts = {"claims": job.claims + 1, "crashes": crashes, "unstarted": unstarted}
        return structs.replace(job, worker=worker, deferred_error=_deferred_error(h, crashes), **counts)
    except (KeyError, *_GARBAGE) as error:
        if (readable := without_lone_surrogates(h)) != h:
            return claimed_job(queue, id, readable, worker, now_ms, crashed, shown)
        raise UnreadableJob(_why_unreadable(error, id, h)) from error


def _in_flow(job: Job, h: dict[bytes, bytes], lane: bytes | None) -> Job:
    """Apart: msgspec finds a keyword by its position, and more at the end cost every job of no flow and no lane."""
    flow, edges = h.get(b"jmy"), h.get(b"jmg")
    if lane is not None:
        # It was due when it got its slot.
        job = structs.replace(job, lane=lane.decode(), due_ms=int(h.get(b"jmd", job.due_ms)))
        if flow is None and edges is None:
            return job
    dependencies = 0 if edges is None else _length(edges)
    return structs.replace(job, flow=None if flow is None else flow.decode(), dependencies=dependencies)


def foreign_job(queue: str, id: LocalId, h: dict[bytes, bytes], now_ms: int, crashed: bool, shown: str) -> Job | None:
    """A claimed job that Node made and may be able to read, as far as we can read it; None for other jobs."""
    if b"jm" in h or not isinstance(id, str) or h.keys().isdisjoint((b"name", b"data", b"opts")):
        return None
    job = job_of(queue, id, "running", h, now_ms, shown=shown)
    return structs.replace(job, claims=job.claims + 1, crashes=job.crashes + crashed)


def _why_unreadable(error: Exception, id: LocalId, h: dict[bytes, bytes]) -> str:
    if b"jmaside" in h:
        kind = h[b"jmaside"].decode()
        return f"its key held a {kind} instead of a hash, which is at jobmill:aside:{id} of its queue now"
    if b"data" not in h:
        return "its hash is missing, or has no data"
    return "its hash has no name" if b"name" not in h else f"{type(error).__name__}: {error}"


def job_of(
    queue: str,
    id: str,
    state: State,
    h: dict[bytes, bytes],
    now_ms: int,
    *,
    score: bytes = b"",
    shown: str | None = None,
    strict: bool = False,
) -> Job:
    """A stored job, with the id `shown` if given. Unless `strict`, a field that cannot be read counts as missing."""
    read = _HashReader(h, strict)
    final = state in ("succeeded", "failed", "cancelled")
    name = read.text(b"name") or ""
    created, updated, started, finished = map(read.whole, (b"timestamp", b"jmu", b"processedOn", b"finishedOn"))
    own = read.value(b"jmo", opts.decode_own, opts.NO_OWN_OPTIONS)
    node = None if b"jm" in h else read.value(b"opts", opts.read_node, opts.NO_NODE_OPTIONS)
    # A job that gets a slot of its lane is due at that moment.
    touched = max(created, updated, started, read.whole(b"jmd") if b"jmz" in h and not score else 0)
    held = _held(read, score) if score.startswith(HELD) else None
    due = _due(read, id, created, node, score) if held is None else NEVER_MS
    # Node promotes a job without a change of our fields. A job that waits outside `delayed` is due, and a job that has
    # run was due.
    is_promoted = not score and (
        due > now_ms if state == "waiting" else due > started and not (b"jms" in h or state == "cancelled")
    )
    crashes = read.whole(b"stc")
    # What the job returned; for a recurring job that continues, what its last run returned.
    result = h.get(b"returnvalue" if state == "succeeded" else b"jmq")
    return Job(
        id=port_id(queue, id, b"jm" in h, is_latest=not final) if shown is None else shown,
        name=name,
        queue=queue,
        payload_json=Raw(h.get(b"data", b"null")),
        state=state,
        priority=read.whole(b"priority"),
        due_ms=touched if is_promoted else due,
        held=held,
        created_ms=created,
        updated_ms=max(touched, finished if final else 0),
        started_ms=started or None,
        finished_ms=finished if final else None,
        errors=read.whole(b"jme") if b"jme" in h else max(0, read.whole(b"atm") - (state == "succeeded")),
        crashes=crashes,
        claims=read.whole(b"ats") + read.whole(b"jmc"),
        unstarted=int(b"jml" in h),
        worker=read.text(b"pb"),
        progress=read.value(b"progress", _progress, None),
        result_json=NULL if result is None else Raw(result),
        # BullMQ keeps the last error of a job even if the job succeeds later. A cancelled job has no error.
        error=None if state in ("succeeded", "cancelled") else _error(read),
        attempts=_attempts(read) if b"stacktrace" in h or b"jma" in h else (),
        tenant=own.t,
        flow=read.text(b"jmy"),
        dependencies=read.value(b"jmg", _length, 0) or read.whole(b"jmchildren"),
        waits_for=read.text(b"jmv"),
        lane=read.text(b"jmz"),
        options=node.options if node is not None else opts.with_trace(own.o or NO_OPTIONS, h.get(b"opts", b"")),
        deferred_error=_deferred_error(h, crashes),
        **_keys(read, id, name, node),
    )


class _HashReader:
    """The fields of a hash. Where strict, a field that cannot be read raises ValueError."""

    def __init__(self, h: dict[bytes, bytes], strict: bool) -> None:
        self.h = h
        self._strict = strict

    def value(self, field: bytes, read: Callable[[bytes], T], otherwise: T) -> T:
        """The value of a field as a function reads it; `otherwise` if the field is missing or cannot be read."""
        value = self.h.get(field)
        if value is None:
            return otherwise
        try:
            return read(value)
        except _GARBAGE as error:
            if self._strict:
                raise ValueError(f"{field.decode()}: {error}") from error
            return otherwise

    def whole(self, field: bytes) -> int:
        return self.value(field, _whole, 0)

    def text(self, field: bytes) -> str | None:
        value = self.h.get(field)
        return None if value is None else value.decode(errors="replace")


def _whole(value: bytes) -> int:
    try:
        number = int(value)
    except ValueError:
        number = int(float(value))
    if abs(number) > opts.MAX_WHOLE:
        raise ValueError("expected a number below 2**53")
    return number


def _length(value: bytes) -> int:
    return len(_decode_list(value))


def _tracebacks(value: bytes) -> tuple[str, ...]:
    # cjson writes an empty list as {}.
    return () if value == b"{}" else _decode_stack(value)


def attempts_json(attempts: tuple[Attempt, ...]) -> tuple[str, str]:
    """The fields `jma` and `stacktrace`."""
    notes = [
        (structs.replace(one, traceback=None), None if one.traceback is None else crc32(one.traceback.encode()))
        for one in attempts
    ]
    texts = [one.traceback for one in attempts if one.traceback is not None]
    return msgspec.json.encode(notes).decode(), msgspec.json.encode(texts).decode()


def _attempts(read: _HashReader) -> tuple[Attempt, ...]:
    """The attempts with their tracebacks. Node adds tracebacks without attempts, and may drop the oldest ones."""
    no_texts: tuple[str, ...] = ()
    no_notes: list[tuple[Attempt, int | None]] = []
    texts = read.value(b"stacktrace", _tracebacks, no_texts)
    found: list[Attempt] = []
    for attempt, checksum in read.value(b"jma", _decode_attempts, no_notes):
        mine = next((n for n, text in enumerate(texts) if crc32(text.encode()) == checksum), None)
        if mine is None:
            found.append(attempt)
        else:
            found += (*attempts_from_tracebacks(texts[:mine]), structs.replace(attempt, traceback=texts[mine]))
            texts = texts[mine + 1 :]
    return (*found, *attempts_from_tracebacks(texts))[-ATTEMPTS_KEPT:]


def _progress(value: bytes) -> Progress | None:
    """In BullMQ, progress is any JSON value: a number, our object, or another value, which becomes the message."""
    found = _decode(value)
    if isinstance(found, int | float) and not isinstance(found, bool):
        return Progress(found)
    if isinstance(found, dict) and isinstance(found.get("value"), int | float):
        message = found.get("message")
        return Progress(found["value"], message if isinstance(message, str) else None)
    return Progress(0, value.decode())


def _due(read: _HashReader, id: str, created: int, node: opts.NodeOptions | None, score: bytes) -> int:
    if score:
        return int(float(score) / 4096)
    if b"jms" in read.h or b"jmd" in read.h:
        return read.whole(b"jms") or read.whole(b"jmd")
    if b"rjk" in read.h and (occurrence := _occurrence(id)) is not None:
        return occurrence
    return created + (node.delay_ms if node is not None else 0)


def _held(read: _HashReader, why: bytes) -> Held:
    """What holds a job in `waiting-children`: see why_held.lua."""
    if b"jmz" in read.h and b"jmh" not in read.h and why == HELD:
        return Held(by=(BY_LANE,), due=at(read.value(b"jmj", _joined_ms, 0)))
    no_note: Held | None = None
    held = read.value(b"jmh", _decode_held, no_note) or Held(by=(), due=after(read.whole(b"delay")))
    by = (*held.by, "jobs") if why == HELD_BY_JOBS or not held.by else held.by
    return structs.replace(held, by=tuple(sorted(set(by))))


def _joined_ms(position: bytes) -> int:
    """When a job joined its lane, or may run: see lane_changes.lua."""
    return int(position[7:22])


def _error(read: _HashReader) -> str | None:
    """The error with its type, if Jobmill wrote the reason."""
    reason, typed = read.text(b"failedReason"), read.text(b"jmf")
    return typed if typed is not None and typed.endswith(f": {reason}") else reason


def _occurrence(id: str) -> int | None:
    """The occurrence that a run of a recurring job belongs to: the last part of its id."""
    occurrence = id.rpartition(":")[2]
    return int(occurrence) if occurrence.isdecimal() else None


def _deferred_error(h: dict[bytes, bytes], crashes: int) -> str | None:
    """Why the job must fail instead of run: its hash has a reason, or Node made it and it has stalled too often."""
    if b"defa" in h:
        return h[b"defa"].decode(errors="replace")
    return STALLED if crashes >= opts.NODE_CRASHES and b"jm" not in h and b"rjk" not in h else None


def _keys(read: _HashReader, id: str, name: str, node: opts.NodeOptions | None) -> dict[str, Any]:
    """The unique key, and the recurrence with the results of its runs."""
    sid = read.text(b"rjk")
    if sid is None:
        deid = read.text(b"deid")
        return {} if deid is None else {"unique_key": deid.removeprefix(f"{name} ")}
    occurrence = _occurrence(id)
    known: dict[str, Any] = {"occurrence_ms": occurrence, "unique_key": scheduler_key(sid, name)}
    repeat = (node.repeat if node is not None else None) or {}
    runs = read.value(b"jmr", _runs, None)
    runs = runs or read.value(b"rjk", lambda _: opts.node_runs(sid, name, repeat, occurrence), None)
    return known | (runs or {})


def stored_rule(runs: bytes) -> Recurrence:
    """The recurrence in the field `jmr`."""
    return _decode_rule(_decode_runs(runs).rule)


def bare_rule(rule: str) -> str:
    """A stored rule without the mark that a handler declared it; as bare() in enqueue.lua."""
    return rule.replace(',"declared":true', "")


def _runs(value: bytes) -> dict[str, Any] | None:
    runs = _decode_runs(value)
    if not runs.rule:
        return None
    is_pinned = runs.pinned == bare_rule(runs.rule)
    stated = _decode_rule(runs.stated) if is_pinned and runs.stated is not None else None
    rule = structs.replace(_decode_rule(runs.rule), revision=int(runs.revision), pinned=is_pinned, stated=stated)
    return {
        "recurrence": rule,
        "runs": int(runs.runs),
        "failed_runs": int(runs.failed_runs),
        "last_error": runs.last_error,
        "last_finished_ms": None if runs.last_finished_ms is None else int(runs.last_finished_ms),
    }


# ---------------------------------------------------------------------------------------------------- changes

#: The fields of the hash that a reset of a Job's field deletes. BullMQ's own retry deletes `processedOn` as well.
_RESETS: dict[str, tuple[str, ...]] = {
    "finished_ms": ("finishedOn", "processedOn"),
    "errors": ("atm", "jme"),
    "crashes": ("stc",),
    "error": ("failedReason",),
    "result_json": ("returnvalue",),
    "progress": ("progress",),
    "deferred_error": ("defa",),
}


def reset_fields(patch: dict[str, Any]) -> list[str]:
    """The fields of the hash that a patch deletes."""
    reset = [name for name, value in patch.items() if value is None or value == 0 or value is NULL]
    return [field for name in reset for field in _RESETS.get(name, ())]
