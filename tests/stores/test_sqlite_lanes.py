"""Lanes on SQLite: rows, indexes, and what processes leave that know no lanes."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec import structs

from jobmill.core.changes import Hold, Release, Requeue
from jobmill.core.due import NEVER_MS
from jobmill.core.findings import Finding
from jobmill.core.flows import After
from jobmill.core.queue_settings import LaneChange, Pause, RateLimit
from jobmill.core.values import LANE_LIMIT, Filter, QueueChange, Settlement, after
from jobmill.stores.sqlite import SqliteStore
from jobmill.stores.sqlite.statements import sql
from jobmill.testing import ManualClock
from jobmill.testing.contract.lanes import held_by, laned, rule, run
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    new,
    next_due,
    put,
    readable,
    settle,
    succeed,
    wish,
)

NUMBERED = re.compile(r"\?(\d)").findall

pytestmark = pytest.mark.stores("sqlite")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "jobs.db", clock=clock, synchronous="OFF")
    await store.open()
    yield store
    await store.close()


def write(store: SqliteStore, statement: str, *parameters: object) -> None:
    """Write as a process that knows no lanes."""
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute(statement, parameters)


def rows(store: SqliteStore, statement: str, *parameters: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(store.path)) as connection:
        return connection.execute(statement, parameters).fetchall()


def damaged(findings: list[Finding]) -> dict[str, tuple[int, int]]:
    return {one.check: (one.count, one.repaired) for one in findings if one.count}


async def test_a_slot_that_an_older_version_has_freed_is_given_on(store: SqliteStore) -> None:
    await rule(store, 1)
    await put(store, laned("first"), laned("second"), laned("third", "b"), laned("fourth", "b"))
    await claim(store)
    write(store, "UPDATE jobmill_jobs SET state = 'succeeded', token = NULL, lease_until_ms = NULL WHERE id = 'first'")
    assert await claim(store) == []
    assert await store.flush_outbox() == 1
    assert await claim_ids(store) == ["second"]
    assert await store.flush_outbox() == 0


async def test_healing_respects_pauses_and_rates(store: SqliteStore, clock: ManualClock) -> None:
    await rule(store, rate=RateLimit(1, 60_000))
    await put(store, *[laned(lane=lane) for lane in "ab" for _ in range(3)])
    await store.configure_lane(QUEUE, "b", LaneChange(pause=Pause()))
    assert await store.flush_outbox() == 0
    claimed = await claim_one(store)
    assert await settle(store, succeed(claimed)) == ["done"]
    clock.advance(60)
    assert await store.flush_outbox() == 0, "an exchange looks at rates, before it claims"
    assert len(await claim(store)) == 1


async def test_healing_goes_through_all_lanes(store: SqliteStore) -> None:
    await rule(store, 1)
    await put(store, *[laned(lane=f"lane {number}") for number in range(300) for _ in range(2)])
    assert len(await claim(store, 1_000)) == 300
    write(
        store, "UPDATE jobmill_jobs SET state = 'failed', token = NULL, lease_until_ms = NULL WHERE state = 'running'"
    )
    assert await store.flush_outbox() == 256
    assert await store.flush_outbox() == 44
    assert len(await claim(store, 1_000)) == 300


async def test_a_rule_for_more_lanes_than_one_transaction_changes(store: SqliteStore) -> None:
    await rule(store, 1)
    await put(store, *[laned(lane=f"lane {number}") for number in range(1_500) for _ in range(2)])
    await rule(store, 2)
    admitted = "SELECT count(*) FROM jobmill_jobs WHERE slot = 0"
    assert rows(store, admitted) == [(2_500,)]
    assert len(await claim(store, 5_000)) == 3_000


async def test_a_lane_without_limits_releases_many_jobs_in_steps(store: SqliteStore) -> None:
    await rule(store, 1)
    await put(store, *[laned() for _ in range(2_500)])
    await store.configure(QUEUE, QueueChange(lanes=None))
    assert rows(store, "SELECT count(*) FROM jobmill_jobs WHERE slot = 0") == [(1_001,)]
    assert len(await claim(store, 5_000)) == 2_001
    assert len(await claim(store, 5_000)) == 499


async def test_many_slots_are_taken_back_in_several_transactions(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmill.stores.sqlite.lanes._TAKEN_BACK", 100)
    await put(store, *[laned(lane=lane) for _ in range(350) for lane in "ab"])
    admitted = "SELECT count(*) FROM jobmill_jobs WHERE slot = 0"
    assert rows(store, admitted) == [(700,)]
    await store.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
    assert rows(store, admitted) == [(350,)]
    await rule(store, 2)
    assert rows(store, admitted) == [(2,)]
    await store.configure_lane(QUEUE, "a", LaneChange(pause=None))
    assert rows(store, admitted) == [(4,)]


async def test_many_jobs_that_become_due(store: SqliteStore, clock: ManualClock) -> None:
    await put(store, *[laned(lane=f"lane {number % 7}", due=after(1_000)) for number in range(2_500)])
    assert await claim(store) == []
    clock.advance(1)
    assert [len(await claim(store, 5_000)) for _ in range(3)] == [1_000, 1_000, 500]


async def test_a_search_through_a_large_lane_examines_a_part_of_it(store: SqliteStore) -> None:
    for start in range(0, 12_000, 1_000):
        await put(store, *[laned(lane="ab"[number % 2]) for number in range(start, start + 1_000)])
        await put(store, *[laned() for _ in range(500)])
    page = await store.find(Filter(queue=QUEUE, lane="a"), None, 10)
    assert len(page.jobs) == 10
    assert {job.lane for job in page.jobs} == {"a"}
    assert not (await store.count_up_to(Filter(lane="a"), 100_000)).exact
    assert (await store.count_up_to(Filter(lane="b"), 100_000)).count == 6_000


async def test_a_requeued_job_may_be_the_only_one_with_a_lane(store: SqliteStore, clock: ManualClock) -> None:
    """The writer remembers whether a live job has a lane, so that queues without lanes pay nothing."""
    await rule(store, 1)
    await put(store, laned("first"))
    await run(store, "first")
    await store.close()
    await store.open()
    assert await claim(store) == [], "from now on, the writer knows that there are no lanes"
    assert (await store.change(["first"], Requeue(after(5_000)))).ids == ["first"]
    assert await next_due(store) == store.now() + 5_000
    clock.advance(5)
    await run(store, "first")


async def test_an_enqueued_job_may_be_the_only_one_with_a_lane(store: SqliteStore, clock: ManualClock) -> None:
    assert await claim(store) == []
    await put(store, laned("first", due=after(5_000)))
    assert await next_due(store) == store.now() + 5_000
    clock.advance(5)
    await run(store, "first")


async def test_rows_of_lanes(store: SqliteStore) -> None:
    await rule(store, 1)
    await put(store, laned("a"), laned("b"), laned("c", due=after(1_000)), new("d"))
    await store.change(["b"], Hold())
    found = rows(store, "SELECT id, slot, joined_ms IS NULL, due_ms = ? FROM jobmill_jobs ORDER BY id", NEVER_MS)
    assert found == [("a", 0, 0, 0), ("b", None, 1, 1), ("c", -2, 0, 1), ("d", None, 1, 0)]
    await store.change(["b"], Release())
    assert rows(store, "SELECT slot FROM jobmill_jobs WHERE id = 'b'") == [(-1,)]


async def test_a_purge_forgets_lanes_without_settings(store: SqliteStore, clock: ManualClock) -> None:
    await rule(store, rate=RateLimit(1, 1_000))
    await put(store, laned("a"), laned("b"))
    await store.configure_lane(QUEUE, "kept", LaneChange(running=3))
    await run(store, "a")
    clock.advance(1)
    await run(store, "b")
    await store.purge()
    assert rows(store, "SELECT lane FROM jobmill_lanes ORDER BY lane") == [("a",), ("kept",)]
    clock.advance(1)
    await store.purge()
    assert rows(store, "SELECT lane FROM jobmill_lanes") == [("kept",)]


@pytest.mark.parametrize(
    ("check", "statement", "count"),
    [
        ("lane_slot_free", "UPDATE jobmill_jobs SET state = 'failed', token = NULL, lease_until_ms = NULL", 1),
        ("lane_order", "UPDATE jobmill_jobs SET slot = 0", 1),
        ("lane_order", "UPDATE jobmill_jobs SET slot = -1", 1),
    ],
)
async def test_damage_is_found_and_repaired(store: SqliteStore, check: str, statement: str, count: int) -> None:
    await rule(store, 1)
    await put(store, *[laned(f"a{number}") for number in range(3)])
    await put(store, laned("b0", "b"))
    first = await claim_one(store)
    which = {"lane_slot_free": "state = 'running'", "lane_order": "id = 'a1'"}[check]
    which = "id = 'b0'" if statement.endswith("-1") else which
    assert damaged(await store.fsck()) == {}
    write(store, f"{statement} WHERE {which}")
    assert damaged(await store.fsck()) == {check: (count, 0)}
    assert damaged(await store.fsck(repair=True)) == {check: (count, count)}
    assert damaged(await store.fsck()) == {}
    if check == "lane_slot_free":
        assert sorted(await claim_ids(store)) == ["a1", "b0"]
    else:
        assert await settle(store, succeed(first)) == ["done"]
        assert sorted(await claim_ids(store)) == ["a1", "b0"]


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("lane_ready", "jobmill_in_lane"),
        ("lane_slots", "jobmill_in_lane"),
        ("lane_admitted", "jobmill_in_lane"),
        ("hand_over", "jobmill_in_lane"),
        ("lane_due", "jobmill_lane_later"),
        ("lane_times", "jobmill_lane_later"),
    ],
)
async def test_an_index_answers(store: SqliteStore, name: str, index: str) -> None:
    await rule(store, 1)
    await put(store, laned(), laned())
    with closing(sqlite3.connect(store.path)) as connection:
        parameters = (QUEUE, '[["a", 1]]' if name == "hand_over" else "a", 10)[: max(map(int, NUMBERED(sql(name))))]
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql(name)}", parameters)]
    assert any(index in step for step in plan), plan
    assert not any("SCAN jobmill_jobs" in step or "TEMP B-TREE" in step for step in plan), plan


async def test_jobs_in_flows_of_lanes_are_held_by_both(store: SqliteStore) -> None:
    await rule(store, 1)
    waits = structs.replace(laned("then"), after=(After("first"),))
    await put(store, laned("first"), waits)
    assert await held_by(store, "then") == [("jobs", "lane")]
    assert rows(store, "SELECT slot, joined_ms FROM jobmill_jobs WHERE id = 'then'") == [(None, None)]


# ---------------------------------------------------------------------------------------------------- cost


MILLION = 1_000_000
COPIED = """
    WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)
    INSERT INTO jobmill_jobs (id, {columns}) SELECT 'copy-' || n, {columns} FROM numbers, jobmill_jobs WHERE id = 'last'
"""


async def exchanged(store: SqliteStore, done: list[Settlement]) -> tuple[list[Settlement], int]:
    """Settle, and claim 20 jobs; what settles these, and hundreds of steps of SQLite's virtual machine."""
    connection, ticks = store._opened().write_connection, list[None]()
    connection.set_progress_handler(lambda: ticks.append(None), 100)
    claimed = readable((await store.exchange(done, wish(20))).claimed)
    connection.set_progress_handler(None, 0)
    return [succeed(one) for one in claimed], len(ticks)


@pytest.mark.slow
@pytest.mark.extended
async def test_a_million_jobs_in_one_lane(store: SqliteStore) -> None:
    """For exchanges that run jobs of this lane and of others, they cost nothing."""
    await rule(store, 10)
    await put(store, laned("last", priority=9), *[laned(lane=lane, priority=5) for lane in "ab" for _ in range(100)])
    costs: list[int] = []
    for count in (0, MILLION):
        if count:
            columns = [str(row[1]) for row in rows(store, "PRAGMA table_info(jobmill_jobs)")]
            others = ", ".join(name for name in columns if name not in ("seq", "id"))
            await asyncio.to_thread(write, store, COPIED.format(columns=others), count)
        done, cost = await exchanged(store, [])
        for _ in range(3):
            done, cost = await exchanged(store, done)
            assert len(done) == 20
        costs.append(cost)
        assert await settle(store, *done) == ["done"] * 20
    assert costs[1] <= costs[0] * 1.2 + 2
    lane, _ = await store.lanes(QUEUE)
    assert (lane.name, lane.admitted, lane.ready) == ("a", 10, LANE_LIMIT)
    await put(store, laned("urgent"))
    assert "urgent" in await claim_ids(store, 20)
    await store.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
    await store.flush_outbox()
    assert await claim(store) == []
