"""The contract's view of PostgreSQL: rows of a table."""

from __future__ import annotations

from typing import Any

import asyncpg

from jobmill.crontab import PostgresCrontab
from jobmill.testing import ManualClock
from tests.crontab.harness import Kept, OurStore

TABLE = """
    DROP TABLE IF EXISTS crontab;
    CREATE TABLE crontab (id text PRIMARY KEY, sleep_until timestamptz, interval text, repeat_until timestamptz,
                          auto_remove boolean, name text, n int)"""


class PostgresHarness:
    """A new database; each store has its own pool."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = ManualClock()
        self._stores: list[PostgresCrontab] = []
        self.store: OurStore = self.made()
        self.connection: Any = None

    async def open(self) -> PostgresHarness:
        """Make the table."""
        self.connection = await asyncpg.connect(self.url)
        await self.connection.execute(TABLE)
        return self

    def made(self, table: str = "crontab", **options: Any) -> PostgresCrontab:
        """A store on the table, or on another."""
        self._stores.append(store := PostgresCrontab(self.url, table, clock=self.clock, **options))
        return store

    async def add(self, id: str, document: Kept) -> None:
        data = document.data or {}
        values = [document.sleep_until, document.interval, document.repeat_until, document.auto_remove]
        statement = "INSERT INTO crontab VALUES ($1, $2, $3, $4, $5, $6, $7)"
        await self.connection.execute(statement, id, *values, data.get("name"), data.get("n"))

    async def kept(self, id: str) -> Kept | None:
        statement = "SELECT sleep_until, interval, repeat_until, auto_remove FROM crontab WHERE id = $1"
        row = await self.connection.fetchrow(statement, id)
        return None if row is None else Kept(**dict(row))

    async def another(self) -> OurStore:
        return self.made()

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        await self.connection.execute("DROP TABLE crontab")  # the database serves other tests too
        await self.connection.close()
