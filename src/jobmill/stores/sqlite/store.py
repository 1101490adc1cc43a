"""The port on a SQLite file: each verb is a function of a SqliteContext, run by the writer or by the reader."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar

from jobmill.core.changes import Change, Changed
from jobmill.core.findings import Finding
from jobmill.core.values import Claim, Exchanged, Filter, NewJob, Receipt
from jobmill.errors import InvalidValue, StoreError
from jobmill.stores.common.bell import Bell
from jobmill.stores.common.ids import new_id
from jobmill.stores.common.job_hints import poll
from jobmill.stores.common.response import response_ms
from jobmill.stores.sqlite import (
    announce,
    audit,
    change,
    diagnose,
    enqueue,
    exchange,
    extend,
    feed,
    flows,
    fsck,
    lanes,
    purge,
    queues,
    read,
    report,
    schema,
    search,
    steps,
    usage,
)
from jobmill.stores.sqlite.clock import ForwardClock, system_ms
from jobmill.stores.sqlite.connection import translated_errors
from jobmill.stores.sqlite.connection.open_file import OpenFile
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.lanes import fill
from jobmill.stores.sqlite.within import enqueue_within, refuse_deadlock

if TYPE_CHECKING:
    from jobmill.core.queue_settings import LaneChange, LaneSettings, QueueChange, QueueSettings
    from jobmill.core.values import Settlement

T = TypeVar("T")
P = ParamSpec("P")
Function = Callable[Concatenate[SqliteContext, P], T]

#: How often a worker asks whether jobs that it runs were cancelled by another process.
CANCEL_POLL_SECONDS = 0.05
#: What the bell rings for when jobs end. No queue has this name.
ENDS = ":ends"

SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")


def _written(function: Function[P, T]) -> Callable[Concatenate[SqliteStore, P], Coroutine[Any, Any, T]]:
    """A method that runs a function on the writer's thread, in a transaction."""

    async def method(store: SqliteStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store._write(function, *args, **kwargs)

    return method


def _read(function: Function[P, T]) -> Callable[Concatenate[SqliteStore, P], Coroutine[Any, Any, T]]:
    """A method that runs a function on the reader's thread, in a snapshot."""

    async def method(store: SqliteStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await store._opened().reader.submit(lambda context: function(context, *args, **kwargs))

    return method


class SqliteStore:
    """Jobs in a SQLite file. Several processes, threads and stores may use one file at the same time."""

    name: ClassVar[str] = "sqlite"
    exchanges_in_flight: ClassVar[int] = 1

    def __init__(
        self, path: str | os.PathLike[str], *, clock: Callable[[], int] | None = None, synchronous: str = "FULL"
    ) -> None:
        if str(path) in ("", ":memory:") or str(path).startswith("file:"):
            raise InvalidValue("path", "the path of a file", path, "for a store in memory use memory://")
        if synchronous.upper() not in SYNCHRONOUS:
            raise InvalidValue("synchronous", "one of " + ", ".join(SYNCHRONOUS), synchronous)
        self.path = Path(path).absolute()
        self._synchronous = synchronous.upper()
        self._clock = ForwardClock(self.path, clock or system_ms)
        self._lock = threading.Lock()
        self._bell = Bell()
        # For each set of queues: how often the bell had rung for what the last exchange saw.
        self._seen: dict[frozenset[str], int] = {}
        #: How many tasks wait for the end of a job, and how many changes this store has made.
        self._awaiting = 0
        self._changes = 0
        #: Where the search for jobs continues whose dependencies have ended unnoticed.
        self._searched = flows.FIRST
        #: Where the search for lanes with a free slot continues that nobody has given on.
        self._searched_lanes = lanes.FIRST
        self._file: OpenFile | None = None

    @property
    def address(self) -> str:
        """The path of the file."""
        return str(self.path)

    # ------------------------------------------------------------------------------------------------ open and close

    async def open(self) -> None:
        """Make or migrate the file, and start the threads."""
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        self._leave_to_parent()
        with self._lock:
            if self._file is None:
                schema.migrate(self.path, self._synchronous)
                with translated_errors(self.path):
                    self._file = OpenFile(self.path, self._synchronous, self._clock, self._bell)
                    self._clock.warn_if_behind(self._file.newest_ms())

    def _leave_to_parent(self) -> bool:
        """After a fork, forget what belongs to the parent. At the fork, another thread may have held the locks."""
        if self._file is None or not self._file.forked:
            return False
        self._lock = threading.Lock()
        self._bell = Bell()
        self._seen = {}
        self._file = None
        return True

    async def close(self) -> None:
        """Finish what was submitted, end the threads, close the connections."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._leave_to_parent()
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.close()

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; `open` does so by itself."""
        return await asyncio.to_thread(schema.migrate, self.path, self._synchronous)

    def now(self) -> int:
        """The clock that was passed in, or this machine's."""
        return self._clock()

    def new_id(self) -> str:
        """A uuid7."""
        return new_id()

    # ------------------------------------------------------------------------------------------------ verbs

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self._write(enqueue.enqueue, new_jobs) if new_jobs else []

    async def enqueue_within(self, connection: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """See the port. Runs on the caller's thread, because connection and lock belong to the caller."""
        self._opened()
        with translated_errors(self.path):
            return enqueue_within(connection, self.path, self._clock(), new_jobs)

    def check_unlocked(self) -> None:
        """See the port. Every write checks this itself; this is for callers whose writes another task submits."""
        refuse_deadlock(self.path)

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        exchanged, seen = await self._write(exchange.exchange, settlements, claim)
        if claim is not None:
            self._seen[frozenset(claim.queues)] = seen
        if self._awaiting and settlements:
            self._bell.ring((ENDS,))
        return exchanged

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        """See the port. Without an exchange in between, the next sleep ends at the next ring."""
        file, key = self._opened(), frozenset(queues)
        await self._bell.wait(key, (until_ms - self._clock()) / 1000, self._seen.get(key), file.watch)
        self._seen[key] = self._bell.count(key)

    async def wait_for_cancel(self, ids: Collection[str], until_ms: int) -> None:
        """See the port. Polls: a thread that watches all commits of other processes would slow down a busy worker.

        The jobs are queried only if others have committed; and once more, for jobs that were too young until then.
        """
        file, seen, again = self._opened(), (-1, -1), False

        async def find_ended(running: list[str]) -> list[str]:
            nonlocal seen, again
            before, seen = seen, (await file.commits_of_others(), self._changes)
            is_asked, again = seen != before or again, seen != before
            ends = await self.lease_ends(running) if is_asked else running
            return [id for id, end in zip(running, ends, strict=True) if end is None]

        await poll(ids, (until_ms - self._clock()) / 1000, CANCEL_POLL_SECONDS, find_ended)

    async def wait_for_end(self, id: str, queue: str, until_ms: int) -> None:
        """See the port. Also ends at any commit of another process."""
        file = self._opened()
        self._awaiting += 1
        try:
            await self._bell.wait((ENDS,), (until_ms - self._clock()) / 1000, on_sleep=file.watch)
        finally:
            self._awaiting -= 1

    async def change(self, which: Sequence[str] | Filter, what: Change, limit: int = 1_000) -> Changed:
        changed = await self._write(change.change, which, what, limit)
        self._changes += 1
        return changed

    async def configure(self, queue: str, change: QueueChange) -> QueueSettings:
        """See the port. Slots of many jobs are taken back in several transactions, so that others can write."""
        settings = await self._write(lanes.configure, queue, change)
        while await self._write(lanes.take_back, queue):
            pass
        return settings

    async def configure_lane(self, queue: str, lane: str, change: LaneChange) -> LaneSettings:
        """See the port."""
        settings = await self._write(lanes.configure_lane, queue, lane, change)
        while await self._write(lanes.take_back, queue):
            pass
        return settings

    async def flush_outbox(self, limit: int = 1_000) -> int:
        """See the port. Reads first, so that a call with nothing to do does not wait for the write lock."""
        reader = self._opened().reader
        find = reader.submit(lambda context: flows.find_unreleased(context, self._searched))
        unreleased, has_outbox, self._searched = await find
        released = await self._write(flows.flush_outbox, unreleased, limit) if unreleased or has_outbox else 0
        free, self._searched_lanes = await reader.submit(lambda context: lanes.find_free(context, self._searched_lanes))
        return released + (await self._write(lanes.fill_free, free) if free else 0)

    async def diagnose(self) -> list[Finding]:
        reader = self._opened().reader
        answers_ms = await response_ms(lambda: reader.submit(diagnose.schema))
        return await reader.submit(lambda context: diagnose.diagnose(context, self.path, answers_ms))

    async def fsck(self, *, repair: bool = False) -> list[Finding]:
        damage = await self._opened().reader.submit(fsck.find)
        repaired = await self._write(fsck.repair, damage) if repair and any(damage.values()) else {}
        return fsck.findings(damage, repaired)

    extend = _written(extend.extend)
    report = _written(report.report)
    purge = _written(purge.purge)
    publish = _written(feed.publish)
    record_usage = _written(usage.record_usage)
    record_step = _written(steps.record_step)
    signal = _written(steps.signal)

    get = _read(read.get)
    lease_ends = _read(read.lease_ends)
    find = _read(search.find)
    count = _read(read.count)
    count_up_to = _read(search.count_up_to)
    depths = _read(read.depths)
    stats = _read(read.stats)
    logs = _read(read.logs)
    settings = _read(queues.settings)
    events = _read(feed.events)
    dependencies = _read(flows.dependencies)
    dependents = _read(flows.dependents)
    flow_counts = _read(flows.flow_counts)
    edges = _read(flows.edges)
    flows = _read(flows.flows)
    lanes = _read(lanes.lanes)
    recorded = _read(steps.recorded)

    workers = _read(announce.workers)
    tallies = _read(announce.tallies)
    order_stop = _written(announce.order_stop)
    announce = _written(announce.announce)
    audit_log = _read(audit.audit_log)
    audit = _written(audit.audit)

    # ------------------------------------------------------------------------------------------------ inside

    def _opened(self) -> OpenFile:
        if self._leave_to_parent():
            self._open()
        if self._file is None:
            raise StoreError("the store is not open; await its open() first")
        return self._file

    def _write(self, function: Function[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        refuse_deadlock(self.path)

        def run(context: SqliteContext) -> T:
            answer = function(context, *args, **kwargs)
            if context.changed_lanes:
                fill(context)
            return answer

        return self._opened().writer.submit(run)
