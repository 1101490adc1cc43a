"""The PostgreSQL store for the contract."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import asyncpg

from jobmill.store import Store
from jobmill.stores.postgres import PostgresStore
from jobmill.testing import ManualClock


class PostgresHarness:
    """A database, which processes share, with transactions."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.url = url
        self.store: Store = PostgresStore(url, clock=self.clock)

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def another(self) -> Store:
        store = PostgresStore(self.url, clock=self.clock)
        await store.open()
        return store

    async def corrupt(self, id: str) -> None:
        connection = await asyncpg.connect(self.url)
        await connection.execute("UPDATE jobmill.jobs SET payload = '{garbage' WHERE id = $1", id)
        await connection.close()

    @property
    def opener(self) -> Callable[[], Store]:
        return functools.partial(PostgresStore, self.url)

    async def begin(self) -> Any:
        connection = await asyncpg.connect(self.url)
        await connection.execute("BEGIN")
        return connection

    async def commit(self, connection: Any) -> None:
        await connection.execute("COMMIT")
        await connection.close()

    async def rollback(self, connection: Any) -> None:
        await connection.execute("ROLLBACK")
        await connection.close()
