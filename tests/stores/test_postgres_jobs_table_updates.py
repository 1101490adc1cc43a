"""The jobs table: what an application may do to its rows by UPDATE, DELETE and TRUNCATE, and what it is refused."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from jobmill import Context
from jobmill.core.changes import Hold, Release, Remove, Requeue, Reschedule
from jobmill.core.due import NEVER_MS, Held, after, at
from jobmill.core.durations import to_datetime
from jobmill.testing import drain
from jobmill.testing.contract.support import wish
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.postgres import PostgresServers
from tests.stores.jobs_tables import TABLE, Desk, desk, emptied, now

pytestmark = pytest.mark.stores("postgres")

LATER = datetime(2040, 1, 1, tzinfo=UTC)
ORGS = (uuid.uuid4(), uuid.uuid4())
SOON = timedelta(seconds=5)


@pytest.fixture
async def table(postgres_servers: PostgresServers, postgres_name: str) -> AsyncIterator[Desk]:
    async with desk(await emptied(postgres_servers[postgres_name])) as made:
        await made.jobs.open()
        yield made


async def claimed(table: Desk, **columns: Any) -> str:
    """A row whose job runs, somewhere."""
    id = await table.insert(**columns)
    answer = await table.store.exchange([], wish(queues=("default",), names=("scan",)))
    assert [one.lease.id for one in answer.claimed] == [id]
    return id


async def ended(table: Desk, status: str) -> str:
    """A row whose job has run."""

    if "scan" not in table.jobs.handlers:

        @table.jobs.handler(max_attempts=1)
        async def scan(ok: bool) -> None:
            if not ok:
                raise ValueError("no luck")

    id = await table.insert(payload='{"ok": true}' if status == "success" else '{"ok": false}')
    await drain(table.jobs)
    assert await table.status(id) == status
    return id


async def ticked(table: Desk, n: int = 100) -> list[str]:
    """The ids that a worker gets now."""
    answer = await table.store.exchange([], wish(n, queues=("default",), names=("scan", "other")))
    return [one.lease.id for one in answer.claimed]


# ---------------------------------------------------------------------------------------------------- cancel


async def test_failed_cancels_a_queued_job(table: Desk) -> None:
    id = await table.insert()
    row = await table.update(id, status="failed")
    assert (row["status"], row["last_error"]) == ("failed", "cancelled")
    job = await table.job(id)
    assert job is not None
    assert job.state == "cancelled"
    assert await ticked(table) == []
    await table.check()


async def test_whoever_cancels_may_say_why(table: Desk) -> None:
    id = await table.insert()
    await table.update(id, status="failed", last_error="the customer left")
    assert (await table.row(id))["last_error"] == "the customer left"
    await table.check()


async def test_failed_cancels_a_running_job_and_its_worker_stops_it(table: Desk) -> None:
    ended: list[str] = []

    @table.jobs.handler()
    async def scan(context: Context) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(context.job.id)
            raise

    id = await table.insert()
    async with Worker(table.jobs, lease="3s"):
        await until(lambda: table.sql.fetchval(f"SELECT true FROM {TABLE} WHERE status = 'running'"))
        async with table.sql.transaction():
            row = await table.update(id, status="failed")
            assert (row["status"], row["last_error"]) == ("failed", "cancelled")
        job = await table.job(id)
        assert job is not None
        assert job.state == "cancelled"
        await until(lambda: ended == [id])
    await table.check()


async def test_a_cancellation_that_is_rolled_back_leaves_the_job_running(table: Desk) -> None:
    for id in (await claimed(table), await table.insert()):
        transaction = table.sql.transaction()
        await transaction.start()
        await table.update(id, status="failed")
        await transaction.rollback()
        await table.check()
    assert await table.sql.fetchval("SELECT count(*) FROM jobmill.history") == 0


async def test_cancelled_and_queued_again_in_one_transaction(table: Desk) -> None:
    id = await claimed(table)
    async with table.sql.transaction():
        await table.update(id, status="failed")
        await table.update(id, status="queued")
        await table.update(id, payload="[7]")
    row = await table.row(id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("queued", 0, None)
    assert abs(row["next_run_at"] - now()) < SOON
    job = await table.job(id)
    assert job is not None
    assert (job.state, job.claims, job.payload) == ("waiting", 1, [7])
    await table.check()
    assert await ticked(table) == [id]


async def test_cancelled_queued_and_cancelled_again_in_one_transaction(table: Desk) -> None:
    id = await claimed(table)
    async with table.sql.transaction():
        for status in ("failed", "queued", "failed"):
            await table.update(id, status=status)
    assert await table.status(id) == "failed"
    await table.check()


# ---------------------------------------------------------------------------------------------------- requeue


@pytest.mark.parametrize("status", ["success", "failed"])
async def test_queued_has_a_final_job_run_again(table: Desk, status: str) -> None:
    id = await ended(table, status)
    row = await table.update(id, status="queued")
    assert (row["status"], row["attempts"], row["last_error"]) == ("queued", 0, None)
    assert abs(row["next_run_at"] - now()) < SOON
    job = await table.job(id)
    assert job is not None
    assert (job.state, job.errors, job.claims) == ("waiting", 0, 1)  # claims go on: handlers fence with them
    assert await table.sql.fetchval("SELECT count(*) FROM jobmill.history") == 0
    await table.check()
    await drain(table.jobs)
    assert await table.status(id) == status


async def test_what_the_history_has_forgotten_is_enqueued_anew(table: Desk) -> None:
    id = await ended(table, "success")
    await table.store.change([id], Remove())
    record = await table.insert(status="failed", payload='{"ok": true}')
    for one in (id, record):
        await table.update(one, status="queued")
        await table.check()
    await drain(table.jobs)
    assert [await table.status(one) for one in (id, record)] == ["success", "success"]


async def test_a_requeue_may_say_more(table: Desk) -> None:
    id = await ended(table, "failed")
    columns = {"type": "other", "payload": '{"n": 1}', "attempts": 3, "next_run_at": LATER, "last_error": "before"}
    await table.update(id, status="queued", org_id=ORGS[0], **columns)
    job = await table.job(id)
    assert job is not None
    assert (job.name, job.payload, job.tenant) == ("other", {"n": 1}, str(ORGS[0]))
    assert (job.errors, job.error, job.due_at) == (3, "before", LATER)
    await table.check()


# ---------------------------------------------------------------------------------------------------- edits


async def test_a_queued_row_may_be_edited(table: Desk) -> None:
    id = await table.insert()
    columns = {"type": "other", "org_id": ORGS[1], "payload": "[1]", "attempts": 4, "last_error": "x"}
    for name, value in columns.items():
        await table.update(id, **{name: value})
        await table.check()
    job = await table.job(id)
    assert job is not None
    assert (job.name, job.tenant, job.payload, job.errors, job.error) == ("other", str(ORGS[1]), [1], 4, "x")
    assert await ticked(table) == [id]


async def test_next_run_at_reschedules(table: Desk) -> None:
    id = await table.insert()
    await table.update(id, next_run_at=LATER + timedelta(microseconds=1_999))
    assert (await table.row(id))["next_run_at"] == LATER + timedelta(microseconds=1_000)
    await table.check()
    assert await ticked(table) == []
    await table.update(id, next_run_at=None)
    assert abs((await table.row(id))["next_run_at"] - now()) < SOON
    await table.check()
    assert await ticked(table) == [id]


async def test_a_job_that_was_put_before_what_claims_have_passed_is_found(table: Desk) -> None:
    first = await table.insert(next_run_at=LATER)
    others = [await table.insert() for _ in range(3)]
    assert await ticked(table, 2) == others[:2]
    await table.update(first, next_run_at=datetime(2020, 1, 1, tzinfo=UTC))
    assert await ticked(table, 1) == [first]


async def test_a_held_job_stays_held_when_its_row_is_moved(table: Desk) -> None:
    id = await table.insert()
    assert (await table.store.change([id], Hold())).ids == [id]
    assert (await table.row(id))["next_run_at"] == to_datetime(NEVER_MS)
    await table.check()
    await table.update(id, next_run_at=LATER)
    job = await table.job(id)
    assert job is not None
    assert job.held == Held(by=("person",), due=at(round(LATER.timestamp() * 1000)))
    await table.check()
    await table.store.change([id], Release())
    assert (await table.row(id))["next_run_at"] == LATER
    await table.check()


@pytest.mark.parametrize("reschedule", [None, Reschedule(after(5_000))])
async def test_failed_cancels_a_held_job(table: Desk, reschedule: Reschedule | None) -> None:
    id = await table.insert(next_run_at=LATER)
    await table.store.change([id], Hold())
    if reschedule is not None:
        await table.store.change([id], reschedule)
    await table.update(id, status="failed")
    job = await table.job(id)
    assert job is not None
    assert (job.state, job.held) == ("cancelled", None)
    assert job.due_at is not None
    assert job.due_at == LATER if reschedule is None else now() < job.due_at < now() + SOON
    await table.check()
    await table.update(id, status="queued")
    answer = await table.store.exchange([], wish(queues=("default",), names=("scan",)))
    assert [one.lease.id for one in answer.claimed] == [id]


async def test_a_running_row_may_be_given_to_another_tenant(table: Desk) -> None:
    id = await claimed(table, org_id=ORGS[0])
    await table.update(id, org_id=ORGS[1])
    await table.check()
    await table.update(id, org_id=None)
    await table.check()


async def test_a_final_row_may_be_edited_and_is_run_again_as_it_is(table: Desk) -> None:
    id = await ended(table, "failed")
    await table.update(id, type="other", payload="[2]", org_id=ORGS[0], attempts=9, last_error=None, next_run_at=None)
    assert (await table.row(id))["next_run_at"] is None
    await table.check(edited=[id])
    await table.store.change([id], Requeue())
    job = await table.job(id)
    assert job is not None
    assert (job.name, job.payload, job.tenant, job.errors) == ("other", [2], str(ORGS[0]), 0)
    await table.check()


async def test_columns_of_its_own_are_the_applications(table: Desk) -> None:
    await table.sql.execute(f"ALTER TABLE {TABLE} ADD COLUMN note text")
    try:
        id = await claimed(table)
        before = await table.row(id)
        row = await table.update(id, note="seen", updated_at=LATER, created_at=LATER)
        assert (row["note"], row["updated_at"]) == ("seen", LATER)
        assert row["next_run_at"] == before["next_run_at"]
        await table.check()
    finally:
        await table.sql.execute(f"ALTER TABLE {TABLE} DROP COLUMN note")


async def test_updated_at_follows(table: Desk) -> None:
    id = await table.insert(updated_at=datetime(2001, 1, 1, tzinfo=UTC))
    await table.update(id, status="failed")
    assert abs((await table.row(id))["updated_at"] - now()) < SOON


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("state", "columns", "said"),
    [
        ("queued", {"status": "running"}, "is queued, and may become failed, which cancels it; got 'running'"),
        ("queued", {"status": "success"}, "is queued, and may become failed, which cancels it; got 'success'"),
        ("queued", {"status": "done"}, "is queued, and may become failed, which cancels it; got 'done'"),
        ("queued", {"id": uuid.uuid4()}, "id: the job .* is queued, and keeps its id"),
        ("queued", {"type": "two words"}, "type: expected a text of 1 to 255"),
        ("queued", {"attempts": -1}, "attempts: expected 0 or more"),
        ("running", {"status": "queued"}, "is running, and may become failed, which cancels it; got 'queued'"),
        ("running", {"status": "success"}, "is running, and may become failed, which cancels it; got 'success'"),
        ("running", {"type": "other"}, "is running: type, payload, attempts, next_run_at and last_error stay"),
        ("running", {"payload": "[]"}, "is running: type, payload"),
        ("running", {"attempts": 7}, "is running: type, payload"),
        ("running", {"next_run_at": LATER}, "is running: type, payload"),
        ("running", {"last_error": "x"}, "is running: type, payload"),
        ("running", {"id": uuid.uuid4()}, "id: the job .* is running, and keeps its id"),
        ("success", {"status": "failed"}, "is success, and may become queued, which has it run again; got 'failed'"),
        ("success", {"status": "running"}, "is success, and may become queued, which has it run again"),
        ("failed", {"status": "success"}, "is failed, and may become queued, which has it run again; got 'success'"),
        ("failed", {"type": "two words"}, "type: expected a text of 1 to 255"),
        ("failed", {"status": "queued", "attempts": -2}, "attempts: expected 0 or more"),
    ],
)
async def test_what_is_not_possible_is_refused(table: Desk, state: str, columns: dict[str, Any], said: str) -> None:
    match state:
        case "queued":
            id = await table.insert()
        case "running":
            id = await claimed(table)
        case _:
            id = await ended(table, state)
    before = await table.row(id)
    with pytest.raises(asyncpg.PostgresError, match=said):
        await table.update(id, **columns)
    assert await table.row(id) == before
    await table.check()


async def test_a_row_that_somebody_else_runs_is_theirs_to_end(table: Desk) -> None:
    """Left alone when the table was adopted; made here with our triggers off."""
    await table.sql.execute(f"ALTER TABLE {TABLE} DISABLE TRIGGER USER")
    ids = [await table.insert(status="running") for _ in range(4)]
    await table.sql.execute(f"ALTER TABLE {TABLE} ENABLE TRIGGER USER")
    await table.update(ids[0], status="success")
    await table.update(ids[1], status="failed", last_error="no luck", attempts=1)
    await table.update(ids[2], status="queued", attempts=1, last_error="once more")
    await table.update(ids[3], payload="[3]")
    assert [await table.status(id) for id in ids] == ["success", "failed", "queued", "running"]
    await table.check(orphans=[ids[3]])
    assert await ticked(table) == [ids[2]]


# ---------------------------------------------------------------------------------------------------- delete


async def test_delete_removes_jobs_that_wait_or_have_ended(table: Desk) -> None:
    ids = [await ended(table, "success"), await ended(table, "failed"), await table.insert()]
    await table.sql.execute(f"DELETE FROM {TABLE}")
    assert [await table.job(id) for id in ids] == [None, None, None]
    await table.check()


async def test_delete_takes_a_running_job_from_its_worker(table: Desk) -> None:
    ended: list[str] = []

    @table.jobs.handler()
    async def scan(context: Context) -> None:
        context.log("begun")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append(context.job.id)
            raise

    id = await table.insert()
    async with Worker(table.jobs, lease="3s"):
        await until(lambda: table.store.logs(id))
        await table.sql.execute(f"DELETE FROM {TABLE} WHERE id = $1", id)
        await until(lambda: ended == [id])
    assert await table.job(id) is None
    assert await table.sql.fetchval("SELECT count(*) FROM jobmill.logs") == 0
    await table.check()


async def test_a_deletion_that_is_rolled_back_removes_nothing(table: Desk) -> None:
    ids = [await claimed(table), await table.insert()]
    transaction = table.sql.transaction()
    await transaction.start()
    await table.sql.execute(f"DELETE FROM {TABLE}")
    await transaction.rollback()
    assert None not in [await table.job(id) for id in ids]
    await table.check()


async def test_truncate_removes_all_jobs_of_the_table(table: Desk) -> None:
    ids = [await ended(table, "success"), await claimed(table), await table.insert()]
    other = await table.jobs.enqueue("elsewhere")
    await table.sql.execute(f"TRUNCATE {TABLE}")
    assert [await table.job(id) for id in ids] == [None, None, None]
    assert (await other.job()).state == "waiting"
    await table.check()
