"""Opening connections to the file, beginning transactions, and SQLite's errors as ours."""

from __future__ import annotations

import functools
import itertools
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Raw

from jobmill.core.stats import payload_matches
from jobmill.errors import JobmillError, StoreBusy, StoreError, StoreUnavailable

# The first version with UPDATE … FROM.
MIN_VERSION = (3, 33, 0)

BUSY_SECONDS = 5.0
# Short to the end: a connection that commits and begins again at once frees the lock only for a moment.
_PAUSES = (0.0005, 0.001, 0.002, 0.003)

# Trying again later may help: the disk is full or missing, or permissions forbid the file or its directory.
_UNAVAILABLE = ("SQLITE_IOERR", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_FULL", "SQLITE_PERM", "SQLITE_AUTH")


def connect(path: Path, synchronous: str, *, mode: str = "rw") -> sqlite3.Connection:
    """A connection that one thread at a time may use, and that begins no transactions by itself."""
    connection = sqlite3.connect(
        f"{path.absolute().as_uri()}?mode={mode}",
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
    )
    try:
        # The first statement reads the schema. While another process makes a new file, it finds the file locked.
        run_when_free(connection, f"PRAGMA synchronous = {synchronous}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.execute("PRAGMA cache_size = -16000")
        # Some builds overwrite deleted content with zeros, which costs page writes.
        connection.execute("PRAGMA secure_delete = OFF")
        connection.create_function("payload_matches", 2, _payload_matches, deterministic=True)
        # A checkpoint every 16 MB: at the default of 4 MB its two fsyncs come four times as often.
        connection.execute("PRAGMA wal_autocheckpoint = 4000")
    except BaseException:
        connection.close()
        raise
    return connection


def _payload_matches(payload: bytes | None, wanted: str) -> bool:
    return payload_matches(Raw(payload or b""), _decoded(wanted))


@functools.lru_cache(maxsize=8)
def _decoded(text: str) -> Any:
    return msgspec.json.decode(text)


def begin(connection: sqlite3.Connection, how: str = "IMMEDIATE", seconds: float = BUSY_SECONDS) -> None:
    """Begin a transaction; StoreBusy where another connection holds the lock for this long."""
    run_when_free(connection, f"BEGIN {how}", seconds)


def run_when_free(connection: sqlite3.Connection, statement: str, seconds: float = BUSY_SECONDS) -> sqlite3.Cursor:
    """Run a statement that needs a lock, again and again while another connection holds it.

    SQLite's own waiting sleeps up to 100 ms at a time and is not fair; this tries again sooner.
    """
    deadline = time.monotonic() + seconds
    for pause in itertools.chain(_PAUSES, itertools.repeat(_PAUSES[-1])):
        try:
            return connection.execute(statement)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
        if time.monotonic() >= deadline:
            break
        time.sleep(pause)
    raise StoreBusy(
        f"another connection has held the write lock of the database for {seconds:g} s; "
        "keep transactions short, and commit or roll back what is open"
    )


@contextmanager
def translated_errors(path: Path) -> Iterator[None]:
    """Errors of SQLite become errors of Jobmill."""
    try:
        yield
    except sqlite3.Error as error:
        raise translated(error, path) from error


def translated(error: BaseException, path: Path) -> BaseException:
    """An error of SQLite as an error of Jobmill; other errors unchanged."""
    if not isinstance(error, sqlite3.Error) or isinstance(error, JobmillError):
        return error
    name: str = getattr(error, "sqlite_errorname", "") or ""
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return StoreBusy(f"another connection holds the lock of {path}: {error}")
    if name.startswith(_UNAVAILABLE):
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
