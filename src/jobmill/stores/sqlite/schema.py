"""Schema: numbered migrations, applied in one transaction each, recorded in a table of their own.

Not in `PRAGMA user_version`: to enqueue within the application's own transactions, Jobmill's tables must be able to
live in the application's own file, whose user_version is not ours.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from jobmill.errors import SchemaTooNew, StoreError
from jobmill.stores.sqlite.connection import begin, connect
from jobmill.stores.sqlite.statements import HERE

# "JobM": says whose file it is when Jobmill made it.
APPLICATION_ID = 0x4A6F624D

_RECORD = """
CREATE TABLE IF NOT EXISTS jobmill_migrations (
    number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_ms INTEGER NOT NULL
)
"""


def migrations() -> list[tuple[int, str, str]]:
    """Number, name and SQL of all migrations that this Jobmill knows."""
    files = sorted((HERE / "migrations").glob("[0-9]*.sql"))
    return [(int(file.name[:4]), file.stem, file.read_text("utf-8")) for file in files]


def bring_up_to_date(path: Path, synchronous: str) -> list[str]:
    """Make or migrate the file; the names of the migrations that ran. Nothing is touched when it is not for us."""
    if path.exists() and path.stat().st_size:
        done = _look(path, synchronous)
        if done == {number for number, _, _ in migrations()}:
            return []
    connection = connect(path, synchronous, mode="rwc")
    try:
        _use_wal(connection)
        return _apply(connection, path)
    finally:
        connection.close()


def _look(path: Path, synchronous: str) -> set[int]:
    """The numbers of the migrations that the file has, read without the right to write."""
    connection = connect(path, synchronous, mode="ro")
    try:
        return _applied(connection, path)
    finally:
        connection.close()


def _applied(connection: sqlite3.Connection, path: Path) -> set[int]:
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    if owner not in (0, APPLICATION_ID):
        raise StoreError(f"{path} is the database of another application (application_id {owner}); choose another file")
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'jobmill_migrations'")
    if known.fetchone() is None:
        return set()
    numbers = {row[0] for row in connection.execute("SELECT number FROM jobmill_migrations")}
    newest = max((number for number, _, _ in migrations()), default=0)
    if numbers and max(numbers) > newest:
        raise SchemaTooNew(
            f"{path} was written by a newer Jobmill (schema {max(numbers)}, this one knows {newest}); "
            "update Jobmill; nothing was changed"
        )
    return numbers


def _use_wal(connection: sqlite3.Connection) -> None:
    """WAL needs a moment without other connections; while another process makes the same file, it is asked again."""
    deadline = time.monotonic() + 5
    while True:
        try:
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.005)
            continue
        if mode != "wal":
            raise StoreError(f"SQLite cannot keep a write-ahead log here (journal mode {mode}); use a local disk")
        return


def _apply(connection: sqlite3.Connection, path: Path) -> list[str]:
    ran: list[str] = []
    begin(connection)
    try:
        if connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone() is None:
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(_RECORD)
        # Another process may have been first.
        done = _applied(connection, path)
        for number, name, text in migrations():
            if number not in done:
                _run(connection, text)
                now_ms = time.time_ns() // 1_000_000
                connection.execute("INSERT INTO jobmill_migrations VALUES (?, ?, ?)", (number, name, now_ms))
                ran.append(name)
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise
    return ran


def _run(connection: sqlite3.Connection, text: str) -> None:
    """All statements of a migration; executescript would commit the transaction that they belong to."""
    statement = ""
    for line in text.splitlines():
        if line.strip() and not line.lstrip().startswith("--"):
            statement += line + "\n"
            if sqlite3.complete_statement(statement):
                connection.execute(statement)
                statement = ""
