"""What reading costs on SQLite: counts stop, and pages come from the indexes, however many jobs there are."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from jobmill.core.announcing import CARD_KEPT_MS
from jobmill.core.audit import AUDIT_KEPT_MS, AuditEntry
from jobmill.core.cursors import MAX_NUMBER
from jobmill.core.due import NEVER_MS
from jobmill.core.job import FINAL, LIVE, STATES, State
from jobmill.core.tallies import TALLIES_KEPT_MS
from jobmill.core.values import PAYLOADS_SEARCHED, SEARCHED_PER_PAGE, Filter, order_of
from jobmill.errors import InvalidValue
from jobmill.stores.sqlite import SqliteStore
from jobmill.stores.sqlite.filters import conditions, split
from jobmill.stores.sqlite.search import find_statement
from jobmill.stores.sqlite.statements import sql
from jobmill.testing import ManualClock
from jobmill.testing.contract.announce import card, tally
from jobmill.testing.contract.support import NAME, QUEUE, find_all, new, put, put_one

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


def fill(
    store: SqliteStore, number: int, state: State = "waiting", *, priorities: int = 1, due_ms: int | None = None
) -> None:
    """Many jobs of one state, written in one statement to save the test's time."""
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute(
            "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < ?)"
            " INSERT INTO jobmill_jobs (id, queue, name, state, priority, due_ms, created_ms, updated_ms, started_ms,"
            " finished_ms, keep_age_ms, payload)"
            " SELECT hex(randomblob(8)), ?, ?, ?, n % ?, ?6, ?7, ?7, ?7, ?7 + n, 1000, '{}' FROM numbers",
            (number, QUEUE, NAME, state, priorities, due_ms or store.now(), store.now()),
        )


async def cost(store: SqliteStore, call: Callable[[], Awaitable[object]]) -> int:
    """Hundreds of steps of SQLite's virtual machine, which do not depend on how busy this computer is."""
    connection = store._opened()._read_connection
    ticks: list[None] = []
    connection.set_progress_handler(lambda: ticks.append(None), 100)
    await call()
    connection.set_progress_handler(None, 0)
    return len(ticks)


def plan(store: SqliteStore, statement: str) -> str:
    with closing(sqlite3.connect(store.path)) as connection:
        width = max(map(int, re.findall(r"\?(\d+)", statement)), default=statement.count("?"))
        rows = connection.execute("EXPLAIN QUERY PLAN " + statement, [None] * width).fetchall()
    return "\n".join(row[3] for row in rows)


# ---------------------------------------------------------------------------------------------------- counts


@pytest.mark.parametrize("state", STATES)
async def test_depths_stop_at_the_limit(store: SqliteStore, state: State) -> None:
    fill(store, 200, state)
    shallow = await cost(store, lambda: store.depths(limit=100))
    fill(store, 50_000, state)
    deep = await cost(store, lambda: store.depths(limit=100))
    assert deep <= shallow * 1.5 + 5
    assert await cost(store, lambda: store.depths(limit=10_000)) > deep + 100, "more is read where more is asked for"


async def test_depths_stop_at_held_jobs(store: SqliteStore) -> None:
    fill(store, 200, due_ms=NEVER_MS)
    shallow = await cost(store, lambda: store.depths(limit=100))
    fill(store, 50_000, due_ms=NEVER_MS)
    assert await cost(store, lambda: store.depths(limit=100)) <= shallow * 1.5 + 5
    (depth,) = await store.depths(limit=100)
    assert (depth.due, depth.later, depth.held, depth.exact) == (0, 0, 100, False)


async def test_depths_stop_where_every_job_has_a_priority_of_its_own(store: SqliteStore) -> None:
    fill(store, 200, priorities=200)
    shallow = await cost(store, lambda: store.depths(limit=100))
    fill(store, 20_000, priorities=20_000)
    deep = await cost(store, lambda: store.depths(limit=100))
    assert deep <= shallow * 1.5 + 5
    (depth,) = await store.depths(limit=100)
    assert not depth.exact


@pytest.mark.parametrize("state", STATES)
async def test_a_count_stops_at_the_limit(store: SqliteStore, state: State) -> None:
    fill(store, 50_000, state)
    wanted = Filter(queue=QUEUE, states=(state,))
    assert await cost(store, lambda: store.count_up_to(wanted, 100)) < 20
    assert (await store.count_up_to(wanted, 100)).count == 100


async def test_counts_of_depths_come_from_indexes(store: SqliteStore) -> None:
    for name in ("depth", "depth_waiting", "queue_names", "waiting_ranges", "final_ranges"):
        told = plan(store, sql(name))
        lines = [line for line in told.splitlines() if "jobmill_jobs" in line or " jobs " in line or " next " in line]
        assert lines, told
        assert all("INDEX jobmill_" in line or "INTEGER PRIMARY KEY" in line for line in lines), told


# ---------------------------------------------------------------------------------------------------- pages


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("bounds", [0, 1, 2])
async def test_pages_of_a_queue_and_state_come_from_an_index(
    store: SqliteStore, state: State, back: bool, bounds: int
) -> None:
    wanted = Filter(queue=QUEUE, states=(state,))
    indexed, rest = split(wanted, order_of(wanted))
    assert rest == Filter()
    if state == "waiting" and bounds:
        bounds += 1  # the priority is the same in an index range
    told = plan(store, find_statement(order_of(wanted), conditions(indexed)[0], (state in FINAL) != back, bounds))
    waiting, running, final = (
        "INDEX jobmill_waiting (queue=? AND name=? AND priority=?",
        "INDEX jobmill_running (queue=?",
        "INDEX jobmill_final (state=? AND queue=? AND name=? AND keep_age_ms=?",
    )
    assert {"waiting": waiting, "running": running}.get(state, final) in told
    # Running jobs are few. The other states have their order from the index.
    assert ("TEMP B-TREE" in told) == (state == "running")


@pytest.mark.parametrize("state", ["waiting", "succeeded", "failed"])
async def test_a_page_costs_the_same_however_many_jobs_there_are(store: SqliteStore, state: State) -> None:
    wanted = Filter(queue=QUEUE, states=(state,))
    fill(store, 200, state)
    shallow = await cost(store, lambda: store.find(wanted, None, 50))
    fill(store, 50_000, state)
    assert await cost(store, lambda: store.find(wanted, None, 50)) <= shallow * 1.2 + 2
    cursor = (await store.find(wanted, None, 20_000)).next
    assert await cost(store, lambda: store.find(wanted, cursor, 50)) <= shallow * 1.2 + 2


@pytest.mark.parametrize("few", STATES)
async def test_few_jobs_of_a_state_are_found_among_many_others(store: SqliteStore, few: State) -> None:
    fill(store, 3, few)
    fill(store, 50_000, "succeeded" if few != "succeeded" else "waiting")
    assert await cost(store, lambda: store.find(Filter(states=(few,)))) < 50


@pytest.mark.parametrize("state", ["waiting", "succeeded"])
async def test_the_newest_of_many_jobs_of_a_state_are_found_without_sorting(store: SqliteStore, state: State) -> None:
    fill(store, 60_000, state)
    sorting = 60_000 * 10 // 100
    assert await cost(store, lambda: store.find(Filter(states=(state,)))) < sorting


@pytest.mark.parametrize("wanted", [Filter(recurring=True), Filter(held=True)], ids=["recurring", "held"])
async def test_recurring_and_held_jobs_are_found_among_many_others(store: SqliteStore, wanted: Filter) -> None:
    fill(store, 50_000)
    assert await cost(store, lambda: store.find(wanted)) < 10


async def test_a_cursor_of_another_order_is_refused(store: SqliteStore) -> None:
    await put(store, new(), new(), new())
    other = (await store.find(Filter(), None, 1)).next
    with pytest.raises(InvalidValue, match="cursor"):
        await store.find(Filter(queue=QUEUE, states=("waiting",)), other, 1)


@pytest.mark.parametrize("state", ["running", "failed"])
async def test_jobs_without_a_time_are_listed(store: SqliteStore, state: State) -> None:
    fill(store, 3, state)
    with closing(sqlite3.connect(store.path)) as connection, connection:
        connection.execute("UPDATE jobmill_jobs SET started_ms = NULL, finished_ms = NULL WHERE seq = 2")
    page = await store.find(Filter(queue=QUEUE, states=(state,)))
    assert len(page.jobs) == 3


async def test_a_search_for_a_payload_ends_at_the_newest_jobs_and_says_so(store: SqliteStore) -> None:
    await put_one(store, new("old", payload={"to": "ada"}))
    await put_one(store, new("first", payload={"to": "ada"}))
    fill(store, PAYLOADS_SEARCHED - 1)
    wanted = Filter(payload={"to": "ada"})
    assert await find_all(store, wanted) == ["first"]
    assert (await store.find(wanted)).partial
    assert sum(one.count for one in await store.count(wanted)) == 1


SEARCHES = {
    "tenant": Filter(tenant="acme"),
    "error": Filter(error_type="ValueError"),
    "payload": Filter(payload={"to": "ada"}),
    "since": Filter(created_after_ms=1),
    "recent": Filter(created_after_ms=MAX_NUMBER),
    "name": Filter(name=NAME),
    "unknown name": Filter(name="unknown"),
    "prefix": Filter(name_prefix="unknown"),
    "unique key": Filter(unique_key="k"),
    "recurring": Filter(recurring=True),
    "declared": Filter(declared=True),
    "not recurring": Filter(recurring=False),
    "held": Filter(held=True),
    "together": Filter(name=NAME, tenant="acme", created_after_ms=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("queue", [None, QUEUE], ids=["all queues", "one queue"])
@pytest.mark.parametrize("states", [None, LIVE, ("waiting",), ("succeeded",)], ids=str)
async def test_a_search_costs_the_same_however_many_jobs_there_are(
    store: SqliteStore, queue: str | None, states: tuple[State, ...] | None
) -> None:
    async def look(wanted: Filter) -> None:
        page = await store.find(wanted, None, 50)
        await store.find(wanted, page.next, 50)
        await store.count_up_to(wanted, 10_000)

    async def costs() -> dict[str, int]:
        wanted = {name: structs.replace(one, queue=queue, states=states) for name, one in SEARCHES.items()}
        return {name: await cost(store, partial(look, one)) for name, one in wanted.items()}

    state: State = "succeeded" if states == ("succeeded",) else "waiting"
    fill(store, 2 * SEARCHED_PER_PAGE + 2_000, state)
    shallow = await costs()
    fill(store, 2 * SEARCHED_PER_PAGE, state)
    deep = await costs()
    assert {name: (shallow[name], deep[name]) for name in SEARCHES if deep[name] > shallow[name] * 1.3 + 5} == {}


async def test_jobs_of_a_queue_are_found_behind_those_of_another(store: SqliteStore) -> None:
    await put_one(store, new("rare", queue="rare"))
    fill(store, 2 * SEARCHED_PER_PAGE)
    wanted = Filter(queue="rare")
    assert await cost(store, lambda: store.find(wanted)) < 10
    assert await find_all(store, wanted) == ["rare"]


async def test_a_search_goes_on_where_it_stopped(store: SqliteStore) -> None:
    wanted = Filter(queue=QUEUE, states=("waiting",), tenant="acme")
    fill(store, SEARCHED_PER_PAGE + 10, priorities=3)
    last = await put_one(store, new(tenant="acme", priority=9))
    empty = await store.find(wanted)
    assert (empty.jobs, empty.previous) == ([], None)
    page = await store.find(wanted, empty.next)
    assert [job.id for job in page.jobs] == [last]
    assert not (await store.count_up_to(wanted, 10)).exact


# ---------------------------------------------------------------------------------------------------- operations


async def test_a_worker_that_left_is_remembered_by_the_number_of_its_announcement(store: SqliteStore) -> None:
    now_ms = store.now()
    for _ in range(2):
        await store.announce(card(announcement=3), [tally(now_ms, claimed=1)], leaves=True)
        await store.purge()
    assert [one.claimed for one in await store.tallies(0, now_ms + 1, 60_000)] == [1]


async def test_a_purge_deletes_what_is_past_its_time(store: SqliteStore, clock: ManualClock) -> None:
    await store.announce(card(), [tally(store.now(), claimed=1)])
    await store.audit([AuditEntry(id=str(number), who="ada", what="mark") for number in range(3)])
    kept = {"jobmill_workers": CARD_KEPT_MS, "jobmill_tallies": max(TALLIES_KEPT_MS.values())}
    kept["jobmill_audit"] = AUDIT_KEPT_MS
    for table, kept_ms in kept.items():
        assert rows_of(store, table) > 0
        clock.advance(kept_ms / 1000)
        purged = await store.purge(limit=2)
        assert purged.more == (table == "jobmill_audit")
        await store.purge(limit=2)
        assert rows_of(store, table) == 0


def rows_of(store: SqliteStore, table: str) -> int:
    with closing(sqlite3.connect(store.path)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])
