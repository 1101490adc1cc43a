"""A jobs table for tests: its database, plain SQL, a client with handlers, and whether rows and jobs agree."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import asyncpg

import jobmill
from jobmill import Client
from jobmill.core.durations import to_datetime
from jobmill.core.job import Job
from jobmill.harmonyk import install_jobs_table
from jobmill.stores.postgres import PostgresStore
from jobmill.testing import ManualClock
from tests.kit.postgres import Databases, connected

TABLE = "public.jobs"
#: The store's clock is so far ahead of the server's: what an INSERT says is due at once, is.
AHEAD_S = 60

_TABLES = ("jobs", "history", "logs", "queues", "events", "edges", "outbox", "dropped", "jobs_table_unwritten")
_EMPTY = "TRUNCATE public.jobs CASCADE; " + "; ".join(f"DELETE FROM jobmill.{table}" for table in _TABLES)
_STATUS = {
    "waiting": "queued",
    "running": "running",
    "succeeded": "success",
    "failed": "failed",
    "cancelled": "failed",
}

# By server: all tests of one have a database in turn, for making another takes longer than most of them.
_databases: dict[int, str] = {}


class Desk:
    """One jobs table, as an application and a worker have it before them."""

    def __init__(self, url: str, sql: asyncpg.Connection, *, stands_still: bool = True) -> None:
        self.url = url
        self.sql = sql
        self.clock = ManualClock(round((time.time() + AHEAD_S) * 1000))
        self.store = PostgresStore(url, clock=self.clock if stands_still else None)
        self.jobs: Client = jobmill.connect(store=self.store)

    async def insert(self, type: str = "scan", **columns: Any) -> str:
        """A row with these columns; its id."""
        names, values = ["type", *columns], [type, *columns.values()]
        places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
        text = f"INSERT INTO {TABLE} ({', '.join(names)}) VALUES ({places}) RETURNING id"
        return str(await self.sql.fetchval(text, *values))

    async def update(self, this: str, /, **columns: Any) -> asyncpg.Record:
        """Set these columns; the row as the UPDATE returned it."""
        sets = ", ".join(f"{name} = ${number}" for number, name in enumerate(columns, 2))
        row = await self.sql.fetchrow(f"UPDATE {TABLE} SET {sets} WHERE id = $1 RETURNING *", this, *columns.values())
        assert row is not None
        return row

    async def row(self, id: str) -> asyncpg.Record:
        row = await self.sql.fetchrow(f"SELECT * FROM {TABLE} WHERE id = $1", id)
        assert row is not None, f"no row {id}"
        return row

    async def status(self, id: str) -> str:
        status: str = (await self.row(id))["status"]
        return status

    async def has(self, id: str, status: str) -> bool:
        return await self.status(id) == status

    async def job(self, id: str) -> Job | None:
        (job,) = await self.store.get([id])
        return job

    async def catch_up(self) -> None:
        """What the janitor does now and then."""
        await self.store.purge()

    async def check_later(self) -> None:
        """They do, as soon as what is noted was looked at."""
        await self.catch_up()
        await self.check()

    async def check(self, *, edited: Sequence[str] = (), orphans: Sequence[str] = ()) -> None:
        """Rows and jobs agree. Final rows may have been edited; orphans have no job and never had one."""
        rows = {str(row["id"]): row for row in await self.sql.fetch(f"SELECT * FROM {TABLE}")}
        jobs = {job.id: job for job in (await self.store.get(list(rows))) if job is not None}
        for id, row in rows.items():
            if id in orphans:
                assert id not in jobs
            elif id not in jobs:
                assert row["status"] in ("success", "failed"), row
            else:
                _compare(row, jobs[id], edited=id in edited)
        live = {row[0] for row in await self.sql.fetch("SELECT id FROM jobmill.jobs WHERE options IS NOT NULL")}
        assert live <= set(rows), f"jobs without rows: {live - set(rows)}"
        assert await self.sql.fetchval("SELECT count(*) FROM jobmill.jobs_table_unwritten") == 0
        assert await self.sql.fetchval("SELECT count(*) FROM jobmill.jobs_table_asked") == 0


def _compare(row: asyncpg.Record, job: Job, *, edited: bool) -> None:
    assert row["status"] == _STATUS[job.state], (row, job)
    if edited and job.is_final:
        return
    assert (row["type"], row["attempts"]) == (job.name, job.errors), (row, job)
    assert (row["org_id"] and str(row["org_id"])) == job.tenant
    assert row["next_run_at"] == to_datetime(job.due_ms), (row, job)
    if job.state == "cancelled":
        assert row["last_error"] is not None
    else:
        assert row["last_error"] == job.error, (row, job)


def now() -> datetime:
    """As the server has it, within a test's patience."""
    return datetime.now(UTC)


@contextlib.asynccontextmanager
async def desk(url: str, *, stands_still: bool = True) -> AsyncIterator[Desk]:
    """The jobs table of a database that has one; its clock stands still, or is the server's."""
    async with connected(url) as sql:
        made = Desk(url, sql, stands_still=stands_still)
        try:
            yield made
        finally:
            await made.jobs.close()


async def installed(url: str) -> None:
    """Migrate a database, and make its jobs table."""
    store = PostgresStore(url)
    await store.migrate()
    await install_jobs_table(store, TABLE)
    await store.close()


async def emptied(server: Databases) -> str:
    """A database of this server with an empty jobs table, which tests have in turn."""
    if id(server) not in _databases:
        url = server.url(await server.create_database())
        await installed(url)
        _databases[id(server)] = url
    async with connected(_databases[id(server)]) as sql:
        await sql.execute(_EMPTY)
    return _databases[id(server)]
