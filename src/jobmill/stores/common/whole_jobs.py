"""For stores that hold whole jobs in Python: what verbs write to a Job, and what they read from many."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Raw, structs

from jobmill.core.changes import new_hold
from jobmill.core.cursors import cut_page, read_ordered_cursor, shown_position
from jobmill.core.due import NEVER_MS, at, due_fields, lane_fields
from jobmill.core.job import NULL, STATES, Job, Keep
from jobmill.core.lanes import keeps_slot
from jobmill.core.queue_limits import QueueLimits
from jobmill.core.stats import by_queue_and_name
from jobmill.core.stats import stats as summary
from jobmill.core.unique_policy import Replace
from jobmill.core.values import (
    AHEAD,
    Claim,
    Count,
    Depth,
    Filter,
    NewJob,
    Order,
    Page,
    Stats,
    order_of,
)

if TYPE_CHECKING:
    from jobmill.core.values import Settlement


def new_job(new: NewJob, now_ms: int) -> Job:
    """The job that a NewJob becomes."""
    due_ms = new.due.resolve(now_ms)
    job = Job(
        id=new.id,
        name=new.name,
        queue=new.queue,
        payload_json=Raw(new.payload_json),
        state="waiting",
        priority=new.priority,
        due_ms=due_ms,
        created_ms=now_ms,
        updated_ms=now_ms,
        unique_key=new.unique_key,
        tenant=new.tenant,
        options=new.options,
        recurrence=new.recurrence,
        occurrence_ms=due_ms if new.recurrence else None,
    )
    return job if new.flow is None and not new.after and new.lane is None else _held(job, new, now_ms)


def _held(job: Job, new: NewJob, now_ms: int) -> Job:
    """A job of a flow or a lane.

    Apart: msgspec finds a keyword by its position, and two more at the end tripled the time of each new job.
    """
    held = {} if new.lane is None else lane_fields(None, new.due, now_ms)
    if new.after:
        held = {"held": new_hold(new.due, now_ms, new.lane), "due_ms": NEVER_MS}
    return structs.replace(job, flow=new.flow, lane=new.lane, **held)


def updated_fields(new: NewJob, job: Job, now_ms: int) -> dict[str, object]:
    """What a live recurring job takes over from a new one with the same unique key."""
    fields: dict[str, object] = {"payload_json": Raw(new.payload_json), "updated_ms": now_ms}
    old = job.recurrence
    if new.recurrence is None or old is None:
        return fields
    if old.pinned:
        return fields | {"recurrence": old.restated(new.recurrence)}
    changes = not (new.keeps_due and new.recurrence.same_rule(old))
    fields["recurrence"] = structs.replace(new.recurrence, revision=old.revision + changes)
    if changes:
        due_ms = fields["occurrence_ms"] = new.due.resolve(now_ms)
        fields |= due_fields(job.held, at(due_ms), now_ms, job.lane if job.state == "waiting" else None)
    return fields


def replaced_fields(new: NewJob, taken: Replace) -> dict[str, object]:
    """What a job that waits takes over from a new one with the same unique key, because its policy says so."""
    return {"payload_json": Raw(new.payload_json), **taken.fields}


def is_uncounted(job: Job, token: str | None) -> bool:
    """Whether this token is that of the first claim ahead of a running job: the loss of its lease is no crash."""
    return job.state == "running" and not job.unstarted and token is not None and token.startswith(AHEAD)


def claimed_fields(job: Job, wish: Claim, now_ms: int, *, uncounted: bool) -> dict[str, object]:
    """What a claim writes. A job that is still running has lost its worker: that is a crash, unless `uncounted`."""
    crashes = job.crashes + (job.state == "running" and not uncounted)
    counts = {"claims": job.claims + 1, "crashes": crashes, "unstarted": job.unstarted + uncounted}
    return {"state": "running", "worker": wish.worker, "started_ms": now_ms, "updated_ms": now_ms, **counts}


def settled_fields(job: Job, done: Settlement, now_ms: int, *, strict: bool = False) -> dict[str, object]:
    """What a settlement writes. Where the recurrence was updated while the job ran, the update's due time stays.

    `strict`: its lane is strict.
    """
    if done.runs is not None and job.recurrence is not None and job.recurrence.revision != done.runs.revision:
        done = done.overtaken()
    fields: dict[str, object] = {"state": done.state, "error": done.error, "result_json": Raw(done.result_json)}
    fields |= {"errors": done.errors, "crashes": done.crashes, "updated_ms": now_ms}
    fields |= {"progress": None} if done.state == "waiting" else {"finished_ms": now_ms}
    if done.due is not None:
        fields["due_ms"] = done.due.resolve(now_ms)
    if done.state == "waiting":
        fields["waits_for"] = done.waits_for
    if done.attempts is not None:
        fields["attempts"] = done.attempts
    if done.rearm is not None:
        fields["occurrence_ms"] = done.rearm.occurrence_ms
    if (runs := done.runs) is not None:
        fields |= {"runs": runs.runs, "failed_runs": runs.failed_runs}
        fields |= {"last_error": runs.last_error, "last_finished_ms": now_ms}
    if job.lane is not None and done.state == "waiting" and not keeps_slot(done, strict=strict):
        fields |= lane_fields(None, at(job.due_ms) if done.due is None else done.due, now_ms)
    return fields


def finished_run(job: Job, done: Settlement, now_ms: int) -> Job:
    """A run of a recurring job that waits again, for the statistics: as the job would be if this run were its last."""
    id = f"{job.id} {job.claims}"
    return structs.replace(job, id=id, state=done.run_state, finished_ms=now_ms, payload_json=NULL)


NO_LIMITS = QueueLimits()


def claimable_ms(
    limits: QueueLimits, due_ms: int | None, running: int, now_ms: int, lease_end_ms: int | None = None
) -> int | None:
    """When the limits of a queue allow the job that is due first, or the job whose lease ends first; None for never.

    A full queue has room again when a lease ends, a paused one when its pause is over.
    """
    if due_ms == NEVER_MS:
        due_ms = None
    limit = limits.settings.running_limit
    is_full = limit is not None and running >= limit
    first_ms = earliest(None if is_full else due_ms, lease_end_ms)
    settings = limits.settings.at(now_ms)
    resumes_ms = settings.pause.until_ms if settings.pause is not None else None
    if first_ms is None or (settings.paused and resumes_ms is None):
        return None
    first_ms = max(first_ms, resumes_ms or 0)
    return max(first_ms, limits.limited_until_ms(now_ms) or 0)


def earliest(*times_ms: int | None) -> int | None:
    """The first of these instants; None where none is known."""
    return min((ms for ms in times_ms if ms is not None), default=None)


def expired(jobs: Iterable[tuple[int, Job, Keep]], now_ms: int) -> list[str]:
    """The ids of final jobs that are too old, or not among the last of their queue and state. Takes seq, job, keep."""
    ids: list[str] = []
    # For each queue and state: how many jobs finished later, or are this one.
    rank: Counter[tuple[str, str]] = Counter()
    final = [(job.finished_ms, seq, job, keep) for seq, job, keep in jobs if job.finished_ms is not None]
    for finished_ms, _, job, keep in sorted(final, key=lambda one: one[:2], reverse=True):
        rank[job.queue, job.state] += 1
        is_old = keep.age_ms is not None and finished_ms + keep.age_ms <= now_ms
        if is_old or (keep.last is not None and rank[job.queue, job.state] > keep.last):
            ids.append(job.id)
    return ids


def page(jobs: Iterable[tuple[int, Job]], wanted: Filter, cursor: str | None, limit: int) -> Page:
    """A page of jobs that match. A cursor is "<" (further) or ">" (back) and the position that the page is beyond."""
    back, position = read_ordered_cursor(cursor)
    order = order_of(wanted)
    by_position = {_position(order, seq, job): job for seq, job in jobs}
    beyond = [one for one in by_position if position is None or (one < position if back else one > position)]
    part, next, previous = cut_page(sorted(beyond, reverse=back), limit, cursor, shown_position)
    return Page([by_position[one] for one in part], next, previous)


def _position(order: Order, seq: int, job: Job) -> tuple[int, ...]:
    """Where a job stands in an order. The last number is unique."""
    match order:
        case "claim":
            return (job.priority, job.due_ms, seq)
        case "longest":
            return (job.started_ms or 0, seq)
        case "latest":
            return (-(job.finished_ms or 0), -seq)
        case "own":
            return (-seq,)


def depths(
    jobs: Iterable[Job], wanted: Sequence[str] | None, queues: Mapping[str, QueueLimits], limit: int, now_ms: int
) -> list[Depth]:
    """How many of these jobs each wanted queue has in each state. `queues` are those with settings."""
    found: defaultdict[str, Counter[str]] = defaultdict(Counter)
    oldest: dict[str, int] = {}
    for queue in queues if wanted is None else wanted:
        found[queue] = Counter()
    for job in jobs:
        if wanted is not None and job.queue not in wanted:
            continue
        place = job.state if job.state != "waiting" else _wait_place(job, now_ms)
        found[job.queue][place] += 1
        if place == "due":
            oldest[job.queue] = min(oldest.get(job.queue, job.due_ms), job.due_ms)
    return [
        Depth(
            queue=queue,
            **{place: min(limit, n) for place, n in counts.items()},
            oldest_due_ms=oldest.get(queue),
            limited_until_ms=queues.get(queue, NO_LIMITS).limited_until_ms(now_ms),
            exact=all(n < limit for n in counts.values()),
        )
        for queue, counts in sorted(found.items())
    ]


def _wait_place(job: Job, now_ms: int) -> str:
    return "held" if job.held is not None else "due" if job.due_ms <= now_ms else "later"


def counts(jobs: Iterable[Job]) -> list[Count]:
    """How many jobs there are, by queue, name and state."""
    return JobTally(0, jobs).counts()


def statistics(jobs: Iterable[Job], now_ms: int) -> list[Stats]:
    """Counts, the oldest wait and durations by queue and name."""
    return JobTally(now_ms, jobs).stats()


class JobTally:
    """Counts, the oldest wait and durations by queue and name, of jobs that are added one by one."""

    def __init__(self, now_ms: int, jobs: Iterable[Job] = ()) -> None:
        self._now_ms = now_ms
        self._counts: Counter[tuple[str, str, int]] = Counter()
        self._waits_ms: dict[tuple[str, str], int] = {}
        self._durations_ms: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
        for job in jobs:
            self.add(job)

    def add(self, job: Job) -> None:
        """Count a job."""
        key = (job.queue, job.name)
        self._counts[(*key, STATES.index(job.state))] += 1
        if job.state == "waiting" and job.due_ms <= self._now_ms:
            self._waits_ms[key] = max(self._waits_ms.get(key, 0), self._now_ms - job.due_ms)
        elif job.state == "succeeded" and job.finished_ms is not None and job.started_ms is not None:
            self._durations_ms[key].append(job.finished_ms - job.started_ms)

    def add_counts(self, counts: Iterable[Count]) -> None:
        """Add jobs that others have counted; for `counts` only."""
        for one in counts:
            self._counts[one.queue, one.name, STATES.index(one.state)] += one.count

    def counts(self) -> list[Count]:
        """How many jobs there are, by queue, name and state."""
        return [Count(queue, name, STATES[state], n) for (queue, name, state), n in sorted(self._counts.items())]

    def stats(self) -> list[Stats]:
        """The statistics of each queue and name."""
        table = by_queue_and_name(self.counts())
        return [summary(*key, n, self._waits_ms.get(key), self._durations_ms[key]) for key, n in table.items()]
