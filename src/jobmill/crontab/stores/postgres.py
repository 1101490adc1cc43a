"""Rows of a PostgreSQL table. One statement locks due rows, and skips rows that other workers are locking."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeAlias, TypeVar

import asyncpg
from msgspec import UNSET

from jobmill.core.durations import instant_ms, to_datetime
from jobmill.crontab.job import CrontabJob
from jobmill.crontab.stores import rows
from jobmill.crontab.stores.base import DocumentStore, Write
from jobmill.crontab.stores.columns import TableColumns, condition, quoted, quoted_table
from jobmill.crontab.stores.uncertain_writes import UncertainWrites
from jobmill.errors import InvalidValue, StoreError, StoreUnavailable
from jobmill.stores.common.per_loop import PerLoop
from jobmill.stores.postgres.connection.connector import Connector
from jobmill.stores.postgres.connection.errors import translated_errors
from jobmill.stores.postgres.connection.pool import CALL_SECONDS, ConnectionPool
from jobmill.stores.postgres.url import PostgresUrl

T = TypeVar("T")
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

#: The errors of asyncpg for a value that Python cannot represent, such as the year 12000.
_UNREADABLE = (ValueError, ArithmeticError)
_DATES, _DATE = ("sleep_until", "repeat_until"), "timestamp with time zone"
_TYPES = """
    SELECT attname AS name, format_type(atttypid, -1) AS type, atttypmod AS modifier FROM pg_attribute
    WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped"""


class PostgresCrontab(DocumentStore):
    """A table of the user, at a URL or in a pool of asyncpg. The user closes the pool.

    `sleep_until` and `repeat_until` are columns of type timestamptz. `where` is an SQL condition that rows must also
    match.
    """

    def __init__(
        self,
        database: str | Pool,
        table: str,
        *,
        id: str = "id",
        sleep_until: str = "sleep_until",
        interval: str | None = "interval",
        repeat_until: str | None = "repeat_until",
        auto_remove: str | None = "auto_remove",
        where: str | None = None,
        clock: Callable[[], int] | None = None,
    ) -> None:
        super().__init__(clock)
        if isinstance(database, str):
            url = PostgresUrl.parse(database)
            self._pool: PerLoop[ConnectionPool] | Pool = PerLoop(
                lambda: ConnectionPool(Connector(url.url).connect, url.pool_size)
            )
        elif isinstance(database, asyncpg.Pool):
            self._pool = database
        else:
            raise InvalidValue(
                "database", "postgresql://… or a pool of asyncpg", database, "await asyncpg.create_pool(…)"
            )
        self._columns = TableColumns(
            id=id, sleep_until=sleep_until, interval=interval, repeat_until=repeat_until, auto_remove=auto_remove
        )
        self._table = quoted_table(table)
        self._uncertain = UncertainWrites(self._clock)
        #: Set by the first connection, which reads the columns of the table.
        self._id_type = ""
        #: The resolution of the date column.
        self._step_ms = 1
        #: Set when a row could not be read. From then on, a batch with such a row is rolled back.
        self._is_careful = False
        self._id, self._date = quoted(id, "id"), quoted(sleep_until, "sleep_until")
        # The statement holds the row locks until it ends, so that no other worker sees these rows as due.
        self._lock_sql = f"""
            WITH jobmill_due AS MATERIALIZED (
                SELECT * FROM {self._table}
                WHERE {self._date} <= $1 AND {self._id} IS NOT NULL{condition(where)}
                ORDER BY {self._date} LIMIT $3 FOR UPDATE SKIP LOCKED
            )
            UPDATE {self._table} AS target SET {self._date} = $2 FROM jobmill_due
            WHERE target.{self._id} = jobmill_due.{self._id} RETURNING jobmill_due.*"""

    # ------------------------------------------------------------------------------------------------ lock

    async def lock_many(self, lock_until: datetime, limit: int) -> list[CrontabJob]:
        """Lock the earliest due rows, in one statement."""

        async def lock(connection: Any) -> list[CrontabJob]:
            until = self._rounded_up(lock_until)
            rows_before = await self._lock(connection, until, limit)
            return [self._columns.job(dict(row), rows.date, until) for row in rows_before]

        return sorted(await self._use(lock), key=lambda job: job.sleep_until)

    async def _lock(self, connection: Any, lock_until: datetime, limit: int) -> list[Any]:
        """The rows before the lock. A row that Python cannot represent would fail its batch, so it is locked alone."""
        args = self._lock_sql, to_datetime(self._clock()), lock_until
        if self._is_careful and limit > 1:
            with contextlib.suppress(*_UNREADABLE):
                async with connection.transaction():
                    return list(await connection.fetch(*args, limit))
            limit = 1
        try:
            return list(await connection.fetch(*args, limit))
        except _UNREADABLE as error:
            if isinstance(error, asyncpg.InterfaceError):
                raise
            self._is_careful = True
            raise StoreError(f"PostgreSQL, table {self._table}: a row cannot be read: {error}") from error

    def _rounded_up(self, moment: datetime) -> datetime:
        """The lock in the resolution of the column. A fence does not match a lock that the server has rounded."""
        ms = instant_ms(moment, "lock_until")
        return to_datetime(ms + -ms % self._step_ms)

    # ------------------------------------------------------------------------------------------------ finish

    async def _write(self, writes: Sequence[Write]) -> list[bool]:
        """One statement for all rows that stay, and one for all rows that are removed."""
        done: set[Any] = set()  # outside of `write`, which is called again after a deadlock

        async def write(connection: Any) -> list[bool]:
            kinds: dict[tuple[Any, ...], list[Write]] = {}
            for one in writes:
                kinds.setdefault((one.remove, one.sleep_until is UNSET, one.auto_remove), []).append(one)
            for same in kinds.values():
                statement, *more = self._statement(same[0])
                columns = zip(*((one.id, one.locked_until, one.sleep_until or None) for one in same), strict=True)
                done.update(row[0] for row in await connection.fetch(statement, *map(list, columns), *more))
            return [one.id in done or await self._was_written(connection, one) for one in writes]

        with self._uncertain.remember_on_error(writes):
            return await self._use(write)

    def _statement(self, write: Write) -> tuple[Any, ...]:
        """The statement for writes of this kind, and its arguments after the ids, the fences and the dates."""
        ended = f"unnest($1::{self._id_type}[], $2::timestamptz[], $3::timestamptz[]) AS ending (id, fence, date)"
        which = f"target.{self._id} = ending.id AND (target.{self._date} = ending.fence OR ending.fence IS NULL)"
        if write.remove:
            return (f"DELETE FROM {self._table} AS target USING {ended} WHERE {which} RETURNING target.{self._id}",)
        parts, more = [], []
        if write.sleep_until is not UNSET:
            parts.append(f"{self._date} = ending.date")
        if write.auto_remove is not UNSET:
            parts.append(f"{self._columns.flag(write.auto_remove)} = $4")
            more.append(write.auto_remove)
        if not parts:
            return (f"SELECT target.{self._id} FROM {self._table} AS target, {ended} WHERE {which}",)
        statement = f"UPDATE {self._table} AS target SET {', '.join(parts)} FROM {ended} WHERE {which}"
        return (f"{statement} RETURNING target.{self._id}", *more)

    async def _was_written(self, connection: Any, write: Write) -> bool:
        """No row matched: whether an earlier, unanswered call made this write."""
        if write not in self._uncertain:
            return False
        row = await connection.fetchrow(f"SELECT {self._date} FROM {self._table} WHERE {self._id} = $1", write.id)
        return row is None if write.remove else row is not None and row[0] == write.sleep_until

    # ------------------------------------------------------------------------------------------------ the rest

    async def migrate(self) -> None:
        """Create an index of the rows that have a date, unless an index with its name exists."""
        plain = self._table.replace('"', "").replace(".", "_")
        name = quoted(f"{plain}_{self._columns.sleep_until}_crontab"[-63:], "table")
        statement = f"CREATE INDEX IF NOT EXISTS {name} ON {self._table} ({self._date}) WHERE {self._date} IS NOT NULL"
        await self._use(lambda connection: connection.execute(statement))

    async def close(self) -> None:
        """Close the pool that this store opened."""
        if isinstance(self._pool, PerLoop):
            await self._pool.close()

    async def _use(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Call `work` with a connection, with a timeout. Errors of asyncpg become errors of this package."""

        async def checked(connection: Any) -> T:
            try:
                if not self._id_type:
                    self._id_type = await self._checked(connection)
                return await work(connection)
            except asyncpg.SyntaxOrAccessError as error:
                # About the user's table, which `jobmill migrate` does not create.
                raise StoreError(f"PostgreSQL, table {self._table}: {error}") from error

        if isinstance(self._pool, PerLoop):
            return await self._pool.here().use(checked)
        with translated_errors():
            try:
                async with asyncio.timeout(CALL_SECONDS), self._pool.acquire() as connection:
                    return await checked(connection)
            except TimeoutError as error:
                raise StoreUnavailable(f"PostgreSQL did not answer within {CALL_SECONDS:g} s") from error

    async def _checked(self, connection: Any) -> str:
        """The type of the ids; InvalidValue if the table lacks a column, or a column has the wrong type."""
        rows = await connection.fetch(_TYPES, self._table)
        types = {row["name"]: row["type"] for row in rows}
        modifiers = {row["name"]: row["modifier"] for row in rows}
        self._columns.check(types, self._table)
        for field in _DATES:
            name = getattr(self._columns, field)
            if name is not None and types[name] != _DATE:
                advice = f"ALTER TABLE … ALTER COLUMN {quoted(name, field)} TYPE timestamptz"
                raise InvalidValue(field, f"a column of type {_DATE}", types[name], advice)
        id_type = str(types[self._columns.id])
        if id_type.endswith("[]"):
            raise InvalidValue("id", "a column that is not an array", id_type, "use another unique column")
        digits = modifiers[self._columns.sleep_until]
        self._step_ms = 10 ** (3 - digits) if 0 <= digits < 3 else 1
        return id_type
