"""Enqueueing within the caller's own transaction: on a connection of asyncpg or psycopg, or a session of SQLAlchemy.

Nothing is imported but what the caller has imported already.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from jobmill.core.changes import NewJob, Receipt
from jobmill.errors import Invalid
from jobmill.stores.postgres.enqueueing import TYPES, Ask, FeedIsOn, enqueue, events
from jobmill.stores.postgres.feeds import encoded
from jobmill.stores.postgres.statements import Statements, quoted

_EXPECTED = "a connection of asyncpg or psycopg, or a connection or session of SQLAlchemy, in a transaction"


async def enqueue_within(
    connection: Any, statements: Statements, new_jobs: Sequence[NewJob], at_ms: int | None, now_ms: int
) -> list[Receipt]:
    """Enqueue in the transaction of this connection. The caller commits."""
    ask = _asker(connection, statements)
    try:
        return await enqueue(ask, new_jobs, at_ms, told=False, inside=True)
    except FeedIsOn:
        receipts = await enqueue(ask, new_jobs, at_ms, told=True, inside=True)
        await ask("tell", encoded(events(new_jobs, receipts, now_ms)))
        return receipts


def _asker(connection: Any, statements: Statements) -> Ask:
    package = type(connection).__module__.partition(".")[0]
    if package == "asyncpg" and hasattr(connection, "fetch"):
        return _asyncpg(connection, statements)
    if package == "psycopg" and hasattr(connection, "cursor"):
        return _psycopg(connection, statements)
    if hasattr(connection, "execute") and _is_sqlalchemy(connection):
        return _sqlalchemy(connection, statements)
    raise Invalid("within", _EXPECTED, connection)


def _is_sqlalchemy(connection: Any) -> bool:
    """Also a class of the caller's own that inherits from a session."""
    return any(base.__module__.partition(".")[0] == "sqlalchemy" for base in type(connection).__mro__)


def _asyncpg(connection: Any, statements: Statements) -> Ask:
    if not connection.is_in_transaction():
        raise Invalid("within", _EXPECTED, connection, "begin one: async with connection.transaction(): ...")

    async def ask(name: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        text = _text(statements, name, lambda number: f"${number}")
        return await connection.fetch(text, *parameters)  # type: ignore[no-any-return]

    return ask


def _psycopg(connection: Any, statements: Statements) -> Ask:
    if connection.autocommit and connection.info.transaction_status == 0:
        raise Invalid("within", _EXPECTED, connection, "begin one: with connection.transaction(): ...")

    async def ask(name: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        text = _text(statements, name, lambda _: "%s")
        # A plain cursor, whatever row factory the caller has set.
        cursor = connection.cursor()
        cursor.row_factory = _tuples
        answer = cursor.execute(text, list(parameters))
        if inspect.isawaitable(answer):
            await answer
            rows = await cursor.fetchall()
            await cursor.close()
            return rows  # type: ignore[no-any-return]
        rows = cursor.fetchall()
        cursor.close()
        return rows  # type: ignore[no-any-return]

    return ask


def _tuples(cursor: Any) -> Any:
    from psycopg.rows import tuple_row

    return tuple_row(cursor)


def _sqlalchemy(connection: Any, statements: Statements) -> Ask:
    from sqlalchemy import text as sqlalchemy_text

    async def ask(name: str, parameters: Sequence[object]) -> Sequence[Sequence[Any]]:
        text = _text(statements, name, lambda number: f":p{number}")
        given = {f"p{number}": value for number, value in enumerate(parameters, 1)}
        answer = connection.execute(sqlalchemy_text(text), given)
        if inspect.isawaitable(answer):
            answer = await answer
        return [tuple(row) for row in answer.fetchall()]

    return ask


def _text(statements: Statements, name: str, place: Any) -> str:
    """A call with every parameter's type said, which not every driver can guess."""
    if name == "tell":
        first, second = f"CAST({place(1)} AS text[])", f"CAST({place(2)} AS text[])"
        return statements("tell").replace("$1::text[]", first).replace("$2::text[]", second)
    places = ", ".join(f"CAST({place(number)} AS {type_})" for number, type_ in enumerate(TYPES[name], 1))
    return f"SELECT * FROM {quoted(statements.schema)}.{name}({places})"
