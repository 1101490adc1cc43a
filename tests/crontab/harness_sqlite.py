"""The contract's view of SQLite: rows of a table in a file."""

from __future__ import annotations

import sqlite3
from datetime import datetime
from pathlib import Path
from typing import Any

from jobmill.core.durations import to_datetime
from jobmill.crontab import SqliteCrontab
from jobmill.crontab.stores.sqlite import Dates
from jobmill.testing import ManualClock
from tests.crontab.harness import Kept, OurStore

TABLE = "CREATE TABLE jobs (id TEXT PRIMARY KEY, sleep_until, interval TEXT, repeat_until, auto_remove, name TEXT, n)"


class SqliteHarness:
    """A new file, and a connection that reads it."""

    def __init__(self, path: Path, dates: Dates = "iso") -> None:
        self.path = path
        self.dates = dates
        self.clock = ManualClock()
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute(TABLE)
        self._stores: list[SqliteCrontab] = []
        self.store: OurStore = self.made()

    def made(self, **options: Any) -> SqliteCrontab:
        """A store on the table."""
        self._stores.append(store := SqliteCrontab(self.path, "jobs", dates=self.dates, clock=self.clock, **options))
        return store

    async def add(self, id: str, document: Kept) -> None:
        data = document.data or {}
        dates = [self.written(document.sleep_until), document.interval, self.written(document.repeat_until)]
        self.connection.execute(
            "INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?)",
            [id, *dates, int(document.auto_remove), data.get("name"), data.get("n")],
        )

    async def kept(self, id: str) -> Kept | None:
        statement = "SELECT sleep_until, interval, repeat_until, auto_remove FROM jobs WHERE id = ?"
        row = self.connection.execute(statement, [id]).fetchone()
        if row is None:
            return None
        return Kept(
            sleep_until=self.read(row[0]), interval=row[1], repeat_until=self.read(row[2]), auto_remove=bool(row[3])
        )

    def written(self, moment: datetime | None) -> str | int | None:
        """As the table has it."""
        if moment is None:
            return None
        return moment.isoformat() if self.dates == "iso" else round(moment.timestamp() * 1_000)

    def read(self, value: Any) -> datetime | None:
        """The other way."""
        if value is None:
            return None
        if self.dates == "iso":
            return datetime.fromisoformat(value)
        return to_datetime(value)

    async def another(self) -> OurStore:
        return self.made()

    async def close(self) -> None:
        for store in self._stores:
            await store.close()
        self.connection.close()
