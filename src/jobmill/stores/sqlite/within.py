"""Enqueueing within the caller's own transaction, on the caller's own sqlite3 connection."""

from __future__ import annotations

import inspect
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from jobmill.core.values import NewJob, Receipt
from jobmill.errors import InvalidValue, StoreBusy
from jobmill.stores.common.callers import behind_django, packages_of
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.enqueue import enqueue
from jobmill.stores.sqlite.lanes import fill


class _Open:
    """A transaction that a caller has not ended yet, as far as we have seen."""

    __slots__ = ("connection", "path")

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self.connection: sqlite3.Connection | None = connection
        self.path = path

    def is_open(self) -> bool:
        """Whether it is still open. Once it has ended, the connection's next transaction does not concern us."""
        try:
            if self.connection is not None and not self.connection.in_transaction:
                self.connection = None
        except sqlite3.ProgrammingError:  # closed
            self.connection = None
        return self.connection is not None


# Follows the caller through awaits, into tasks and across threads: all code that the caller then waits for.
_open: ContextVar[tuple[_Open, ...]] = ContextVar("jobmill_sqlite_within", default=())


def refuse_deadlock(path: Path) -> None:
    """Raise StoreBusy for a write that would wait for a lock which its own caller holds."""
    if not (known := _open.get()):
        return
    still = tuple(one for one in known if one.is_open())
    _open.set(still)
    if any(one.path == path for one in still):
        raise StoreBusy(
            "this call would wait for the lock of a transaction in which you have enqueued and which is still open: "
            "commit or roll it back first, or pass its connection here as well"
        )


def enqueue_within(given: Any, path: Path, now_ms: int, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """Enqueue in the transaction of this connection; one is begun if none is open. The caller commits."""
    connection = _driver_connection(behind_django(given))
    if not isinstance(connection, sqlite3.Connection):
        expected = "a connection of sqlite3 or Django, or a connection or session of SQLAlchemy"
        raise InvalidValue("within", expected, given)
    _check_thread(connection)
    with _plain_text(connection):
        # Not connection.cursor(): the caller may have set a factory of its own.
        cursor = sqlite3.Cursor(connection)
        _check_same_file(cursor, path)
        if not connection.in_transaction:
            cursor.execute("BEGIN IMMEDIATE")
        # A call that fails halfway leaves nothing behind, even if the caller commits.
        cursor.execute("SAVEPOINT jobmill_enqueue")
        try:
            context = SqliteContext(cursor, now_ms)
            receipts = enqueue(context, new_jobs, within=True)
            fill(context)
        except BaseException:
            cursor.execute("ROLLBACK TO jobmill_enqueue")
            raise
        finally:
            cursor.execute("RELEASE jobmill_enqueue")
    known = _open.get()
    if not any(one.connection is connection for one in known):
        _open.set((*known, _Open(connection, path)))
    return receipts


def _driver_connection(given: Any) -> Any:
    """The driver's connection behind a connection or session of SQLAlchemy; any other object unchanged."""
    if "sqlalchemy" not in packages_of(given) or not hasattr(given, "execute"):
        return given
    # `connection` is a method of sessions; of connections it is the driver's connection.
    is_session = callable(getattr(type(given), "connection", None))
    try:
        connection = given.connection() if is_session else given
    except Exception as error:  # it is bound to no engine, or a transaction of it has failed
        raise InvalidValue("within", "a session that can be used", given, str(error)) from error
    if inspect.iscoroutine(connection) or not hasattr(connection, "in_transaction"):
        if inspect.iscoroutine(connection):
            connection.close()
        advice = "on SQLite, Jobmill needs the driver sqlite3 itself: use a sync session, in a view with def"
        raise InvalidValue("within", "a sync connection or session of SQLAlchemy", given, advice)
    if not connection.in_transaction():
        connection.begin()  # so that the caller's commit is sent
    driver = connection.connection.driver_connection
    if not isinstance(driver, sqlite3.Connection):  # the sync face of an async one, or of another database
        dialect = connection.dialect
        advice = f"its engine is {dialect.name}+{dialect.driver}; give one of sqlite:///…"
        expected = "a connection or session of SQLAlchemy on SQLite, with the driver sqlite3"
        raise InvalidValue("within", expected, given, advice)
    if not driver.in_transaction and (driver.isolation_level is None or getattr(driver, "autocommit", None) is True):
        advice = "its isolation level is AUTOCOMMIT, in which there are none"
        raise InvalidValue("within", "a connection with transactions", given, advice)
    return driver


def _check_thread(connection: sqlite3.Connection) -> None:
    try:
        sqlite3.Cursor(connection).close()
    except sqlite3.ProgrammingError as error:  # closed, or another thread's
        advice = f"{error} Code without a loop: jobs.sync.enqueue_many([handler.draft(...)], within=connection)"
        raise InvalidValue("within", "an open connection of the calling thread", connection, advice) from None


@contextmanager
def _plain_text(connection: sqlite3.Connection) -> Iterator[None]:
    factories = connection.text_factory, connection.row_factory
    connection.text_factory, connection.row_factory = str, None
    try:
        yield
    finally:
        connection.text_factory, connection.row_factory = factories


def _check_same_file(cursor: sqlite3.Cursor, path: Path) -> None:
    """The tables are found by their names in an attached database as well as in the main one."""
    files = [row[2] for row in cursor.execute("PRAGMA database_list").fetchall()]
    if not any(file and os.path.exists(file) and os.path.samefile(file, path) for file in files):
        raise InvalidValue(
            "within", f"a connection to the database of the store, {path}", files, "ATTACH it, or connect to that file"
        )
