"""Connections to the file, and SQLite's errors in our words."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobmill.errors import JobmillError, StoreBusy, StoreError, StoreUnavailable

# UPDATE … FROM.
OLDEST = (3, 33, 0)

BUSY_SECONDS = 5.0
# Short to the end: whoever commits and begins again at once leaves the lock free for a blink.
_PAUSES = (0.0005, 0.001, 0.002, 0.003)

# Trying again later may help: the disk is full or away, the file or its directory is not ours to use now.
_AWAY = ("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_FULL", "SQLITE_PERM", "SQLITE_AUTH")


def connect(path: Path, synchronous: str, *, mode: str = "rw") -> sqlite3.Connection:
    """A connection that may be used from any one thread at a time, and that begins no transactions by itself."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
    )
    try:
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -16000")
        # Some builds overwrite what is deleted with zeros, which costs page writes.
        connection.execute("PRAGMA secure_delete = OFF")
        # A checkpoint every 16 MB: at the default of 4 MB its two fsyncs come four times as often.
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
    except BaseException:
        connection.close()
        raise
    return connection


def begin(connection: sqlite3.Connection, how: str = "IMMEDIATE", seconds: float = BUSY_SECONDS) -> None:
    """Begin a transaction; StoreBusy if another connection keeps the lock for so long.

    SQLite's own waiting sleeps up to 100 ms at a time and cannot be told to be fair; ours asks again sooner.
    """
    deadline = None
    tries = 0
    while True:
        try:
            connection.execute(f"BEGIN {how}")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
        now = time.monotonic()
        deadline = deadline or now + seconds
        if now >= deadline:
            raise StoreBusy(
                f"another connection has held the write lock of the database for {seconds:g} s; "
                "keep transactions short, and commit or roll back what is open"
            )
        time.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])
        tries += 1


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Errors of SQLite become errors of Jobmill."""
    try:
        yield
    except sqlite3.Error as error:
        raise translated(error, path) from error


def translated(error: BaseException, path: Path) -> BaseException:
    """The same error, as Jobmill says it; others than SQLite's as they are."""
    if not isinstance(error, sqlite3.Error) or isinstance(error, JobmillError):
        return error
    name: str = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreBusy(f"another connection holds the lock of {path}: {error}")
    if name.startswith(_AWAY):
        return StoreUnavailable(f"cannot use {path} now: {error}{_hint(name, path)}")
    if name == "SQLITE_NOTADB":
        return StoreError(f"{path} is not a SQLite database; choose another file")
    if name.startswith("SQLITE_CORRUPT"):
        return StoreError(f"{path} is damaged: {error}; restore a backup or use sqlite3's .recover")
    return StoreError(f"{path}: {error}")


def _hint(name: str, path: Path) -> str:
    if name.startswith("SQLITE_CANTOPEN"):
        if not path.parent.is_dir():
            return f"; the directory {path.parent} does not exist"
        if path.is_dir():
            return "; it is a directory"
        return "; check the permissions of the file and its directory"
    if name.startswith("SQLITE_READONLY") or (path.exists() and not os.access(path, os.W_OK)):
        return "; the file and its directory must be writable"
    return ""
