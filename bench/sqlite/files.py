"""A database file of ours as the harness looks at it: whether a job is live, a long history, a checkpoint."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

SCHEME = "sqlite:///"
#: By the indexes that our store keeps for them: a look costs the same beside a million finished jobs.
LEFT = """
    SELECT EXISTS (SELECT 1 FROM jobmill_jobs INDEXED BY jobmill_waiting WHERE state = 'waiting')
    OR EXISTS (SELECT 1 FROM jobmill_jobs INDEXED BY jobmill_running WHERE state = 'running')
"""
#: Ids sort as uuid7s do, before those of today.
COPY = """
    WITH RECURSIVE numbers (n) AS (VALUES (1) UNION ALL SELECT n + 1 FROM numbers WHERE n < :jobs)
    INSERT INTO jobmill_jobs (id, {columns})
    SELECT printf('0100%028x', n), {columns} FROM (SELECT * FROM jobmill_jobs LIMIT 1), numbers
"""


def path_of(url: str) -> str:
    """The file at a URL of ours; a peer's URL is the path itself."""
    return url.removeprefix(SCHEME).partition("?")[0] if url.startswith(SCHEME) else url


@contextmanager
def looking(url: str) -> Iterator[Callable[[], bool]]:
    """Asks whether any job of ours is live there."""
    with closing(_connected(url)) as connection:
        yield lambda: bool(connection.execute(LEFT).fetchone()[0])


def multiply(url: str, jobs: int) -> None:
    """So many more finished jobs like the one that is there."""
    with closing(_connected(url)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        names = [name for _, name, *_ in connection.execute("PRAGMA table_info (jobmill_jobs)")]
        columns = ", ".join(name for name in names if name not in ("seq", "id"))
        connection.execute(COPY.format(columns=columns), {"jobs": jobs})


def checkpoint(url: str) -> None:
    """Bring into the file, and to the disk, what its log holds, so that no run pays for what was done before it."""
    with closing(_connected(url)) as connection:
        connection.execute("PRAGMA wal_checkpoint (PASSIVE)")


def _connected(url: str) -> sqlite3.Connection:
    """For one statement at a time; it may be used from a loop's thread and from the one that closes it."""
    return sqlite3.connect(path_of(url), timeout=30, isolation_level=None, check_same_thread=False)
