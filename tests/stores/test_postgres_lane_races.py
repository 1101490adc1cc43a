"""Lanes on PostgreSQL, where transactions meet: nobody waits for an open one, and no free slot is forgotten."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable
from typing import Any, TypeVar

import pytest

from jobmill.core.changes import Cancel, Reprioritize, Requeue, Reschedule
from jobmill.core.queue_settings import LaneChange, Pause
from jobmill.core.values import NOW, after
from jobmill.stores.postgres import PostgresStore
from jobmill.testing.contract.lanes import laned, rule, run
from jobmill.testing.contract.support import QUEUE, claim, claim_ids, claim_one, put, put_one, retry, settle, succeed
from tests.helpers import until
from tests.kit.postgres import connected
from tests.stores.test_postgres_flows import Open, Sql, blocked, none_waits
from tests.stores.test_postgres_flows import slow as slow  # a fixture
from tests.stores.test_postgres_flows import sql as sql

pytestmark = pytest.mark.stores("postgres")

T = TypeVar("T")


async def slots(sql: Sql) -> dict[str, int | None]:
    """By job: 0 with a slot, -1 ready, -2 later."""
    return await by_first(sql, "SELECT id, slot FROM jobmill.jobs WHERE lane IS NOT NULL")


async def by_first(sql: Sql, text: str) -> dict[str, Any]:
    """Rows of two columns."""
    return {row[0]: row[1] for row in await sql.fetch(text)}


@pytest.fixture
async def user(migrated_url: str) -> AsyncIterator[Sql]:
    """A transaction of a user."""
    async with connected(migrated_url) as connection:
        await connection.execute("BEGIN")
        yield connection


@pytest.fixture
async def hasty(migrated_url: str) -> AsyncIterator[PostgresStore]:
    """A store that fails where it has to wait for a lock of somebody else."""
    store = PostgresStore(f"{migrated_url}?options=-clock_timeout%3D500")
    await store.open()
    yield store
    await store.close()


async def test_an_arrival_while_the_last_settlement_is_in_flight(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    """Neither sees the other. The process that settled looks again with its next exchange."""
    await rule(direct, 1)
    await put_one(direct, laned("x"))
    claimed = await claim_one(direct)
    assert await settle(slow.store, succeed(claimed)) == ["done"]
    await put_one(direct, laned("y"))
    await slow.commit()
    assert await slots(sql) == {"y": -1}
    assert await claim(direct) == [], "another process does not know of it"
    assert await claim_ids(slow.store) == ["y"]


@contextlib.asynccontextmanager
async def committing(sql: Sql, id: str, call: Awaitable[T]) -> AsyncIterator[asyncio.Future[T]]:
    """A call whose transaction has done all that it does with this job, and is about to commit."""
    await sql.execute(
        f"""
        CREATE FUNCTION jobmill.wait() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN PERFORM pg_advisory_xact_lock(42); RETURN NULL; END $$;
        CREATE CONSTRAINT TRIGGER waits AFTER INSERT OR UPDATE OF held ON jobmill.jobs
        DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.id = '{id}') EXECUTE FUNCTION jobmill.wait()
        """
    )
    try:
        await sql.execute("SELECT pg_advisory_lock(42)")
        async with blocked(sql, call) as task:
            yield task
            await sql.execute("SELECT pg_advisory_unlock(42)")
    finally:
        await sql.execute("SELECT pg_advisory_unlock_all()")
        await sql.execute("DROP TRIGGER waits ON jobmill.jobs; DROP FUNCTION jobmill.wait")


async def test_a_settlement_while_an_arrival_is_in_flight(
    direct: PostgresStore, hasty: PostgresStore, sql: Sql
) -> None:
    """The arrival has found no slot, and the settlement and its second look no job: the arrival looks again, too."""
    await rule(direct, 1)
    await put_one(direct, laned("x"))
    claimed = await claim_one(hasty)
    async with committing(sql, "y", direct.enqueue([laned("y")])):
        assert await settle(hasty, succeed(claimed)) == ["done"]
        assert await claim(hasty) == []
    assert await slots(sql) == {"y": 0}


@pytest.mark.parametrize("change", [Requeue(), Reschedule(NOW)])
async def test_a_settlement_while_a_change_is_in_flight(
    direct: PostgresStore, hasty: PostgresStore, sql: Sql, change: Requeue | Reschedule
) -> None:
    await rule(direct, 1)
    await put(direct, laned("x"), laned("y", due=after(60_000)))
    if isinstance(change, Requeue):
        await direct.change(["y"], Cancel())
    claimed = await claim_one(hasty)
    async with committing(sql, "y", direct.change(["y"], change)):
        assert await settle(hasty, succeed(claimed)) == ["done"]
        assert await claim(hasty) == []
    assert await slots(sql) == {"y": 0}


async def test_a_settlement_while_a_retry_is_in_flight(direct: PostgresStore, hasty: PostgresStore, sql: Sql) -> None:
    """The retry has given its slot to another job, and waits for the next one."""
    await rule(direct, 2)
    await put(direct, laned("x"), laned("z"), laned("y"))
    claimed = {one.job.id: one for one in await claim(direct)}
    assert sorted(claimed) == ["x", "z"]
    async with committing(sql, "x", settle(direct, retry(claimed["x"], 0))):
        assert await settle(hasty, succeed(claimed["z"])) == ["done"]
        assert await claim(hasty) == []
    assert await slots(sql) == {"x": -1, "y": 0}
    assert sorted(await claim_ids(direct)) == ["x", "y"]


async def test_an_arrival_in_a_users_transaction_while_the_lane_empties(
    hasty: PostgresStore, user: Sql, sql: Sql
) -> None:
    await rule(hasty, 1)
    await put_one(hasty, laned("x"))
    claimed = await claim_one(hasty)
    await hasty.enqueue_within(user, [laned("y")])
    assert await settle(hasty, succeed(claimed)) == ["done"]
    assert await claim(hasty) == []
    await put_one(hasty, laned("z"))
    await run(hasty, "z")
    await user.execute("COMMIT")
    assert await slots(sql) == {"y": -1}
    assert await claim_ids(hasty) == ["y"]


async def test_two_transactions_of_users_mark_the_same_lane(
    hasty: PostgresStore, user: Sql, migrated_url: str, sql: Sql
) -> None:
    await rule(hasty, 2)
    async with connected(migrated_url) as second:
        await second.execute("BEGIN; SET LOCAL lock_timeout = '500ms'")
        await hasty.enqueue_within(user, [laned(f"u{number}") for number in range(1_001)])
        await hasty.enqueue_within(second, [laned("w"), laned("b", "b")])
        await put(hasty, *[laned(f"s{number}") for number in range(3)])
        assert sorted(await claim_ids(hasty)) == ["s0", "s1"]
        await second.execute("COMMIT")
        assert await claim_ids(hasty) == ["b"]
        await user.execute("ROLLBACK")
    assert await sql.fetchval("SELECT count(*) FROM jobmill.lane_marks") == 0
    assert await slots(sql) == {"b": 0, "s0": 0, "s1": 0, "s2": -1, "w": -1}


async def test_a_queue_that_has_lanes_only_in_users_transactions(
    hasty: PostgresStore, user: Sql, migrated_url: str
) -> None:
    """That it has lanes is noted outside of the transaction, where nobody waits for it."""
    await hasty.enqueue_within(user, [laned("x", due=after(1))])
    async with connected(migrated_url) as second:
        await second.execute("BEGIN; SET LOCAL lock_timeout = '500ms'")
        await hasty.enqueue_within(second, [laned("y")])
        await second.execute("COMMIT")
    await user.execute("COMMIT")
    ran: set[str] = set()
    async with asyncio.timeout(10):
        while ran != {"x", "y"}:
            ran.update(await claim_ids(hasty))


async def test_a_slot_is_handed_to_the_next_job_if_the_first_one_is_being_cancelled(
    direct: PostgresStore, slow: Open, sql: Sql
) -> None:
    await rule(direct, 1)
    await put(direct, laned("x"), laned("y"), laned("z"))
    claimed = await claim_one(direct)
    assert (await slow.store.change(["y"], Cancel())).ids == ["y"]
    assert await settle(direct, succeed(claimed)) == ["done"]
    await slow.commit()
    assert await slots(sql) == {"z": 0}


async def test_the_only_job_that_could_get_a_slot_is_locked(direct: PostgresStore, sql: Sql, migrated_url: str) -> None:
    """The process looks again, as often as it takes."""
    await rule(direct, 1)
    await put(direct, laned("x"), laned("y"))
    claimed = await claim_one(direct)
    async with connected(migrated_url) as other:
        await other.execute("BEGIN")
        await other.execute("SELECT FROM jobmill.jobs WHERE id = 'y' FOR UPDATE")
        assert await settle(direct, succeed(claimed)) == ["done"]
        for _ in range(3):
            assert await claim(direct) == []
        await other.execute("ROLLBACK")
    assert await claim_ids(direct) == ["y"]


async def test_an_exchange_that_is_interrupted_looks_again_with_the_next_one(
    direct: PostgresStore, slow: Open, sql: Sql, migrated_url: str
) -> None:
    await rule(direct, 1)
    await put_one(direct, laned("x"))
    claimed = await claim_one(direct)
    await put_one(slow.store, laned("y"))
    assert await settle(direct, succeed(claimed)) == ["done"]
    await slow.commit()
    async with connected(migrated_url) as other:
        await other.execute("BEGIN; LOCK TABLE jobmill.lanes")
        with contextlib.suppress(asyncio.CancelledError):
            async with blocked(sql, claim(direct)) as task:
                task.cancel()
        # The server learns of the cancellation later. With the lock before that, the interrupted call would claim y.
        await until(lambda: none_waits(sql))
    assert await claim_ids(direct) == ["y"]


async def test_a_limit_is_lowered_beside_a_settlement_in_flight(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    """The settlement hands its slot on by the old limit, and a later look takes it back."""
    await rule(direct, 2)
    await put(direct, *[laned(f"x{number}") for number in range(5)])
    claimed = await claim(direct)
    assert len(claimed) == 2
    assert await settle(slow.store, succeed(claimed[0])) == ["done"]
    await direct.configure_lane(QUEUE, "a", LaneChange(running=1))
    await slow.commit()
    assert (await slots(sql))["x2"] == 0
    await sql.execute("UPDATE jobmill.lanes SET review_ms = 0 WHERE review_ms IS NOT NULL")
    assert await claim(direct) == []
    assert (await slots(sql))["x2"] == -1
    assert await settle(direct, succeed(claimed[1])) == ["done"]
    for number in range(2, 5):
        await run(direct, f"x{number}")


async def test_a_limit_is_lowered_while_the_jobs_that_lose_their_slots_are_locked(
    direct: PostgresStore, sql: Sql, migrated_url: str
) -> None:
    """As by a claim in flight. A later look takes a slot back."""
    await rule(direct, 2)
    await put(direct, *[laned(id) for id in "xyz"])
    async with connected(migrated_url) as other:
        await other.execute("BEGIN; SELECT FROM jobmill.jobs WHERE slot = 0 FOR UPDATE")
        await direct.configure_lane(QUEUE, "a", LaneChange(running=1))
        assert await slots(sql) == {"x": 0, "y": 0, "z": -1}
        await other.execute("ROLLBACK")
    await sql.execute("UPDATE jobmill.lanes SET review_ms = 0 WHERE review_ms IS NOT NULL")
    assert await claim_ids(direct) == ["x"]
    assert await slots(sql) == {"x": 0, "y": -1, "z": -1}


async def test_a_lane_is_paused_beside_a_settlement_in_flight(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    await rule(direct, 1)
    await put(direct, laned("x"), laned("y"))
    assert await settle(slow.store, succeed(await claim_one(direct))) == ["done"]
    await direct.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
    await slow.commit()
    await sql.execute("UPDATE jobmill.lanes SET review_ms = 0 WHERE review_ms IS NOT NULL")
    assert await claim(direct) == []
    await direct.configure_lane(QUEUE, "a", LaneChange(pause=None))
    assert await claim_ids(direct) == ["y"]


async def test_two_connections_settle_two_lanes_crosswise(
    direct: PostgresStore, slow: Open, hasty: PostgresStore
) -> None:
    await rule(direct, 1)
    await put(direct, *[laned(f"{lane}{number}", lane) for number in range(3) for lane in "ab"])
    first = {one.job.id: one for one in await claim(direct)}
    assert await settle(slow.store, succeed(first["a0"])) == ["done"]
    assert await settle(hasty, succeed(first["b0"])) == ["done"]
    second = {one.job.id: one for one in await claim(hasty)}
    assert await settle(slow.store, succeed(second["b1"])) == ["done"]
    await slow.commit()
    assert await claim_ids(hasty) == ["a1", "b2"]


async def test_two_processes_fill_the_same_lanes_in_either_order(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    """They wait for each other, and never in a circle: lanes are locked in one order."""
    await rule(direct, 1)
    names = [f"lane {number}" for number in range(50)]
    await put(slow.store, *[laned(lane=name) for name in names])
    async with blocked(sql, direct.enqueue([laned(lane=name) for name in reversed(names)])):
        await slow.commit()
    assert sorted(one.job.lane or "" for one in await claim(direct, 200)) == sorted(names)


async def test_lanes_are_locked_in_the_order_of_their_numbers(
    direct: PostgresStore, sql: Sql, migrated_url: str
) -> None:
    """A call that waits for a lane holds those before it, and no other. (The next try would hide a deadlock.)"""
    await rule(direct, 1)
    names = [f"lane {number}" for number in range(40)]
    rows = await sql.fetch("SELECT DISTINCT hashtext('mail/' || one) & 511 FROM unnest($1::text[]) AS one", names)
    numbers = sorted(row[0] for row in rows)
    middle, lock = numbers[len(numbers) // 2], int(direct.context.statements.filled("{lane_lock}"))
    async with connected(migrated_url) as other:
        await other.execute(f"BEGIN; SELECT pg_advisory_xact_lock({lock}, {middle})")
        async with blocked(sql, direct.enqueue([laned(lane=name) for name in names])):
            text = "SELECT objid FROM pg_locks WHERE locktype = 'advisory' AND classid::bigint = $1 AND granted"
            held = sorted(row[0] for row in await sql.fetch(text, lock % 2**32))
            assert held == [number for number in numbers if number <= middle]
            await other.execute("ROLLBACK")


async def test_a_cancel_waits_for_the_claim_of_its_job(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    await rule(direct, 1)
    await put(direct, laned("x"), laned("y"))
    assert await claim_ids(slow.store) == ["x"]
    async with blocked(sql, direct.change(["x"], Cancel())):
        await slow.commit()
    assert await slots(sql) == {"y": 0}


async def test_an_urgent_job_does_not_wait_for_a_locked_one(
    direct: PostgresStore, hasty: PostgresStore, sql: Sql
) -> None:
    await rule(direct, 2)
    await put(direct, *[laned(id, priority=5) for id in "xyz"])
    await sql.execute("BEGIN")
    await sql.execute("SELECT FROM jobmill.jobs WHERE id = 'y' FOR UPDATE")
    await put_one(hasty, laned("urgent", priority=0))
    assert await slots(sql) == {"urgent": -1, "x": 0, "y": 0, "z": -1}
    await sql.execute("ROLLBACK")
    assert (await hasty.change(["z"], Reprioritize(1))).ids == ["z"]
    assert await slots(sql) == {"urgent": 0, "x": -1, "y": -1, "z": 0}
