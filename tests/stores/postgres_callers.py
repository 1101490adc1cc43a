"""Whoever may have a transaction to enqueue within: a connection or session of every kind, with what its user does.

Each is a context manager that yields a Caller.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker


class Caller:
    """What is given as `within`, and how its user begins and ends a transaction."""

    def __init__(self, within: Any, execute: Callable[[str], Any], *, begins_by_itself: bool) -> None:
        self.within = within
        self._execute = execute
        self._begins_by_itself = begins_by_itself

    async def execute(self, text: str) -> None:
        await _awaited(self._execute(text))

    async def begin(self) -> None:
        if not self._begins_by_itself:
            await self.execute("BEGIN")

    async def commit(self) -> None:
        await (_awaited(self.within.commit()) if self._begins_by_itself else self.execute("COMMIT"))

    async def rollback(self) -> None:
        await (_awaited(self.within.rollback()) if self._begins_by_itself else self.execute("ROLLBACK"))


async def _awaited(answer: Any) -> None:
    if inspect.isawaitable(answer):
        await answer


# ---------------------------------------------------------------------------------------------------- asyncpg


@asynccontextmanager
async def of_asyncpg(url: str) -> AsyncIterator[Caller]:
    connection = await asyncpg.connect(url)
    yield Caller(connection, connection.execute, begins_by_itself=False)
    await connection.close()


class OwnRecord(asyncpg.Record):
    """Says something else than a record does."""

    def __iter__(self) -> Any:
        return iter(())


class OwnConnection(asyncpg.Connection):
    """Somebody's own."""


@asynccontextmanager
async def of_asyncpg_pool(url: str) -> AsyncIterator[Caller]:
    """What a pool hands out, with classes of the caller's own."""
    pool = await asyncpg.create_pool(url, min_size=1, connection_class=OwnConnection, record_class=OwnRecord)
    async with pool, pool.acquire() as connection:
        yield Caller(connection, connection.execute, begins_by_itself=False)


# ---------------------------------------------------------------------------------------------------- psycopg


@asynccontextmanager
async def of_psycopg(url: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url) as connection:
        yield Caller(connection, lambda text: connection.execute(text.encode()), begins_by_itself=True)


@asynccontextmanager
async def of_psycopg_autocommit(url: str) -> AsyncIterator[Caller]:
    """One that begins nothing by itself, whose cursors and rows are of another kind."""
    made: dict[str, Any] = {"autocommit": True, "row_factory": dict_row, "cursor_factory": psycopg.RawCursor}
    with psycopg.connect(url, **made) as connection:
        yield Caller(connection, lambda text: connection.execute(text.encode()), begins_by_itself=False)


@asynccontextmanager
async def of_psycopg_pipeline(url: str) -> AsyncIterator[Caller]:
    """One that does not wait for answers before they are asked for."""
    with psycopg.connect(url) as connection, connection.pipeline() as pipeline:

        def execute(text: str) -> None:
            connection.execute(text.encode())
            pipeline.sync()

        yield Caller(connection, execute, begins_by_itself=True)


@asynccontextmanager
async def of_async_psycopg(url: str) -> AsyncIterator[Caller]:
    connection = await psycopg.AsyncConnection.connect(url, row_factory=dict_row)
    async with connection:
        yield Caller(connection, lambda text: connection.execute(text.encode()), begins_by_itself=True)


# ---------------------------------------------------------------------------------------------------- SQLAlchemy


def engine(url: str, **options: Any) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), **options)


@asynccontextmanager
async def of_sqlalchemy(url: str) -> AsyncIterator[Caller]:
    used = engine(url)
    with used.connect() as connection:
        yield _sqlalchemy(connection)
    used.dispose()


class OwnSession(Session):
    """Somebody's own."""


def session_of(kind: Callable[[sqlalchemy.Engine], Any]) -> Callable[[str], AbstractAsyncContextManager[Caller]]:
    @asynccontextmanager
    async def of_session(url: str) -> AsyncIterator[Caller]:
        used = engine(url)
        session = kind(used)
        yield _sqlalchemy(session)
        session.close()
        used.dispose()

    return of_session


def async_of(driver: str, kind: Callable[[Any], Any]) -> Callable[[str], AbstractAsyncContextManager[Caller]]:
    @asynccontextmanager
    async def of_async(url: str) -> AsyncIterator[Caller]:
        used = create_async_engine(url.replace("postgresql://", f"postgresql+{driver}://"))
        async with kind(used) as given:
            yield _sqlalchemy(given)
        await used.dispose()

    return of_async


@asynccontextmanager
async def _scoped(used: Any) -> AsyncIterator[Any]:
    scoped = async_scoped_session(async_sessionmaker(used), scopefunc=lambda: 0)
    yield scoped
    await scoped.remove()


def _sqlalchemy(given: Any) -> Caller:
    return Caller(given, lambda text: given.execute(sqlalchemy.text(text)), begins_by_itself=True)


CALLERS: dict[str, Callable[[str], AbstractAsyncContextManager[Caller]]] = {
    "asyncpg": of_asyncpg,
    "asyncpg pool": of_asyncpg_pool,
    "psycopg": of_psycopg,
    "psycopg autocommit": of_psycopg_autocommit,
    "psycopg pipeline": of_psycopg_pipeline,
    "async psycopg": of_async_psycopg,
    "sqlalchemy connection": of_sqlalchemy,
    "session": session_of(Session),
    "own session": session_of(OwnSession),
    "scoped session": session_of(lambda used: scoped_session(sessionmaker(used))),
    "async connection of asyncpg": async_of("asyncpg", lambda used: used.connect()),
    "async session of asyncpg": async_of("asyncpg", AsyncSession),
    "async session of psycopg": async_of("psycopg", AsyncSession),
    "async scoped session": async_of("asyncpg", _scoped),
}
