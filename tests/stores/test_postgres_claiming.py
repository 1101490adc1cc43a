"""Claims on PostgreSQL: where they begin, what they touch, and that they find what was put behind them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from jobmill.core.changes import Reprioritize
from jobmill.core.job import KEEP_SUCCEEDED
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Claim, Settlement, after, at
from jobmill.stores.common.claim_cursor import ClaimCursor
from jobmill.stores.postgres import PostgresStore
from jobmill.stores.postgres.claim import parameters
from jobmill.testing.contract.flows import waits
from jobmill.testing.contract.support import claim, claim_ids, new, put, put_one, seize, succeed, wish
from tests.helpers import until
from tests.kit.postgres import connected

pytestmark = pytest.mark.stores("postgres")


class Clock:
    """Seconds that pass when we say so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def clock(direct: PostgresStore) -> Clock:
    """What decides when claims return to the start."""
    clock = Clock()
    direct.context.loops.here().cursor = ClaimCursor(clock)
    return clock


@pytest.fixture
async def other(migrated_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    async with connected(migrated_url) as connection:
        yield connection


async def work_off(store: PostgresStore, jobs: int, at_once: int = 50) -> None:
    """Claim and settle so many."""
    settlements: list[Settlement] = []
    for _ in range(jobs // at_once):
        answer = await store.exchange(settlements, wish(at_once))
        settlements = [
            Settlement(
                lease=one.lease,
                outcome="succeeded",
                state="succeeded",
                attempt=1,
                errors=0,
                crashes=0,
                keep=KEEP_SUCCEEDED,
            )
            for one in answer.claimed
        ]
        assert len(settlements) == at_once
    await store.exchange(settlements, None)


async def counted(store: PostgresStore, statement: str) -> int:
    """A counter of the server's, after what this store has done."""
    await store.context.use(lambda c: c.execute("SELECT pg_stat_force_next_flush()"))
    number: int = await store.context.use(lambda c: c.fetchval(statement))
    return number


READ = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = 'jobmill' AND indexrelname = 'jobs_line'"


# ---------------------------------------------------------------------------------------------------- what it costs


async def test_a_held_snapshot_does_not_make_claims_read_what_is_done(
    direct: PostgresStore, clock: Clock, other: asyncpg.Connection[asyncpg.Record]
) -> None:
    await put(direct, *[new() for _ in range(1_100)])
    async with other.transaction(isolation="repeatable_read"):
        await other.fetchval("SELECT count(*) FROM jobmill.jobs")
        await work_off(direct, 1_000)
        before = await counted(direct, READ)
        await work_off(direct, 50)
        assert await counted(direct, READ) - before < 500
        # Without the cursor they do.
        clock.now += 60
        before = await counted(direct, READ)
        await work_off(direct, 50)
        assert await counted(direct, READ) - before > 1_000


async def test_a_release_does_not_make_claims_read_what_is_done(
    direct: PostgresStore, clock: Clock, other: asyncpg.Connection[asyncpg.Record]
) -> None:
    """Claims continue at the job that was released, or at the position of the cursor if that comes first."""
    await put(direct, *[new() for _ in range(1_000)], new("a"), waits("then", "a"), *[new() for _ in range(100)])
    async with other.transaction(isolation="repeatable_read"):
        await other.fetchval("SELECT count(*) FROM jobmill.jobs")
        await work_off(direct, 1_000)
        (a,) = await claim(direct, 1)
        before = await counted(direct, READ)
        answer = await direct.exchange([succeed(a)], wish(50))
        assert (answer.settled, answer.claimed[0].lease.id) == (["done"], "then")
        assert await claim_ids(direct, 1)
        assert await counted(direct, READ) - before < 500


async def test_claims_touch_no_index_and_read_no_whole_table(direct: PostgresStore) -> None:
    table = "FROM pg_stat_user_tables WHERE schemaname = 'jobmill' AND relname = 'jobs'"
    # Making the indexes was some.
    scans = await counted(direct, f"SELECT seq_scan {table}")
    await put(direct, *[new() for _ in range(1_000)])
    await work_off(direct, 1_000)
    assert await counted(direct, f"SELECT n_tup_upd {table}") == 1_000
    # A page may be full for other reasons; a claim that never is a HOT update would be none of them.
    assert await counted(direct, f"SELECT n_tup_hot_upd {table}") > 950
    assert await counted(direct, f"SELECT seq_scan {table}") == scans


# ---------------------------------------------------------------------------------------------------- what they find


async def test_a_smaller_priority_that_comes_later_goes_first(direct: PostgresStore) -> None:
    await put(direct, *[new(priority=5) for _ in range(4)])
    await claim_ids(direct, 1)
    first, second = await put_one(direct, new(priority=3)), await put_one(direct, new(priority=7))
    assert await claim_ids(direct, 1) == [first]
    await claim_ids(direct, 3)
    assert await claim_ids(direct, 1) == [second]


async def test_a_job_that_was_due_before_is_found_at_once(direct: PostgresStore) -> None:
    await put(direct, *[new() for _ in range(4)])
    await claim_ids(direct, 2)
    early = await put_one(direct, new(due=at(direct.now() - 60_000)))
    assert await claim_ids(direct, 1) == [early]


async def test_a_job_whose_priority_changes_is_found_at_once(direct: PostgresStore) -> None:
    await put(direct, *[new() for _ in range(4)])
    later = await put_one(direct, new(priority=9))
    await claim_ids(direct, 2)
    await direct.change([later], Reprioritize(0))
    assert later in await claim_ids(direct, 3)


async def test_what_is_released_is_found_at_once(direct: PostgresStore) -> None:
    ids = await put(direct, *[new() for _ in range(4)])
    answer = await direct.exchange([], wish(2))
    released = [
        Settlement(lease=one.lease, outcome="released", state="waiting", attempt=1, errors=0, crashes=0)
        for one in answer.claimed
    ]
    # The exchange that releases them claims what comes after them, and must not take that for the place to go on from.
    assert [one.lease.id for one in (await direct.exchange(released, wish(1))).claimed] == [ids[2]]
    assert await claim_ids(direct, 3) == [ids[0], ids[1], ids[3]]


async def test_a_job_that_was_committed_late_is_found_after_a_return(
    direct: PostgresStore, clock: Clock, other: asyncpg.Connection[asyncpg.Record]
) -> None:
    async with other.transaction():
        (late,) = await direct.enqueue_within(other, [new()])
        await put(direct, *[new() for _ in range(4)])
        await claim_ids(direct, 2)
    assert late.id not in await claim_ids(direct, 1)
    clock.now += 5
    assert await claim_ids(direct, 1) == [late.id]


async def enqueue_with_the_store(store: PostgresStore, other: asyncpg.Connection[asyncpg.Record]) -> str:
    (receipt,) = await store.enqueue_within(other, [new(due=at(store.now() - 60_000))])
    return receipt.id


async def enqueue_recurring(store: PostgresStore, other: asyncpg.Connection[asyncpg.Record]) -> str:
    job = new(due=at(store.now() - 60_000), key="daily", recurrence=Recurrence(key="daily", every_ms=86_400_000))
    (receipt,) = await store.enqueue_within(other, [job])
    return receipt.id


async def enqueue_with_sql(store: PostgresStore, other: asyncpg.Connection[asyncpg.Record]) -> str:
    job = new()
    text = "SELECT jobmill.enqueue($1, '{}', $2, now() - interval '1 minute')"
    return str(await other.fetchval(text, job.name, job.queue))


@pytest.mark.parametrize("enqueue", [enqueue_with_the_store, enqueue_recurring, enqueue_with_sql])
@pytest.mark.parametrize("isolation", ["read_committed", "serializable"])
async def test_a_job_that_was_due_before_is_found_at_once_when_its_transaction_commits(
    direct: PostgresStore, clock: Clock, other: asyncpg.Connection[asyncpg.Record], enqueue: Any, isolation: Any
) -> None:
    await put(direct, *[new() for _ in range(6)])
    async with other.transaction(isolation=isolation):
        early = await enqueue(direct, other)
        await claim_ids(direct, 1)
        # A later transaction commits first.
        between = await put_one(direct, new(due=at(direct.now() - 30_000)))
        assert await claim_ids(direct, 1) == [between]
        assert early not in await claim_ids(direct, 1)
    assert await claim_ids(direct, 1) == [early]


async def test_claims_do_not_begin_anew_when_an_enqueue_is_rolled_back(
    direct: PostgresStore, clock: Clock, other: asyncpg.Connection[asyncpg.Record]
) -> None:
    await put(direct, *[new() for _ in range(4)])
    await claim_ids(direct, 1)
    transaction = other.transaction()
    await transaction.start()
    await enqueue_with_the_store(direct, other)
    await transaction.rollback()
    known = direct.context.loops.here().cursor.start(("q",), ()).generation
    await claim_ids(direct, 1)
    assert direct.context.loops.here().cursor.start(("q",), ()).generation == known


# A number that only another server can have made, of which this one is a copy; and more than a purge leaves.
COPIED = "INSERT INTO jobmill.rewinds VALUES ('9000000000000000000')"
MANY = "DO $$ BEGIN FOR n IN 1..1100 LOOP INSERT INTO jobmill.rewinds DEFAULT VALUES; COMMIT; END LOOP; END $$"


@pytest.mark.parametrize("rows", [COPIED, MANY])
async def test_a_purge_of_rewinds_hides_none_of_them(
    direct: PostgresStore, clock: Clock, other: asyncpg.Connection[asyncpg.Record], rows: str
) -> None:
    await put(direct, *[new() for _ in range(4)])
    await other.execute(rows)
    await claim_ids(direct, 1)
    early = await put_one(direct, new(due=at(direct.now() - 60_000)))
    await direct.purge()
    assert await other.fetchval("SELECT count(*) FROM jobmill.rewinds") == 1
    assert await claim_ids(direct, 1) == [early]
    # What is left is a rewind that this cursor knows.
    known = direct.context.loops.here().cursor.start(("q",), ()).generation
    await claim_ids(direct, 1)
    assert direct.context.loops.here().cursor.start(("q",), ()).generation == known


async def test_a_lease_that_ended_behind_is_found_after_a_return(direct: PostgresStore, clock: Clock) -> None:
    ids = await put(direct, *[new() for _ in range(4)])
    until_ms = direct.now() + 500
    assert await claim_ids(direct, 1, lease_ms=400) == ids[:1]
    assert await claim_ids(direct, 1) == ids[1:2]
    await until(lambda: direct.now() > until_ms)
    assert ids[0] not in await claim_ids(direct, 1)
    clock.now += 5
    assert await claim_ids(direct, 1) == ids[:1]


async def test_a_lost_job_that_is_due_later_is_found_after_a_return(direct: PostgresStore, clock: Clock) -> None:
    later = await put_one(direct, new(due=after(3_600_000)))
    ids = await put(direct, *[new() for _ in range(4)])
    await seize(direct, later, 400)
    until_ms = direct.now() + 500
    assert await claim_ids(direct, 1) == ids[:1]
    await until(lambda: direct.now() > until_ms)
    assert later not in await claim_ids(direct, 1)
    clock.now += 5
    assert await claim_ids(direct, 1) == [later]


async def test_many_names_share_one_claim_in_order(direct: PostgresStore) -> None:
    made = [new(name=f"name-{number % 7}") for number in range(40)]
    ids = await put(direct, *made)
    assert await claim_ids(direct, 25, names=[f"name-{number}" for number in range(7)]) == ids[:25]


async def test_claims_at_once_share_what_waits(direct: PostgresStore) -> None:
    await put(direct, *[new(name=f"name-{number % 3}") for number in range(300)])
    names = [f"name-{number}" for number in range(3)]
    answers = await asyncio.gather(*(claim_ids(direct, 10, names=names) for _ in range(20)))
    ids = [id for answer in answers for id in answer]
    assert len(ids) == len(set(ids))
    # Whoever meets a locked row takes the next one.
    assert len(ids) > 150


# ---------------------------------------------------------------------------------------------------- parameters


def test_gaps_lie_around_the_priorities_that_are_known() -> None:
    claim = Claim(queues=("q",), names={"a": 1, "b": 1}, n=1, lease_ms=1, worker="w", token="t")
    cursor = ClaimCursor()
    claimed = [("q", "a", 0, (10, 1)), ("q", "a", 4, (20, 2)), ("q", "a", 5, (20, 3)), ("q", "a", 0, (9, 9))]
    cursor.learn(cursor.start(claim.queues, claim.names), claimed, full=True, seen="1:1:")
    *_, seen, a, b, c, d, e, f, g, h, i = parameters(claim, cursor.start(claim.queues, claim.names), [])
    assert seen == "1:1:"
    assert rows(a, b, c, d, e) == [("q", "a", 0, 10, 1), ("q", "a", 4, 20, 2), ("q", "a", 5, 20, 3)]
    assert rows(f, g, h, i) == [("q", "a", 0, 4), ("q", "a", 5, 2**31 - 1), ("q", "b", -1, 2**31 - 1)]


def rows(*columns: Any) -> list[tuple[object, ...]]:
    return list(zip(*columns, strict=True))
