"""The port on a SQLite file: each verb is a function of a context, run by the writer or by the reader."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

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
    Settlement,
    Stats,
)
from jobmill.errors import InvalidValue, StoreError
from jobmill.stores.common.ids import new_id
from jobmill.stores.sqlite import queues as queue_verbs
from jobmill.stores.sqlite.change import change
from jobmill.stores.sqlite.connection import OLDEST, connect, translated_errors
from jobmill.stores.sqlite.enqueue import enqueue
from jobmill.stores.sqlite.exchange import exchange
from jobmill.stores.sqlite.read import count, find, get, logs, stats
from jobmill.stores.sqlite.schema import bring_up_to_date
from jobmill.stores.sqlite.connection.network import refuse_network
from jobmill.stores.sqlite.report import extend, report
from jobmill.stores.sqlite.purge import purge
from jobmill.stores.sqlite.context import Context
from jobmill.stores.sqlite.connection.threads import Desk
from jobmill.stores.sqlite.usage import record_usage
from jobmill.stores.sqlite.wake import Bell, Watcher
from jobmill.stores.sqlite.within import enqueue_within, refuse_deadlock
from jobmill.stores.sqlite.connection.writer import Reader, Writer

T = TypeVar("T")

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
        # Per set of queues: how many rings the last exchange about them has seen.
        self._seen: dict[frozenset[str], int] = {}
        self._at_work: _AtWork | None = None

    @property
    def place(self) -> str:
        """The path of the file."""
        return str(self.path)

    # ------------------------------------------------------------------------------------------------ open and close

    async def open(self) -> None:
        """Make or migrate the file, and start the threads."""
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        with self._lock:
            if self._at_work is None:
                self._migrate()
                with translated_errors(self.path):
                    self._at_work = _AtWork(self.path, self._synchronous, self._clock, self._bell)

    async def close(self) -> None:
        """Finish what was handed in, end the threads, close the connections."""
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        with self._lock:
            at_work, self._at_work = self._at_work, None
            if at_work is not None:
                at_work.close()

    async def migrate(self) -> list[str]:
        """Bring the schema up to date; `open` does so by itself."""
        return await asyncio.to_thread(self._migrate)

    def _migrate(self) -> list[str]:
        if sqlite3.sqlite_version_info < OLDEST:
            oldest = ".".join(map(str, OLDEST))
            raise StoreError(f"SQLite {oldest} or newer is needed; this Python has {sqlite3.sqlite_version}")
        if self.path.is_dir():
            raise StoreError(f"{self.path} is a directory; name a file in it")
        if not self.path.parent.is_dir():
            raise StoreError(f"the directory {self.path.parent} does not exist; create it first")
        refuse_network(self.path)
        with translated_errors(self.path):
            return bring_up_to_date(self.path, self._synchronous)

    def now(self) -> int:
        """The clock that was passed in, or this machine's."""
        return self._clock()

    def new_id(self) -> str:
        """A uuid7."""
        return new_id()

    # ------------------------------------------------------------------------------------------------ jobs

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """See the port."""
        return await self._write(lambda context: enqueue(context, new_jobs)) if new_jobs else []

    async def enqueue_within(self, connection: sqlite3.Connection, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """See the port. Runs on the caller's thread: the connection is his, and the lock as well."""
        self._opened()
        with translated_errors(self.path):
            return enqueue_within(connection, self.path, self._clock(), new_jobs)

    def check_unlocked(self) -> None:
        """See the port. Every write asks by itself; this is for callers whose writes another task hands in."""
        refuse_deadlock(self.path)

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        """See the port."""
        exchanged, seen = await self._write(lambda context: exchange(context, settlements, claim))
        if claim is not None:
            self._seen[frozenset(claim.queues)] = seen
        return exchanged

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        """See the port."""
        return await self._write(lambda context: extend(context, leases, for_ms)) if leases else []

    async def report(self, reports: Sequence[Report]) -> list[str]:
        """See the port."""
        return await self._write(lambda context: report(context, reports)) if reports else []

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        """See the port."""
        at_work, key = self._opened(), frozenset(queues)
        seconds = max(0, until_ms - self._clock()) / 1000
        await self._bell.sleep(self._seen.get(key), seconds, at_work.somebody_sleeps)
        # Without an exchange in between, the next sleep is for the next ring.
        self._seen[key] = self._bell.rings

    async def change(self, which: Sequence[str] | Filter, change_: Change, limit: int = 1_000) -> Changed:
        """See the port."""
        return await self._write(lambda context: change(context, which, change_, limit))

    async def purge(self, limit: int = 1_000) -> Purged:
        """See the port."""
        return await self._write(lambda context: purge(context, limit))

    async def record_usage(self, records: Sequence[Usage]) -> None:
        """See the port."""
        if records:
            await self._write(lambda context: record_usage(context, records))

    # ------------------------------------------------------------------------------------------------ look

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        """See the port."""
        return await self._read(lambda context: get(context, ids))

    async def find(self, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
        """See the port."""
        return await self._read(lambda context: find(context, filter, cursor, limit))

    async def count(self, filter: Filter) -> list[Count]:
        """See the port."""
        return await self._read(lambda context: count(context, filter))

    async def stats(self, queue: str | None = None, name: str | None = None) -> list[Stats]:
        """See the port."""
        return await self._read(lambda context: stats(context, queue, name))

    async def logs(self, id: str, limit: int = 1_000) -> list[LogLine]:
        """See the port."""
        return await self._read(lambda context: logs(context, id, limit))

    # ------------------------------------------------------------------------------------------------ queues

    async def configure(self, queue: str, change: QueueChange) -> QueueSettings:
        """See the port."""
        return await self._write(lambda context: queue_verbs.configure(context, queue, change))

    async def settings(self, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
        """See the port."""
        return await self._read(lambda context: queue_verbs.settings(context, queues))

    async def publish(self, events: Sequence[Event]) -> None:
        """See the port."""
        await self._write(lambda context: queue_verbs.publish(context, events))

    async def events(self, queue: str, after: str | None = None, limit: int = 1_000) -> list[Event]:
        """See the port."""
        return await self._read(lambda context: queue_verbs.events(context, queue, after, limit))

    # ------------------------------------------------------------------------------------------------ inside

    def _opened(self) -> _AtWork:
        if self._at_work is None:
            raise StoreError("the store is not open; await its open() first")
        return self._at_work

    def _write(self, work: Callable[[Context], T]) -> asyncio.Future[T]:
        refuse_deadlock(self.path)
        return self._opened().writer.submit(work)

    def _read(self, work: Callable[[Context], T]) -> asyncio.Future[T]:
        return self._opened().reader.submit(work)


class _AtWork:
    """The threads and connections of an open store."""

    def __init__(self, path: Path, synchronous: str, clock: Callable[[], int], bell: Bell) -> None:
        writer, reader = self._connections = [connect(path, synchronous) for _ in range(2)]
        try:
            reader.execute("PRAGMA busy_timeout = 5000")
            self._writer = Writer(writer, path, clock, bell)
            self._writer.look()
        except BaseException:
            writer.close()
            reader.close()
            raise
        self.writer = Desk("jobmill-sqlite-writer", self._writer.run)
        self.reader = Desk("jobmill-sqlite-reader", Reader(reader, path, clock).run)
        self._path, self._synchronous, self._bell = path, synchronous, bell
        self._lock = threading.Lock()
        self._watcher: Watcher | None = None

    def somebody_sleeps(self) -> None:
        """See what other connections have written since the sleeper looked, and watch them from now on."""
        self._look()
        with self._lock:
            if self._watcher is None:
                with translated_errors(self._path):
                    connection = connect(self._path, self._synchronous)
                    self._watcher = Watcher(self._path, connection, self._bell, self._look)
            self._watcher.poke()

    def _look(self) -> None:
        self.writer.post(self._writer.look)

    def close(self) -> None:
        """Finish what was handed in, wake who sleeps, and give everything back."""
        with self._lock:
            if self._watcher is not None:
                self._watcher.close()
        self.writer.close()
        self._bell.ring()
        self.reader.close()
        for connection in self._connections:
            connection.close()
