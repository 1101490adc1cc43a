"""What lanes cost on PostgreSQL: what a call reads, with many jobs, and while an old snapshot is held."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from itertools import pairwise
from statistics import median
from typing import Any

import pytest

from jobmill.core.queue_settings import LaneChange, Pause
from jobmill.core.values import Claimed, QueueChange
from jobmill.stores.postgres import PostgresStore
from jobmill.testing.contract.lanes import laned, rule, run
from jobmill.testing.contract.support import QUEUE, claim, claim_one, put, put_one, settle, succeed, wish
from tests.kit.postgres import connected
from tests.stores.test_postgres_flows import Sql
from tests.stores.test_postgres_flows import sql as sql  # a fixture

pytestmark = pytest.mark.stores("postgres")

MILLION, AT_ONCE = 1_000_000, 50_000


# ---------------------------------------------------------------------------------------------------- cost


@contextlib.asynccontextmanager
async def held_snapshot(url: str) -> AsyncIterator[None]:
    """No dead row or index entry goes away: somebody may still see it."""
    async with connected(url) as other:
        await other.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
        yield


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 10])
async def test_a_held_snapshot_does_not_make_a_hot_lane_slower(
    direct: PostgresStore, sql: Sql, migrated_url: str, limit: int
) -> None:
    """Each hand-over begins where its job stood. From the start it would read all that were before, each time.

    And no unique index has the same key for each job with a slot: its check would visit all dead entries of that key.
    """
    await rule(direct, limit)
    for _ in range(2):
        await put(direct, *[laned() for _ in range(500)])
    async with held_snapshot(migrated_url):
        done = await claim(direct, 10)
        on_one_connection(direct, sql)
        direct.context.loops.here().lanes._searched = float("inf")
        entries, blocks = [await ready_read(sql)], [await blocks_read(sql)]
        for _ in range(9):
            for _ in range(100 // limit):
                # A claim that is not full begins at the start, as long as the way from there is short.
                exchanged = await direct.exchange([succeed(one) for one in done], wish(limit))
                done = [one for one in exchanged.claimed if isinstance(one, Claimed)]
                assert len(done) == limit
            entries.append(await ready_read(sql))
            blocks.append(await blocks_read(sql))
        read = [after - before for before, after in pairwise(entries)]
        assert max(read) < 300, read
        visited = [after - before for before, after in pairwise(blocks)]
        # Once a second, a claim begins at the start.
        assert median(visited[5:]) < 1.5 * median(visited[1:5]), visited


async def test_a_call_reads_few_jobs_of_a_large_lane(direct: PostgresStore, sql: Sql) -> None:
    """Although the table has no statistics, and something more urgent is searched."""
    await rule(direct, 3)
    await put(direct, *[laned(priority=5) for _ in range(2_000)])
    on_one_connection(direct, sql)
    before = await ready_read(sql) + await lane_read(sql)
    done = await claim(direct, 10)
    for _ in range(5):
        exchanged = await direct.exchange([succeed(one) for one in done], wish(10))
        done = [one for one in exchanged.claimed if isinstance(one, Claimed)]
        assert len(done) == 3
        await put_one(direct, laned(priority=5))
    assert await ready_read(sql) + await lane_read(sql) - before < 1_000


async def test_many_jobs_of_one_lane_are_enqueued_in_one_call(direct: PostgresStore, sql: Sql) -> None:
    """What the call reads grows with their number, and not with its square."""
    on_one_connection(direct, sql)
    before = await ready_read(sql)
    await put(direct, *[laned() for _ in range(1_000)])
    assert await ready_read(sql) - before < 5_000


async def test_an_arrival_in_a_hot_lane_that_is_not_full(direct: PostgresStore, sql: Sql, migrated_url: str) -> None:
    """While a snapshot is held, a call visits the entries of jobs that have left the lane, however many arrive."""
    await rule(direct, 1_000)
    async with held_snapshot(migrated_url):
        on_one_connection(direct, sql)
        for _ in range(8):
            await put(direct, *[laned() for _ in range(50)])
            assert await settle(direct, *map(succeed, await claim(direct, 50))) == ["done"] * 50
        before = await ready_read(sql), await lane_read(sql)
        await put(direct, *[laned() for _ in range(50)])
        assert await ready_read(sql) - before[0] < 4 * 450
        assert await lane_read(sql) - before[1] < 4 * 450


async def test_an_urgent_job_stands_before_the_place_of_the_last_one(direct: PostgresStore) -> None:
    """The search for the next job begins at the start if something more urgent has come."""
    await rule(direct, 1)
    await put(direct, laned("x", priority=5), laned("late", priority=5))
    claimed = await claim_one(direct)
    await put_one(direct, laned("urgent", priority=1))
    direct.context.loops.here().lanes._searched = float("inf")
    assert await settle(direct, succeed(claimed)) == ["done"]
    await run(direct, "urgent")
    await run(direct, "late")


def on_one_connection(store: PostgresStore, connection: Any) -> None:
    """From now on, the verbs of the store run there: what they read is counted when a connection says so."""
    own: Any = store.context
    own.use = own.transact = lambda work, _=None: work(connection)


async def ready_read(sql: Sql) -> int:
    """How many entries of the index of ready jobs this connection has read, and others that have ended."""
    return await entries_read(sql, "jobs_ready")


async def lane_read(sql: Sql) -> int:
    """The same of the index of slots."""
    return await entries_read(sql, "jobs_lane")


async def entries_read(sql: Sql, index: str) -> int:
    await sql.execute("SELECT pg_stat_force_next_flush()")
    text = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = 'jobmill' AND indexrelname = $1"
    return int(await sql.fetchval(text, index))


async def blocks_read(sql: Sql) -> int:
    """How many blocks of jobs and its indexes were visited."""
    await sql.execute("SELECT pg_stat_force_next_flush()")
    text = "SELECT heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read FROM pg_statio_user_tables"
    return int(await sql.fetchval(f"{text} WHERE relid = 'jobmill.jobs'::regclass"))


async def test_a_claim_of_a_job_with_a_lane_touches_no_index(direct: PostgresStore, sql: Sql) -> None:
    await rule(direct, 100)
    await put(direct, *[laned() for _ in range(50)])
    text = "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_xact_user_tables WHERE relid = 'jobmill.jobs'::regclass"
    on_one_connection(direct, sql)
    await sql.execute("BEGIN")
    assert len(await claim(direct, 50)) == 50
    row = await sql.fetchrow(text)
    await sql.execute("COMMIT")
    assert tuple(row or ()) == (50, 50)


# ---------------------------------------------------------------------------------------------------- many jobs


async def many_admitted(store: PostgresStore, sql: Sql, count: int, lane: str = "a") -> None:
    """This number of jobs that have slots: most are written by hand, which takes a tenth of the time."""
    await put_one(store, laned(lane=lane))
    await copied(sql, f"{lane}-", 2, count, f"lane = '{lane}'")


async def copied(sql: Sql, prefix: str, first: int, last: int, which: str) -> None:
    """Copies of a job with other ids."""
    columns = "queue, name, priority, due_ms, created_ms, updated_ms, payload, lane, slot, joined_ms, held"
    await sql.execute(
        f"INSERT INTO jobmill.jobs (id, {columns}) SELECT $1 || n, {columns}"
        f" FROM jobmill.jobs CROSS JOIN generate_series($2::integer, $3::integer) AS one (n) WHERE {which}",
        *(prefix, first, last),
    )


async def has_slot(sql: Sql) -> int:
    return int(await sql.fetchval("SELECT count(*) FROM jobmill.jobs WHERE slot = 0"))


@pytest.mark.slow
async def test_many_slots_are_taken_back_in_several_calls(direct: PostgresStore, sql: Sql) -> None:
    """A call has 10 seconds. If it had to take back a million slots, it would fail, and each exchange after it."""
    await many_admitted(direct, sql, 45_000)
    await sql.execute("INSERT INTO jobmill.lanes (queue, lane, running, review_ms) VALUES ($1, 'a', 10, 0)", QUEUE)
    assert len(await claim(direct, 1)) == 1
    assert await has_slot(sql) == 25_000
    await direct.configure_lane(QUEUE, "a", LaneChange(running=20))
    assert await has_slot(sql) == 20
    await many_admitted(direct, sql, 25_000, "b")
    await rule(direct, 5)
    assert await has_slot(sql) == 25


@pytest.mark.slow
async def test_many_slots_are_given_in_several_calls(direct: PostgresStore, sql: Sql) -> None:
    lanes = [f"lane {number}" for number in range(200)]
    await rule(direct, 1)
    await put(direct, *[laned(lane=lane) for lane in lanes for _ in range(103)])
    await direct.configure(QUEUE, QueueChange(lanes=None))
    assert await has_slot(sql) == 200 * 101
    assert len(await claim(direct, 30_000)) == 200 * 103


async def many_ready(store: PostgresStore, sql: Sql, count: int) -> None:
    """This number of jobs in one lane, which wait for a slot: written by hand, which takes a tenth of the time."""
    await store.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
    await put_one(store, laned("first", priority=5))
    for start in range(0, count, AT_ONCE):
        await copied(sql, "many-", start + 1, start + AT_ONCE, "id = 'first'")


@pytest.mark.slow
@pytest.mark.extended
async def test_a_million_jobs_in_one_lane(direct: PostgresStore, sql: Sql) -> None:
    await rule(direct, 10)
    await many_ready(direct, sql, MILLION)
    await direct.configure_lane(QUEUE, "a", LaneChange(pause=None))
    await put(direct, *[laned(f"other {number}", f"lane {number}") for number in range(20)])
    ran: set[str | None] = set()
    done = await claim(direct, 30)
    with_one = direct.context.use, direct.context.transact
    on_one_connection(direct, sql)
    before = await ready_read(sql), await lane_read(sql)
    for _ in range(50):
        ran.update(one.job.lane for one in done)
        exchanged = await direct.exchange([succeed(one) for one in done], wish(30))
        done = [one for one in exchanged.claimed if isinstance(one, Claimed)]
        assert len(done) == 10
        await put_one(direct, laned(priority=5))
    assert await settle(direct, *map(succeed, done)) == ["done"] * 10
    assert len(ran) == 21
    assert await ready_read(sql) - before[0] < 50 * 100
    assert await lane_read(sql) - before[1] < 50 * 100
    (lane,) = await direct.lanes(QUEUE, ["a"])
    assert (lane.admitted, lane.running) == (10, 0)
    own: object = direct.context
    own.use, own.transact = with_one  # type: ignore[attr-defined]
    # Each call moves some thousand jobs, and none of them takes as long as a call may take.
    await direct.configure(QUEUE, QueueChange(lanes=None))
    while await has_slot(sql) < 20_000:
        await direct.exchange([], wish(1))
    await direct.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
    assert await has_slot(sql) <= 20
    await direct.flush_outbox()
