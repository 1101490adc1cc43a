"""What a claim costs on SQLite: it uses the indexes, and costs the same however many jobs wait."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from jobmill.core.due import NEVER_MS
from jobmill.core.values import NOW, Due, Filter, after, at
from jobmill.stores.sqlite import SqliteStore
from jobmill.stores.sqlite.filters import filtered
from jobmill.stores.sqlite.statements import sql, sql_rows
from jobmill.testing import ManualClock
from jobmill.testing.contract.support import NAME, QUEUE, new, wish

pytestmark = pytest.mark.stores("sqlite")

DEEP = 100_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "jobs.db", clock=clock, synchronous="OFF")
    await store.open()
    yield store
    await store.close()


def fill(store: SqliteStore, *, name: str = NAME, due: Due = NOW, priority: int = 0) -> None:
    """A hundred thousand waiting jobs of one kind, written in one statement to save the test's time."""
    connection = sqlite3.connect(store.path)
    now_ms = store.now()
    with connection:
        connection.execute(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)"
            " INSERT INTO jobmill_jobs (id, queue, name, state, priority, due_ms, created_ms, updated_ms, payload)"
            " SELECT 'deep-' || n, ?, ?, 'waiting', ?, ?, ?, ?, 'null' FROM numbers",
            (DEEP, QUEUE, name, priority, due.resolve(now_ms), now_ms, now_ms),
        )
    connection.close()


@contextmanager
def counting(store: SqliteStore) -> Iterator[list[None]]:
    """Counts hundreds of steps of SQLite's virtual machine, which do not depend on how busy this computer is."""
    connection = store._opened().write_connection
    ticks: list[None] = []
    connection.set_progress_handler(lambda: ticks.append(None), 100)
    yield ticks
    connection.set_progress_handler(None, 0)


async def work(store: SqliteStore, n: int = 10) -> tuple[int, int]:
    """Claim; the number of jobs, and how much work it was."""
    with counting(store) as ticks:
        exchanged = await store.exchange([], wish(n, names=(NAME, "other")))
    return len(exchanged.claimed), len(ticks)


async def test_a_claim_costs_the_same_however_many_jobs_wait(store: SqliteStore) -> None:
    await store.enqueue([new() for _ in range(100)])
    shallow = await work(store)
    await asyncio.to_thread(fill, store)
    deep = await work(store)
    assert shallow[0] == deep[0] == 10
    assert deep[1] <= shallow[1] * 1.2 + 2


async def test_a_claim_costs_the_same_behind_delayed_jobs_of_a_smaller_priority(store: SqliteStore) -> None:
    await store.enqueue([new(priority=5) for _ in range(100)])
    alone = await work(store)
    await asyncio.to_thread(fill, store, due=after(60_000), priority=1)
    behind = await work(store)
    assert alone[0] == behind[0] == 10
    assert behind[1] <= alone[1] * 1.5 + 2


async def test_a_claim_costs_the_same_beside_jobs_of_other_names(store: SqliteStore) -> None:
    await store.enqueue([new() for _ in range(100)])
    alone = await work(store)
    await asyncio.to_thread(fill, store, name="another-workers")
    beside = await work(store)
    assert alone[0] == beside[0] == 10
    assert beside[1] <= alone[1] * 1.2 + 2


async def test_a_claim_that_finds_nothing_costs_the_same_too(store: SqliteStore) -> None:
    nothing = await work(store)
    await asyncio.to_thread(fill, store, due=after(60_000))
    delayed = await work(store)
    assert nothing[0] == delayed[0] == 0
    assert delayed[1] <= nothing[1] + 10


async def test_a_claim_costs_the_same_beside_held_jobs(store: SqliteStore) -> None:
    await store.enqueue([new() for _ in range(100)])
    alone = await work(store)
    await asyncio.to_thread(fill, store, due=at(NEVER_MS))
    beside = await work(store)
    assert alone[0] == beside[0] == 10
    assert beside[1] <= alone[1] * 1.2 + 2
    assert (await store.exchange([], wish(100))).next_due_ms is None


async def test_a_purge_that_finds_nothing_costs_the_same_too(store: SqliteStore, clock: ManualClock) -> None:
    await asyncio.to_thread(fill, store)
    connection = sqlite3.connect(store.path)
    with connection:
        connection.execute("UPDATE jobmill_jobs SET state = 'succeeded', finished_ms = due_ms, keep_age_ms = 60000")
    connection.close()
    with counting(store) as ticks:
        assert (await store.purge()).removed == 0
    assert len(ticks) < 10
    clock.advance(60)
    assert (await store.purge()).removed == 1_000


# ---------------------------------------------------------------------------------------------------- plans


def plan(store: SqliteStore, statement: str, width: int) -> str:
    connection = sqlite3.connect(store.path)
    rows = connection.execute("EXPLAIN QUERY PLAN " + statement, [None] * width).fetchall()
    connection.close()
    return "\n".join(row[3] for row in rows)


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [
        (
            "due_jobs",
            5,
            "INDEX jobmill_waiting (queue=? AND name=? AND priority=? AND due_ms<?)",
        ),
        ("ranges", 4, "INDEX jobmill_waiting (queue=? AND name=? AND priority>?)"),
        ("ranges", 4, "INDEX jobmill_running (queue=? AND lease_until_ms<?)"),
        ("running", 2, "INDEX jobmill_running (queue=? AND lease_until_ms>?)"),
        ("first_lease", 3, "INDEX jobmill_running (queue=? AND lease_until_ms>?)"),
        ("claim", 5, "USING INTEGER PRIMARY KEY"),
        ("settle_alike", 8, "USING INTEGER PRIMARY KEY"),
        ("read", 1, "SEARCH jobs USING INTEGER PRIMARY KEY"),
        ("owner", 3, "INDEX jobmill_unique"),
        ("rival", 1, "INDEX jobmill_unique"),
        ("durations", 3, "INDEX jobmill_final (state=? AND queue=? AND name=?)"),
        (
            "purge_old",
            2,
            "INDEX jobmill_final (state=? AND queue=? AND name=? AND keep_age_ms=? AND finished_ms<?)",
        ),
        ("keep_last", 0, "INDEX jobmill_keep_last"),
    ],
)
async def test_statements_use_their_indexes(store: SqliteStore, name: str, width: int, expected: str) -> None:
    told = plan(store, sql(name), width)
    assert expected in told
    assert "SCAN jobs\n" not in told + "\n"


@pytest.mark.parametrize(
    ("name", "width"), [("settle_success", 15), ("settle", 33), ("settle_and_remove", 5), ("extend", 6), ("held", 7)]
)
async def test_settling_finds_its_rows_by_seq(store: SqliteStore, name: str, width: int) -> None:
    told = plan(store, sql_rows(name, 2), width)
    assert "SEARCH jobs USING INTEGER PRIMARY KEY" in told


@pytest.mark.parametrize("state", ["waiting", "running", "succeeded", "failed", "cancelled"])
async def test_counts_come_from_an_index(store: SqliteStore, state: str) -> None:
    statement, _ = filtered("count", Filter(states=(state,)))  # type: ignore[arg-type]
    assert "INDEX jobmill_" in plan(store, statement, 0)
