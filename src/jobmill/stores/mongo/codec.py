"""Jobs as documents: Monque's fields as Monque has them, and all other fields in one sub-document, `jobmill`.

    _id, name, data, status, nextRunAt, failCount, priority, createdAt, updatedAt       always
    uniqueKey, repeatInterval, timezone                                                where given
    failReason                                                                         after an error
    lockedAt, claimedBy, claimId, lastHeartbeat                                        while processing
    heartbeatInterval                     from the first claim on; a long if Jobmill claimed last, Node never writes one

    jobmill.v            1: Jobmill enqueued the job, and its rules of retention apply
           .id           the id that the caller chose; other jobs are known by their _id
           .queue        absent in the queue that Monque's documents are in (the option `queue`)
           .key          the unique key, where uniqueKey also contains the queue
           .tenant .options .progress .result (JSON) .attempts
           .tracebacks   of attempts that an older version wrote; they are later than those in .attempts
           .error        with the type of the error, where failReason has the message alone
           .claims (a long) .crashes .unstarted .worker .startedAt .leaseUntil
           .rule         what repeatInterval does not express: an interval, six fields, a timezone of the first
                         generation, an end, other words for the same cron; .revision .armed
           .declared     true: a handler declares the recurrence
           .slot         of a run whose due time is not its slot, and .slotDue, the due time that it was written with
           .pinned .stated      a person has edited the recurrence; what code stated last
           .held         what holds a waiting job
           .due          of a job that is due in more than 20 days (FAR_MS), or held: its due time, or the year 9999;
                         and .dueOf, the nextRunAt that it was written with
           .runs .failedRuns .lastError .lastFinishedAt
           .flow .dependencies  the flow of the job, and how many edges it has (edges.py)
           .deferredError       why the next claim must fail the job; Monque does not know this
           .hasDependents       edges lead to this job: an ObjectId, another one after each change of the edges
           .outbox              true: when the job is final, its edges must be set (flows.py)
           .round               how often the job was requeued since edges lead to it
           .staged .stagedDue   the call that enqueues the job has not ended: its id, and nextRunAt afterwards
           .suspending .suspended       the id of a call that enqueues children of this job, and of the last that did
           .taken               the unique key, as uniqueKey has it, that the job took for a time (taken_keys.py)
           .waitsFor            the signal that a waiting job waits for
           .signals .steps      name and value (JSON) of each signal; number and _id of each step (steps.py)
           .purgeAt .keepLast   of a final job, at least one of them; purgeAt is in the year 9999 if it stays for ever
           .lane                the lane of the job; while it is live, lanes.py writes the next three fields
           .turn                the lane alone holds the job: `lane` again, and `after`: 0 if the job is ready, or when
                                it may run
           .joined              when it joined the lane; it stays while the job has a slot
           .laneSlot            the slot of the job: a number, or its own _id where it needs no number
           .mark         of the last call that changed the job: that call finds by it which jobs it changed

The order of priorities is reversed: our 0, 1, 2 are Monque's 0, -1, -2.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, TypeAlias
from uuid import UUID

import bson
import msgspec
from bson import Binary, DBRef, Decimal128, Int64, ObjectId
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidDocument
from bson.raw_bson import RawBSONDocument
from msgspec import Raw

from jobmill.core.changes import new_hold
from jobmill.core.due import NEVER_MS, Held, in_lane, lane_fields
from jobmill.core.durations import to_datetime
from jobmill.core.job import (
    DAY_MS,
    NO_OPTIONS,
    NULL,
    Attempt,
    Job,
    JobOptions,
    Keep,
    Progress,
    State,
    attempts_from_tracebacks,
)
from jobmill.core.payload import MIN_INT
from jobmill.core.recurrence import Recurrence, is_occurrence
from jobmill.core.values import NewJob
from jobmill.errors import InvalidValue
from jobmill.stores.common.error_message import message_of
from jobmill.stores.common.node_cron import for_node
from jobmill.stores.common.unreadable import UnreadableJob
from jobmill.stores.mongo.ids import NO_ID
from jobmill.stores.mongo.url import MongoUrl

Document: TypeAlias = dict[str, Any]

#: Milliseconds in and out, of any year; text that is not valid UTF-8 can be read too.
CODEC: CodecOptions[Document] = CodecOptions(
    document_class=dict,
    datetime_conversion=DatetimeConversion.DATETIME_MS,
    unicode_decode_error_handler="replace",
)
_RAW: CodecOptions[RawBSONDocument] = CodecOptions(document_class=RawBSONDocument)
#: The largest document that a server accepts; and the same minus what claims and settlements add.
DOCUMENT_BYTES = 16 * 1024 * 1024
MAX_BYTES = DOCUMENT_BYTES - 16 * 1024
_MAX_INT = 2**63 - 1
#: nextRunAt is at most this far ahead; `purge.postpone` moves it on when half of that is over. A Node process sets a
#: timer for each job that is due later, and Node's timers of more than 24.8 days end at once.
FAR_MS = 20 * DAY_MS
_YEAR_10000 = 253_402_300_800_000
_FOR_EVER_MS = _YEAR_10000 - 1_000

STATUS: dict[State, str] = {
    "waiting": "pending",
    "running": "processing",
    "succeeded": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
STATE: dict[str, State] = {status: state for state, status in STATUS.items()}
LIVE = ("pending", "processing")
ENDED_BY_RUN = ("completed", "failed")
FINAL = (*ENDED_BY_RUN, "cancelled")
#: In claim order: jobs whose priority, which another program wrote, is not a number.
ODD_PRIORITY = float("-inf")
#: In the order of the index: jobs without a priority, which only Monque's second generation writes.
UNRANKED = float("inf")
#: The beginning of claimedBy in claims of Jobmill.
OURS = "jobmill:"
#: The fields that `is_known` and `id_of` need.
ID_SHOWN = {"status": 1, "jobmill.id": 1, "jobmill.staged": 1}
#: Leaves out the large fields.
WITHOUT_PAYLOAD = {"data": 0, "jobmill.result": 0, "jobmill.tracebacks": 0, "jobmill.attempts": 0}

#: The fields of ours about the lane of a live job.
LANE_MARKS = ("turn", "joined", "laneSlot")
#: `jobmill.turn.after` of a job that could run if its lane gave it a slot.
READY = 0
#: Fields of a claim, which only a job that is processing may have.
NO_CLAIM: Document = dict.fromkeys(
    ("lockedAt", "claimedBy", "claimId", "leaseExpiresAt", "lastHeartbeat", "jobmill.leaseUntil")
)

# Names that all versions of cron-parser read.
_NICKNAMES = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
# What the clocks of timezones show before or after UTC.
_OFFSETS_MS = range(-14 * 3_600_000, 14 * 3_600_000 + 1, 15 * 60_000)
# A unique key counts within its queue, which Monque's index does not know. No key contains a control character.
_BETWEEN = "\x1f"


# ---------------------------------------------------------------------------------------------------- values


#: An instant as a document has it, from milliseconds.
date = DatetimeMS


def ms_of(value: Any) -> int | None:
    """The instant in a field; None where the field holds something else."""
    return int(value) if isinstance(value, DatetimeMS) else None


def packed(document: Document) -> RawBSONDocument:
    """A document as BSON; InvalidValue where MongoDB cannot hold it."""
    try:
        raw = bson.encode(document, codec_options=CODEC)
    except (OverflowError, InvalidDocument, ValueError) as error:
        raise _not_bson(document["data"], error) from None
    if len(raw) > MAX_BYTES:
        advice = "store the data elsewhere and pass a reference to it"
        raise InvalidValue("payload", f"a job of at most {MAX_BYTES} bytes of BSON on MongoDB", len(raw), advice)
    return RawBSONDocument(raw, codec_options=_RAW)


def _not_bson(data: Any, error: Exception) -> InvalidValue:
    if isinstance(error, OverflowError):
        expected = f"integers from {MIN_INT} to {_MAX_INT} on MongoDB"
        return InvalidValue("payload", expected, data, "pass larger ones as text")
    return InvalidValue("payload", "what BSON can hold: no NUL in keys", data, str(error))


def _plain(value: Any) -> Any:
    """A BSON value that JSON has no type for, as Node's JSON.stringify writes it."""
    match value:
        case Int64():
            return int(value)
        case DatetimeMS():
            ms = int(value)
            return to_datetime(ms).isoformat().replace("+00:00", "Z") if 0 <= ms < _YEAR_10000 else ms
        case ObjectId() | Decimal128() | UUID():
            return str(value)
        case DBRef():
            return value.as_doc()
        case Binary() if value.subtype == 4:
            return str(value.as_uuid())
        case bytes():
            return base64.b64encode(value).decode()
    raise TypeError(f"a {type(value).__name__} is no JSON")


#: A payload as other programs find it in a document: plain values, not text.
data_of = msgspec.json.decode
#: JSON of what a document holds; TypeError for what JSON cannot express (a regex, code).
payload_of = msgspec.json.Encoder(enc_hook=_plain).encode


# ---------------------------------------------------------------------------------------------------- writing


def update_of(fields: Document) -> Document:
    """The update that writes these fields; a field that is None is removed."""
    written = _present(fields)
    removed = {name: "" for name, value in fields.items() if value is None}
    return ({"$set": written} if written else {}) | ({"$unset": removed} if removed else {})


def new_document(new: NewJob, id: ObjectId, own_id: str | None, now_ms: int, url: MongoUrl) -> Document:
    """A job that waits."""
    is_home = new.queue == url.queue
    ours: Document = {"v": 1, "id": own_id, "queue": None if is_home else new.queue, "tenant": new.tenant}
    ours["options"] = None if new.options == NO_OPTIONS else msgspec.to_builtins(new.options)
    ours["key"] = None if is_home else new.unique_key
    ours["flow"] = new.flow
    due_ms = new.due.resolve(now_ms)
    if new.after:
        ours |= {"held": msgspec.to_builtins(new_hold(new.due, now_ms, new.lane)), "dependencies": len(new.after)}
    if new.lane is not None:
        ours |= _in_new_lane(new, new.lane, now_ms)
    if new.after or new.lane is not None:
        due_ms = NEVER_MS
    if due_ms > now_ms + FAR_MS:
        ours |= {"due": date(due_ms), "dueOf": date(now_ms + FAR_MS)}
    document: Document = {
        "_id": id,
        "name": new.name,
        "data": data_of(new.payload_json),
        "status": "pending",
        "nextRunAt": date(min(due_ms, now_ms + FAR_MS)),
        "failCount": 0,
        "priority": -new.priority,
        **dict.fromkeys(("createdAt", "updatedAt"), date(now_ms)),
    }
    if new.unique_key is not None:
        document["uniqueKey"] = stored_key(new.queue, new.unique_key, url.queue)
    if new.recurrence is not None:
        theirs, rule = _rule_fields(new.recurrence, url)
        document |= _present(theirs)
        ours |= rule
    document["jobmill"] = _present(ours)
    return document


def _in_new_lane(new: NewJob, lane: str, now_ms: int) -> Document:
    """The fields of ours of a new job with a lane."""
    ours: Document = {"lane": lane}
    if not new.after:
        held = lane_fields(None, new.due, now_ms)["held"]
        ours |= {"held": msgspec.to_builtins(held), **lane_marks(lane, held, now_ms)}
    if new.recurrence is not None:
        ours |= {"slot": date(new.due.resolve(now_ms)), "slotDue": date(NEVER_MS)}
    return ours


def lane_marks(lane: str, held: Held | None, now_ms: int) -> Document:
    """The fields of ours that say where a job without a slot stands in its lane, by what holds it."""
    if held is None or not in_lane(held):
        return dict.fromkeys(LANE_MARKS)
    joined_ms = held.due.resolve(now_ms)
    turn = {"lane": lane, "after": date(joined_ms) if joined_ms > now_ms else READY}
    return {"turn": turn, "joined": date(joined_ms), "laneSlot": None}


def lane_mark_fields(lane: str, held: Held | None, now_ms: int) -> Document:
    """The same as fields of a document."""
    return {f"jobmill.{name}": value for name, value in lane_marks(lane, held, now_ms).items()}


def after_commit(update: Document) -> Document:
    """An update in a transaction of a caller: a job that stands in its lane then is found by the time it joined it.

    Nobody knows when the caller commits. So the next claim of the queue looks at the lane.
    """
    written = update.get("$set", {})
    if isinstance(turn := written.get("jobmill.turn"), dict):
        written["jobmill.turn"] = turn | {"after": written["jobmill.joined"]}
    return update


def _present(fields: Document) -> Document:
    return {name: value for name, value in fields.items() if value is not None}


def stored_key(queue: str, key: str, home: str) -> str:
    """A unique key as Monque's index has it."""
    return key if queue == home else f"{queue}{_BETWEEN}{key}"


def rule_fields(rule: Recurrence, url: MongoUrl) -> Document:
    """The fields that give a live job a recurrence."""
    theirs, ours = _rule_fields(rule, url)
    return theirs | {f"jobmill.{field}": value for field, value in ours.items()}


def _rule_fields(rule: Recurrence, url: MongoUrl) -> tuple[Document, Document]:
    """Monque's fields of a recurrence, and ours."""
    theirs, ours = _expressed(rule, url)
    marks = {"armed": True, "revision": rule.revision or None, "declared": rule.declared or None}
    return theirs, {"rule": ours, **marks, "pinned": rule.pinned or None, "stated": stated_field(rule)}


def stated_field(rule: Recurrence) -> Document | None:
    """What code stated of a pinned recurrence."""
    return None if rule.stated is None else msgspec.to_builtins(rule.stated)


def _expressed(rule: Recurrence, url: MongoUrl) -> tuple[Document, Document | None]:
    """A recurrence in Monque's fields, where Monque can express it, and as a rule of ours, where that says more.

    Monque's first generation re-arms a job in the timezone of its own process.
    """
    node = None if rule.until_ms is not None else rule if rule.cron in _NICKNAMES else for_node(rule)
    has_words = node is not None and node.cron is not None and node.cron.count(" ") in (0, 4)
    if node is None or not has_words or not (node.timezone == "UTC" or url.has_timezones):
        until = None if rule.until_ms is None else date(rule.until_ms)
        ours = {"zone": rule.timezone, "cron": rule.cron, "everyMs": rule.every_ms, "until": until}
        return {"repeatInterval": None, "timezone": None}, _present(ours)
    theirs = {"repeatInterval": node.cron, "timezone": node.timezone}
    return theirs, None if node.same_rule(rule) else {"zone": rule.timezone, "cron": rule.cron}


def keep_fields(keep: Keep, now_ms: int) -> Document:
    """How long a final job stays. A job without one of these fields was ended by Monque, and gets them later."""
    age_ms = 0 if keep.at_once else _FOR_EVER_MS - now_ms if keep == Keep() else keep.age_ms
    purge_at = None if age_ms is None else date(now_ms + age_ms)
    return {"jobmill.purgeAt": purge_at, "jobmill.keepLast": keep.last}


_DUE = ("jobmill.due", "jobmill.dueOf", "jobmill.slot", "jobmill.slotDue")


def due_fields(due_ms: int, now_ms: int, occurrence_ms: int | None = None) -> Document:
    """When a job is due, and for which slot of its recurrence where that differs."""
    fields: Document = {"nextRunAt": date(due_ms), **dict.fromkeys(_DUE)}
    if occurrence_ms is not None and occurrence_ms != due_ms:
        fields |= {"jobmill.slot": date(occurrence_ms), "jobmill.slotDue": date(due_ms)}
    if due_ms > now_ms + FAR_MS:
        near = date(now_ms + FAR_MS)
        fields |= {"nextRunAt": near, "jobmill.due": date(due_ms), "jobmill.dueOf": near}
    return fields


def attempt_fields(attempts: Sequence[Attempt], error: str | None) -> Document:
    """Attempts, and the error of a job: failReason is its message alone, as Monque writes it."""
    fields = {"jobmill.attempts": msgspec.to_builtins(attempts), "jobmill.tracebacks": None}
    if error is None:
        return fields
    message = message_of(error, attempts[-1].traceback if attempts else None)
    return {**fields, "failReason": message, "jobmill.error": None if message == error else error}


def job_fields(fields: Document) -> Document:
    """Fields of a Job, by their names there, as fields of a document; those that no document has are left out."""
    encoded = ((_ENCODERS[name], value) for name, value in fields.items() if name in _ENCODERS)
    return {field: encode(value) if encode else value for (field, encode), value in encoded}


#: By the field of a Job: the field of a document, and how it is encoded where the values differ.
_ENCODERS: dict[str, tuple[str, Callable[[Any], Any] | None]] = {
    "state": ("status", lambda state: STATUS[state]),
    "priority": ("priority", lambda priority: -priority),
    "updated_ms": ("updatedAt", date),
    "errors": ("failCount", None),
    "crashes": ("jobmill.crashes", lambda crashes: crashes or None),
    "error": ("failReason", None),
    "result_json": ("jobmill.result", lambda json: None if bytes(json) == b"null" else bytes(json).decode()),
    "held": ("jobmill.held", lambda held: None if held is None else msgspec.to_builtins(held)),
    "progress": ("jobmill.progress", lambda it: None if it is None else {"value": it.value, "message": it.message}),
    "deferred_error": ("jobmill.deferredError", None),
}


# ---------------------------------------------------------------------------------------------------- reading


def ours_of(document: Document) -> Document:
    """The sub-document; empty where there is none."""
    return ours if isinstance(ours := document.get("jobmill"), dict) else {}


def is_ours(document: Document) -> bool:
    """Whether Jobmill enqueued the job, so that its rules of retention apply."""
    return ours_of(document).get("v") == 1


def id_of(document: Document) -> str:
    """The id of a job: the caller's own, else its _id."""
    return str(ours_of(document).get("id", document["_id"]))


def queue_of(document: Document, home: str) -> str:
    """The queue of a job."""
    return str(ours_of(document).get("queue", home))


def order_of(document: Document) -> tuple[float, int, ObjectId]:
    """Where a job stands in the order of the index, in which a job without a priority is behind all others."""
    priority, id = document.get("priority"), document["_id"]
    rank = UNRANKED if priority is None else ODD_PRIORITY
    if isinstance(priority, int | float) and not isinstance(priority, bool) and isfinite(priority):
        rank = -priority
    return rank, _ms(document.get("nextRunAt")), id if isinstance(id, ObjectId) else NO_ID


def due_of(document: Document) -> int:
    """When a job is due: nextRunAt, or a field of ours, unless another program has changed nextRunAt since."""
    ours, next_ms = ours_of(document), _ms(document.get("nextRunAt"))
    due_ms = ms_of(ours.get("due"))
    is_valid = is_held(document) or ms_of(ours.get("dueOf")) == next_ms
    return due_ms if due_ms is not None and is_valid else next_ms


def is_held(document: Document) -> bool:
    """Whether no worker may claim a waiting job."""
    return document.get("status") == "pending" and "held" in ours_of(document)


def is_known(document: Document) -> bool:
    """Whether a document is a job in one of the known states, and the call that enqueues it has ended."""
    return document.get("status") in STATUS.values() and "staged" not in ours_of(document)


def job_of(document: Document, url: MongoUrl, *, strict: bool = False) -> Job:
    """A document as a job. `strict`: UnreadableJob where payload or options are garbage; otherwise the job shows it."""
    ours = ours_of(document)
    due_ms = due_of(document) if "due" in ours else _ms(document.get("nextRunAt"))
    updated_ms = _ms(document.get("updatedAt"))
    is_foreign_claim = document["status"] == "processing" and not str(document.get("claimedBy", "")).startswith(OURS)
    run, finished = ({}, document.get("updatedAt")) if ran_there(document) else (ours, ours.get("lastFinishedAt"))
    key = _text(ours.get("key", document.get("uniqueKey")))
    default = NO_OPTIONS if is_ours(document) else url.foreign_options
    rule = _rule(document, ours, key) if "rule" in ours or document.get("repeatInterval") else None
    return Job(
        id=id_of(document),
        name=str(document.get("name", "")),
        queue=str(ours.get("queue", url.queue)),
        payload_json=_payload(document.get("data"), strict),
        state=STATE[document["status"]],
        priority=-int_of(document.get("priority")),
        due_ms=due_ms,
        created_ms=_ms(document.get("createdAt")),
        updated_ms=updated_ms,
        started_ms=ms_of(document.get("lockedAt") if is_foreign_claim else run.get("startedAt")),
        finished_ms=updated_ms if document["status"] in FINAL else None,
        errors=max(0, int_of(document.get("failCount"))),
        crashes=int_of(ours.get("crashes")),
        claims=int_of(ours.get("claims")),
        unstarted=int_of(ours.get("unstarted")),
        worker=_text(document.get("claimedBy") if is_foreign_claim else run.get("worker")),
        progress=_progress(run["progress"]) if "progress" in run else None,
        result_json=Raw(run["result"].encode()) if isinstance(run.get("result"), str) else NULL,
        error=_error(document.get("failReason"), ours.get("error")),
        attempts=_attempts(ours) if "attempts" in ours or "tracebacks" in ours else (),
        unique_key=key,
        tenant=_text(ours.get("tenant")),
        options=default if (given := ours.get("options")) is None else _options(given, strict),
        recurrence=rule,
        occurrence_ms=None if rule is None else _slot(ours, due_ms),
        runs=int_of(ours.get("runs")),
        failed_runs=int_of(ours.get("failedRuns")),
        last_error=_text(ours.get("lastError")),
        last_finished_ms=None if rule is None or is_foreign_claim else ms_of(finished),
        held=_held(ours["held"]) if "held" in ours and is_held(document) else None,
        flow=ours.get("flow"),
        dependencies=ours.get("dependencies", 0),
        waits_for=ours.get("waitsFor"),
        deferred_error=ours.get("deferredError"),
        lane=_text(ours.get("lane")),
    )


def ran_there(document: Document) -> bool:
    """Whether Monque had the last run of a job, so that what Jobmill wrote about a run is about an earlier one."""
    claims = ours_of(document).get("claims")
    if isinstance(claims, int) and not isinstance(claims, Int64):
        return False  # claimed by a development version before 0.1, which did not tell the two apart
    has_run = claims is not None or "heartbeatInterval" in document
    return has_run and not isinstance(document.get("heartbeatInterval"), Int64)


def left_to_monque(document: Document) -> str:
    """Why Monque alone can run a recurring job of its own; empty where Jobmill can re-arm it too."""
    ours = ours_of(document)
    rule = None if is_ours(document) else _rule(document, ours, None)
    if rule is None:
        return ""
    occurrence_ms = _slot(ours, due_of(document))
    try:
        if is_occurrence(rule, occurrence_ms) or document.get("timezone"):
            return ""
        # A due time that fits nowhere is no occurrence: somebody has rescheduled or retried the job.
        is_elsewhere = any(is_occurrence(rule, occurrence_ms + offset_ms) for offset_ms in _OFFSETS_MS)
    except InvalidValue as error:
        return f"its repeatInterval cannot be read here: {error}"
    return "its nextRunAt fits its repeatInterval in another timezone than UTC" if is_elsewhere else ""


def _payload(data: Any, strict: bool) -> Raw:
    try:
        return Raw(payload_of(data))
    except (TypeError, ValueError, RecursionError) as error:
        if strict:
            raise UnreadableJob(f"payload: {error}") from error
        return Raw(f"<{error}>".encode())


def _options(given: Any, strict: bool) -> JobOptions:
    try:
        return msgspec.convert(given, JobOptions)
    except msgspec.ValidationError as error:
        if strict:
            raise UnreadableJob(f"options: {error}") from error
        return NO_OPTIONS


def _attempts(ours: Document) -> tuple[Attempt, ...]:
    try:
        attempts = msgspec.convert(ours.get("attempts", ()), tuple[Attempt, ...])
    except msgspec.ValidationError:
        attempts = ()
    texts = ours.get("tracebacks")
    return (*attempts, *attempts_from_tracebacks(map(str, texts if isinstance(texts, list) else ())))


def _held(given: Any) -> Held:
    try:
        return msgspec.convert(given, Held)
    except msgspec.ValidationError:
        return Held(by=("person",))


def _rule(document: Document, ours: Document, unique_key: str | None) -> Recurrence | None:
    rule, cron = ours.get("rule"), document.get("repeatInterval")
    marks: dict[str, Any] = {"key": unique_key or id_of(document), "revision": int_of(ours.get("revision"))}
    marks["declared"] = ours.get("declared") is True
    if ours.get("pinned") is True:
        marks |= {"pinned": True, "stated": msgspec.convert(ours.get("stated"), Recurrence | None)}
    if isinstance(rule, dict):
        return Recurrence(
            cron=_text(rule.get("cron")),
            every_ms=int_of(rule["everyMs"]) if "everyMs" in rule else None,
            timezone=str(rule.get("zone", "UTC")),
            until_ms=ms_of(rule.get("until")),
            **marks,
        )
    if not isinstance(cron, str) or not cron:
        return None
    return Recurrence(cron=cron, timezone=_text(document.get("timezone")) or "UTC", **marks)


def _slot(ours: Document, due_ms: int) -> int:
    """The slot of a run; the due time itself where another program has changed it since."""
    occurrence_ms = ms_of(ours.get("slot"))
    return due_ms if occurrence_ms is None or ms_of(ours.get("slotDue")) != due_ms else occurrence_ms


def _error(reason: Any, error: Any) -> str | None:
    """The error with its type, if Jobmill wrote the reason."""
    return error if isinstance(error, str) and error.endswith(f": {reason}") else _text(reason)


def _progress(given: Any) -> Progress | None:
    return Progress(given["value"], given.get("message")) if isinstance(given, dict) and "value" in given else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def int_of(value: Any) -> int:
    """A number of any BSON type; 0 for what is not a finite number."""
    return int(value) if isinstance(value, int | float) and isfinite(value) else 0


def _ms(value: Any) -> int:
    return ms_of(value) or 0
