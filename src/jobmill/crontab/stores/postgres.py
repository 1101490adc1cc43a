"""Rows of a PostgreSQL table. One statement locks due rows, and skips rows that other workers are locking."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import datetime
from typing import Any, TypeAlias

import asyncpg
from msgspec import UNSET

from jobmill.core.durations import instant_ms, to_datetime
from jobmill.crontab.job import Changes, CrontabJob, Ending
from jobmill.crontab.stores import rows
from jobmill.crontab.stores.clock import process_ms
from jobmill.crontab.stores.columns import TableColumns, condition, quoted, quoted_table
from jobmill.crontab.stores.uncertain_writes import UncertainWrites
from jobmill.errors import InvalidValue, StoreError, StoreUnavailable
from jobmill.stores.common.per_loop import PerLoop
from jobmill.stores.postgres.connection.errors import translated

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

#: One connection for locks, one for writes, and one for other queries.
CONNECTIONS = 3
CALL_SECONDS = 10.0
CONNECT_SECONDS = 5.0
CLOSE_SECONDS = 1.5

#: The errors of asyncpg for a value that Python cannot represent, such as the year 12000.
_UNREADABLE = (ValueError, ArithmeticError)
_DATES, _DATE = ("sleep_until", "repeat_until"), "timestamp with time zone"
_TYPES = """
    SELECT attname AS name, format_type(atttypid, -1) AS type, atttypmod AS modifier FROM pg_attribute
    WHERE attrelid = $1::text::regclass AND attnum > 0 AND NOT attisdropped"""


class PostgresCrontab:
    """A table of the user, at a URL or in a pool of asyncpg. The user closes the pool.

    `sleep_until` and `repeat_until` are columns of type timestamptz. `where` is an SQL condition that rows must also
    match.
    """

    def __init__(
        self,
        place: str | Pool,
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
        if not isinstance(place, str | asyncpg.Pool):
            raise InvalidValue("place", "postgresql://… or a pool of asyncpg", place, "await asyncpg.create_pool(…)")
        self._columns = TableColumns(
            id=id, sleep_until=sleep_until, interval=interval, repeat_until=repeat_until, auto_remove=auto_remove
        )
        self._table = quoted_table(table)
        self._given = None if isinstance(place, str) else place
        self._pools = PerLoop(lambda: _LazyPool(str(place)))
        self._clock = clock or process_ms
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

    async def lock_next(self, lock_until: datetime) -> CrontabJob | None:
        """Lock the earliest due document."""
        return next(iter(await self.lock_many(lock_until, 1)), None)

    async def lock_many(self, lock_until: datetime, limit: int) -> list[CrontabJob]:
        """Lock the earliest due rows, in one statement."""
        async with self._connection() as connection:
            lock_until = self._rounded_up(lock_until)
            rows = await self._lock(connection, lock_until, limit)
        jobs = [self._columns.job(dict(row), _read, locked_until=lock_until) for row in rows]
        jobs.sort(key=lambda job: job.sleep_until)
        return jobs

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

    async def update(self, id: Any, changes: Changes, /) -> bool:
        """Write the fields that are set, in one statement."""
        fields = self._columns.fields(changes)
        which, values = self._held(id, changes.locked_until)
        if not fields:
            async with self._connection() as connection:
                return await connection.fetchval(f"SELECT 1 FROM {self._table} WHERE {which}", *values) is not None
        parts = [f"{quoted(name, name)} = ${len(values) + n}" for n, name in enumerate(fields, 1)]
        statement = f"UPDATE {self._table} SET {', '.join(parts)} WHERE {which} RETURNING 1"
        with self._uncertain.remember_on_error([(repr(id), changes.locked_until)]):
            async with self._connection() as connection:
                found = await connection.fetchval(statement, *values, *fields.values())
        if found is not None or changes.locked_until is None or changes.sleep_until is UNSET:
            return found is not None
        return await self._was_written(
            Ending(id=id, locked_until=changes.locked_until, sleep_until=changes.sleep_until)
        )

    async def remove(self, id: Any, /, *, locked_until: datetime | None = None) -> bool:
        """Delete the row, in one statement."""
        which, values = self._held(id, locked_until)
        with self._uncertain.remember_on_error([(repr(id), locked_until)]):
            async with self._connection() as connection:
                found = await connection.fetchval(f"DELETE FROM {self._table} WHERE {which} RETURNING 1", *values)
        if found is not None or locked_until is None:
            return found is not None
        return await self._was_written(Ending(id=id, locked_until=locked_until, remove=True))

    async def _was_written(self, ending: Ending) -> bool:
        """No row matched: whether an earlier, unanswered write of this ending was done."""
        key = (repr(ending.id), ending.locked_until)
        if key not in self._uncertain:
            return False
        async with self._connection() as connection:
            row = await connection.fetchrow(f"SELECT {self._date} FROM {self._table} WHERE {self._id} = $1", ending.id)
        self._uncertain.resolve([key])
        return row is None if ending.remove else row is not None and row[0] == ending.sleep_until

    async def finish_many(self, endings: Sequence[Ending]) -> list[bool]:
        """One statement for rows that stay, and one for rows that are removed."""
        keys = [(repr(ending.id), ending.locked_until) for ending in endings]
        with self._uncertain.remember_on_error(keys):
            done = await self._finish(endings)
            answers = [ending.id in done or await self._was_written(ending) for ending in endings]
        self._uncertain.resolve(keys)
        return answers

    async def _finish(self, endings: Sequence[Ending]) -> set[Any]:
        kept = [ending for ending in endings if not ending.remove]
        removed = [ending for ending in endings if ending.remove]
        done: set[Any] = set()
        async with self._connection() as connection:
            if kept:
                statement = f"""
                    UPDATE {self._table} AS target SET {self._date} = ending.sleep_until
                    FROM {self._ended(", sleep_until", ", $3::timestamptz[]")}
                    WHERE {self._is_ended()} RETURNING target.{self._id}"""
                sleeps = [ending.sleep_until for ending in kept]
                done.update(row[0] for row in await connection.fetch(statement, *_fences(kept), sleeps))
            if removed:
                statement = f"""
                    DELETE FROM {self._table} AS target USING {self._ended("", "")}
                    WHERE {self._is_ended()} RETURNING target.{self._id}"""
                done.update(row[0] for row in await connection.fetch(statement, *_fences(removed)))
        return done

    def _ended(self, names: str, values: str) -> str:
        return f"unnest($1::{self._id_type}[], $2::timestamptz[]{values}) AS ending (id, locked_until{names})"

    def _is_ended(self) -> str:
        return f"target.{self._id} = ending.id AND target.{self._date} = ending.locked_until"

    def _held(self, id: Any, locked_until: datetime | None) -> tuple[str, list[Any]]:
        if locked_until is None:
            return f"{self._id} = $1", [id]
        return f"{self._id} = $1 AND {self._date} = $2", [id, locked_until]

    # ------------------------------------------------------------------------------------------------ the rest

    async def migrate(self) -> None:
        """Create an index of the rows that have a date, unless an index with its name exists."""
        plain = self._table.replace('"', "").replace(".", "_")
        name = quoted(f"{plain}_{self._columns.sleep_until}_crontab"[-63:], "table")
        async with self._connection() as connection:
            await connection.execute(
                f"CREATE INDEX IF NOT EXISTS {name} ON {self._table} ({self._date}) WHERE {self._date} IS NOT NULL"
            )

    async def close(self) -> None:
        """Close the pool that this store opened."""
        await self._pools.close()

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        """A connection for one use, with a timeout. Errors of asyncpg become errors of this package."""
        try:
            async with asyncio.timeout(CALL_SECONDS):
                pool = self._given if self._given is not None else await self._pools.here().opened()
                async with pool.acquire() as connection:
                    if not self._id_type:
                        self._id_type = await self._checked(connection)
                    yield connection
        except Exception as error:
            ours = self._translated(error)
            if ours is error:
                raise
            raise ours from error

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

    def _translated(self, error: Exception) -> Exception:
        if isinstance(error, TimeoutError):
            return StoreUnavailable(f"PostgreSQL did not answer within {CALL_SECONDS:g} s")
        if isinstance(error, asyncpg.SyntaxOrAccessError):
            # About the user's table, which `jobmill migrate` does not create.
            return StoreError(f"PostgreSQL, table {self._table}: {error}")
        return translated(error)


class _LazyPool:
    """The pool of one event loop, opened at its first use."""

    def __init__(self, url: str) -> None:
        self._opening: asyncio.Task[Pool] | None = None
        self._url = url

    async def opened(self) -> Pool:
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.ensure_future(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> Pool:
        return await asyncpg.create_pool(self._url, min_size=0, max_size=CONNECTIONS, timeout=CONNECT_SECONDS)

    async def close(self) -> None:
        """Close the pool, also while it is opening."""
        opening, self._opening = self._opening, None
        if opening is None:
            return
        with contextlib.suppress(Exception):
            pool = await opening
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await pool.close()
            except TimeoutError:
                pool.terminate()

    def abandon(self) -> None:
        """Forget the pool; its sockets close when they are garbage-collected."""
        self._opening = None


def _fences(endings: Sequence[Ending]) -> tuple[list[Any], list[datetime]]:
    return [ending.id for ending in endings], [ending.locked_until for ending in endings]


def _read(kind: str, value: Any) -> Any:
    if kind == "sleep_until":
        return rows.instant(value)
    return rows.interval(value) if kind == "interval" else rows.repeat_until(value)
