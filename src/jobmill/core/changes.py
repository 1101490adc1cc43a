"""Changes without a lease: which there are, and what each does to a job.

`decide` takes a job and a change and answers with a patch or a refusal. A store writes the patch under a guard on the
states that the change is possible from; it decides nothing.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct, structs

from jobmill.core.due import NEVER_MS, NOW, Due, Held, at
from jobmill.core.events import Event, EventType, bare_job, job_event
from jobmill.core.job import KEEP_FAILED, NULL, Job, Keep, State
from jobmill.core.recurrence import Recurrence, first_occurrence
from jobmill.core.values import Filter
from jobmill.errors import InvalidValue


class Cancel(Struct, frozen=True, tag=True):
    """waiting or running > cancelled. A running job loses its token, so that its worker stops it."""


class Requeue(Struct, frozen=True, tag=True):
    """failed, succeeded or cancelled > waiting, with fresh budgets; job i of a batch is due `i * step_ms` later."""

    due: Due = NOW
    step_ms: float = 0


class Reschedule(Struct, frozen=True, tag=True):
    """A waiting job gets another due time."""

    due: Due


class Reprioritize(Struct, frozen=True, tag=True):
    """A waiting job gets another priority."""

    priority: int


class Remove(Struct, frozen=True, tag=True):
    """A job that is not running leaves the store."""


class Seize(Struct, frozen=True, tag=True, kw_only=True):
    """waiting or running > running under this lease. The former owner has lost its lease.

    It is for a process that settles a job which it did not claim: seize, decide, exchange. It counts as a claim and not
    as a crash. Due time, pause and limits do not prevent it, and no rate limit counts it. The job may be settled with
    `Lease(id, token, queue, name, until_ms)`.
    """

    #: Fresh for this call, as that of a Claim.
    token: str
    worker: str
    lease_ms: int

    def __repr__(self) -> str:
        """The change without its token, which must not be in a log."""
        return f"Seize(worker={self.worker!r}, lease_ms={self.lease_ms})"


class Hold(Struct, frozen=True, tag=True, kw_only=True):
    """Add a holder to a waiting job, if the job does not have it already. No worker claims a job that has holders."""

    by: str = "person"
    who: str | None = None
    note: str | None = None


class Release(Struct, frozen=True, tag=True):
    """Remove a holder from a held job. When the job has no holder left, `Held.due` is its due time."""

    by: str = "person"


class Pin(Struct, frozen=True, tag=True):
    """Give a recurring job the rule of a person. Rules that code states do not replace it."""

    rule: Recurrence


class ReleasePin(Struct, frozen=True, tag=True):
    """A pinned job gets the rule that code stated last."""


Change: TypeAlias = Cancel | Requeue | Reschedule | Reprioritize | Remove | Seize | Hold | Release | Pin | ReleasePin

#: The states from which each change is possible. A job in another state is refused; other jobs are not affected.
CHANGES_FROM: dict[type[Change], tuple[State, ...]] = {
    Cancel: ("waiting", "running"),
    Requeue: ("succeeded", "failed", "cancelled"),
    Reschedule: ("waiting",),
    Reprioritize: ("waiting",),
    Remove: ("waiting", "succeeded", "failed", "cancelled"),
    Seize: ("waiting", "running"),
    Hold: ("waiting",),
    Release: ("waiting",),
    Pin: ("waiting", "running"),
    ReleasePin: ("waiting", "running"),
}


def act_name(change: Change) -> str:
    """The name of a change in the audit log: "cancel", "release_pin"."""
    return "release_pin" if isinstance(change, ReleasePin) else type(change).__name__.lower()


class Changed(Struct, frozen=True, kw_only=True):
    """The result of a change: ids changed, ids refused with the reason, and whether more match than `limit` allowed."""

    ids: list[str]
    refused: dict[str, str]
    more: bool = False


# ---------------------------------------------------------------------------------------------------- decisions

NO_SUCH_JOB = "there is no such job"


def key_taken(owner: str) -> str:
    """Why a requeue is refused: another live job has the unique key."""
    return f"the live job {owner} has its unique key"


def not_from(state: State) -> str:
    """Why a change is refused: the job is in a state that does not allow it."""
    return f"the job is {state}"


def states_for(change: Change, wanted: Filter) -> tuple[State, ...]:
    """The states in which jobs that match a filter may be changed."""
    allowed = CHANGES_FROM[type(change)]
    return allowed if wanted.states is None else tuple(state for state in wanted.states if state in allowed)


class Subject(Struct, frozen=True, kw_only=True):
    """What a decision about a change needs to know of a job."""

    id: str
    name: str
    queue: str
    state: State
    due_ms: int
    errors: int = 0
    held: Held | None = None
    recurrence: Recurrence | None = None
    keep_failed: Keep | None = None
    #: False for a job of another system, whose own retention applies when it is cancelled.
    has_our_retention: bool = True

    @staticmethod
    def of(job: Job) -> Subject:
        """A job as the subject of a change."""
        return Subject(
            id=job.id,
            name=job.name,
            queue=job.queue,
            state=job.state,
            due_ms=job.due_ms,
            errors=job.errors,
            held=job.held,
            recurrence=job.recurrence,
            keep_failed=job.options.keep_failed,
        )


class Patch(Struct, frozen=True, kw_only=True):
    """What a change writes to one job: fields of the Job, and what a Job does not show."""

    #: New values by the name of the Job's field; the other fields keep theirs.
    fields: dict[str, Any]
    #: Whether the lease of the job ends; `seize` replaces it by another lease. Without both, the lease stays.
    ends_lease: bool = False
    seize: Seize | None = None
    #: The retention of a job that becomes final. None if it does not become final, or if another system decides this.
    keep: Keep | None = None
    #: The job becomes live again. The store refuses this if another live job has the unique key of the job.
    becomes_live: bool = False
    #: The store removes the job, after it has published the events.
    removes: bool = False
    events: tuple[Event, ...] = ()


def decide(change: Change, subject: Subject, now_ms: int, index: int = 0) -> Patch | str:
    """What a change does to a job, or why it is refused. `index` is the number of jobs that the call changed before."""
    if subject.state not in CHANGES_FROM[type(change)]:
        return not_from(subject.state)
    match change:
        case Cancel():
            return _cancel(subject, now_ms)
        case Requeue():
            return _requeue(change, subject, now_ms, index)
        case Reschedule():
            return Patch(fields={**_due_fields(subject, change.due, now_ms), "updated_ms": now_ms})
        case Reprioritize():
            return Patch(fields={"priority": change.priority, "updated_ms": now_ms})
        case Remove():
            return Patch(fields={}, removes=True, events=(removed_event(subject, now_ms),))
        case Seize():
            return _seize(change, subject, now_ms)
        case Hold() | Release():
            return _hold(change, subject, now_ms) if isinstance(change, Hold) else _release(change, subject, now_ms)
        case Pin() | ReleasePin():
            return _pin(change, subject, now_ms) if isinstance(change, Pin) else _release_pin(subject, now_ms)


def removed_event(subject: Subject, now_ms: int) -> Event:
    """The event that a job has left the store."""
    return _event(subject, "removed", subject.state, now_ms)


def _cancel(subject: Subject, now_ms: int) -> Patch:
    keep = (subject.keep_failed or KEEP_FAILED) if subject.has_our_retention else None
    removes = keep is not None and keep.at_once
    events = [_event(subject, "cancelled", "cancelled", now_ms)]
    if removes:
        events.append(_event(subject, "removed", "cancelled", now_ms))
    return Patch(
        fields={
            "state": "cancelled",
            "finished_ms": now_ms,
            "updated_ms": now_ms,
            **_no_longer_held(subject, now_ms),
        },
        ends_lease=True,
        keep=keep,
        removes=removes,
        events=tuple(events),
    )


def _requeue(change: Requeue, subject: Subject, now_ms: int, index: int) -> Patch:
    return Patch(
        fields={
            "state": "waiting",
            "due_ms": change.due.resolve(now_ms) + round(index * change.step_ms),
            "updated_ms": now_ms,
            "finished_ms": None,
            "errors": 0,
            "crashes": 0,
            "error": None,
            "result_json": NULL,
            "progress": None,
            "deferred_error": None,
        },
        becomes_live=True,
        events=(_event(structs.replace(subject, errors=0), "enqueued", "waiting", now_ms),),
    )


def _seize(change: Seize, subject: Subject, now_ms: int) -> Patch:
    return Patch(
        fields={
            "state": "running",
            "worker": change.worker,
            "started_ms": now_ms,
            "updated_ms": now_ms,
            **_no_longer_held(subject, now_ms),
        },
        seize=change,
        events=(_event(subject, "claimed", "running", now_ms, worker=change.worker),),
    )


def _due_fields(subject: Subject, due: Due, now_ms: int) -> dict[str, Any]:
    """A new due time; a held job gets it when it is released."""
    if subject.held is None:
        return {"due_ms": due.resolve(now_ms)}
    return {"held": structs.replace(subject.held, due=due)}


def _no_longer_held(subject: Subject, now_ms: int) -> dict[str, Any]:
    """The fields of a job that nothing holds any more."""
    return {} if subject.held is None else {"held": None, "due_ms": subject.held.due.resolve(now_ms)}


def _hold(change: Hold, subject: Subject, now_ms: int) -> Patch:
    held = subject.held or Held(by=(), due=at(subject.due_ms))
    by = tuple(sorted({*held.by, change.by}))
    if change.by == "person":
        held = structs.replace(held, who=change.who, note=change.note)
    return Patch(fields={"held": structs.replace(held, by=by), "due_ms": NEVER_MS, "updated_ms": now_ms})


def _release(change: Release, subject: Subject, now_ms: int) -> Patch | str:
    held = subject.held
    if held is None:
        return "the job is not held"
    if change.by not in held.by:
        return f"the job is held by {' and '.join(held.by)}, not by {change.by}"
    rest = tuple(one for one in held.by if one != change.by)
    if not rest:
        return Patch(fields={**_no_longer_held(subject, now_ms), "updated_ms": now_ms})
    if change.by == "person":
        held = structs.replace(held, who=None, note=None)
    return Patch(fields={"held": structs.replace(held, by=rest), "updated_ms": now_ms})


def _pin(change: Pin, subject: Subject, now_ms: int) -> Patch | str:
    rule = subject.recurrence
    return "the job is not recurring" if rule is None else _new_rule(rule.edited(change.rule), subject, now_ms)


def _release_pin(subject: Subject, now_ms: int) -> Patch | str:
    rule = subject.recurrence
    if rule is None or not rule.pinned:
        return "the recurrence of the job is not pinned"
    return _new_rule(rule.unpinned(), subject, now_ms)


def _new_rule(rule: Recurrence, subject: Subject, now_ms: int) -> Patch | str:
    try:
        first_ms = first_occurrence(rule, now_ms)
    except InvalidValue as error:
        return f"the rule cannot be read: {error}"
    if first_ms is None:
        return "the rule has no occurrence any more"
    due = _due_fields(subject, at(first_ms), now_ms)
    return Patch(fields={"recurrence": rule, **due, "occurrence_ms": first_ms, "updated_ms": now_ms})


def _event(subject: Subject, type: EventType, state: State, now_ms: int, **data: Any) -> Event:
    job = bare_job(subject.id, subject.name, subject.queue, state, subject.errors)
    return job_event(job, type, now_ms, **data)
