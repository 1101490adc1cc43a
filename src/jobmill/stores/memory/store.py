"""The reference store: the whole port in plain Python, in one process, gone when it ends.

Read it to learn what a verb promises. A lock makes every verb one step, so that threads with their own event loops may
share the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar

import msgspec
from msgspec import UNSET, Raw, structs

from jobmill.core import facts
from jobmill.core.changes import (
    CHANGES_FROM,
    Broken,
    Cancel,
    Change,
    Changed,
    Claim,
    Claimed,
    Exchanged,
    Filter,
    Lease,
    LogLine,
    NewJob,
    Purged,
    QueueChange,
    QueueSettings,
    Receipt,
    Remove,
    Report,
    Reprioritise,
    Requeue,
    Reschedule,
    Settled,
    Settlement,
)
from jobmill.core.cursors import read_position
from jobmill.core.facts import Event
from jobmill.core.job import LOG_LINES_KEPT, NULL, Job, Keep
from jobmill.core.summary import matches
from jobmill.stores.ids import new_id
from jobmill.stores.memory.look import Looks
from jobmill.stores.memory.queue import QueueRecord
from jobmill.stores.memory.shelf import Entry

KEEP_CANCELLED = Keep(age_ms=30 * 24 * 60 * 60 * 1000)


class MemoryStore(Looks):
    """Jobs in dictionaries."""

    name: ClassVar[str] = "memory"
    exchanges_in_flight: ClassVar[int] = 1

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__(clock or (lambda: time.time_ns() // 1_000_000))
        self._event_id = 0
        self._queues: dict[str, QueueRecord] = {}
        self._sleepers: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing to close: the jobs live as long as this object."""

    async def migrate(self) -> list[str]:
        """Nothing to migrate."""
        return []

    def new_id(self) -> str:
        """A uuid7."""
        return new_id()

    # ------------------------------------------------------------------------------------------------ enqueue

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """See the port."""
        with self._step(wakes=True) as now_ms:
            return [self._enqueue_one(new, now_ms) for new in new_jobs]

    def _enqueue_one(self, new: NewJob, now_ms: int) -> Receipt:
        if new.id in self._shelf.entries:
            return Receipt(new.id, "exists")
        if new.unique_key is not None:
            owner = self._shelf.owners.get((new.queue, new.name, new.unique_key))
            if (
                owner is not None
                and new.recurrence is not None
                and self._shelf.entries[owner].job.recurrence is not None
            ):
                self._update_recurrence(self._shelf.entries[owner], new, now_ms)
                return Receipt(owner, "updated")
            if owner is not None:
                return Receipt(owner, "duplicate")
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
            slot_ms=due_ms if new.recurrence else None,
        )
        self._shelf.add(job)
        self._tell(job.queue, [facts.about(job, "enqueued", now_ms)])
        return Receipt(job.id, "created")

    def _update_recurrence(self, entry: Entry, new: NewJob, now_ms: int) -> None:
        old = entry.job.recurrence
        assert new.recurrence is not None
        assert old is not None
        self._shelf.write(entry, payload_json=Raw(new.payload_json), updated_ms=now_ms)
        if not (new.keeps_due and new.recurrence.same_rule(old)):
            due_ms = new.due.resolve(now_ms)
            recurrence = structs.replace(new.recurrence, revision=old.revision + 1)
            self._shelf.write(entry, recurrence=recurrence, due_ms=due_ms, slot_ms=due_ms)

    # ------------------------------------------------------------------------------------------------ exchange

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        """See the port."""
        with self._step(wakes=bool(settlements)) as now_ms:
            settled = [self._settle_one(settlement, now_ms) for settlement in settlements]
            just_settled = {settlement.lease.id for settlement in settlements}
            claimed = [] if claim is None else self._claim(claim, just_settled, now_ms)
            next_due_ms = None if claim is None else self._next_due(claim, now_ms)
            return Exchanged(settled=settled, claimed=claimed, next_due_ms=next_due_ms, now_ms=now_ms)

    def _held(self, lease: Lease, now_ms: int) -> Entry | None:
        """The guard: the job, while this lease still owns it."""
        entry = self._shelf.entries.get(lease.id)
        if entry is None or entry.token != lease.token or entry.lease_until_ms <= now_ms:
            return None
        return entry

    def _settle_one(self, done: Settlement, now_ms: int) -> Settled:
        entry = self._held(done.lease, now_ms)
        if entry is None:
            return "lost"
        entry.token = None
        told = facts.of_settlement(done, now_ms)
        recurrence = entry.job.recurrence
        if done.runs is not None and recurrence is not None and recurrence.revision != done.runs.revision:
            done = done.overtaken()
        self._shelf.write(entry, **_settled(done, now_ms))
        self._tell(entry.job.queue, told)
        if done.keep is not None:
            self._retain(entry, done.keep, now_ms)
        return "done"

    def _claim(self, claim: Claim, just_settled: set[str], now_ms: int) -> list[Claimed | Broken]:
        claimed: list[Claimed | Broken] = []
        rooms = dict(claim.names)
        for queue in claim.queues:
            running = self._shelf.running.get(queue, {})
            # Taking an ended lease over does not add a running job, but it is a claim to the rate limit.
            ended = [entry for entry in running.values() if entry.lease_until_ms <= now_ms]
            known = self._queues.get(queue)
            room = known.room(len(running) - len(ended), now_ms) if known else None
            most = claim.n - len(claimed)
            found = self._claimable(
                queue, ended, rooms, just_settled, most if room is None else min(most, room), now_ms
            )
            claimed += [self._lease(entry, claim, now_ms) for entry in found]
            if known:
                known.use(len(found), now_ms)
        return claimed

    def _claimable(
        self, queue: str, ended: list[Entry], rooms: dict[str, int], not_these: set[str], most: int, now_ms: int
    ) -> list[Entry]:
        """Up to `most` jobs in claim order, within the room of each name, which is used up."""
        candidates = [entry.place for entry in ended]
        for name, room in rooms.items():
            candidates += self._shelf.due(queue, name, min(most, room) + len(not_these), now_ms)
        found: list[Entry] = []
        for *_, id in sorted(candidates):
            entry = self._shelf.entries[id]
            if len(found) < most and rooms.get(entry.job.name, 0) > 0 and id not in not_these:
                rooms[entry.job.name] -= 1
                found.append(entry)
        return found

    def _lease(self, entry: Entry, claim: Claim, now_ms: int) -> Claimed | Broken:
        lost = entry.job.state == "running"
        entry.token = claim.token
        entry.lease_until_ms = now_ms + claim.lease_ms
        job = self._shelf.write(
            entry,
            state="running",
            claims=entry.job.claims + 1,
            crashes=entry.job.crashes + lost,
            worker=claim.worker,
            started_ms=now_ms,
            updated_ms=now_ms,
        )
        self._tell(job.queue, facts.of_claim(job, now_ms, lease_lost=lost))
        lease = Lease(job.id, claim.token, job.queue, job.name, entry.lease_until_ms)
        try:
            msgspec.json.decode(job.payload_json)
        except msgspec.DecodeError as error:
            return Broken(lease, f"payload: {error}")
        return Claimed(job, lease)

    def _next_due(self, claim: Claim, now_ms: int) -> int | None:
        """The earliest instant at which this claim may find something that waits now."""
        dues = [due for queue in claim.queues if (due := self._queue_due(queue, claim.names, now_ms)) is not None]
        return min(dues, default=None)

    def _queue_due(self, queue: str, names: dict[str, int], now_ms: int) -> int | None:
        due_ms = self._shelf.next_due(queue, iter(names))
        known = self._queues.get(queue)
        if known is None or due_ms is None:
            return due_ms
        limit = known.settings.running_limit
        if known.settings.paused or (limit is not None and len(self._shelf.running.get(queue, {})) >= limit):
            return None
        if known.room(0, now_ms) == 0:
            return max(due_ms, known.window_ends_ms)
        return due_ms

    # ------------------------------------------------------------------------------------------------ running

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        """See the port."""
        with self._step() as now_ms:
            lost = []
            for lease in leases:
                if (entry := self._held(lease, now_ms)) is None:
                    lost.append(lease.id)
                else:
                    entry.lease_until_ms = now_ms + for_ms
            return lost

    async def report(self, reports: Sequence[Report]) -> list[str]:
        """See the port."""
        with self._step() as now_ms:
            lost = []
            for report in reports:
                if (entry := self._held(report.lease, now_ms)) is None:
                    lost.append(report.lease.id)
                    continue
                lines = self._logs.setdefault(entry.job.id, deque(maxlen=LOG_LINES_KEPT))
                lines.extend(LogLine(now_ms, text) for text in report.lines)
                if report.progress is not None:
                    job = self._shelf.write(entry, progress=report.progress, updated_ms=now_ms)
                    self._tell(job.queue, [facts.of_progress(job, report.progress, now_ms)])
            return lost

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        """See the port."""
        sleeper = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._sleepers.append(sleeper)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(sleeper[1].wait(), max(0, until_ms - self.now()) / 1000)
        finally:
            with self._lock:
                self._sleepers.remove(sleeper)

    # ------------------------------------------------------------------------------------------------ change

    async def change(self, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
        """See the port."""
        with self._step(wakes=True) as now_ms:
            refused: dict[str, str] = {}
            more = False
            if isinstance(which, Filter):
                allowed = CHANGES_FROM[type(change)]
                found = [e for e in self._shelf.entries.values() if e.job.state in allowed and matches(e.job, which)]
                more = len(found) > limit
                entries = found[:limit]
            else:
                ids = list(dict.fromkeys(which))
                more = len(ids) > limit
                refused = {id: "there is no such job" for id in ids[:limit] if id not in self._shelf.entries}
                entries = [self._shelf.entries[id] for id in ids[:limit] if id in self._shelf.entries]
            changed: list[str] = []
            for entry in entries:
                why = self._change_one(entry, change, len(changed), now_ms)
                if why is None:
                    changed.append(entry.job.id)
                else:
                    refused[entry.job.id] = why
            return Changed(changed=changed, refused=refused, more=more)

    def _change_one(self, entry: Entry, change: Change, index: int, now_ms: int) -> str | None:
        """Do it, or say why not."""
        job = entry.job
        if job.state not in CHANGES_FROM[type(change)]:
            return f"the job is {job.state}"
        match change:
            case Cancel():
                entry.token = None
                job = self._shelf.write(entry, state="cancelled", finished_ms=now_ms, updated_ms=now_ms)
                self._tell(job.queue, [facts.about(job, "cancelled", now_ms)])
                self._retain(entry, job.options.keep_failed or KEEP_CANCELLED, now_ms)
            case Requeue():
                return self._requeue(entry, change, index, now_ms)
            case Reschedule():
                self._shelf.write(entry, due_ms=change.due.resolve(now_ms), updated_ms=now_ms)
            case Reprioritise():
                self._shelf.write(entry, priority=change.priority, updated_ms=now_ms)
            case Remove():
                self._remove(entry, now_ms)
        return None

    def _requeue(self, entry: Entry, change: Requeue, index: int, now_ms: int) -> str | None:
        job = entry.job
        owner = self._shelf.owner(job)
        if owner is not None:
            return f"the live job {owner} has its unique key"
        job = self._shelf.write(
            entry,
            state="waiting",
            due_ms=change.due.resolve(now_ms) + round(index * change.step_ms),
            updated_ms=now_ms,
            finished_ms=None,
            errors=0,
            crashes=0,
            error=None,
            result_json=NULL,
            progress=None,
            doomed=None,
        )
        self._tell(job.queue, [facts.about(job, "enqueued", now_ms)])
        return None

    def _remove(self, entry: Entry, now_ms: int) -> None:
        self._shelf.remove(entry)
        self._logs.pop(entry.job.id, None)
        self._tell(entry.job.queue, [facts.about(entry.job, "removed", now_ms)])

    # ------------------------------------------------------------------------------------------------ retention

    def _retain(self, entry: Entry, keep: Keep, now_ms: int) -> None:
        entry.keep = keep
        if keep.at_once:
            self._remove(entry, now_ms)

    async def purge(self, limit: int = 1_000) -> Purged:
        """See the port."""
        with self._step() as now_ms:
            gone = []
            newer: dict[tuple[str, str], int] = {}
            finals = [entry for entry in self._shelf.entries.values() if entry.job.finished_ms is not None]
            for entry in sorted(finals, key=lambda entry: (-(entry.job.finished_ms or 0), -entry.seq)):
                job, keep = entry.job, entry.keep
                place = newer[job.queue, job.state] = newer.get((job.queue, job.state), 0) + 1
                too_old = keep.age_ms is not None and (job.finished_ms or 0) + keep.age_ms <= now_ms
                if too_old or (keep.last is not None and place > keep.last):
                    gone.append(entry)
            for entry in gone[:limit]:
                self._remove(entry, now_ms)
            return Purged(min(len(gone), limit), more=len(gone) > limit)

    # ------------------------------------------------------------------------------------------------ queues

    async def configure(self, queue: str, change: QueueChange) -> QueueSettings:
        """See the port."""
        with self._step(wakes=True):
            known = self._queues.setdefault(queue, QueueRecord())
            given = {field: value for field, value in structs.asdict(change).items() if value is not UNSET}
            known.settings = structs.replace(known.settings, **given)
            return known.settings

    async def settings(self, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
        """See the port."""
        with self._lock:
            if queues is None:
                return {queue: known.settings for queue, known in self._queues.items()}
            known_or_not = {queue: self._queues.get(queue) for queue in queues}
            return {queue: known.settings if known else QueueSettings() for queue, known in known_or_not.items()}

    async def publish(self, events: Sequence[Event]) -> None:
        """See the port."""
        with self._step():
            for event in events:
                self._tell(event.queue, [event])

    async def events(self, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
        """See the port."""
        with self._lock:
            feed = self._queues[queue].feed if queue in self._queues else ()
            seen = 0 if after is None else read_position(after, "after", after)
            return [event for event in feed if int(event.id or 0) > seen][:limit]

    # ------------------------------------------------------------------------------------------------ inside

    @contextlib.contextmanager
    def _step(self, *, wakes: bool = False) -> Iterator[int]:
        """One atomic step at one instant; where it may have made work, sleeping workers look again."""
        with self._lock:
            yield self.now()
            for loop, event in self._sleepers if wakes else ():
                with contextlib.suppress(RuntimeError):  # its loop has ended
                    loop.call_soon_threadsafe(event.set)

    def _tell(self, queue: str, events: Sequence[Event]) -> None:
        if (known := self._queues.get(queue)) is not None:
            known.tell(events, self._event_id + 1)
            self._event_id += len(events)


def _settled(done: Settlement, now_ms: int) -> dict[str, object]:
    """The fields of a job that a settlement changes."""
    changed: dict[str, object] = {
        "state": done.state,
        "errors": done.errors,
        "crashes": done.crashes,
        "error": done.error,
        "result_json": Raw(done.result_json),
        "updated_ms": now_ms,
    }
    if done.state == "waiting":
        changed["progress"] = None
    else:
        changed["finished_ms"] = now_ms
    if done.due is not None:
        changed["due_ms"] = done.due.resolve(now_ms)
    if done.tracebacks is not None:
        changed["tracebacks"] = done.tracebacks
    if done.rearm is not None:
        changed["slot_ms"] = done.rearm.slot_ms
    if done.runs is not None:
        changed["runs"] = done.runs.runs
        changed["failed_runs"] = done.runs.failed_runs
        changed["last_error"] = done.runs.last_error
        changed["last_finished_ms"] = now_ms
    return changed
