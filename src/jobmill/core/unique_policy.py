"""What an enqueue does when its unique key is taken: policies, and the decision about one new job."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import Struct

from jobmill.core.due import NOW, Due, Held, due_fields
from jobmill.core.flows import BY_JOBS
from jobmill.core.job import Job, State

WhenLive: TypeAlias = Literal["skip", "replace", "cancel"]


class UniquePolicy(Struct, frozen=True, kw_only=True, gc=False):
    """What happens to a new job whose unique key is taken. At most one of the fields differs from its default."""

    #: The key stays taken until this time after the enqueue, even if the job is final by then.
    for_ms: int | None = None
    #: The job is due after this time. Every further enqueue replaces its payload, and the time begins again.
    debounce_ms: int | None = None
    #: A live job has the key. skip: the new job is a duplicate. replace: a job that waits takes over the payload.
    #: cancel: the live job is cancelled, and the new job takes its place.
    when_live: WhenLive = "skip"


class Owner(Struct, frozen=True, kw_only=True, gc=False):
    """The live job that has a unique key: what the decision needs to know of it."""

    id: str
    state: State
    held: Held | None = None
    lane: str | None = None
    is_recurring: bool = False
    #: Its run is suspended: what it has done so far belongs to its payload.
    is_suspended: bool = False

    @staticmethod
    def of(job: Job) -> Owner:
        """A job as the owner of its key."""
        return Owner(
            id=job.id,
            state=job.state,
            held=job.held,
            lane=job.lane,
            is_recurring=job.recurrence is not None,
            is_suspended=is_suspended(job.held, job.started_ms, job.waits_for),
        )


class Replace(Struct, frozen=True, kw_only=True):
    """The owner takes over the payload of the new job, and these fields. The receipt is "updated"."""

    fields: dict[str, Any]


#: duplicate: nothing is written. cancel: the owner is cancelled, then the new job is inserted. pass: the new job is
#: inserted and takes the key from the owner.
Taken: TypeAlias = Literal["duplicate", "cancel", "pass"] | Replace


def is_suspended(held: Held | None, started_ms: int | None, waits_for: str | None) -> bool:
    """Whether a waiting job has begun a run that it will continue."""
    return waits_for is not None or (held is not None and BY_JOBS in held.by and started_ms is not None)


def when_taken(policy: UniquePolicy | None, due: Due, owner: Owner, now_ms: int) -> Taken:
    """What becomes of a new job with this policy and due time, if a live job has its unique key."""
    if policy is None or owner.is_recurring:
        return "duplicate"
    if policy.when_live == "cancel":
        return "cancel"
    can_replace = owner.state == "waiting" and not owner.is_suspended
    if policy.debounce_ms is not None:
        return _replace(due, owner, now_ms) if can_replace else "pass"
    if policy.when_live == "replace" and can_replace:
        return _replace(due, owner, now_ms)
    return "duplicate"


def _replace(due: Due, owner: Owner, now_ms: int) -> Replace:
    """Without a due time of its own, the new job leaves the owner its place in the queue."""
    fields: dict[str, Any] = {"updated_ms": now_ms}
    if due != NOW:
        fields |= due_fields(owner.held, due, now_ms, owner.lane)
    return Replace(fields=fields)
