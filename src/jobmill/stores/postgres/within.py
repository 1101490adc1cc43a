"""Enqueueing within the caller's own transaction: on a connection of asyncpg or psycopg, or a session of SQLAlchemy.

What a connection was made with is imported when one is given. Errors of the caller's own driver stay what they are, so
that the caller knows them; only what has to do with Jobmill is said in its words.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import re
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import asyncpg

from jobmill.core.values import NewJob, Receipt
from jobmill.errors import InvalidValue, SchemaTooOld, StoreError
from jobmill.stores.postgres.enqueue import TYPES, Ask, Elsewhere, FeedIsOn, enqueue, events, is_one_call
from jobmill.stores.postgres.feed import encoded
from jobmill.stores.postgres.statements import Statements, quoted

if TYPE_CHECKING:
    import psycopg

EXPECTED = "a connection of asyncpg or psycopg, or a connection or session of SQLAlchemy, in a transaction"

_FAILED = "25P02"
_NO_SCHEMA = ("3F000", "42883", "42P01")
_NOT_ALLOWED = "42501"
# Of psycopg, as libpq counts them.
_IDLE, _IN_ERROR = 0, 3

_PLACE = re.compile(r"\$(\d+)::([a-z ]+(?:\[\])?)")


class Lent(Protocol):
    """A connection of the caller's, in a transaction."""

    def place(self, number: int) -> str:
        """How the driver writes the place of a parameter."""

    def plain(self, text: str) -> str:
        """SQL as the driver writes it where there is no parameter."""

    async def fetch(self, text: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        """The rows of a statement."""

    async def execute(self, text: str) -> None:
        """Run a statement that has none."""


async def enqueue_within(
    connection: Any,
    statements: Statements,
    home: int | None,
    new_jobs: Sequence[NewJob],
    at_ms: int | None,
    now_ms: int,
) -> list[Receipt]:
    """Enqueue in the transaction of this connection, which must lead to `home` (see home.sql). The caller commits.

    psycopg and SQLAlchemy begin a transaction by themselves if none is open, unless they were told not to. A call that
    waits, because another transaction has enqueued the same unique key or id, waits as long as the caller's settings
    (lock_timeout, statement_timeout) say.
    """
    lent = await _lend(connection)
    ask = _asker(lent, statements)
    try:
        if is_one_call(new_jobs):
            with contextlib.suppress(FeedIsOn):
                return await enqueue(ask, new_jobs, at_ms, told=False, inside=True, home=home)
        async with _all_or_nothing(lent):
            receipts = await enqueue(ask, new_jobs, at_ms, told=True, inside=True, home=home)
            told = events(new_jobs, receipts, now_ms)
            if told:
                await lent.fetch(_written(statements("tell"), lent), encoded(told))
            return receipts
    except Elsewhere:
        advice = f"its schema {statements.schema!r} is another one, made at another time"
        raise InvalidValue("within", "a connection to the database of the store", connection, advice) from None
    except Exception as error:
        _explain(error, connection, statements, home)
        raise


@contextlib.asynccontextmanager
async def _all_or_nothing(lent: Lent) -> AsyncIterator[None]:
    """Several statements that leave nothing behind if one of them fails, whatever the caller then does."""
    await lent.execute("SAVEPOINT jobmill_enqueue")
    try:
        yield
    except BaseException:
        # Where the connection is gone this fails as well: what went wrong first is said.
        with contextlib.suppress(Exception):
            await lent.execute("ROLLBACK TO SAVEPOINT jobmill_enqueue")
        raise
    await lent.execute("RELEASE SAVEPOINT jobmill_enqueue")


def _asker(lent: Lent, statements: Statements) -> Ask:
    async def ask(name: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        places = ", ".join(f"${number}::{type_}" for number, type_ in enumerate(TYPES[name], 1))
        text = f"SELECT * FROM {quoted(statements.schema)}.{name}({places})"
        return await lent.fetch(_written(text, lent), parameters)

    return ask


def _written(text: str, lent: Lent) -> str:
    """A statement with places such as $1::text[] as a driver writes it. Types are said: not every driver guesses."""
    parts: list[str] = []
    end = 0
    for found in _PLACE.finditer(text):
        parts += [lent.plain(text[end : found.start()]), f"CAST({lent.place(int(found[1]))} AS {found[2]})"]
        end = found.end()
    return "".join(parts) + lent.plain(text[end:])


def _explain(error: Exception, connection: Any, statements: Statements, home: int | None) -> None:
    """Raise what an error means, where it is about Jobmill or the state of the transaction."""
    # SQLAlchemy has its driver's error in `orig`.
    state = getattr(getattr(error, "orig", error), "sqlstate", None)
    if state == _FAILED:
        _refuse(connection, "an earlier statement has failed in it: roll it back first", error)
    if state in _NO_SCHEMA and home is not None:
        advice = f"this one has no schema {statements.schema!r}, or not ours: {_first_line(error)}"
        raise InvalidValue("within", "a connection to the database of the store", connection, advice) from error
    if state in _NO_SCHEMA:
        raise SchemaTooOld(f"{_first_line(error)}; is it the right database? If so run `jobmill migrate`") from error
    if state == _NOT_ALLOWED:
        raise StoreError(f"{_first_line(error)}; see the roles of `jobmill migrate --roles`") from error


def _first_line(error: Exception) -> str:
    """What the server said, without the statement that SQLAlchemy adds."""
    return str(getattr(error, "orig", error)).strip().partition("\n")[0]


# ---------------------------------------------------------------------------------------------------- lent


async def _lend(connection: Any) -> Lent:
    """The connection behind what was given, checked as far as it goes without asking the server."""
    # Also a class of the caller's own that inherits from one of theirs.
    packages = {base.__module__.partition(".")[0] for base in type(connection).__mro__}
    if "asyncpg" in packages and hasattr(connection, "is_in_transaction"):
        return Asyncpg(connection)
    if "psycopg" in packages and hasattr(connection, "cursor"):
        return Psycopg(connection)
    if "sqlalchemy" in packages and hasattr(connection, "execute"):
        return SQLAlchemy(await _connection_of(connection))
    raise InvalidValue("within", EXPECTED, connection)


def _refuse(connection: Any, advice: str, error: Exception | None = None) -> NoReturn:
    raise InvalidValue("within", EXPECTED, connection, advice) from error


def _check_loop(driver: Any, given: Any) -> None:
    """A connection of asyncpg that another loop waits for would be of no more use to anybody."""
    loop = getattr(driver, "_loop", None)
    if loop is not None and loop is not asyncio.get_running_loop():
        _refuse(given, "this one belongs to another event loop: await the call there, or give a sync one to jobs.sync")


class Asyncpg:
    """A connection of asyncpg, or what a pool of it hands out."""

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

    def place(self, number: int) -> str:
        """$1."""
        return f"${number}"

    def plain(self, text: str) -> str:
        """As it is."""
        return text

    async def fetch(self, text: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        """Plain records, whatever class the caller has set for them."""
        rows = await self._connection.fetch(text, *parameters, record_class=asyncpg.Record)
        return [tuple(row) for row in rows]

    async def execute(self, text: str) -> None:
        """As it is."""
        await self._connection.execute(text)


class Psycopg:
    """A connection of psycopg, sync or async."""

    def __init__(self, connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
        if connection.closed:
            _refuse(connection, "this one is closed")
        status = connection.info.transaction_status
        if status == _IN_ERROR:
            _refuse(connection, "an earlier statement has failed in it: roll it back first")
        if connection.autocommit and status == _IDLE:
            _refuse(connection, "begin one: with connection.transaction(): ...")
        self._connection = connection

    def place(self, number: int) -> str:
        """They are in order."""
        return "%s"

    def plain(self, text: str) -> str:
        """A per cent sign would be a place."""
        return text.replace("%", "%%")

    async def fetch(self, text: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        """By a cursor of our own, whatever factories the caller has set; in a pipeline this is where it waits."""
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
        """As it is."""
        answer = self._connection.execute(text.encode())
        if inspect.isawaitable(answer):
            await answer


def _text(value: Any) -> Any:
    """To a client whose encoding is SQL_ASCII psycopg gives bytes."""
    return value.decode() if isinstance(value, bytes) else value


async def _connection_of(given: Any) -> Any:
    """The connection of a session, in its transaction; a connection as it is."""
    from sqlalchemy.exc import InvalidRequestError
    from sqlalchemy.ext.asyncio import AsyncConnection

    try:
        # Of sessions a method, of connections the one of the driver.
        connection = given.connection() if callable(getattr(type(given), "connection", None)) else given
        if inspect.iscoroutine(connection):
            connection = await connection
        plain = connection.sync_connection if isinstance(connection, AsyncConnection) else connection
        if plain is None:
            _refuse(given, "this one was not begun: async with engine.begin() as connection: ...")
        if plain.dialect.name != "postgresql":
            raise InvalidValue("within", f"{EXPECTED}, of PostgreSQL", given)
        if getattr(plain.connection.dbapi_connection, "autocommit", False):
            _refuse(given, "its isolation level is AUTOCOMMIT, in which there are none")
        _check_loop(plain.connection.driver_connection, given)
    except InvalidRequestError as error:
        _refuse(given, str(error), error)
    return connection


class SQLAlchemy:
    """A connection of SQLAlchemy, sync or async."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def place(self, number: int) -> str:
        """Named."""
        return f":p{number}"

    def plain(self, text: str) -> str:
        """A colon would be a place."""
        return text.replace(":", "\\:")

    async def fetch(self, text: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        """As text, with what is given to it."""
        given = {f"p{number}": value for number, value in enumerate(parameters, 1)}
        return [tuple(row) for row in (await self._executed(text, given)).fetchall()]

    async def execute(self, text: str) -> None:
        """As it is."""
        await self._executed(text, {})

    async def _executed(self, text: str, given: dict[str, object]) -> Any:
        from sqlalchemy import text as sqlalchemy_text

        answer = self._connection.execute(sqlalchemy_text(text), given)
        return await answer if inspect.isawaitable(answer) else answer
