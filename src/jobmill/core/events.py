"""Events: what is published after a store has committed a change, and which events each verb makes.

Stores record them in the feed of a queue where that is on; a worker calls the hooks of its process with them. Both take
them from here, so that they always agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct

from jobmill.core.job import NULL, Job, Progress, State
from jobmill.core.values import NewJob, Receipt, Settlement

EventType: TypeAlias = Literal[
    "enqueued",
    "claimed",
    "progress",
    "succeeded",
    "errored",
    "retrying",
    "failed",
    "lease_lost",
    "cancelled",
    "removed",
    "released",
]
EVENT_TYPES: tuple[str, ...] = get_args(EventType)


class Event(Struct, frozen=True, kw_only=True):
    """One event of one job. `type` is one of EVENT_TYPES, or any other word for an event that a user publishes."""

    type: str
    job_id: str
    name: str
    queue: str
    at_ms: int
    attempt: int = 1
    data: dict[str, Any] = {}
    #: Set by the feed; the position to continue reading from.
    id: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The event as JSON-ready values."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


def job_event(job: Job, type: EventType, now_ms: int, **data: Any) -> Event:
    """An event of a job as it is now."""
    return Event(type=type, job_id=job.id, name=job.name, queue=job.queue, at_ms=now_ms, attempt=job.attempt, data=data)


def enqueued_events(new_jobs: Sequence[NewJob], receipts: Sequence[Receipt], now_ms: int) -> list[Event]:
    """The events of jobs that were created."""
    return [
        Event(type="enqueued", job_id=new.id, name=new.name, queue=new.queue, at_ms=now_ms)
        for new, receipt in zip(new_jobs, receipts, strict=True)
        if receipt.created
    ]


def claim_events(job: Job, now_ms: int, *, lease_lost: bool) -> list[Event]:
    """The events of a claim: who runs the job now, and that another worker lost it where its lease had ended."""
    claimed = job_event(job, "claimed", now_ms, worker=job.worker)
    return [job_event(job, "lease_lost", now_ms), claimed] if lease_lost else [claimed]


def progress_event(job: Job, progress: Progress, now_ms: int) -> Event:
    """The event of a progress report."""
    return job_event(job, "progress", now_ms, value=progress.value, message=progress.message)


def settlement_events(settlement: Settlement, now_ms: int) -> list[Event]:
    """The events of a settlement; none for snoozed and released jobs, which simply wait again."""
    if settlement.outcome == "succeeded":
        return [_settled(settlement, "succeeded", now_ms, result=msgspec.json.decode(settlement.result_json))]
    if settlement.outcome not in ("errored", "crashed"):
        return []
    events = []
    if settlement.outcome == "errored":
        traceback = settlement.attempts[-1].traceback if settlement.attempts else None
        events.append(_settled(settlement, "errored", now_ms, error=settlement.error, traceback=traceback))
    if settlement.state == "waiting" and settlement.rearm is None and settlement.due is not None:
        delay_ms = max(0, settlement.due.resolve(now_ms) - now_ms)
        events.append(_settled(settlement, "retrying", now_ms, delay_ms=delay_ms))
    else:
        events.append(_settled(settlement, "failed", now_ms, error=settlement.error))
    return events


def written_events(settlement: Settlement, now_ms: int) -> list[Event]:
    """The events of a settlement in a feed: also that the job was removed, where it is not kept."""
    events = settlement_events(settlement, now_ms)
    if settlement.keep is not None and settlement.keep.at_once:
        lease = settlement.lease
        removed = bare_job(lease.id, lease.name, lease.queue, settlement.state, settlement.errors)
        events.append(job_event(removed, "removed", now_ms))
    return events


def _settled(settlement: Settlement, type: EventType, now_ms: int, **data: Any) -> Event:
    lease = settlement.lease
    return Event(
        type=type,
        job_id=lease.id,
        name=lease.name,
        queue=lease.queue,
        at_ms=now_ms,
        attempt=settlement.attempt,
        data=data,
    )


def bare_job(id: str, name: str, queue: str, state: State, errors: int, worker: str | None = None) -> Job:
    """A job of which only the fields that every event has are known."""
    return Job(
        id=id,
        name=name,
        queue=queue,
        payload_json=NULL,
        state=state,
        priority=0,
        due_ms=0,
        created_ms=0,
        updated_ms=0,
        errors=errors,
        worker=worker,
    )
