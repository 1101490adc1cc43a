"""The schema: numbered migrations, recorded in a table of their own.

`PRAGMA user_version` cannot record them: Jobmill's tables may be in the application's own file, so that jobs can be
enqueued within its transactions, and there the user_version belongs to the application.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

from jobmill.errors import StoreError
from jobmill.stores.common.sql import migrations_in, refuse_newer
from jobmill.stores.sqlite.connection import begin, connect, translated_errors
from jobmill.stores.sqlite.connection.connect import MIN_VERSION, run_when_free
from jobmill.stores.sqlite.connection.network import refuse_network
from jobmill.stores.sqlite.statements import HERE

# "JobM": marks files that Jobmill made.
APPLICATION_ID = 0x4A6F624D

_RECORD = """
CREATE TABLE IF NOT EXISTS jobmill_migrations (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_ms INTEGER NOT NULL
)
"""

MIGRATIONS = migrations_in(HERE / "migrations")


def migrate(path: Path, synchronous: str) -> list[str]:
    """Make or migrate the file; the names of the migrations that ran. A file that cannot be ours is not changed."""
    if sqlite3.sqlite_version_info < MIN_VERSION:
        oldest = ".".join(map(str, MIN_VERSION))
        raise StoreError(f"SQLite {oldest} or newer is needed; this Python has {sqlite3.sqlite_version}")
    if path.is_dir():
        raise StoreError(f"{path} is a directory; name a file in it")
    if not path.parent.is_dir():
        raise StoreError(f"the directory {path.parent} does not exist; create it first")
    refuse_network(path)
    with translated_errors(path):
        return _migrate(path, synchronous)


def _migrate(path: Path, synchronous: str) -> list[str]:
    if path.exists() and path.stat().st_size:
        with closing(connect(path, synchronous, mode="ro")) as connection:
            if _applied(connection, path) == MIGRATIONS.keys():
                return []
    _create_private(path)
    with closing(connect(path, synchronous, mode="rwc")) as connection:
        _use_wal(connection)
        return _apply(connection, path)


def _create_private(path: Path) -> None:
    """Create the file for this user only: payloads may be secrets. SQLite gives its other files the same mode."""
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))


def _applied(connection: sqlite3.Connection, path: Path) -> set[int]:
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    if owner not in (0, APPLICATION_ID):
        raise StoreError(f"{path} is the database of another application (application_id {owner}); choose another file")
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'jobmill_migrations'")
    if known.fetchone() is None:
        return set()
    numbers = {row[0] for row in connection.execute("SELECT number FROM jobmill_migrations")}
    refuse_newer(str(path), numbers, MIGRATIONS)
    return numbers


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switch to WAL. That needs a moment without other connections; another process may be making the file."""
    (mode,) = run_when_free(connection, "PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(f"SQLite cannot keep a write-ahead log here (journal mode {mode}); use a local disk")


def _apply(connection: sqlite3.Connection, path: Path) -> list[str]:
    ran: list[str] = []
    begin(connection)
    try:
        if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(_RECORD)
        # Another process may have been first.
        done = _applied(connection, path)
        for number, file in MIGRATIONS.items():
            if number not in done:
                _run(connection, file.read_text("utf-8"))
                row = (number, file.stem, time.time_ns() // 1_000_000)
                connection.execute("INSERT INTO jobmill_migrations VALUES (?, ?, ?)", row)
                ran.append(file.stem)
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise
    return ran


def _run(connection: sqlite3.Connection, text: str) -> None:
    """Run all statements of a migration. executescript would commit the transaction that they belong to."""
    statement = ""
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("--"):
            statement += line + "\n"
            if sqlite3.complete_statement(statement):
                connection.execute(statement)
                statement = ""
