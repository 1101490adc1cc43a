"""Operations on PostgreSQL: what counts and lists read, and that announcements block nobody."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from jobmill.core.audit import AUDIT_KEPT_MS, AuditEntry
from jobmill.core.tallies import MINUTE_MS
from jobmill.core.values import Filter, at
from jobmill.stores.postgres import PostgresStore
from jobmill.testing import ManualClock
from jobmill.testing.contract.announce import card, tally
from jobmill.testing.contract.support import QUEUE, claim_ids, claim_one, new, put, put_one, settle, succeed
from tests.kit.postgres import connected

pytestmark = pytest.mark.stores("postgres")

# Six index ranges of waiting jobs, a quarter of them due later, and final jobs.
FILL = f"""
INSERT INTO jobmill.jobs (due_ms, created_ms, priority, updated_ms, id, queue, name, payload)
SELECT
    CASE WHEN n % 4 = 0 THEN 99999999999999 ELSE n END, 1, n % 2, 1, 'live-' || n, '{QUEUE}', 'name-' || n % 3, '{{}}'
FROM generate_series(1, 6000) AS n;
INSERT INTO jobmill.history (
    due_ms, created_ms, priority, errors, crashes, claims, updated_ms, started_ms, finished_ms, state, worker, id,
    queue, name, payload
)
SELECT
    n, 1, 0, 0, 0, 1, 1, 1, n, CASE WHEN n % 2 = 0 THEN 'failed' ELSE 'succeeded' END, 'w', 'final-' || n, '{QUEUE}',
    'name-' || n % 3, '{{}}'
FROM generate_series(1, 6000) AS n;
"""
READ = "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE schemaname = 'jobmill'"
SCANS = "SELECT sum(seq_scan)::bigint FROM pg_stat_user_tables WHERE relname IN ('jobs', 'history')"


@pytest.fixture
async def other(migrated_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    async with connected(migrated_url) as connection:
        yield connection


async def counted(store: PostgresStore, statement: str) -> int:
    """A counter of the server, after what this store has done."""
    await store.context.use(lambda c: c.execute("SELECT pg_stat_force_next_flush()"))
    number: int = await store.context.use(lambda c: c.fetchval(statement))
    return number


@pytest.fixture(params=["analyzed", "not analyzed"])
async def filled(
    direct: PostgresStore, other: asyncpg.Connection[asyncpg.Record], request: pytest.FixtureRequest
) -> PostgresStore:
    """A store with many jobs, whose statistics the planner knows or not."""
    await other.execute(FILL)
    if request.param == "analyzed":
        await other.execute("ANALYZE jobmill.jobs, jobmill.history")
    return direct


async def test_depths_read_a_bounded_number_of_index_entries(filled: PostgresStore) -> None:
    read, scans = await counted(filled, READ), await counted(filled, SCANS)
    (depth,) = await filled.depths(limit=50)
    assert (depth.due, depth.later, depth.failed, depth.succeeded, depth.exact) == (50, 50, 50, 50, False)
    # Of six ranges 100 jobs each, to find running ones, and 50 of each state.
    assert await counted(filled, READ) - read < 1_200
    assert await counted(filled, SCANS) == scans


async def test_depths_of_many_jobs_have_the_running_ones_of_each_name(filled: PostgresStore) -> None:
    names = tuple(f"name-{number}" for number in range(3))
    for name in names:
        assert len(await claim_ids(filled, 4, names=(name,))) == 4
    (depth,) = await filled.depths(limit=100)
    assert (depth.running, depth.due, depth.exact) == (12, 100, False)


async def test_a_job_that_runs_behind_many_waiting_ones_is_counted(direct: PostgresStore) -> None:
    await put_one(direct)
    await claim_one(direct)
    await put(direct, *[new(due=at(1)) for _ in range(300)])
    (depth,) = await direct.depths()
    assert (depth.running, depth.due, depth.exact) == (1, 300, True)


async def test_entries_of_ended_jobs_are_passed_at_most_twice(
    direct: PostgresStore, other: asyncpg.Connection[asyncpg.Record]
) -> None:
    await other.execute("ALTER TABLE jobmill.jobs SET (autovacuum_enabled = off)")
    await other.execute(f"""
        INSERT INTO jobmill.jobs (due_ms, created_ms, priority, updated_ms, id, queue, name, payload)
        SELECT n, 1, 0, 1, 'live-' || n, '{QUEUE}', 'name', '{{}}' FROM generate_series(1, 20000) AS n;
        DELETE FROM jobmill.jobs WHERE due_ms <= 19900;
    """)
    blocks = "SELECT idx_blks_hit + idx_blks_read FROM pg_statio_user_indexes WHERE indexrelname = 'jobs_line'"
    pages = await other.fetchval("SELECT pg_relation_size('jobmill.jobs_line') / 8192")
    await direct.depths()
    before = await counted(direct, blocks)
    (depth,) = await direct.depths()
    assert (depth.due, depth.oldest_due_ms, depth.exact) == (100, 19_901, True)
    # Once to find the queue, and once to find the first job of the index range.
    assert 1.5 * pages < await counted(direct, blocks) - before < 2.5 * pages


@pytest.mark.parametrize("state", ["waiting", "succeeded", "failed"])
async def test_a_page_in_order_reads_what_it_returns(
    filled: PostgresStore, other: asyncpg.Connection[asyncpg.Record], state: str
) -> None:
    # As autovacuum does soon. Without it, PostgreSQL 15 reads all final jobs of the queue and state, and sorts them.
    await other.execute("ANALYZE jobmill.history")
    wanted = Filter(queue=QUEUE, states=(state,))  # type: ignore[arg-type]
    first = await filled.find(wanted, None, 10)
    read, scans = await counted(filled, READ), await counted(filled, SCANS)
    second = await filled.find(wanted, first.next, 10)
    assert len({job.id for job in first.jobs + second.jobs}) == 20
    assert await counted(filled, READ) - read < 300
    assert await counted(filled, SCANS) == scans


@pytest.mark.parametrize("has_expired", [False, True])
async def test_a_purge_reads_what_it_removes(
    filled: PostgresStore, other: asyncpg.Connection[asyncpg.Record], has_expired: bool
) -> None:
    # Jobs of each state are kept for three different times, or not by time.
    kept_ms = "(ARRAY[1, 1000, 2000, NULL])[n % 4 + 1]"
    final = FILL.partition(";\n")[2].replace("finished_ms, state", "finished_ms, expires_ms, state")
    await other.execute("TRUNCATE jobmill.history")
    await other.execute(final.replace("1, n, CASE", f"1, n, n + {kept_ms} + {0 if has_expired else 10**14}, CASE"))
    await other.execute("ANALYZE jobmill.history")
    read, scans = await counted(filled, READ), await counted(filled, SCANS)
    purged = await filled.purge(100)
    assert (purged.removed, purged.more) == ((100, True) if has_expired else (0, False))
    assert await counted(filled, READ) - read < 1_500
    if not has_expired:  # otherwise the planner may remove 100 of 6,000 jobs by a scan
        assert await counted(filled, SCANS) == scans
    while (await filled.purge(1_000)).more:
        pass
    left = await other.fetchval("SELECT count(*) FROM jobmill.history WHERE expires_ms IS NOT NULL")
    assert left == (0 if has_expired else 4_500)


async def test_an_announcement_that_arrives_twice_at_once_counts_once(direct: PostgresStore, migrated_url: str) -> None:
    second = PostgresStore(migrated_url)
    await second.open()
    for number in range(20):
        given = [tally(direct.now(), claimed=1, name=f"name-{number}")]
        await asyncio.gather(*(one.announce(card(f"w{number}"), given) for one in (direct, second)))
    await second.close()
    found = await direct.tallies(0, direct.now() + MINUTE_MS, 60 * MINUTE_MS)
    assert [one.claimed for one in found] == [1] * 20


async def test_an_announcement_that_takes_long_blocks_no_claim(
    direct: PostgresStore, migrated_url: str, other: asyncpg.Connection[asyncpg.Record]
) -> None:
    await put(direct, new("a"), new("b"))
    claimed = await claim_one(direct)
    announce = direct.context.statements.call("announce", 11)
    async with other.transaction():
        await other.fetch(
            announce, None, "w1", 1, "{}", False, [MINUTE_MS], [0], [QUEUE], ["send"], ['{"claimed":1}'], ["{}"]
        )
        async with asyncio.timeout(8):
            assert await settle(direct, succeed(claimed)) == ["done"]
            assert (await claim_one(direct)).job.id == "b"


async def test_a_purge_removes_what_is_too_old(migrated_url: str, other: asyncpg.Connection[asyncpg.Record]) -> None:
    clock = ManualClock()
    store = PostgresStore(migrated_url, clock=clock)
    await store.announce(card(), [tally(store.now(), claimed=1)])
    await store.audit([AuditEntry(id="e", who="ada", what="mark")])
    rows = (
        "SELECT (SELECT count(*) FROM jobmill.{}), (SELECT count(*) FROM jobmill.{}), (SELECT count(*) FROM jobmill.{})"
    )
    rows = rows.format("workers", "tallies", "audit")
    await store.purge()
    assert tuple(await other.fetchrow(rows) or ()) == (1, 3, 1)
    clock.advance(AUDIT_KEPT_MS / 1000)
    await store.purge()
    assert tuple(await other.fetchrow(rows) or ()) == (0, 0, 0)
    await store.close()
