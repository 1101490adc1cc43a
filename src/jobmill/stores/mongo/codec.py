"""Jobs as documents: Monque's fields as Monque has them, and all that it does not know in one sub-document, `jobmill`.

    _id, name, data, status, nextRunAt, failCount, priority, createdAt, updatedAt       always
    uniqueKey, repeatInterval, timezone                                                where given
    failReason                                                                         after an error
    lockedAt, claimedBy, claimId, lastHeartbeat                                        while processing
    heartbeatInterval                                                                  from the first claim on

    jobmill.v            1: the job is one of ours, kept and removed by our rules
           .id           the caller's own id, where the job has one; other jobs are known by their _id
           .queue        absent in the queue that Monque's documents are in (the option `queue`)
           .key          the unique key, where uniqueKey says the queue as well
           .tenant .options .progress .result (JSON) .tracebacks
           .claims .crashes .worker .startedAt .leaseUntil
           .rule         what Monque's repeatInterval cannot say: an interval, six fields, an end; .revision .armed
           .slot         of a run that is not at its slot, and .slotDue, the nextRunAt that this was said with
           .runs .failedRuns .lastError .lastFinishedAt
           .purgeAt .keepLast   of a final job
           .mark         of the last call that changed the job, by which that call knows what it did

Priorities run the other way: our 0, 1, 2 are Monque's 0, -1, -2.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

import msgspec
from bson import ObjectId
from msgspec import Raw

from jobmill.core.job import NO_OPTIONS, NULL, Job, JobOptions, Keep, Progress, State
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import NewJob
from jobmill.stores.mongo.values import data_of, date, ms_of, payload_of

STATUS: dict[State, str] = {
    "waiting": "pending",
    "running": "processing",
    "succeeded": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
}
STATE: dict[str, State] = {status: state for state, status in STATUS.items()}
LIVE = ("pending", "processing")
FINAL = ("completed", "failed", "cancelled")

#: Who claims for us, by the beginning of claimedBy.
OURS = "jobmill:"

#: What must not stay on a job that is not processing.
CLEAN = {
    "lockedAt": "",
    "claimedBy": "",
    "claimId": "",
    "leaseExpiresAt": "",
    "lastHeartbeat": "",
    "jobmill.leaseUntil": "",
}

# A unique key counts within its queue, of which Monque's index knows nothing. No key has a control character in it.
_BETWEEN = "\x1f"

_NAMES = {
    *("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
    *("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
}
_NICKNAMES = ("@hourly", "@daily", "@weekly", "@monthly", "@yearly")
_FIELDS = re.compile(r"[0-9a-z*,/-]+(?: [0-9a-z*,/-]+){4}", re.IGNORECASE)
_WORDS = re.compile(r"[a-z]+", re.IGNORECASE)
# From a number on in steps: not every cron means the same by it.
_OPEN_STEP = re.compile(r"(?:^|[ ,])[0-9]+/")


# ---------------------------------------------------------------------------------------------------- writing


def new_document(new: NewJob, id: ObjectId, own_id: str | None, now_ms: int, home: str) -> dict[str, Any]:
    """A job that waits. `home` is the queue that goes without saying."""
    ours: dict[str, Any] = {"v": 1}
    if own_id is not None:
        ours["id"] = own_id
    if new.queue != home:
        ours["queue"] = new.queue
    if new.tenant is not None:
        ours["tenant"] = new.tenant
    if new.options != NO_OPTIONS:
        ours["options"] = msgspec.to_builtins(new.options)
    document: dict[str, Any] = {
        "_id": id,
        "name": new.name,
        "data": data_of(new.payload_json),
        "status": "pending",
        "nextRunAt": date(new.due.resolve(now_ms)),
        "failCount": 0,
        "priority": -new.priority,
        "createdAt": date(now_ms),
        "updatedAt": date(now_ms),
    }
    if new.unique_key is not None:
        document["uniqueKey"] = stored_key(new.queue, new.unique_key, home)
        if new.queue != home:
            ours["key"] = new.unique_key
    if new.recurrence is not None:
        theirs, rule = rule_fields(new.recurrence)
        document |= theirs
        ours |= {"armed": True}
        if rule:
            ours["rule"] = rule
        if new.recurrence.revision:
            ours["revision"] = new.recurrence.revision
    document["jobmill"] = ours
    return document


def stored_key(queue: str, key: str, home: str) -> str:
    """A unique key as Monque's index has it."""
    return key if queue == home else f"{queue}{_BETWEEN}{key}"


def rule_fields(rule: Recurrence) -> tuple[dict[str, Any], dict[str, Any]]:
    """When a job comes again: Monque's fields, or, where it has none for that, ours."""
    if rule.cron is not None and rule.until_ms is None and _is_plain(rule.cron):
        return {"repeatInterval": rule.cron, "timezone": rule.zone}, {}
    ours: dict[str, Any] = {"zone": rule.zone}
    if rule.cron is not None:
        ours["cron"] = rule.cron
    if rule.every_ms is not None:
        ours["everyMs"] = rule.every_ms
    if rule.until_ms is not None:
        ours["until"] = date(rule.until_ms)
    return {}, ours


def _is_plain(cron: str) -> bool:
    """Whether cron-parser, which Monque uses, means the same by it."""
    if cron in _NICKNAMES:
        return True
    if not _FIELDS.fullmatch(cron) or _OPEN_STEP.search(cron):
        return False
    return all(word.lower() in _NAMES for word in _WORDS.findall(cron))


def keep_fields(keep: Keep, now_ms: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """How long a final job stays: what to set, and what to unset."""
    told: dict[str, Any] = {}
    not_told: dict[str, Any] = {}
    age_ms = 0 if keep.at_once else keep.age_ms
    (not_told if age_ms is None else told)["jobmill.purgeAt"] = "" if age_ms is None else date(now_ms + age_ms)
    (not_told if keep.last is None else told)["jobmill.keepLast"] = "" if keep.last is None else keep.last
    return told, not_told


def slot_fields(slot_ms: int, due_ms: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The slot of a recurring job: what to set, and what to unset."""
    if slot_ms == due_ms:
        return {}, {"jobmill.slot": "", "jobmill.slotDue": ""}
    return {"jobmill.slot": date(slot_ms), "jobmill.slotDue": date(due_ms)}, {}


# ---------------------------------------------------------------------------------------------------- reading


class Unreadable(Exception):
    """A document that is no job of ours to run, with the reason."""


def ours_of(document: dict[str, Any]) -> dict[str, Any]:
    """The sub-document, empty where there is none."""
    ours = document.get("jobmill")
    return ours if isinstance(ours, dict) else {}


def is_ours(document: dict[str, Any]) -> bool:
    """Whether a job was enqueued by Jobmill, and is kept and removed by its rules."""
    return ours_of(document).get("v") == 1


def id_of(document: dict[str, Any]) -> str:
    """What a job is called: by its caller, else by its _id."""
    return str(ours_of(document).get("id", document["_id"]))


def queue_of(document: dict[str, Any], home: str) -> str:
    """The queue that a job is in."""
    return str(ours_of(document).get("queue", home))


def is_known(document: dict[str, Any]) -> bool:
    """Whether a document is a job in a state that there is."""
    status = document.get("status")
    return isinstance(status, str) and status in STATE


def job_of(document: dict[str, Any], home: str, *, strict: bool = False) -> Job:
    """A document as a job. Strictly: Unreadable when its payload or its options are garbage; else it shows them."""
    ours = ours_of(document)
    state = STATE[document["status"]]
    due_ms = _ms(document.get("nextRunAt"))
    updated_ms = _ms(document.get("updatedAt"))
    rule = _rule(document, ours)
    return Job(
        id=id_of(document),
        name=str(document.get("name", "")),
        queue=queue_of(document, home),
        payload_json=_payload(document.get("data"), strict),
        state=state,
        priority=-_int(document.get("priority")),
        due_ms=due_ms,
        created_ms=_ms(document.get("createdAt")),
        updated_ms=updated_ms,
        started_ms=_started(document, ours),
        finished_ms=updated_ms if document["status"] in FINAL else None,
        errors=max(0, _int(document.get("failCount"))),
        crashes=_int(ours.get("crashes")),
        claims=_int(ours.get("claims")),
        worker=_worker(document, ours),
        progress=_progress(ours.get("progress")),
        result_json=Raw(ours["result"].encode()) if isinstance(ours.get("result"), str) else NULL,
        error=_text(document.get("failReason")),
        tracebacks=tuple(map(str, told)) if isinstance(told := ours.get("tracebacks"), list) else (),
        unique_key=_text(ours.get("key", document.get("uniqueKey"))),
        tenant=_text(ours.get("tenant")),
        options=_options(ours.get("options"), strict),
        recurrence=rule,
        slot_ms=None if rule is None else _slot(ours, due_ms),
        runs=_int(ours.get("runs")),
        failed_runs=_int(ours.get("failedRuns")),
        last_error=_text(ours.get("lastError")),
        last_finished_ms=ms_of(ours.get("lastFinishedAt")),
    )


def _payload(data: Any, strict: bool) -> Raw:
    try:
        return Raw(payload_of(data))
    except (TypeError, ValueError, RecursionError) as error:
        if strict:
            raise Unreadable(f"payload: {error}") from error
        return Raw(f"<{error}>".encode())


def _options(given: Any, strict: bool) -> JobOptions:
    if given is None:
        return NO_OPTIONS
    try:
        return msgspec.convert(given, JobOptions)
    except msgspec.ValidationError as error:
        if strict:
            raise Unreadable(f"options: {error}") from error
        return NO_OPTIONS


def _rule(document: dict[str, Any], ours: dict[str, Any]) -> Recurrence | None:
    said = ours.get("rule")
    cron = document.get("repeatInterval")
    if said is None and not cron:
        return None
    key = _text(ours.get("key", document.get("uniqueKey"))) or id_of(document)
    revision = _int(ours.get("revision"))
    if isinstance(said, dict):
        return Recurrence(
            key=key,
            cron=_text(said.get("cron")),
            every_ms=_int(said["everyMs"]) if "everyMs" in said else None,
            zone=str(said.get("zone", "UTC")),
            until_ms=ms_of(said.get("until")),
            revision=revision,
        )
    if not isinstance(cron, str):
        return None
    return Recurrence(key=key, cron=cron, zone=_text(document.get("timezone")) or "UTC", revision=revision)


def _slot(ours: dict[str, Any], due_ms: int) -> int:
    """Where another process has moved nextRunAt, that is the slot."""
    slot_ms = ms_of(ours.get("slot"))
    return due_ms if slot_ms is None or ms_of(ours.get("slotDue")) != due_ms else slot_ms


def _started(document: dict[str, Any], ours: dict[str, Any]) -> int | None:
    if document["status"] == "processing" and not _is_held_by_us(document):
        return ms_of(document.get("lockedAt"))
    return ms_of(ours.get("startedAt"))


def _worker(document: dict[str, Any], ours: dict[str, Any]) -> str | None:
    if document["status"] == "processing" and not _is_held_by_us(document):
        return _text(document.get("claimedBy"))
    return _text(ours.get("worker"))


def _is_held_by_us(document: dict[str, Any]) -> bool:
    return str(document.get("claimedBy", "")).startswith(OURS)


def _progress(given: Any) -> Progress | None:
    return Progress(given["value"], given.get("message")) if isinstance(given, dict) and "value" in given else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _int(value: Any) -> int:
    """A number as others write it, who have only one kind; what is none counts as 0."""
    return int(value) if isinstance(value, int | float) and isfinite(value) else 0


def _ms(value: Any) -> int:
    return ms_of(value) or 0
