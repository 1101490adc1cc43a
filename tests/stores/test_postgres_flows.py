"""Flows on PostgreSQL, where transactions meet: what one has not committed, the other waits for or does not miss."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import asyncpg
import pytest
from msgspec import structs

from jobmill.core.changes import Cancel, Remove, Requeue
from jobmill.core.flows import MAX_RELEASED, Signal, Step
from jobmill.core.job import Keep
from jobmill.core.lifecycle import Policy
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import after
from jobmill.stores.postgres import PostgresStore
from jobmill.testing.contract.flows import edges, waits
from jobmill.testing.contract.steps import suspend
from jobmill.testing.contract.support import (
    claim,
    claim_ids,
    claim_one,
    fail,
    new,
    put,
    put_one,
    seize,
    settle,
    snooze,
    started,
    state_of,
    succeed,
)
from tests.helpers import until
from tests.kit.postgres import connected

pytestmark = pytest.mark.stores("postgres")

T = TypeVar("T")
Sql = asyncpg.Connection


@pytest.fixture
async def sql(migrated_url: str) -> AsyncIterator[Sql]:
    async with connected(migrated_url) as connection:
        yield connection


class Open:
    """A store whose verbs all run in one transaction, which the test commits."""

    def __init__(self, store: PostgresStore, connection: Sql) -> None:
        self.store = store
        self._connection = connection

        async def use(work: Callable[[Any], Awaitable[T]], _: float | None = None) -> T:
            return await work(connection)

        own: Any = store.context
        own.use = own.transact = use

    async def commit(self) -> None:
        await self._connection.execute("COMMIT")

    async def kill(self, sql: Sql) -> None:
        """End the connection from outside, as the death of its process does."""
        await sql.execute("SELECT pg_terminate_backend($1)", self._connection.get_server_pid())
        await until(lambda: self._connection.is_closed())


@pytest.fixture
async def slow(migrated_url: str) -> AsyncIterator[Open]:
    store = PostgresStore(migrated_url)
    await store.open()
    async with connected(migrated_url) as connection:
        await connection.execute("BEGIN")
        yield Open(store, connection)
    await store.close()


@contextlib.asynccontextmanager
async def blocked(sql: Sql, call: Awaitable[T]) -> AsyncIterator[asyncio.Future[T]]:
    """A call that waits for a lock. It must have returned a moment after the block."""
    task = asyncio.ensure_future(call)

    async def is_blocked() -> bool:
        assert not task.done(), f"it did not wait: {task}"
        return await count_waiting(sql) == 1

    await until(is_blocked)
    yield task
    await asyncio.wait_for(task, 5)


async def count_waiting(sql: Sql) -> int:
    """How many calls wait for a lock."""
    text = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    return int(await sql.fetchval(text))


async def none_waits(sql: Sql) -> bool:
    """Whether no call waits for a lock, also none that nobody awaits any more."""
    return await count_waiting(sql) == 0


async def is_free(sql: Sql, id: str) -> bool:
    """Whether no other transaction has locked this live job."""
    row = await sql.fetchrow("SELECT id FROM jobmill.jobs WHERE id = $1 FOR UPDATE SKIP LOCKED", id)
    return row is not None


# ---------------------------------------------------------------------------------------------------- settlements


async def test_a_release_reads_each_row_once(sql: Sql, direct: PostgresStore) -> None:
    """Neither the history, where the caller knows the state, nor the edges again, if all of a job were set."""
    count = 20
    await put(direct, *[one for n in range(count) for one in (new(f"first-{n}"), waits(f"then-{n}", f"first-{n}"))])
    ids, states = [f"first-{n}" for n in range(count)], ["succeeded"] * count
    await sql.execute("BEGIN")
    edges_set = await sql.fetchval("SELECT edges_set FROM jobmill.release($1, $2, $3, NULL, 100)", 1, ids, states)
    rows = await sql.fetch("SELECT relname, idx_scan FROM pg_stat_xact_user_tables WHERE schemaname = 'jobmill'")
    scans = {name: count for name, count in rows if name in ("history", "edges", "jobs")}
    await sql.execute("COMMIT")
    assert (edges_set, scans) == (count, {"history": 0, "edges": count, "jobs": count})
    assert len(await claim(direct, 3 * count)) == 2 * count


async def test_two_transactions_end_the_last_two_dependencies(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    await put(direct, new("a"), new("b"), waits("then", "a", "b"))
    one, two = await claim(direct)
    assert await settle(slow.store, succeed(one)) == ["done"]
    async with blocked(sql, settle(direct, succeed(two))) as other:
        await slow.commit()
    assert await other == ["done"]
    assert await claim_ids(direct) == ["then"]


async def test_a_dependent_waits_again_while_its_last_dependency_ends(
    direct: PostgresStore, slow: Open, sql: Sql
) -> None:
    await put(direct, new("a"), waits("then", "a"))
    seized, claimed = await seize(direct, "then"), await claim_one(direct)
    assert await settle(slow.store, snooze(seized, 0)) == ["done"]
    async with blocked(sql, settle(direct, succeed(claimed))):
        await slow.commit()
    assert await claim_ids(direct) == ["then"]


async def test_a_last_dependency_ends_while_its_dependent_waits_again(
    direct: PostgresStore, slow: Open, sql: Sql
) -> None:
    await put(direct, new("a"), waits("then", "a"))
    seized, claimed = await seize(direct, "then"), await claim_one(direct)
    assert await settle(slow.store, succeed(claimed)) == ["done"]
    async with blocked(sql, settle(direct, snooze(seized, 0))):
        await slow.commit()
    assert await claim_ids(direct) == ["then"]


async def test_a_release_is_seen_with_its_commit(direct: PostgresStore, slow: Open) -> None:
    """The dependent stands before the position of the claim cursor, which returns to it with the commit."""
    await put(direct, new("a"), waits("then", "a"), *[new(f"later-{number}") for number in range(9)])
    (claimed,) = await claim(direct, 1)
    assert claimed.job.id == "a"
    assert await claim_ids(direct, 2) == ["later-0", "later-1"]
    assert await settle(slow.store, succeed(claimed)) == ["done"]
    assert await claim_ids(direct, 1) == ["later-2"], "claims that are full do not return to the start by themselves"
    await slow.commit()
    assert await claim_ids(direct, 1) == ["then"]


async def test_a_process_dies_while_it_settles(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    await put(direct, new("a"), waits("then", "a"))
    claimed = await claim_one(direct)
    assert await settle(slow.store, succeed(claimed)) == ["done"]
    await slow.kill(sql)
    assert (await state_of(direct, "a"), await edges(direct, "then")) == ("running", [("a", "pending")])
    assert await settle(direct, succeed(claimed)) == ["done"]
    assert await claim_ids(direct) == ["then"]


async def test_a_process_dies_while_it_suspends(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    claimed = await started(direct, new("p"))
    assert await settle(slow.store, suspend(claimed, new("p.0"))) == ["done"]
    await slow.kill(sql)
    assert (await state_of(direct, "p"), await state_of(direct, "p.0")) == ("running", None)
    assert await settle(direct, suspend(claimed, new("p.0"))) == ["done"]
    assert await claim_ids(direct) == ["p.0"]


async def test_workers_settle_the_parts_of_many_jobs(direct: PostgresStore, migrated_url: str) -> None:
    """Five hundred parts of twenty jobs, in transactions of a few parts each, on three connections at once."""
    parts = [f"part-{number:03}" for number in range(500)]
    await put(direct, *map(new, parts))
    await put(direct, *[waits(f"then-{number:02}", *parts[number::20]) for number in range(20)])
    claimed = [one for _ in range(5) for one in await claim(direct)]
    stores = [PostgresStore(migrated_url) for _ in range(3)]

    async def work(number: int) -> None:
        await stores[number].open()
        mine = claimed[number::3]
        for first in range(0, len(mine), 4):
            assert {*await settle(stores[number], *map(succeed, mine[first : first + 4]))} == {"done"}

    await asyncio.gather(*map(work, range(3)))
    assert sorted(await claim_ids(direct)) == [f"then-{number:02}" for number in range(20)]
    await asyncio.gather(*(store.close() for store in stores))


# ---------------------------------------------------------------------------------------------------- enqueue


async def test_a_dependency_ends_before_the_enqueue_of_its_dependent_commits(
    direct: PostgresStore, slow: Open, sql: Sql
) -> None:
    claimed = await started(direct, new("a"))
    await put(slow.store, waits("then", "a"))
    async with blocked(sql, settle(direct, succeed(claimed))):
        await slow.commit()
    assert await claim_ids(direct) == ["then"]


async def test_a_dependent_is_enqueued_before_the_end_of_its_dependency_commits(
    direct: PostgresStore, slow: Open, sql: Sql
) -> None:
    claimed = await started(direct, new("a"))
    await settle(slow.store, succeed(claimed, 3))
    async with blocked(sql, put(direct, waits("then", "a"))):
        await slow.commit()
    assert await claim_ids(direct) == ["then"]
    assert await edges(direct, "then") == [("a", "succeeded")]


async def test_a_dependency_that_has_dependents_already_is_locked(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    await put(direct, new("a"), waits("one", "a"))
    claimed = await claim_one(direct)
    await put(slow.store, waits("two", "a"))
    async with blocked(sql, settle(direct, succeed(claimed))):
        await slow.commit()
    assert sorted(await claim_ids(direct)) == ["one", "two"]


async def test_a_dependency_is_requeued_while_its_dependent_is_enqueued(
    direct: PostgresStore, slow: Open, sql: Sql
) -> None:
    await settle(direct, fail(await started(direct, new("a"))))
    assert (await slow.store.change(["a"], Requeue())).ids == ["a"]
    async with blocked(sql, put(direct, waits("then", "a"))):
        await slow.commit()
    assert await edges(direct, "then") == [("a", "pending")]
    await settle(direct, succeed(await claim_one(direct)))
    assert await claim_ids(direct) == ["then"]


async def test_two_clients_add_dependents_at_once(direct: PostgresStore, slow: Open) -> None:
    """They do not wait for each other once the dependency is marked; and a claim that passed over it finds it again."""
    await put(direct, new("a"), waits("one", "a"))
    await put(slow.store, waits("two", "a"))
    await asyncio.wait_for(put(direct, waits("three", "a")), 5)
    await slow.commit()
    assert await claim_ids(direct) == ["a"]


async def test_a_purge_meets_a_new_edge(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    await settle(direct, succeed(await started(direct, new("a")), 3))
    await sql.execute("UPDATE jobmill.history SET expires_ms = finished_ms, keep_last = NULL")
    await put(slow.store, waits("then", "a"))
    await direct.purge()
    assert await state_of(direct, "a") == "succeeded"
    await slow.commit()
    await direct.purge()
    (edge,) = await direct.dependencies("then")
    assert edge.result_json is not None


# ---------------------------------------------------------------------------------------------------- changes


async def test_a_requeue_waits_for_the_end_of_a_dependency(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    await put(direct, new("a"), waits("then", "a"))
    claimed = await claim_one(direct)
    await direct.change(["then"], Cancel())
    await settle(slow.store, succeed(claimed))
    async with blocked(sql, direct.change(["then"], Requeue())) as other:
        await slow.commit()
    assert (await other).ids == ["then"]
    assert await claim_ids(direct) == ["then"]


async def test_a_dependency_that_ends_waits_for_a_requeue(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    await put(direct, new("a"), waits("then", "a"))
    claimed = await claim_one(direct)
    await direct.change(["then"], Cancel())
    assert (await slow.store.change(["then"], Requeue())).ids == ["then"]
    async with blocked(sql, settle(direct, succeed(claimed))):
        await slow.commit()
    assert await claim_ids(direct) == ["then"]


async def test_a_requeue_of_an_edge_that_was_set(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    """The edge says "failed", but the dependency runs again: it must not end unnoticed."""
    await put(direct, new("a"), waits("then", "a"))
    await settle(direct, fail(await claim_one(direct)))
    await settle(direct, fail(await claim_one(direct)))
    assert (await direct.change(["a"], Requeue())).ids == ["a"]
    claimed = await claim_one(direct)
    assert (await slow.store.change(["then"], Requeue())).ids == ["then"]
    async with blocked(sql, settle(direct, succeed(claimed))):
        await slow.commit()
    assert await claim_ids(direct) == ["then"]


async def test_a_flow_is_requeued_in_one_call(direct: PostgresStore) -> None:
    await put(direct, new("a"), waits("b", "a"), waits("c", "b"))
    for _ in range(3):
        await settle(direct, fail(await claim_one(direct)))
    assert (await direct.change(["a", "b", "c"], Requeue())).ids == ["a", "b", "c"]
    for id in ("a", "b", "c"):
        claimed = await claim_one(direct)
        assert (claimed.job.id, claimed.job.deferred_error) == (id, None)
        await settle(direct, succeed(claimed))


async def test_a_cancel_locks_what_runs_first(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    """A settlement has locked a job that runs, and then locks those that wait for it."""
    await put(direct, new("z"), waits("a", "z"))
    claimed = await claim_one(direct)
    await slow.store.context.use(
        lambda connection: connection.execute("SELECT FROM jobmill.jobs WHERE id = 'z' FOR UPDATE")
    )
    async with blocked(sql, direct.change(["a", "z"], Cancel())) as other:
        assert await is_free(sql, "a")
        assert await settle(slow.store, succeed(claimed)) == ["done"]
        await slow.commit()
    assert (await other).ids == ["a"]


async def test_a_removal_does_not_wait_for_edges(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    await put(direct, new("a"), new("b"), waits("then", "a", "b"))
    claimed = await claim_one(direct)
    await slow.store.context.use(lambda connection: connection.execute("SELECT FROM jobmill.edges FOR UPDATE"))
    assert (await asyncio.wait_for(direct.change(["then"], Remove()), 5)).ids == ["then"]
    assert await settle(slow.store, succeed(claimed)) == ["done"]
    await slow.commit()
    await direct.purge()
    assert await sql.fetchval("SELECT count(*) FROM jobmill.edges") == 0
    assert await sql.fetchval("SELECT count(*) FROM jobmill.dropped") == 0


async def test_a_signal_waits_for_the_suspension(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    claimed = await started(direct, new("p"))
    await settle(slow.store, suspend(claimed, waits_for="go", due=after(60_000)))
    async with blocked(sql, direct.signal("p", Signal(name="go"))):
        await slow.commit()
    assert await claim_ids(direct) == ["p"]


async def test_a_suspension_waits_for_the_signal(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    claimed = await started(direct, new("p"))
    assert await slow.store.signal("p", Signal(name="go")) == "stored"
    async with blocked(sql, settle(direct, suspend(claimed, waits_for="go", due=after(60_000)))):
        await slow.commit()
    assert await claim_ids(direct) == ["p"]


# ---------------------------------------------------------------------------------------------------- the outbox


async def test_a_job_with_an_outbox_is_requeued(direct: PostgresStore, sql: Sql) -> None:
    count = MAX_RELEASED + 10
    await put(direct, new("a"), *[waits(f"then-{number:04}", "a", if_failed="run") for number in range(count)])
    exchanged = await direct.exchange([fail(await claim_one(direct))], None)
    assert exchanged.has_outbox
    assert (await direct.change(["a"], Requeue())).ids == ["a"]
    assert await direct.flush_outbox() == 0, "the others wait for the new end"
    assert await sql.fetchval("SELECT count(*) FROM jobmill.outbox") == 0
    assert await sql.fetchval("SELECT count(*) FROM jobmill.edges WHERE state = 'pending'") == 10
    (claimed,) = [one for one in await claim(direct, count) if one.job.id == "a"]
    await settle(direct, succeed(claimed))
    assert await sql.fetchval("SELECT count(*) FROM jobmill.edges WHERE state = 'pending'") == 0


async def test_two_processes_flush_the_outbox(direct: PostgresStore, slow: Open) -> None:
    count = MAX_RELEASED + 10
    await put(direct, new("a"), *[waits(f"then-{number:04}", "a") for number in range(count)])
    await direct.exchange([succeed(await claim_one(direct))], None)
    assert await slow.store.flush_outbox(5) == 5
    assert await asyncio.wait_for(direct.flush_outbox(), 5) == 0, "another process is at it"
    await slow.commit()
    assert await direct.flush_outbox() == 5
    assert len(await claim(direct, count)) == count


# ---------------------------------------------------------------------------------------------------- what is kept


async def test_nothing_is_left_of_a_job_that_is_not_kept(direct: PostgresStore, sql: Sql) -> None:
    claimed = await started(direct, new("p"))
    await settle(direct, suspend(claimed, new("p.0")))
    await settle(direct, succeed(await claim_one(direct)))
    again = await claim_one(direct)
    await direct.record_step(again.lease, Step(number=0, name="x"))
    await direct.signal("p", Signal(name="go"))
    await settle(direct, succeed(again, None, Policy(keep_succeeded=Keep(last=0))))
    assert await state_of(direct, "p") is None
    await direct.purge()
    for table in ("steps", "signals", "edges", "dropped", "outbox"):
        assert await sql.fetchval(f"SELECT count(*) FROM jobmill.{table}") == 0, table
    row = await sql.fetchrow("SELECT has_dependents, expires_ms, pinned_expires_ms FROM jobmill.history")
    assert row is not None
    assert (row[0], row[2]) == (None, None)
    assert row[1] is not None, "its own retention applies"


async def test_a_purge_deletes_a_bounded_number_of_edges(direct: PostgresStore, sql: Sql) -> None:
    parts = [f"part-{number}" for number in range(30)]
    await put(direct, *map(new, parts), waits("then", *parts))
    await direct.change(["then"], Remove())
    assert (await direct.purge(20)).more
    assert await sql.fetchval("SELECT count(*) FROM jobmill.edges") == 10
    # A new job of this id has nothing to do with the edges of the former one.
    await put(direct, waits("then", "part-29"))
    assert await edges(direct, "then") == [("part-29", "pending")]
    assert (await direct.dependents("part-3"), len(await direct.dependents("part-29"))) == ([], 1)
    await direct.purge()
    assert await edges(direct, "then") == [("part-29", "pending")]


async def test_a_purge_passes_over_an_edge_that_is_set_now(direct: PostgresStore, slow: Open, sql: Sql) -> None:
    """It would wait for a settlement that may wait for it, because settlements set their edges in another order."""
    await put(direct, new("a"), new("b"), waits("then", "a", "b"))
    claimed = await claim_one(direct)
    await direct.change(["then"], Remove())
    assert await settle(slow.store, succeed(claimed)) == ["done"]
    await asyncio.wait_for(direct.purge(), 5)
    assert [row[0] for row in await sql.fetch("SELECT on_id FROM jobmill.edges")] == ["a"]
    await slow.commit()
    await direct.purge()
    assert await sql.fetchval("SELECT count(*) FROM jobmill.edges") == 0
    assert await sql.fetchval("SELECT count(*) FROM jobmill.dropped") == 0


async def test_pinned_jobs_cost_a_purge_nothing(direct: PostgresStore, sql: Sql) -> None:
    """They are not among the jobs that expire, however many there are."""
    rules = Policy(keep_succeeded=Keep(age_ms=1))
    await put(direct, new("a"), waits("then", "a"))
    await settle(direct, succeed(await claim_one(direct), None, rules))
    rows = await sql.fetch(direct.context.statements("purge_old").replace("{state}", "succeeded"), 2**62, 10)
    assert rows == []
    assert await state_of(direct, "a") == "succeeded"


async def test_a_recurrence_is_updated_while_its_job_waits_for_a_child(direct: PostgresStore) -> None:
    """What holds the job keeps the form that releases compare."""
    every = Recurrence(key="r", every_ms=60_000)
    id = await put_one(direct, new(key="r", recurrence=every))
    assert await settle(direct, suspend(await claim_one(direct), new("child"))) == ["done"]
    sooner = structs.replace(every, every_ms=1)
    (receipt,) = await direct.enqueue([new(key="r", recurrence=sooner, due=after(1))])
    assert receipt.status == "updated"
    assert await settle(direct, succeed(await claim_one(direct))) == ["done"]
    assert (await direct.get([id]))[0].held is None  # type: ignore[union-attr]
