"""Rows of a SQLite table. One transaction finds and locks due rows, in a separate thread."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from msgspec import UNSET

from jobmill.core.durations import instant_ms, to_datetime
from jobmill.crontab.job import CrontabJob
from jobmill.crontab.stores import rows
from jobmill.crontab.stores.base import DocumentStore, Write
from jobmill.crontab.stores.columns import TableColumns, condition, quoted, quoted_table
from jobmill.errors import InvalidValue, StoreBusy, StoreError
from jobmill.stores.common.chunks import chunks
from jobmill.stores.sqlite.connection import BUSY_SECONDS, begin, translated

T = TypeVar("T")
Dates = Literal["iso", "ms"]

#: The maximum number of parameters of a statement in old versions of SQLite.
MAX_PARAMETERS = 900


class SqliteCrontab(DocumentStore):
    """A table of the user, in a file or through a connection, which the user closes.

    The connection needs check_same_thread=False, and nothing else may use it meanwhile. `dates` is the format of
    `sleep_until` and `repeat_until`: "iso", text that SQLite's date functions read (UTC if it has no zone), or "ms",
    whole milliseconds since 1970. Other values are not dates. `where` is an SQL condition that rows must also match.
    """

    def __init__(
        self,
        database: str | Path | sqlite3.Connection,
        table: str,
        *,
        id: str = "id",
        sleep_until: str = "sleep_until",
        interval: str | None = "interval",
        repeat_until: str | None = "repeat_until",
        auto_remove: str | None = "auto_remove",
        where: str | None = None,
        dates: Dates = "iso",
        clock: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(clock)
        if not _is_database(database):
            raise InvalidValue("database", "the path of a file, or a sqlite3 connection", database)
        if dates not in get_args(Dates):
            raise InvalidValue("dates", '"iso" or "ms"', dates)
        self._columns = TableColumns(
            id=id, sleep_until=sleep_until, interval=interval, repeat_until=repeat_until, auto_remove=auto_remove
        )
        self._database = database
        self._path = Path("the given connection") if isinstance(database, sqlite3.Connection) else Path(database)
        self._executor: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None
        self._is_text = dates == "iso"
        self._table = quoted_table(table)
        self._id, self._date = quoted(id, "id"), quoted(sleep_until, "sleep_until")
        # Compares the instants, because there are several ways to write one as text. The pattern excludes other values
        # that julianday accepts: "now", numbers, a time without a day.
        self._key = f"julianday({self._date})" if self._is_text else self._date
        is_date = f"{self._date} GLOB '????-??-??*'" if self._is_text else f"typeof({self._date}) = 'integer'"
        now = "julianday(?)" if self._is_text else "?"
        self._due = (
            f"{self._date} IS NOT NULL AND {self._key} <= {now} AND {is_date} AND {self._id} IS NOT NULL"
            f"{condition(where)}"
        )
        #: Set when the store connects.
        self._names: list[str] = []
        self._all = ""

    # ------------------------------------------------------------------------------------------------ lock

    async def lock_many(self, lock_until: datetime, limit: int) -> list[CrontabJob]:
        """Lock the earliest due rows, in one transaction. There is no transaction while nothing is due."""
        now, lock = self._written(to_datetime(self._clock())), self._written(lock_until)

        def lock_them(connection: sqlite3.Connection) -> list[dict[str, Any]]:
            if not _rows(connection, f"SELECT 1 AS due FROM {self._table} WHERE {self._due} LIMIT 1", [now]):
                return []
            return _transaction(connection, lambda: self._lock(connection, now, lock, limit))

        return [self._columns.job(row, self._read, lock_until) for row in await self._run(lock_them)]

    def _lock(self, connection: sqlite3.Connection, now: Any, lock: Any, limit: int) -> list[dict[str, Any]]:
        statement = f"SELECT {self._all} FROM {self._table} WHERE {self._due} ORDER BY {self._key} LIMIT ?"
        rows = _rows(connection, statement, [now, limit], self._names)
        for some in chunks([row[self._columns.id] for row in rows], MAX_PARAMETERS):
            marks = ", ".join("?" * len(some))
            statement = f"UPDATE {self._table} SET {self._date} = ? WHERE {self._id} IN ({marks})"
            if connection.execute(statement, [lock, *some]).rowcount < len(some):
                raise StoreError(f"table {self._table}: the value of an id does not match its own row; correct the row")
        return rows

    # ------------------------------------------------------------------------------------------------ finish

    async def _write(self, writes: Sequence[Write]) -> list[bool]:
        """Make all writes, in one transaction."""
        statements = [self._statement(write) for write in writes]
        return await self._run(lambda c: _transaction(c, lambda: [_matched(c, *one) for one in statements]))

    def _statement(self, write: Write) -> tuple[str, list[Any]]:
        which, values = f"{self._id} = ?", [write.id]
        if write.locked_until is not None:
            which += f" AND {self._date} = ?"
            values.append(self._written(write.locked_until))
        if write.remove:
            return f"DELETE FROM {self._table} WHERE {which}", values
        fields: dict[str, Any] = {}
        if write.sleep_until is not UNSET:
            fields[self._date] = self._written(write.sleep_until)
        if write.auto_remove is not UNSET:
            fields[self._columns.flag(write.auto_remove)] = int(write.auto_remove)
        if not fields:
            return f"SELECT 1 FROM {self._table} WHERE {which}", values
        parts = " = ?, ".join(fields)
        return f"UPDATE {self._table} SET {parts} = ? WHERE {which}", [*fields.values(), *values]

    # ------------------------------------------------------------------------------------------------ the rest

    async def migrate(self) -> None:
        """Create an index of the rows that have a date, unless an index with its name exists."""
        schema, _, table = self._table.rpartition(".")
        plain = f"{table[1:-1]}_{self._columns.sleep_until}_crontab".replace('""', '"')
        name = f"{schema}." * bool(schema) + quoted(plain, "table")
        statement = f"CREATE INDEX IF NOT EXISTS {name} ON {table} ({self._key}) WHERE {self._date} IS NOT NULL"
        await self._run(lambda connection: _rows(connection, statement, []))

    async def close(self) -> None:
        """Close the connection that this store opened. A later call opens another."""
        executor, self._executor = self._executor, None
        if executor is not None:
            await asyncio.get_running_loop().run_in_executor(executor, self._disconnect)
            executor.shutdown(wait=False)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Call `work` in the thread of this store, one call after the other. Cancelling does not stop a call."""
        if self._executor is None:
            self._executor = ThreadPoolExecutor(1, f"crontab {self._table}")
        try:
            return await asyncio.get_running_loop().run_in_executor(self._executor, self._call, work)
        except sqlite3.Error as error:
            if isinstance(error, sqlite3.ProgrammingError) and "created in a thread" in str(error):
                advice = "check_same_thread=False; or pass the path"
                raise InvalidValue(
                    "database", "a connection that any thread may use", self._database, advice
                ) from error
            raise translated(error, self._path) from error

    def _call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        if self._connection is None:
            self._connection = self._database if isinstance(self._database, sqlite3.Connection) else self._opened()
            try:
                self._names = self._checked(self._connection)
            except BaseException:
                self._disconnect()
                raise
        return work(self._connection)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and connection is not self._database:
            connection.close()

    def _opened(self) -> sqlite3.Connection:
        uri = f"{self._path.absolute().as_uri()}?mode=rw"  # a missing file is a mistake, not a new database
        connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
        # Other programs write these rows: invalid text in one row must not block it and the others.
        connection.text_factory = lambda text: text.decode(errors="replace")
        return connection

    def _checked(self, connection: sqlite3.Connection) -> list[str]:
        """All columns. InvalidValue if the table lacks a column, whose quoted name SQLite would take for a text."""
        cursor = connection.execute(f"SELECT * FROM {self._table} LIMIT 0")
        names = [column[0] for column in cursor.description]
        self._columns.check(names, self._table)
        dates = (self._columns.sleep_until, self._columns.repeat_until)
        # The sign hides the column type from converters of the user's connection: the one of sqlite3 fails for a text
        # with a zone. There is no alias with the same name, because ORDER BY would use it instead of the index.
        self._all = ", ".join("+" * (name in dates) + quoted(name, name) for name in names)
        return names

    def _written(self, value: datetime | None) -> str | int | None:
        if value is None:
            return None
        if self._is_text:
            return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        return instant_ms(value, "sleep_until")

    def _read(self, value: Any) -> Any:
        if self._is_text:
            return rows.date(value)
        return rows.instant_of_ms(value) if isinstance(value, int) else value


def _is_database(database: object) -> bool:
    """A database in memory is refused: no other connection could use it."""
    return isinstance(database, str | Path | sqlite3.Connection) and database not in ("", ":memory:")


def _rows(
    connection: sqlite3.Connection, statement: str, values: Sequence[Any], names: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The rows of a statement as dicts, independent of the row factory of the user's connection."""
    cursor = connection.cursor()
    cursor.row_factory = None
    cursor.execute(statement, values)
    names = names or [column[0] for column in cursor.description or ()]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def _matched(connection: sqlite3.Connection, statement: str, values: Sequence[Any]) -> bool:
    """Whether a statement changed or found a row."""
    cursor = connection.execute(statement, values)
    return cursor.rowcount > 0 or cursor.fetchone() is not None


def _transaction(connection: sqlite3.Connection, work: Callable[[], T]) -> T:
    """Call `work` in an exclusive transaction."""
    _begin(connection)
    try:
        answer = work()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return answer


def _begin(connection: sqlite3.Connection) -> None:
    """Begin without the busy timeout of SQLite, which is for reads and commits."""
    if connection.in_transaction:
        raise StoreBusy("the connection has an open transaction: commit it, or give the crontab a separate connection")
    (wait_ms,) = _rows(connection, "PRAGMA busy_timeout", [])[0].values()
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        begin(connection)
    finally:
        connection.execute(f"PRAGMA busy_timeout = {wait_ms}")
