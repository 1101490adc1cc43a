"""An open file: its connections, and the threads that use them."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from jobmill.stores.common.bell import Bell, wake
from jobmill.stores.sqlite.connection.connect import begin, connect, translated, translated_errors
from jobmill.stores.sqlite.connection.forks import ForkGuard
from jobmill.stores.sqlite.connection.threads import Answer, Work, WorkThread
from jobmill.stores.sqlite.connection.writer import Writer
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.statements import sql
from jobmill.stores.sqlite.wake import CommitWatcher

# A write to the log is visible as a commit when the disk has it: until then, the commit is looked for again.
_VISIBLE_NS = 1_000_000_000


class OpenFile:
    """A writer and a reader. When a worker first sleeps, a watcher for commits of other processes is added."""

    def __init__(self, path: Path, synchronous: str, clock: Callable[[], int], bell: Bell) -> None:
        self.write_connection, self._read_connection = connect(path, synchronous), connect(path, synchronous)
        try:
            self._read_connection.execute("PRAGMA busy_timeout = 5000")
            self._writer = Writer(self.write_connection, path, clock, bell)
            self._writer.notice_commits()
        except BaseException:
            self._close_connections()
            raise
        self._path, self._synchronous, self._clock, self._bell = path, synchronous, clock, bell
        self._guard = ForkGuard()
        self.writer = WorkThread("jobmill-sqlite-writer", self._writer.run, self._guard.add(self.write_connection))
        self.reader = WorkThread("jobmill-sqlite-reader", self._read, self._guard.add(self._read_connection))
        self._lock = threading.Lock()
        self._watcher: CommitWatcher | None = None
        self._log = f"{path}-wal"
        #: When the log had been written to, the last time that commits of others were looked for.
        self._written_ns = 0

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that opened the file: the threads of its parent are not here."""
        return self._guard.forked

    def newest_ms(self) -> int:
        """The time at which the newest job was enqueued; 0 without jobs. Call it before the threads have work."""
        row = self._read_connection.execute(sql("newest_ms")).fetchone()
        return int(row[0]) if row else 0

    def _read(self, queries: Sequence[Work]) -> Sequence[Answer]:
        """Run queries on the connection of the reader, so that a long query does not delay the writer."""
        return [self._read_one(query) for query in queries]

    def _read_one(self, query: Work) -> Answer:
        """Run a query in a new snapshot, which contains everything that was committed before the call."""
        try:
            begin(self._read_connection, "DEFERRED")
            try:
                return query(SqliteContext(self._read_connection.cursor(), self._clock()))
            finally:
                self._read_connection.rollback()
        except Exception as error:
            return translated(error, self._path)

    def watch(self) -> None:
        """Call this when a worker begins to sleep: notice commits of other connections, and watch them from now on."""
        self._notice_commits()
        with self._lock:
            self._watcher = self._watcher or self._start_watcher()
            self._watcher.wake_up()

    def _start_watcher(self) -> CommitWatcher:
        with translated_errors(self._path):
            connection = connect(self._path, self._synchronous)
            return CommitWatcher(self._path, connection, self._bell, self._notice_commits, self._guard.add(connection))

    async def commits_of_others(self) -> int:
        """How many times commits of other connections were noticed. While nobody writes, this asks the kernel only."""
        try:
            written_ns = os.stat(self._log).st_mtime_ns
        except OSError:
            written_ns = time.time_ns()
        if written_ns != self._written_ns or time.time_ns() - written_ns < _VISIBLE_NS:
            noticed = asyncio.get_running_loop().create_future()
            self._notice_commits()
            self.writer.call_soon(partial(_notify, noticed))
            await noticed
            self._written_ns = written_ns
        return self._writer.commits_of_others

    def _notice_commits(self) -> None:
        self.writer.call_soon(self._writer.notice_commits)

    def close(self) -> None:
        """Finish what was submitted, wake sleeping workers, and close everything."""
        with self._lock:
            if self._watcher is not None:
                self._watcher.close()
        self.writer.close()
        self._bell.ring()
        self.reader.close()
        self._close_connections()

    def _close_connections(self) -> None:
        self.write_connection.close()
        self._read_connection.close()


def _notify(waiter: asyncio.Future[None]) -> None:
    waiter.get_loop().call_soon_threadsafe(wake, waiter)
