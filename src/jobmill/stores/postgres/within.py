"""Enqueueing within the caller's own transaction: on a connection of asyncpg or psycopg, or a session of SQLAlchemy.

The driver of a connection is imported when a connection of it is given. Errors of the caller's driver stay unchanged,
so that the caller can handle them; only errors about Jobmill become Jobmill's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeAlias

import asyncpg

from jobmill.core.values import NewJob, Receipt
from jobmill.errors import InvalidValue, SchemaTooOld, StoreError
from jobmill.stores.common.callers import behind_django, packages_of
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.enqueue import (
    TYPES,
    CancelEvents,
    FeedIsOn,
    WrongSchema,
    events_of,
    grouped,
    has_edges,
    insert,
)
from jobmill.stores.postgres.feed import encoded
from jobmill.stores.postgres.flows import add_new_edges, awaited_by
from jobmill.stores.postgres.lanes import lanes_of, note_lanes
from jobmill.stores.postgres.schema import learn_schema_id
from jobmill.stores.postgres.statements import Statements

if TYPE_CHECKING:
    import psycopg

EXPECTED = "a connection of asyncpg, psycopg or Django, or a connection or session of SQLAlchemy, in a transaction"

_FAILED = "25P02"
_NO_SCHEMA = ("3F000", "42883", "42P01")
_NOT_ALLOWED = "42501"
# Transaction states of psycopg, as libpq numbers them.
_IDLE, _IN_ERROR = 0, 3

# The colons may be escaped.
_PARAMETER = re.compile(r"\$(\d+)\\?:\\?:([a-z ]+(?:\[\])?)")


async def enqueue_within(context: PostgresContext, connection: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """Enqueue in the transaction of this connection, which the caller commits.

    psycopg and SQLAlchemy begin a transaction by themselves if none is open, unless they are set not to. Where another
    transaction has enqueued the same unique key or id, the call waits as long as the caller's settings (lock_timeout,
    statement_timeout) allow. A live job that a policy changes is locked until the commit: nobody claims it, and the
    worker that settles it waits.
    """
    caller = await _caller_connection(connection)
    if lanes := lanes_of(new_jobs):
        await note_lanes(context, {queue for queue, _ in lanes})
    statements, schema_id = context.statements, context.schema_id
    groups, at_ms, waits = grouped(new_jobs), context.clock.given_ms(), has_edges(new_jobs)

    async def call(function: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        numbered = ", ".join(f"${number}::{type_}" for number, type_ in enumerate(TYPES[function], 1))
        text = f"SELECT * FROM {statements.quoted_schema}.{function}({numbered})"
        return await caller.fetch(_for_driver(statements.filled(text), caller), parameters)

    try:
        if len(groups) <= 1 and not waits:
            with contextlib.suppress(FeedIsOn):
                return await insert(call, groups, (at_ms, False, True, schema_id), {})
        async with _all_or_nothing(caller):
            now_ms: int | None = at_ms
            if waits and at_ms is None:
                ((now_ms,),) = await call("now_ms", ())
            cancelled: CancelEvents = {}
            receipts = await insert(call, groups, (now_ms, True, True, schema_id), cancelled, awaited_by(new_jobs))
            if events := events_of(new_jobs, receipts, context.clock.now(), cancelled):
                await caller.fetch(_for_driver(statements("add_events"), caller), encoded(events))
            if now_ms is not None:
                await add_new_edges(call, new_jobs, receipts, now_ms, inside=True)
            return receipts
    except WrongSchema:
        if await learn_schema_id(context) != schema_id:
            return await enqueue_within(context, connection, new_jobs)
        advice = f"its schema {statements.schema!r} is another one, made at another time or in another database"
        raise InvalidValue("within", "a connection to the database of the store", connection, advice) from None
    except Exception as error:
        _explain(error, connection, statements, schema_id)
        raise


@contextlib.asynccontextmanager
async def _all_or_nothing(caller: CallerConnection) -> AsyncIterator[None]:
    """Several statements that leave nothing behind if one of them fails, even if the caller then commits."""
    await caller.execute("SAVEPOINT jobmill_enqueue")
    try:
        yield
    except BaseException:
        # Where the connection is broken this fails as well; the first error is raised.
        with contextlib.suppress(Exception):
            await caller.execute("ROLLBACK TO SAVEPOINT jobmill_enqueue")
        raise
    await caller.execute("RELEASE SAVEPOINT jobmill_enqueue")


def _for_driver(text: str, caller: CallerConnection) -> str:
    """A statement with parameters such as $1::text[] as a driver writes it. Not every driver infers their types."""
    escaped = text.translate(caller.escapes)
    return _PARAMETER.sub(lambda found: f"CAST({caller.parameter.format(found[1])} AS {found[2]})", escaped)


def _explain(error: Exception, connection: Any, statements: Statements, schema_id: int | None) -> None:
    """Raise one of Jobmill's own errors where an error is about Jobmill or the state of the transaction."""
    # SQLAlchemy has its driver's error in `orig`.
    state = getattr(getattr(error, "orig", error), "sqlstate", None)
    if state == _FAILED:
        _refuse(connection, "an earlier statement has failed in it: roll it back first", error)
    if state in _NO_SCHEMA and schema_id is not None:
        advice = f"this one has no schema {statements.schema!r}, or not ours: {_first_line(error)}"
        raise InvalidValue("within", "a connection to the database of the store", connection, advice) from error
    if state in _NO_SCHEMA:
        raise SchemaTooOld(f"{_first_line(error)}; is it the right database? If so run `jobmill migrate`") from error
    if state == _NOT_ALLOWED:
        raise StoreError(f"{_first_line(error)}; see the roles of `jobmill migrate --roles`") from error


def _first_line(error: Exception) -> str:
    """The server's message, without the statement that SQLAlchemy adds."""
    return str(getattr(error, "orig", error)).strip().partition("\n")[0]


# ---------------------------------------------------------------------------------------------------- drivers


async def _caller_connection(connection: Any) -> CallerConnection:
    """The given connection or session, checked without asking the server."""
    connection = behind_django(connection)
    packages = packages_of(connection)
    if "asyncpg" in packages and hasattr(connection, "is_in_transaction"):
        return AsyncpgCaller(connection)
    if "psycopg" in packages and hasattr(connection, "cursor"):
        return PsycopgCaller(connection)
    if "sqlalchemy" in packages and hasattr(connection, "execute"):
        return SqlalchemyCaller(await _connection_of(connection))
    raise InvalidValue("within", EXPECTED, connection)


def _refuse(connection: Any, advice: str, error: Exception | None = None) -> NoReturn:
    raise InvalidValue("within", EXPECTED, connection, advice) from error


def _check_loop(driver: Any, given: Any) -> None:
    """Refuse a connection of asyncpg that belongs to another loop: using it here would break it for both."""
    loop = getattr(driver, "_loop", None)
    if loop is not None and loop is not asyncio.get_running_loop():
        _refuse(given, "this one belongs to another event loop: await the call there, or give a sync one to jobs.sync")


class AsyncpgCaller:
    """A connection of asyncpg or of its pool."""

    parameter: ClassVar[str] = "${}"
    escapes: ClassVar[dict[int, str]] = {}

    def __init__(self, connection: Any) -> None:
        try:
            is_closed = connection.is_closed()
        except asyncpg.InterfaceError as error:
            _refuse(connection, str(error), error)
        if is_closed:
            _refuse(connection, "this one is closed")
        if not connection.is_in_transaction():
            _refuse(connection, "begin one: async with connection.transaction(): ...")
        _check_loop(connection, connection)
        self._connection = connection

    async def fetch(self, text: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        """Run a statement and return its rows."""
        # Plain records, also where the caller has set another class for them.
        rows = await self._connection.fetch(text, *parameters, record_class=asyncpg.Record)
        return [tuple(row) for row in rows]

    async def execute(self, text: str) -> None:
        """Run a statement without parameters and rows."""
        await self._connection.execute(text)


class PsycopgCaller:
    """A connection of psycopg, sync or async."""

    parameter: ClassVar[str] = "%s"
    escapes: ClassVar[dict[int, str]] = {ord("%"): "%%"}

    def __init__(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        if connection.closed:
            _refuse(connection, "this one is closed")
        status = connection.info.transaction_status
        if status == _IN_ERROR:
            _refuse(connection, "an earlier statement has failed in it: roll it back first")
        if connection.autocommit and status == _IDLE:
            _refuse(connection, "begin one: with connection.transaction(): ...")
        self._connection = connection

    async def fetch(self, text: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        """Run a statement and return its rows."""
        # A cursor of our own, because the caller may have set other factories; in a pipeline it waits for the answer.
        from psycopg import AsyncConnection, AsyncCursor, Cursor
        from psycopg.rows import tuple_row

        if isinstance(self._connection, AsyncConnection):
            async with AsyncCursor(self._connection, row_factory=tuple_row) as waiting:
                await waiting.execute(text.encode(), parameters)
                rows = await waiting.fetchall()
        else:
            with Cursor(self._connection, row_factory=tuple_row) as cursor:
                cursor.execute(text.encode(), parameters)
                rows = cursor.fetchall()
        return [tuple(map(_text, row)) for row in rows]

    async def execute(self, text: str) -> None:
        """Run a statement without parameters and rows."""
        answer = self._connection.execute(text.encode())
        if inspect.isawaitable(answer):
            await answer


def _text(value: Any) -> Any:
    """A value as text: psycopg returns bytes where the client's encoding is SQL_ASCII."""
    return value.decode() if isinstance(value, bytes) else value


async def _connection_of(given: Any) -> Any:
    """The connection of a session, in its transaction; a connection unchanged."""
    from sqlalchemy.exc import InvalidRequestError
    from sqlalchemy.ext.asyncio import AsyncConnection

    try:
        # `connection` is a method of sessions; of connections it is the driver's connection.
        connection = given.connection() if callable(getattr(type(given), "connection", None)) else given
        if inspect.iscoroutine(connection):
            connection = await connection
        plain = connection.sync_connection if isinstance(connection, AsyncConnection) else connection
        if plain is None:
            _refuse(given, "this one was not begun: async with engine.begin() as connection: ...")
        if (dialect := plain.dialect).name != "postgresql":
            advice = f"its engine is {dialect.name}+{dialect.driver}; give one of postgresql+…"
            raise InvalidValue("within", f"{EXPECTED}, of PostgreSQL", given, advice)
        if getattr(plain.connection.dbapi_connection, "autocommit", False):
            _refuse(given, "its isolation level is AUTOCOMMIT, in which there are none")
        _check_loop(plain.connection.driver_connection, given)
    except InvalidRequestError as error:
        _refuse(given, str(error), error)
    return connection


class SqlalchemyCaller:
    """A connection of SQLAlchemy, sync or async."""

    parameter: ClassVar[str] = ":p{}"
    escapes: ClassVar[dict[int, str]] = {ord(":"): "\\:"}

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def fetch(self, text: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        """Run a statement and return its rows."""
        given = {f"p{number}": value for number, value in enumerate(parameters, 1)}
        return [tuple(row) for row in (await self._executed(text, given)).fetchall()]

    async def execute(self, text: str) -> None:
        """Run a statement without parameters and rows."""
        await self._executed(text, {})

    async def _executed(self, text: str, given: dict[str, object]) -> Any:
        from sqlalchemy import text as sqlalchemy_text

        answer = self._connection.execute(sqlalchemy_text(text), given)
        return await answer if inspect.isawaitable(answer) else answer


#: A connection of the caller's, in a transaction. `parameter` is a parameter as the driver writes it, and `escapes` has
#: the sign that begins one.
CallerConnection: TypeAlias = AsyncpgCaller | PsycopgCaller | SqlalchemyCaller
