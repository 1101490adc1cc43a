"""Changes without a lease: which there are, and what each does to a job.

`decide` takes a job and a change and answers with a patch or a refusal. A store writes the patch under a guard on the
states that the change is possible from; it decides nothing.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct, structs

from jobmill.core.due import BY_LANE, NEVER_MS, NOW, Due, Held, at, due_fields, lane_fields
from jobmill.core.events import Event, EventType, bare_job, job_event
from jobmill.core.flows import BY_JOBS, Dependency, FailLater, Verdict, is_bad, refused_requeue, verdict
from jobmill.core.job import KEEP_FAILED, NULL, Job, Keep, State
from jobmill.core.recurrence import Recurrence, first_occurrence
from jobmill.core.values import Filter
from jobmill.errors import InvalidValue


class Cancel(Struct, frozen=True, tag=True):
    """waiting or running > cancelled. A running job loses its token, so that its worker stops it."""


class Requeue(Struct, frozen=True, tag=True):
    """failed, succeeded or cancelled > waiting, with fresh budgets; job i of a batch is due `i * step_ms` later.

    A job that waited for others looks at them again: it is held while one of them has not ended, and refused if one has
    failed without which it cannot run. Jobs that still wait for this job wait for its new end.
    """

    due: Due = NOW
    step_ms: float = 0
    #: Whether the steps that the job has recorded stay, and the signals that it has got.
    keep_steps: bool = False


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
    `Lease(id, token, queue, name, until_ms, lane=lane)`.
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

    @property
    def missing(self) -> list[str]:
        """The ids that were refused because the store has no such job."""
        return [id for id, why in self.refused.items() if why == NO_SUCH_JOB]


# ---------------------------------------------------------------------------------------------------- decisions

NO_SUCH_JOB = "there is no such job"
ONLY_LANES = "only a lane holds and releases its jobs: change the limits of the lane"


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
    deferred_error: str | None = None
    #: For a requeue: the edges of the job, each in the present state of its dependency.
    edges: tuple[Dependency, ...] = ()
    lane: str | None = None
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
            deferred_error=job.deferred_error,
            lane=job.lane,
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
    #: The job becomes live again. The store refuses this if another live job has the unique key of the job. Jobs that
    #: still wait for it wait for its new end: see `held_again`.
    becomes_live: bool = False
    #: The job loses the steps that it has recorded and the signals that it has got.
    clears_steps: bool = False
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


def kept(patch: Patch) -> Patch:
    """A patch for a job that other jobs wait for: it stays, even if its retention would remove it at once."""
    if not patch.removes:
        return patch
    return structs.replace(patch, removes=False, events=tuple(one for one in patch.events if one.type != "removed"))


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


def _requeue(change: Requeue, subject: Subject, now_ms: int, index: int) -> Patch | str:
    due = at(change.due.resolve(now_ms) + round(index * change.step_ms))
    looked = verdict(subject.edges)
    if isinstance(looked, FailLater):
        return next(refused_requeue(edge) for edge in subject.edges if is_bad(edge.state) and edge.if_failed == "fail")
    held = Held(by=(BY_JOBS,), due=due) if looked == "hold" else None
    waits = {"due_ms": due.at_ms} if held is None else {"held": held, "due_ms": NEVER_MS}
    if subject.lane is not None:
        waits = lane_fields(held, due, now_ms)
    return Patch(
        fields={
            "state": "waiting",
            **waits,
            "updated_ms": now_ms,
            "finished_ms": None,
            "errors": 0,
            "crashes": 0,
            "error": None,
            "result_json": NULL,
            "progress": None,
            "deferred_error": None,
            "waits_for": None,
        },
        becomes_live=True,
        clears_steps=not change.keep_steps,
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


def _no_longer_held(subject: Subject, now_ms: int) -> dict[str, Any]:
    """The fields of a job that nothing holds any more."""
    return {} if subject.held is None else {"held": None, "due_ms": subject.held.due.resolve(now_ms)}


def _due_fields(subject: Subject, due: Due, now_ms: int) -> dict[str, Any]:
    """The fields of a job that gets a due time. A running job has its slot until its run ends."""
    return due_fields(subject.held, due, now_ms, subject.lane if subject.state == "waiting" else None)


def _hold(change: Hold, subject: Subject, now_ms: int) -> Patch | str:
    if change.by == BY_LANE:
        return ONLY_LANES
    held = subject.held or Held(by=(), due=at(subject.due_ms))
    # A job with a lane gives up its slot.
    by = tuple(sorted({*held.by, change.by} if subject.lane is None else {*held.by, change.by, BY_LANE}))
    if change.by == "person":
        held = structs.replace(held, who=change.who, note=change.note)
    return Patch(fields={"held": structs.replace(held, by=by), "due_ms": NEVER_MS, "updated_ms": now_ms})


def _release(change: Release, subject: Subject, now_ms: int) -> Patch | str:
    held = subject.held
    if held is None:
        return "the job is not held"
    if change.by not in held.by:
        return f"the job is held by {' and '.join(held.by)}, not by {change.by}"
    if change.by == BY_LANE:
        return ONLY_LANES
    rest = tuple(one for one in held.by if one != change.by)
    if not rest:
        return Patch(fields={**_no_longer_held(subject, now_ms), "updated_ms": now_ms})
    if change.by == "person":
        held = structs.replace(held, who=None, note=None)
    held = structs.replace(held, by=rest)
    fields = lane_fields(held, held.due, now_ms) if rest == (BY_LANE,) else {"held": held}
    return Patch(fields={**fields, "updated_ms": now_ms})


# ---------------------------------------------------------------------------------------------------- dependents


def resolved(dependent: Subject, looked: Verdict, now_ms: int) -> Patch | None:
    """What becomes of a job after one of its edges was set; None if it still waits, or does not wait for jobs."""
    if looked == "hold" or not waits_for_jobs(dependent):
        return None
    patch = _release(Release(BY_JOBS), dependent, now_ms)
    if not isinstance(patch, Patch):
        return None
    fails = {"deferred_error": looked.error} if isinstance(looked, FailLater) else {}
    is_free = patch.fields.get("held", True) is None
    events = (_event(dependent, "released", "waiting", now_ms),) if is_free else ()
    return structs.replace(patch, fields=patch.fields | fails, events=events)


def released_alike(held: Held | None, now_ms: int) -> Patch | None:
    """What becomes of every job with this hold that waits for no other job any more: `resolved`, once for all of them.

    Without the event, which differs from job to job: where a feed is on, a store asks for each job.
    """
    alike = Subject(id="", name="", queue="", state="waiting", due_ms=NEVER_MS, held=held)
    patch = resolved(alike, "run", now_ms)
    return None if patch is None else structs.replace(patch, events=())


def waits_for_jobs(dependent: Subject) -> bool:
    """Whether a job is held because jobs that it waits for have not ended."""
    return dependent.state == "waiting" and dependent.held is not None and BY_JOBS in dependent.held.by


def reopens(dependent: Subject, edge: Dependency) -> bool:
    """Whether an edge is pending again when its dependency is requeued.

    It is, if the dependent still waits for jobs, or would fail because of this dependency and was not claimed so far.
    """
    fails = dependent.state == "waiting" and dependent.deferred_error is not None
    return waits_for_jobs(dependent) or (fails and is_bad(edge.state) and edge.if_failed == "fail")


def held_again(dependent: Subject, looked: Verdict, now_ms: int) -> Patch | None:
    """What becomes of a job after one of its edges is pending again; None if nothing changes for it."""
    if looked != "hold" or waits_for_jobs(dependent):
        return None
    patch = _hold(Hold(by=BY_JOBS), dependent, now_ms)
    assert isinstance(patch, Patch), patch
    return structs.replace(patch, fields=patch.fields | {"deferred_error": None})


def new_hold(due: Due, now_ms: int, lane: str | None = None) -> Held:
    """The hold of a new job that waits for others. A delay counts from its release, otherwise it keeps its position."""
    by = (BY_JOBS,) if lane is None else (BY_JOBS, BY_LANE)
    return Held(by=by, due=due if due.after_ms else at(due.resolve(now_ms)))


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
