"""The SQLite store for the contract."""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobmill.store import Store
from jobmill.stores.sqlite import SqliteStore
from jobmill.testing import ManualClock


class SqliteHarness:
    """A file, which processes share, with transactions."""

    def __init__(self, path: Path) -> None:
        self.clock = ManualClock()
        self.path = path
        self.store: Store = SqliteStore(path, clock=self.clock)

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def another(self) -> Store:
        store = SqliteStore(self.path, clock=self.clock)
        await store.open()
        return store

    async def corrupt(self, id: str) -> None:
        connection = sqlite3.connect(self.path)
        with connection:
            connection.execute("UPDATE jobmill_jobs SET payload = '{garbage' WHERE id = ?", (id,))
        connection.close()

    @property
    def opener(self) -> Callable[[], Store]:
        return functools.partial(SqliteStore, self.path)

    async def begin(self) -> Any:
        connection = sqlite3.connect(self.path)
        connection.execute("BEGIN IMMEDIATE")
        return connection

    async def commit(self, connection: Any) -> None:
        connection.commit()
        connection.close()

    async def rollback(self, connection: Any) -> None:
        connection.rollback()
        connection.close()
