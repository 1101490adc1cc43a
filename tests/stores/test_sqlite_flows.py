"""Flows on SQLite: costs, indexes, rows, and what processes leave that were killed or know no flows."""

from __future__ import annotations

import asyncio
import itertools
import random
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest

from jobmill.core.changes import Cancel, Remove, Requeue
from jobmill.core.flows import MAX_RELEASED
from jobmill.core.values import Filter, NewJob
from jobmill.stores.sqlite import SqliteStore
from jobmill.stores.sqlite.filters import filtered
from jobmill.stores.sqlite.statements import sql, sql_rows
from jobmill.testing import ManualClock
from jobmill.testing.contract.flows import waits
from jobmill.testing.contract.support import (
    claim,
    claim_ids,
    claim_one,
    fail,
    find_all,
    look,
    new,
    put,
    settle,
    started,
    succeed,
)
from tests.kit.processes import launched

pytestmark = pytest.mark.stores("sqlite")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(tmp_path / "jobs.db", clock=ManualClock(), synchronous="OFF")
    await store.open()
    yield store
    await store.close()


def write(store: SqliteStore, statement: str, *parameters: object) -> None:
    """Write as a process that knows no flows."""
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute(statement, parameters)


def rows(store: SqliteStore, statement: str, *parameters: object) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(store.path)) as connection:
        return connection.execute(statement, parameters).fetchall()


# ---------------------------------------------------------------------------------------------------- costs


async def test_jobs_of_no_flow_touch_no_table_of_flows(store: SqliteStore) -> None:
    """The writer asks once whether there are edges, and remembers it."""
    await put(store, *[new() for _ in range(5)])
    await settle(store, succeed(await claim_one(store)))
    seen: list[str] = []
    connection = store._opened().write_connection
    connection.set_trace_callback(seen.append)
    await put(store, new(), new())
    for _ in range(3):
        assert await settle(store, succeed(await claim_one(store))) == ["done"]
    assert await settle(store, fail(await claim_one(store))) == ["done"]
    connection.set_trace_callback(None)
    assert len(seen) > 10
    tables = ("jobmill_edges", "jobmill_outbox", "jobmill_steps", "jobmill_signals")
    assert [one for one in seen if any(table in one for table in tables)] == []


async def test_edges_that_another_process_adds_are_noticed(store: SqliteStore) -> None:
    await settle(store, succeed(await started(store)))
    other = SqliteStore(store.path, clock=ManualClock())
    await other.open()
    await put(other, new("first"), waits("then", "first"))
    await other.close()
    await settle(store, succeed(await claim_one(store)))
    assert await claim_ids(store) == ["then"]


async def test_released_jobs_share_statements(store: SqliteStore) -> None:
    """However many there are: none is read whole, and none is written alone."""

    async def statements(count: int) -> list[str]:
        await put(store, *[one for n in range(count) for one in (new(f"{count}-{n}"), waits(None, f"{count}-{n}"))])
        claimed, seen = await claim(store, count), list[str]()
        connection = store._opened().write_connection
        connection.set_trace_callback(seen.append)
        assert await settle(store, *map(succeed, claimed)) == ["done"] * count
        connection.set_trace_callback(None)
        assert len(await claim(store, count)) == count
        return seen

    few, many = await statements(5), await statements(50)
    assert len(few) == len(many)
    assert [one for one in many if "keep_failed" in one or "jobs.options" in one] == []


def plan(store: SqliteStore, statement: str, width: int) -> str:
    found = rows(store, "EXPLAIN QUERY PLAN " + statement, *[None] * width)
    return "\n".join(str(row[3]) for row in found)


@pytest.mark.parametrize(
    ("name", "width", "expected"),
    [
        ("pinned", 1, "SEARCH edges USING COVERING INDEX jobmill_edges_on (on_seq=?)"),
        ("dependents_of", 2, "SEARCH edges USING COVERING INDEX jobmill_edges_on (on_seq=?)"),
        ("succeed_edges", 1, "SEARCH jobmill_edges USING INDEX jobmill_edges_on (on_seq=?)"),
        ("unblocked", 1, "INDEX jobmill_blocking (job_seq=?)"),
        ("ended_edges", 2, "SEARCH edges USING INDEX jobmill_edges_on (on_seq=?)"),
        ("outbox_edges", 1, "SEARCH edges USING INDEX jobmill_edges_on (on_seq=? AND job_seq>?)"),
        ("still_waiting", 1, "INDEX jobmill_blocking (job_seq=?)"),
        ("search_overdue", 3, "INDEX jobmill_blocking ((job_seq,number)>(?,?))"),
        ("set_edges_of", 1, "SEARCH edges USING INDEX jobmill_edges_on (on_seq=?)"),
        ("circle", 1, "SEARCH edges USING PRIMARY KEY (job_seq=?)"),
        ("dependencies", 3, "SEARCH edges USING PRIMARY KEY (job_seq=? AND number>?)"),
        ("dependents", 2, "SEARCH edges USING INDEX jobmill_edges_on (on_seq=?)"),
        ("flows", 2, "SEARCH jobs USING COVERING INDEX jobmill_flow (flow>? AND flow<?)"),
        ("flow_count", 2, "SEARCH jobs USING INDEX jobmill_flow (flow=?)"),
        ("edges_between", 1, "SEARCH edges USING PRIMARY KEY (job_seq=?)"),
        ("freed", 3, "SEARCH edges USING PRIMARY KEY (job_seq=?)"),
        ("steps", 1, "SEARCH steps USING INDEX sqlite_autoindex_jobmill_steps_1 (seq=?)"),
    ],
)
async def test_statements_use_their_indexes(store: SqliteStore, name: str, width: int, expected: str) -> None:
    used = plan(store, sql(name), width)
    assert expected in used
    assert "SCAN edges" not in used
    assert "SCAN jobs" not in used
    assert "TEMP B-TREE FOR ORDER BY" not in used


async def test_edges_are_set_by_their_keys(store: SqliteStore) -> None:
    assert "SEARCH edges USING PRIMARY KEY (job_seq=? AND number=?)" in plan(store, sql_rows("set_edges", 2), 6)


@pytest.mark.parametrize("name", ["count", "subjects"])
@pytest.mark.parametrize("wanted", [Filter(flow="f"), Filter(flow="f", states=("failed",), queue="mail")], ids=str)
async def test_jobs_of_a_flow_are_found_with_an_index(store: SqliteStore, name: str, wanted: Filter) -> None:
    statement, parameters = filtered(name, wanted)
    width = len(parameters) + (name == "subjects")
    assert "INDEX jobmill_flow (flow=?)" in plan(store, statement, width)


async def test_a_large_outbox_is_read_once(store: SqliteStore) -> None:
    """Each call continues where the last one ended."""
    count = MAX_RELEASED + 2_500
    await put(store, new("first"), *[waits(f"then-{number}", "first") for number in range(count)])
    assert await settle(store, succeed(await claim_one(store))) == ["done"]
    first, second = (await store.flush_outbox(100), rows(store, "SELECT next_seq FROM jobmill_outbox"))
    assert (first, second) == (100, [(2 + MAX_RELEASED + 100,)])
    assert [await store.flush_outbox() for _ in range(4)] == [1_000, 1_000, 400, 0]
    assert rows(store, "SELECT * FROM jobmill_outbox") == []
    assert rows(store, "SELECT count(*) FROM jobmill_edges WHERE state = 'pending'") == [(0,)]


async def test_several_jobs_share_the_outbox(store: SqliteStore) -> None:
    firsts = [f"first-{number}" for number in range(3)]
    then = [waits(f"then-{first}-{number}", first) for first in firsts for number in range(700)]
    await put(store, *map(new, firsts), *then)
    claimed = await claim(store)
    exchanged = await store.exchange([succeed(one) for one in claimed], None)
    assert (exchanged.settled, exchanged.has_outbox) == (["done"] * 3, True)
    (depth,) = await store.depths()
    assert (depth.due, depth.held) == (1_000, 1_100)
    assert [await store.flush_outbox() for _ in range(3)] == [1_000, 100, 0]
    (depth,) = await store.depths()
    assert (depth.due, depth.held) == (2_100, 0)


async def test_a_requeued_job_leaves_the_outbox(store: SqliteStore) -> None:
    count = MAX_RELEASED + 10
    await put(
        store, new("first", priority=0), *[waits(f"then-{number}", "first", priority=1) for number in range(count)]
    )
    assert await settle(store, fail(await claim_one(store))) == ["done"]
    assert (await store.change(["first"], Requeue())).ids == ["first"]
    assert await store.flush_outbox() == 0
    (depth,) = await store.depths()
    assert (depth.due, depth.held) == (1, count), "all wait for its new end"


async def test_a_removed_job_has_no_outbox(store: SqliteStore) -> None:
    """A live job that is removed releases all at once: no job is left that could stay in the outbox."""
    count = MAX_RELEASED + 10
    await put(store, new("first"), *[waits(f"then-{number}", "first", if_failed="run") for number in range(count)])
    assert (await store.change(["first"], Remove())).ids == ["first"]
    assert await store.flush_outbox() == 0
    assert (await store.depths())[0].due == count


# ---------------------------------------------------------------------------------------------------- rows


async def test_the_seq_of_a_removed_job_is_given_to_another(store: SqliteStore) -> None:
    await put(store, waits("then", "first"), new("first"))
    await settle(store, succeed(await claim_one(store), 1))
    ((seq,),) = rows(store, "SELECT seq FROM jobmill_jobs WHERE id = 'first'")
    assert (await store.change(["first"], Remove())).ids == ["first"]
    await put(store, new("stranger"))
    assert rows(store, "SELECT id FROM jobmill_jobs WHERE seq = ?", seq) == [("stranger",)]
    (edge,) = await store.dependencies("then")
    assert (edge.id, edge.state, edge.result_json) == ("first", "succeeded", None)
    assert await store.dependents("stranger") == []


async def test_removed_jobs_leave_nothing(store: SqliteStore) -> None:
    await put(store, new("a"), waits("b", "a"), waits("c", "a", "b"))
    assert (await store.change(["a", "b", "c"], Cancel())).ids == ["a", "b", "c"]
    assert (await store.change(["a", "b", "c"], Remove())).ids == ["a", "b", "c"]
    assert rows(store, "SELECT * FROM jobmill_edges") == []


# ---------------------------------------------------------------------------------------------------- other processes


async def test_jobs_that_a_process_without_flows_has_ended_are_found_in_parts(store: SqliteStore) -> None:
    await put(store, *[new(f"part-{number}") for number in range(2_500)])
    await put(
        store, waits("last", *[f"part-{number}" for number in range(2_500)]), new("first"), waits("then", "first")
    )
    write(store, "UPDATE jobmill_jobs SET state = 'succeeded', finished_ms = 5, keep_age_ms = 5 WHERE id = 'first'")
    assert [await store.flush_outbox() for _ in range(4)] == [0, 0, 1, 0]
    assert (await look(store, "then")).held is None
    assert (await look(store, "last")).held is not None


WORK = """
import asyncio, sys
from jobmill.stores.sqlite import SqliteStore
from jobmill.testing.contract.support import succeed, wish

async def main():
    store = SqliteStore(sys.argv[1], synchronous="OFF")
    await store.open()
    settlements = []
    while True:
        exchanged = await store.exchange(settlements, wish(3, lease_ms=200))
        settlements = [succeed(one, one.job.id) for one in exchanged.claimed]
        await store.flush_outbox()

asyncio.run(main())
"""


def start(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(launched(None, signal.SIGKILL, [sys.executable, "-c", WORK, str(path)]))


def layers() -> list[NewJob]:
    """Five layers of jobs; each waits for three of the layer before it."""
    names = [[f"{layer}-{number:02}" for number in range(40)] for layer in range(5)]
    first = [new(id) for id in names[0]]
    return first + [
        waits(id, *[before[(number * 3 + step) % 40] for step in range(3)], flow="f")
        for before, own in itertools.pairwise(names)
        for number, id in enumerate(own)
    ]


@pytest.mark.slow
async def test_processes_are_killed_while_they_work_on_a_flow(tmp_path: Path) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown when it fails
    chance = random.Random(seed)
    store = SqliteStore(tmp_path / "jobs.db", synchronous="OFF")
    await store.open()
    jobs = layers()
    await put(store, *jobs)
    running: list[subprocess.Popen[bytes]] = []
    kills = 0
    try:
        async with asyncio.timeout(120):
            while await find_all(store, Filter(states=("waiting", "running"))):
                running = [one for one in running if one.poll() is None]
                running += [start(store.path) for _ in range(2 - len(running))]
                await asyncio.sleep(chance.uniform(0.3, 0.6))
                if kills < 6:
                    chance.choice(running).kill()
                    kills += 1
    finally:
        for one in running:
            one.kill()
            one.wait()
    assert [one.count for one in await store.fsck() if one.count] == []
    for job in jobs:
        assert [edge.id for edge in await store.dependencies(job.id)] == [one.id for one in job.after]
        assert all(edge.result_json is not None for edge in await store.dependencies(job.id))
    assert {job.state for job in await store.get([job.id for job in jobs]) if job} == {"succeeded"}
    times = {job.id: (job.started_ms, job.finished_ms) for job in await store.get([one.id for one in jobs]) if job}
    for job in jobs:
        for on in job.after:
            assert (times[job.id][0] or 0) >= (times[on.id][1] or 0), "a job began before its dependency ended"
    await store.close()
