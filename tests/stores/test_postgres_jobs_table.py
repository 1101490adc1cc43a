"""The jobs table: rows that plain SQL inserts become jobs, exactly if their transaction commits."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from jobmill.core.changes import Cancel
from jobmill.core.values import QueueChange
from jobmill.testing import drain
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.postgres import PostgresServers, connected
from tests.stores.jobs_tables import TABLE, Desk, desk, emptied, now

pytestmark = pytest.mark.stores("postgres")

ORG = uuid.UUID("6f1d3bb2-51a5-4a3f-9d6f-0d8c2f8f6a11")
SOON = timedelta(seconds=5)


@pytest.fixture
async def table(postgres_servers: PostgresServers, postgres_name: str) -> AsyncIterator[Desk]:
    async with desk(await emptied(postgres_servers[postgres_name])) as made:
        yield made


# ---------------------------------------------------------------------------------------------------- insert


async def test_a_row_becomes_a_job(table: Desk) -> None:
    id = await table.insert("scan", org_id=ORG, payload='{"folder": 7, "deep": true}')
    row = await table.row(id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("queued", 0, None)
    assert abs(row["next_run_at"] - now()) < SOON
    job = await table.job(id)
    assert job is not None
    assert (job.name, job.queue, job.tenant, job.state, job.priority) == ("scan", "default", str(ORG), "waiting", 0)
    assert (job.payload, job.options.preset) == ({"folder": 7, "deep": True}, "harmonyk")
    await table.check()


async def test_a_row_may_say_when_it_runs_and_what_it_has_tried(table: Desk) -> None:
    at = datetime(2040, 1, 2, 3, 4, 5, 678_901, UTC)
    id = await table.insert(next_run_at=at, attempts=2, last_error="before")
    job = await table.job(id)
    assert job is not None
    assert (job.due_at, job.errors, job.error) == (at.replace(microsecond=678_000), 2, "before")
    await table.check()


async def test_a_job_exists_if_the_transaction_commits(table: Desk) -> None:
    async with table.sql.transaction():
        kept = await table.insert()
    transaction = table.sql.transaction()
    await transaction.start()
    dropped = await table.insert()
    await transaction.rollback()
    assert await table.job(kept) is not None
    assert await table.job(dropped) is None
    await table.check()


@pytest.mark.parametrize("status", ["success", "failed"])
async def test_a_row_that_has_ended_is_only_a_record(table: Desk, status: str) -> None:
    id = await table.insert(status=status)
    assert await table.job(id) is None
    assert await table.status(id) == status
    await table.check()


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"status": "running"}, "status: a new row may be queued.*got running"),
        ({"status": "waiting"}, "jobs_status_check"),
        ({"type": "two words"}, "type: expected a text of 1 to 255 characters.*'two words'"),
        ({"type": ""}, "type: expected a text of 1 to 255"),
        ({"type": None}, "null value in column"),
        ({"attempts": -1}, "attempts: expected 0 or more, got -1"),
        ({"payload": json.dumps("x" * 11_000_000)}, "payload: expected at most 10485760 bytes"),
        ({"next_run_at": datetime(1969, 1, 1, tzinfo=UTC)}, "next_run_at: expected a time in the years 1970 to 9999"),
    ],
)
async def test_what_cannot_be_a_job_is_refused(table: Desk, columns: dict[str, Any], said: str) -> None:
    with pytest.raises(asyncpg.PostgresError, match=said):
        await table.insert(**columns)
    assert await table.sql.fetchval(f"SELECT count(*) FROM {TABLE}") == 0
    assert await table.sql.fetchval("SELECT count(*) FROM jobmill.jobs") == 0


async def test_a_time_without_end_is_refused(table: Desk) -> None:
    with pytest.raises(asyncpg.PostgresError, match="next_run_at: expected a time in the years 1970 to 9999"):
        await table.sql.execute(f"INSERT INTO {TABLE} (type, next_run_at) VALUES ('scan', 'infinity')")


async def test_an_id_that_a_job_has_already_is_refused(table: Desk) -> None:
    await table.jobs.open()
    live = (await table.jobs.enqueue("scan")).id
    final = (await table.jobs.enqueue("scan")).id
    await table.store.change([final], Cancel())
    for id in (live, final):
        with pytest.raises(asyncpg.UniqueViolationError, match=f"id: there is a job {id} already"):
            await table.insert(id=id)
    await table.insert(id=final, status="failed")


async def test_on_conflict_do_nothing_makes_no_second_job(table: Desk) -> None:
    id = await table.insert(payload='{"n": 1}')
    text = f"INSERT INTO {TABLE} (id, type, payload) VALUES ($1, 'scan', $2) ON CONFLICT (id) DO NOTHING"
    assert await table.sql.execute(text, id, '{"n": 2}') == "INSERT 0 0"
    job = await table.job(id)
    assert job is not None
    assert job.payload == {"n": 1}
    await table.check()


async def test_on_conflict_do_update_is_an_update(table: Desk) -> None:
    ran: list[int] = []

    @table.jobs.handler()
    async def scan(n: int) -> None:
        ran.append(n)

    text = f"""
        INSERT INTO {TABLE} (id, type, payload) VALUES ($1, 'scan', $2)
        ON CONFLICT (id) DO UPDATE SET status = 'queued', payload = excluded.payload
    """
    id = str(uuid.uuid4())
    for n in (1, 2, 3, 4):  # enqueued, edited, queued again, edited
        await table.sql.execute(text, id, json.dumps({"n": n}))
        assert await table.status(id) == "queued"
        await table.check()
        if n in (2, 4):
            await drain(table.jobs)
            assert await table.status(id) == "success"
    assert ran == [2, 4]


@pytest.mark.slow
async def test_a_thousand_rows_in_one_statement(table: Desk) -> None:
    ran: list[int] = []

    @table.jobs.handler()
    async def scan(n: int) -> None:
        ran.append(n)

    await table.sql.execute(
        f"INSERT INTO {TABLE} (type, payload)"
        " SELECT 'scan', jsonb_build_object('n', n) FROM generate_series(1, 1000) AS n"
    )
    await table.check()
    line = await table.sql.fetch("SELECT payload FROM jobmill.jobs ORDER BY due_ms, seq")
    assert [json.loads(row[0])["n"] for row in line] == list(range(1, 1001))
    await drain(table.jobs)
    assert sorted(ran) == list(range(1, 1001))
    assert await table.sql.fetchval(f"SELECT count(*) FROM {TABLE} WHERE status = 'success'") == 1000
    await table.check()


async def test_copy_enqueues(table: Desk) -> None:
    await table.sql.copy_records_to_table("jobs", records=[("scan",), ("scan",)], columns=["type"])
    assert await table.sql.fetchval("SELECT count(*) FROM jobmill.jobs") == 2
    await table.check()


async def test_sleeping_workers_are_told_when_the_transaction_commits(table: Desk) -> None:
    heard: list[object] = []
    async with connected(table.url) as sleeper:
        await sleeper.add_listener("jobmill", lambda *said: heard.append(said[-1]))
        await sleeper.execute("INSERT INTO jobmill.sleepers VALUES ('me', ARRAY['default'], 9e15)")
        try:
            transaction = table.sql.transaction()
            await transaction.start()
            id = await table.insert()
            await table.sql.execute("SELECT pg_notify('jobmill', 'last')")
            await sleeper.execute("SELECT")
            assert heard == []
            await transaction.commit()
            await until(lambda: heard == ["default", "last"])
            await table.update(id, next_run_at=None)
            await until(lambda: heard[2:] == ["default"])
            await table.update(id, status="failed")
            await table.update(id, status="queued")
            await until(lambda: heard[3:] == ["default"])
        finally:
            await sleeper.execute("DELETE FROM jobmill.sleepers")


async def test_a_worker_runs_what_is_inserted(table: Desk) -> None:
    @table.jobs.handler()
    async def scan() -> None: ...

    async with Worker(table.jobs):
        id = await table.insert()
        await until(lambda: table.has(id, "success"))
    await table.check()


async def test_events_of_a_feed(table: Desk) -> None:
    await table.jobs.open()
    await table.store.configure("default", QueueChange(feed=True))
    kept, gone = await table.insert(), await table.insert()
    await table.update(kept, status="failed")
    await table.update(kept, status="queued")
    await table.sql.execute(f"DELETE FROM {TABLE} WHERE id = $1", gone)
    told = [(event.type, event.job_id, event.name) for event in await table.store.events("default")]
    assert told == [
        ("enqueued", kept, "scan"),
        ("enqueued", gone, "scan"),
        ("cancelled", kept, "scan"),
        ("enqueued", kept, "scan"),
        ("removed", gone, "scan"),
    ]
