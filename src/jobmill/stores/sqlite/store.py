"""The port on a SQLite file: each verb is a function of a SqliteContext, run by the writer or by the reader."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Concatenate, ParamSpec, TypeVar

from jobmill.core.changes import Change, Changed
from jobmill.core.events import Event
from jobmill.core.job import Job
from jobmill.core.usage import Usage
from jobmill.core.values import (
    Claim,
    Count,
    Exchanged,
    Filter,
    Lease,
    LogLine,
    NewJob,
    Page,
    Purged,
    QueueChange,
    QueueSettings,
    Receipt,
    Report,
    Stats,
)
from jobmill.errors import InvalidValue, StoreError
from jobmill.stores.common.bell import Bell
from jobmill.stores.common.ids import new_id
from jobmill.stores.sqlite import feed, read, schema
from jobmill.stores.sqlite import queues as queue_verbs
from jobmill.stores.sqlite.change import change as change_jobs
from jobmill.stores.sqlite.connection import translated_errors
from jobmill.stores.sqlite.connection.open_file import OpenFile
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.enqueue import enqueue
from jobmill.stores.sqlite.exchange import exchange
from jobmill.stores.sqlite.extend import extend
from jobmill.stores.sqlite.purge import purge
from jobmill.stores.sqlite.report import report
from jobmill.stores.sqlite.usage import record_usage
from jobmill.stores.sqlite.within import enqueue_within, refuse_deadlock

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

T = TypeVar("T")
P = ParamSpec("P")
Verb = Callable[Concatenate[SqliteContext, P], T]

SYNCHRONOUS = ("OFF", "NORMAL", "FULL", "EXTRA")


class SystemClock:
    """Milliseconds since 1970 that never go back within this process, even if the system's clock is set back."""

    def __init__(self) -> None:
        self._last = 0

    def __call__(self) -> int:
        """The time in milliseconds."""
        self._last = max(self._last, time.time_ns() // 1_000_000)
        return self._last


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
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._bell = Bell()
        # For each set of queues: how often the bell had rung for what the last exchange saw.
        self._seen: dict[frozenset[str], int] = {}
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

    # ------------------------------------------------------------------------------------------------ jobs

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        return await self._write(enqueue, new_jobs) if new_jobs else []

    async def enqueue_within(self, connection: sqlite3.Connection, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """See the port. Runs on the caller's thread, because connection and lock belong to the caller."""
        self._opened()
        with translated_errors(self.path):
            return enqueue_within(connection, self.path, self._clock(), new_jobs)

    def check_unlocked(self) -> None:
        """See the port. Every write checks this itself; this is for callers whose writes another task submits."""
        refuse_deadlock(self.path)

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        exchanged, seen = await self._write(exchange, settlements, claim)
        if claim is not None:
            self._seen[frozenset(claim.queues)] = seen
        return exchanged

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        return await self._write(extend, leases, for_ms) if leases else []

    async def report(self, reports: Sequence[Report]) -> list[str]:
        return await self._write(report, reports) if reports else []

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        """See the port. Without an exchange in between, the next sleep ends at the next ring."""
        file, key = self._opened(), frozenset(queues)
        await self._bell.wait(key, (until_ms - self._clock()) / 1000, self._seen.get(key), file.watch)
        self._seen[key] = self._bell.count(key)

    async def change(self, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
        return await self._write(change_jobs, which, change, limit)

    async def purge(self, limit: int = 1_000) -> Purged:
        return await self._write(purge, limit)

    async def record_usage(self, records: Sequence[Usage]) -> None:
        if records:
            await self._write(record_usage, records)

    # ------------------------------------------------------------------------------------------------ read

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        return await self._read(read.get, ids)

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        return await self._read(read.find, filter, cursor, limit)

    async def count(self, filter: Filter) -> list[Count]:
        return await self._read(read.count, filter)

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        return await self._read(read.stats, queue, name)

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        return await self._read(read.logs, id, limit)

    # ------------------------------------------------------------------------------------------------ queues

    async def configure(self, queue: str, change: QueueChange) -> QueueSettings:
        return await self._write(queue_verbs.configure, queue, change)

    async def settings(self, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
        return await self._read(queue_verbs.settings, queues)

    async def publish(self, events: Sequence[Event]) -> None:
        await self._write(feed.publish, events)

    async def events(self, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
        return await self._read(feed.events, queue, after, limit)

    # ------------------------------------------------------------------------------------------------ inside

    def _opened(self) -> OpenFile:
        if self._leave_to_parent():
            self._open()
        if self._file is None:
            raise StoreError("the store is not open; await its open() first")
        return self._file

    def _write(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        refuse_deadlock(self.path)
        return self._opened().writer.submit(lambda context: verb(context, *args, **kwargs))

    def _read(self, verb: Verb[P, T], *args: P.args, **kwargs: P.kwargs) -> asyncio.Future[T]:
        return self._opened().reader.submit(lambda context: verb(context, *args, **kwargs))
