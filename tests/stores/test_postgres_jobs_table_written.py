"""The jobs table: what becomes of jobs, by workers and by clients, their rows say in the same transaction."""

from __future__ import annotations

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from jobmill import Context, Snooze
from jobmill.core.changes import Cancel, Remove, Requeue, Reschedule
from jobmill.core.durations import to_datetime
from jobmill.core.values import at
from jobmill.testing import drain
from jobmill.testing.contract.support import seize, settle, succeed, wish
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.postgres import PostgresServers, connected
from tests.stores.jobs_tables import TABLE, Desk, desk, emptied

pytestmark = pytest.mark.stores("postgres")


@pytest.fixture
async def table(postgres_servers: PostgresServers, postgres_name: str) -> AsyncIterator[Desk]:
    async with desk(await emptied(postgres_servers[postgres_name])) as made:
        yield made


async def test_a_row_says_that_its_job_runs_and_how_it_ended(table: Desk) -> None:
    seen: list[Any] = []

    @table.jobs.handler()
    async def scan(context: Context) -> str:
        seen.append(await table.row(context.job.id))
        return "clean"

    id = await table.insert()
    before = await table.row(id)
    await drain(table.jobs)
    (running,) = seen
    after = await table.row(id)
    assert (running["status"], after["status"]) == ("running", "success")
    assert after["updated_at"] == to_datetime(table.clock()) > before["updated_at"]
    assert {name: after[name] for name in ("id", "type", "payload", "attempts", "next_run_at", "created_at")} == {
        name: before[name] for name in ("id", "type", "payload", "attempts", "next_run_at", "created_at")
    }
    await table.check()


async def test_retries_follow_the_rule_of_the_notes(table: Desk) -> None:
    @table.jobs.handler()
    async def scan() -> None:
        raise ValueError("no luck")

    id = await table.insert()
    delays: list[float] = []
    for attempts in range(1, 6):
        await drain(table.jobs)
        row = await table.row(id)
        assert (row["status"], row["attempts"], row["last_error"]) == ("queued", attempts, "ValueError: no luck")
        wait = (row["next_run_at"] - to_datetime(table.clock())).total_seconds()
        delays.append(wait)
        await table.check()
        table.clock.advance(wait)
    assert delays == [1, 2, 4, 8, 16]
    await drain(table.jobs)
    row = await table.row(id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("failed", 6, "ValueError: no luck")
    await table.check()


async def test_a_success_after_an_error_leaves_no_error(table: Desk) -> None:
    runs: list[int] = []

    @table.jobs.handler()
    async def scan(context: Context) -> None:
        runs.append(context.attempt)
        if len(runs) == 1:
            raise ValueError("not yet")

    id = await table.insert()
    await drain(table.jobs)
    table.clock.advance(1)
    await drain(table.jobs)
    row = await table.row(id)
    assert (runs, row["status"], row["attempts"], row["last_error"]) == ([1, 2], "success", 1, None)


async def test_a_snoozed_job_is_queued_for_later(table: Desk) -> None:
    @table.jobs.handler()
    async def scan() -> None:
        raise Snooze("10m")

    id = await table.insert()
    await drain(table.jobs)
    row = await table.row(id)
    due = to_datetime(table.clock() + 600_000)
    assert (row["status"], row["attempts"], row["next_run_at"]) == ("queued", 0, due)
    await table.check()


@pytest.mark.parametrize("keep", [0, "7d"])
@pytest.mark.parametrize("succeeds", [True, False])
async def test_how_it_ended_is_written_also_where_the_job_is_not_kept(table: Desk, keep: Any, succeeds: bool) -> None:
    @table.jobs.handler(keep_succeeded=keep, keep_failed=keep, max_attempts=1)
    async def scan() -> None:
        if not succeeds:
            raise ValueError("no luck")

    id = await table.insert()
    await drain(table.jobs)
    row = await table.row(id)
    expected = ("success", 0, None) if succeeds else ("failed", 1, "ValueError: no luck")
    assert (row["status"], row["attempts"], row["last_error"]) == expected
    assert await table.sql.fetchval("SELECT count(*) FROM jobmill.history") == (0 if keep == 0 else 1)
    await table.check()


async def test_a_job_that_runs_before_it_is_due_keeps_its_due_time_in_its_row(table: Desk) -> None:
    await table.jobs.open()
    ids = [await table.insert() for _ in range(3)]
    due = table.clock() + 60_000
    for id in ids:
        await table.store.change([id], Reschedule(at(due)))
    seized = [await seize(table.store, id) for id in ids]
    await table.check()
    await settle(table.store, succeed(seized[2]))
    await table.store.change([ids[0]], Cancel())
    await table.sql.execute(f"UPDATE {TABLE} SET status = 'failed' WHERE id = $1", ids[1])
    assert [(await table.row(id))["next_run_at"] for id in ids] == [to_datetime(due)] * 3
    await table.check()


async def test_what_clients_do_to_a_job_its_row_shows(table: Desk) -> None:
    await table.jobs.open()
    id = await table.insert()
    due = table.clock() + 5_000
    await table.store.change([id], Reschedule(at(due)))
    assert (await table.row(id))["next_run_at"] == to_datetime(due)
    await table.store.change([id], Cancel())
    row = await table.row(id)
    assert (row["status"], row["last_error"]) == ("failed", "cancelled")
    await table.store.change([id], Requeue())
    row = await table.row(id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("queued", 0, None)
    await table.check()
    await table.store.change([id], Remove())
    row = await table.row(id)
    assert (row["status"], row["last_error"]) == ("failed", "removed")
    await table.check()


async def test_a_row_outlives_its_job(table: Desk) -> None:
    @table.jobs.handler()
    async def scan() -> None: ...

    removed, purged = await table.insert(), await table.insert()
    await drain(table.jobs)
    await table.store.change([removed], Remove())
    table.clock.advance(8 * 24 * 3600)
    assert (await table.store.purge()).removed == 1
    assert [await table.job(id) for id in (removed, purged)] == [None, None]
    assert [await table.status(id) for id in (removed, purged)] == ["success", "success"]


async def test_a_job_whose_worker_is_lost_is_run_again(table: Desk) -> None:
    @table.jobs.handler()
    async def scan() -> None: ...

    await table.jobs.open()
    id = await table.insert()
    await table.store.exchange([], wish(names={"scan": 1}, queues=("default",)))
    assert await table.status(id) == "running"
    table.clock.advance(3600)
    await drain(table.jobs)
    assert await table.status(id) == "success"
    await table.check()


async def test_jobs_of_other_origins_are_none_of_its_business(table: Desk) -> None:
    @table.jobs.handler()
    async def scan() -> None: ...

    other = await table.jobs.enqueue("scan", id="not-a-uuid")
    same_length = await table.jobs.enqueue("scan", id="x" * 36)
    # As if somebody had made such a job by hand.
    await table.sql.execute('UPDATE jobmill.jobs SET options = \'{"preset":"harmonyk"}\'')
    id = await table.insert()
    await drain(table.jobs)
    for enqueued in (other, same_length):
        assert (await enqueued.job()).state == "succeeded"
    assert await table.status(id) == "success"
    assert await table.sql.fetchval(f"SELECT count(*) FROM {TABLE}") == 1


async def test_reports_and_heartbeats_leave_the_row_alone(table: Desk) -> None:
    going = asyncio.Event()

    @table.jobs.handler()
    async def scan(context: Context) -> None:
        context.log("here")
        context.progress(50)
        await going.wait()

    id = await table.insert()
    async with Worker(table.jobs):
        await until(lambda: table.store.logs(id))
        row = await table.row(id)
        await until(lambda: table.sql.fetchval("SELECT progress FROM jobmill.jobs WHERE id = $1", id))
        assert await table.row(id) == row
        going.set()
        await until(lambda: table.has(id, "success"))


async def test_another_connection_sees_row_and_job_change_together(table: Desk) -> None:
    @table.jobs.handler()
    async def scan() -> None: ...

    text = f"""
        SELECT
            ours.status,
            CASE
                WHEN jobs.id IS NULL THEN history.state
                WHEN jobs.lease_until_ms > 0 THEN 'running'
                ELSE 'waiting'
            END
        FROM {TABLE} AS ours
        LEFT JOIN jobmill.jobs ON jobs.id = ours.id::text
        LEFT JOIN jobmill.history ON history.id = ours.id::text
    """
    pairs = {("queued", "waiting"), ("running", "running"), ("success", "succeeded")}
    seen: set[tuple[str, str]] = set()
    for _ in range(20):
        await table.insert()
    async with Worker(table.jobs, concurrency=1), connected(table.url) as other:
        while seen != {("success", "succeeded")}:
            seen = {tuple(row) for row in await other.fetch(text)}
            assert seen <= pairs


PLAIN_WORKER = """
import asyncio, os, sys, jobmill

async def main():
    store = jobmill.connect(os.environ["JOBMILL_URL"]).store
    await store.open()
    await store.purge()
    await store.close()
    assert not [name for name in sys.modules if name.startswith("jobmill.harmonyk")]

asyncio.run(main())
"""


async def test_a_worker_that_never_imported_harmonyk_catches_up(table: Desk) -> None:
    id = await table.insert()
    async with connected(table.url) as other, other.transaction():
        await other.execute(f"SELECT FROM {TABLE} WHERE id = $1 FOR UPDATE", uuid.UUID(id))
        await table.store.exchange([], wish(queues=("default",), names=("scan",)))
    assert await table.status(id) == "queued"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PLAIN_WORKER), env={**os.environ, "JOBMILL_URL": table.url}
    )
    assert await process.wait() == 0
    assert await table.status(id) == "running"
    await table.check()
