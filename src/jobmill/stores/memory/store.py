"""The reference store: the whole port in plain Python, in one process, gone when it ends.

Read it to learn what a verb promises. A lock makes every verb one step, so that threads with their own event loops may
share the store.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import ClassVar

import msgspec
from msgspec import UNSET, Raw, structs

from jobmill.core.cursors import read_position
from jobmill.core.events import Event, claim_events, job_event, progress_event, settlement_events
from jobmill.core.job import LOG_LINES_KEPT, Job
from jobmill.core.values import (
    Broken,
    Claim,
    Claimed,
    Exchanged,
    Lease,
    LogLine,
    NewJob,
    QueueChange,
    QueueSettings,
    Receipt,
    Report,
    Settled,
    Settlement,
)
from jobmill.stores.common.ids import new_id
from jobmill.stores.memory.change import Changes
from jobmill.stores.memory.queue import QueueRecord
from jobmill.stores.memory.shelf import Entry


class MemoryStore(Changes):
    """Jobs in dictionaries."""

    name: ClassVar[str] = "memory"
    exchanges_in_flight: ClassVar[int] = 1

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__(clock or (lambda: time.time_ns() // 1_000_000))

    @property
    def address(self) -> str:
        """This process."""
        return "this process"

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
        owner = None if new.unique_key is None else self._shelf.owners.get((new.queue, new.name, new.unique_key))
        if owner is not None:
            return self._owned(self._shelf.entries[owner], new, now_ms)
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
        self._shelf.add(job)
        self._tell(job.queue, [job_event(job, "enqueued", now_ms)])
        return Receipt(job.id, "created")

    def _owned(self, entry: Entry, new: NewJob, now_ms: int) -> Receipt:
        """A live job has the unique key: a recurring one is updated by a recurring one."""
        old = entry.job.recurrence
        if new.recurrence is None or old is None:
            return Receipt(entry.job.id, "duplicate")
        self._shelf.write(entry, payload_json=Raw(new.payload_json), updated_ms=now_ms)
        if not (new.keeps_due and new.recurrence.same_rule(old)):
            due_ms = new.due.resolve(now_ms)
            recurrence = structs.replace(new.recurrence, revision=old.revision + 1)
            self._shelf.write(entry, recurrence=recurrence, due_ms=due_ms, occurrence_ms=due_ms)
        return Receipt(entry.job.id, "updated")

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
        told = settlement_events(done, now_ms)
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
        self._tell(job.queue, claim_events(job, now_ms, lease_lost=lost))
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
                    self._tell(job.queue, [progress_event(job, report.progress, now_ms)])
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
        changed["occurrence_ms"] = done.rearm.occurrence_ms
    if done.runs is not None:
        changed["runs"] = done.runs.runs
        changed["failed_runs"] = done.runs.failed_runs
        changed["last_error"] = done.runs.last_error
        changed["last_finished_ms"] = now_ms
    return changed
