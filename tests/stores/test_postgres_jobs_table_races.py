"""The jobs table when application and workers want the same rows: nobody waits long, one wins, both agree."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import asyncpg
import pytest

from jobmill.core.changes import Requeue
from jobmill.core.job import Keep
from jobmill.core.lifecycle import Policy
from jobmill.core.values import Claimed
from jobmill.testing.contract.support import fail, readable, succeed, wish
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.kit.postgres import PostgresServers, connected
from tests.stores.jobs_tables import TABLE, Desk, desk, emptied

pytestmark = pytest.mark.stores("postgres")

#: Far below what PostgreSQL waits here before it looks for deadlocks, and below the deadline of a call.
AT_ONCE_S = 8.0
NOT_KEPT = Policy(keep_succeeded=Keep(last=0), keep_failed=Keep(last=0))


@pytest.fixture
async def table(postgres_servers: PostgresServers, postgres_name: str) -> AsyncIterator[Desk]:
    url = await emptied(postgres_servers[postgres_name])
    async with patient(url), desk(url) as made:
        await made.jobs.open()
        yield made


@contextlib.asynccontextmanager
async def patient(url: str) -> AsyncIterator[None]:
    """Have PostgreSQL look for deadlocks so late that a call which is part of one is seen to hang."""
    async with connected(url) as sql:
        database = await sql.fetchval("SELECT current_database()")
        await sql.execute(f"ALTER DATABASE {database} SET deadlock_timeout = '60s'")
        yield
        await sql.execute(f"ALTER DATABASE {database} RESET deadlock_timeout")


@pytest.fixture
async def other(table: Desk) -> AsyncIterator[asyncpg.Connection]:
    """A connection of the application, in a transaction that stays open."""
    async with connected(table.url) as connection:
        await connection.execute("BEGIN")
        yield connection


async def claim(table: Desk, n: int = 1) -> list[Claimed]:
    async with asyncio.timeout(AT_ONCE_S):
        answer = await table.store.exchange([], wish(n, queues=("default",), names=("scan",)))
    return readable(answer.claimed)


async def settle(table: Desk, *settlements: Any) -> list[Any]:
    async with asyncio.timeout(AT_ONCE_S):
        return list((await table.store.exchange(list(settlements), None)).settled)


async def test_a_row_that_becomes_due_earlier_is_claimed_next_after_its_commit(
    table: Desk, other: asyncpg.Connection
) -> None:
    ids = [await table.insert() for _ in range(5)]
    assert [one.job.id for one in await claim(table)] == ids[:1]
    await other.execute(f"UPDATE {TABLE} SET next_run_at = now() - interval '1 hour' WHERE id = $1", ids[4])
    assert [one.job.id for one in await claim(table)] == ids[1:2]
    await other.execute("COMMIT")
    assert [one.job.id for one in await claim(table)] == ids[4:]


# ---------------------------------------------------------------------------------------------------- locked rows


async def test_a_locked_row_holds_nobody_up_and_is_written_later(table: Desk, other: asyncpg.Connection) -> None:
    locked, free = await table.insert(), await table.insert()
    await other.fetch(f"SELECT FROM {TABLE} WHERE id = $1 FOR UPDATE", locked)
    first, second = await claim(table, 2)
    assert {first.job.id, second.job.id} == {locked, free}
    assert [await table.status(id) for id in (locked, free)] == ["queued", "running"]
    assert await settle(table, succeed(first), succeed(second)) == ["done", "done"]
    assert [await table.status(id) for id in (locked, free)] == ["queued", "success"]
    await other.execute("COMMIT")
    # The next change of any job of the table, or else the janitor.
    await table.insert()
    await claim(table)
    assert await table.status(locked) == "success"
    await table.check()


async def test_the_janitor_writes_what_was_left(table: Desk, other: asyncpg.Connection) -> None:
    id = await table.insert()
    await other.fetch(f"SELECT FROM {TABLE} WHERE id = $1 FOR UPDATE", id)
    (claimed,) = await claim(table)
    await settle(table, fail(claimed, "no luck", NOT_KEPT))
    await table.catch_up()
    assert await table.status(id) == "queued"
    await other.execute("ROLLBACK")
    await table.catch_up()
    row = await table.row(id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("failed", 1, "no luck")
    await table.check()
    # What is not kept was, until its row was written.
    table.clock.advance(25 * 3600)
    await table.store.purge()
    assert await table.job(id) is None


async def test_a_key_share_lock_is_in_nobodys_way(table: Desk, other: asyncpg.Connection) -> None:
    """What an INSERT into a table with a foreign key takes."""
    id = await table.insert()
    await other.fetch(f"SELECT FROM {TABLE} WHERE id = $1 FOR KEY SHARE", id)
    (claimed,) = await claim(table)
    assert await table.status(id) == "running"
    await settle(table, succeed(claimed))
    assert await table.status(id) == "success"
    await table.check()


# ---------------------------------------------------------------------------------------------------- one of two wins


async def test_what_is_settled_before_the_cancellation_commits_stands(table: Desk, other: asyncpg.Connection) -> None:
    id = await table.insert()
    (claimed,) = await claim(table)
    await other.execute(f"UPDATE {TABLE} SET status = 'failed' WHERE id = $1", id)
    assert await settle(table, succeed(claimed)) == ["done"]
    await other.execute("COMMIT")
    row = await table.row(id)
    assert (row["status"], row["last_error"]) == ("success", None)
    await table.check_later()


async def test_what_is_cancelled_before_it_is_settled_stands(table: Desk, other: asyncpg.Connection) -> None:
    id = await table.insert()
    (claimed,) = await claim(table)
    await other.execute(f"UPDATE {TABLE} SET status = 'failed' WHERE id = $1", id)
    await other.execute("COMMIT")
    assert await settle(table, succeed(claimed)) == ["lost"]
    assert await table.status(id) == "failed"
    await table.check()


async def test_what_is_settled_before_it_was_to_be_run_again_is_run_again(
    table: Desk, other: asyncpg.Connection
) -> None:
    id = await table.insert()
    (claimed,) = await claim(table)
    await other.execute(f"UPDATE {TABLE} SET status = 'failed' WHERE id = $1", id)
    await other.execute(f"UPDATE {TABLE} SET status = 'queued' WHERE id = $1", id)
    assert await settle(table, succeed(claimed)) == ["done"]
    await other.execute("COMMIT")
    assert await table.status(id) == "queued"
    await table.check_later()
    assert [one.job.id for one in await claim(table)] == [id]


async def test_a_row_that_was_settled_while_it_was_locked_shows_it(table: Desk, other: asyncpg.Connection) -> None:
    id = await table.insert()
    (claimed,) = await claim(table)
    await other.fetch(f"SELECT FROM {TABLE} WHERE id = $1 FOR UPDATE", id)
    await settle(table, fail(claimed, "no luck"))
    said: list[str] = []
    other.add_log_listener(lambda _, message: said.append(str(message)))
    row = await other.fetchrow(f"UPDATE {TABLE} SET status = 'failed' WHERE id = $1 RETURNING *", id)
    assert row is not None
    assert (row["status"], row["attempts"], row["last_error"]) == ("failed", 1, "no luck")
    assert f"the job {id} has ended meanwhile: failed stands" in said[0]
    await other.execute("COMMIT")
    await table.check_later()


async def test_a_cancellation_waits_for_what_is_being_settled(table: Desk, other: asyncpg.Connection) -> None:
    """The application has the row, the worker has the job; whoever waits, it is not both."""
    id = await table.insert()
    (claimed,) = await claim(table)
    await other.execute(f"UPDATE {TABLE} SET status = 'failed' WHERE id = $1", id)
    async with connected(table.url) as worker:
        await worker.execute("BEGIN")
        await worker.execute("DELETE FROM jobmill.jobs WHERE id = $1", id)  # half of what settling does
        committing = asyncio.create_task(other.execute("COMMIT"))
        await until(lambda: table.sql.fetchval("SELECT true FROM pg_locks WHERE NOT granted"))
        await worker.execute("ROLLBACK")
        await committing
    assert await table.status(id) == "failed"
    assert await settle(table, succeed(claimed)) == ["lost"]
    await table.check()


async def test_a_cancellation_waits_no_longer_than_its_own_timeout(table: Desk, other: asyncpg.Connection) -> None:
    id = await table.insert()
    await claim(table)
    await other.execute("SET lock_timeout = '300ms'")
    await other.execute(f"UPDATE {TABLE} SET status = 'failed' WHERE id = $1", id)
    async with connected(table.url) as worker:
        await worker.execute("BEGIN")
        await worker.execute("SELECT FROM jobmill.jobs WHERE id = $1 FOR UPDATE", id)
        with pytest.raises(asyncpg.LockNotAvailableError):
            await other.execute("COMMIT")
    assert await table.status(id) == "running"
    await table.check()


async def test_whoever_commits_a_cancellation_lets_an_exchange_pass(table: Desk, other: asyncpg.Connection) -> None:
    """Two jobs in the one order here, in the other there: a deadlock, if nobody gave way."""
    ids = sorted([await table.insert(), await table.insert()])
    leases = {one.job.id: one for one in await claim(table, 2)}
    await other.execute(f"UPDATE {TABLE} SET status = 'failed'")
    async with connected(table.url) as worker:
        await worker.execute("BEGIN")
        await worker.execute("UPDATE jobmill.jobs SET updated_ms = updated_ms + 1 WHERE id = $1", ids[1])
        committing = asyncio.create_task(other.execute("COMMIT"))
        await until(lambda: table.sql.fetchval("SELECT true FROM pg_locks WHERE NOT granted"))
        async with asyncio.timeout(AT_ONCE_S):
            await worker.execute("UPDATE jobmill.jobs SET updated_ms = updated_ms + 1 WHERE id = $1", ids[0])
        await worker.execute("COMMIT")
        await committing
    assert await settle(table, *(succeed(leases[id]) for id in ids)) == ["lost", "lost"]
    await table.check()


async def test_a_claim_leaves_what_is_being_cancelled_or_edited(table: Desk, other: asyncpg.Connection) -> None:
    cancelled, edited, left = await table.insert(), await table.insert(), await table.insert()
    await other.execute(f"UPDATE {TABLE} SET status = 'failed' WHERE id = $1", cancelled)
    await other.execute(f"UPDATE {TABLE} SET payload = '[]' WHERE id = $1", edited)
    assert [one.job.id for one in await claim(table, 3)] == [left]
    await other.execute("ROLLBACK")
    assert {one.job.id for one in await claim(table, 3)} <= {cancelled, edited}
    await table.check()


async def test_a_client_requeues_while_the_row_is_locked(table: Desk, other: asyncpg.Connection) -> None:
    id = await table.insert()
    await table.update(id, status="failed")
    await other.fetch(f"SELECT FROM {TABLE} WHERE id = $1 FOR UPDATE", id)
    await table.store.change([id], Requeue())
    await other.execute(f"UPDATE {TABLE} SET payload = '[7]' WHERE id = $1", id)
    await other.execute("COMMIT")
    job = await table.job(id)
    assert job is not None
    assert (job.state, job.payload) == ("waiting", [7])
    await table.check_later()


async def test_truncate_while_a_job_is_being_claimed(table: Desk, other: asyncpg.Connection) -> None:
    """An exchange that holds the job waits for the table, which TRUNCATE has: TRUNCATE does not wait for the job."""
    taken, waiting = await table.insert(), await table.insert()
    await other.execute("SELECT FROM jobmill.jobs WHERE id = $1 FOR UPDATE", taken)
    async with asyncio.timeout(AT_ONCE_S):
        await table.sql.execute(f"TRUNCATE {TABLE}")
    assert await table.job(waiting) is None
    assert await table.job(taken) is not None
    await other.execute("COMMIT")
    await table.catch_up()
    assert await table.job(taken) is None
    await table.check()


# ---------------------------------------------------------------------------------------------------- in earnest


@pytest.mark.slow
async def test_applications_and_workers_at_once(postgres_servers: PostgresServers, postgres_name: str) -> None:
    """Everything that an application does to rows, on several connections, while workers run them for two seconds."""
    url = await emptied(postgres_servers[postgres_name])
    async with desk(url, stands_still=False) as table:
        random = Random(7)

        @table.jobs.handler(max_attempts=2, backoff="1ms")
        async def scan(n: int) -> None:
            await asyncio.sleep(random.random() * 0.01)
            if n % 3 == 0:
                raise ValueError("no luck")

        end = time.monotonic() + 2
        async with Worker(table.jobs, concurrency=8), Worker(table.jobs, concurrency=8):
            await asyncio.gather(*(_application(url, random, end) for _ in range(4)))
            await until(lambda: _has_ended(table), 20)
        await table.catch_up()
        await table.check()
        assert await table.sql.fetchval(f"SELECT count(*) FROM {TABLE}") > 50


async def _has_ended(table: Desk) -> bool:
    return not await table.sql.fetchval("SELECT count(*) FROM jobmill.jobs")


async def _application(url: str, random: Random, end: float) -> None:
    """Only what says why it is not possible is refused: no deadlock, no timeout, nothing else.

    Each has rows of its own: two applications that update several rows in different orders wait for each other, on any
    table.
    """
    org = uuid.uuid4()
    some = f"SELECT id FROM {TABLE} WHERE org_id = '{org}' ORDER BY random() LIMIT 3"
    steps = [
        *[
            f"INSERT INTO {TABLE} (type, org_id, payload)"
            f" SELECT 'scan', '{org}', jsonb_build_object('n', n) FROM generate_series(1, 5) AS n"
        ]
        * 2,
        f"UPDATE {TABLE} SET status = 'failed' WHERE id = (SELECT id FROM ({some}) AS one LIMIT 1)",
        f"UPDATE {TABLE} SET status = 'failed' WHERE status = 'running' AND id IN ({some})",
        f"UPDATE {TABLE} SET status = 'queued' WHERE status IN ('success', 'failed') AND id IN ({some})",
        f"UPDATE {TABLE} SET next_run_at = now() WHERE status = 'queued' AND id IN ({some})",
        f"DELETE FROM {TABLE} WHERE id = (SELECT id FROM ({some}) AS one LIMIT 1)",
    ]
    async with connected(url) as sql:
        while time.monotonic() < end:
            with contextlib.suppress(asyncpg.InvalidParameterValueError, asyncpg.ObjectInUseError):
                async with sql.transaction():
                    await sql.execute(random.choice(steps))
                    await asyncio.sleep(random.random() * 0.005)
