"""The faults of a SQLite file."""

from __future__ import annotations

import contextlib
import os
import resource
import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

from tests.faults.operations import Fault, Operation
from tests.kit.workers import WorkerProcesses

#: A file that grows beyond it is refused the rest, in the processes that have this limit.
FILE_BYTES = 1 << 20


class SqliteFile:
    """A SQLite file. Another connection can lock it, and the file system can refuse to let its files grow."""

    store_name = "sqlite"

    def __init__(self, folder: Path) -> None:
        self._path = folder / "jobs.db"
        self.url = self.direct_url = f"sqlite:///{self._path}"
        self.workers = WorkerProcesses(folder, self.url)
        self.faults: Mapping[Operation, Fault] = {"pause": self._locked, "full_disk": self._full}
        self.dropped_answers = 0
        self.connections = 0

    async def duplicates(self) -> list[str]:
        """A job is one row."""
        return []

    def drop_answer(self, skip: int) -> None:
        """There are no answers that can be lost."""
        raise AssertionError("SQLite has no answers to drop")

    @contextlib.asynccontextmanager
    async def _locked(self) -> AsyncIterator[None]:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None, timeout=20)) as other:
            other.execute("BEGIN EXCLUSIVE")
            yield

    @contextlib.asynccontextmanager
    async def _full(self) -> AsyncIterator[None]:
        """The write-ahead log may not grow; and a reader keeps SQLite from beginning it anew."""
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM sqlite_schema").fetchall()
            with limited([os.getpid(), *(process.pid for process in self.workers.running())]):
                yield


@contextlib.contextmanager
def limited(pids: list[int]) -> Iterator[None]:
    """Files of these processes may not grow beyond FILE_BYTES, as long as the block lasts.

    Python ignores the signal of that limit, so that a write fails with EFBIG.
    """
    before = {pid: resource.prlimit(pid, resource.RLIMIT_FSIZE) for pid in pids}
    for pid, (_, hard) in before.items():
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (FILE_BYTES, hard))
    try:
        yield
    finally:
        for pid, limits in before.items():
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
