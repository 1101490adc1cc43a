"""Searches on PostgreSQL: how many jobs a page or a count examines, and that cursors lead through all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest
from msgspec import structs

from jobmill.core.job import FINAL, LIVE
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import EVERYTHING, SEARCHED_PER_PAGE, CountUpTo, Filter, Page
from jobmill.stores.postgres import PostgresStore
from jobmill.testing.contract.support import QUEUE, all_pages, claim_ids, new, put, turns
from tests.kit.postgres import connected

pytestmark = [pytest.mark.slow, pytest.mark.stores("postgres")]

JOBS = 5 * SEARCHED_PER_PAGE
NOW_MS = 2_000_000_000_000
#: Live and final jobs of a large queue, in four index ranges; the jobs of a small queue are the oldest.
FILL = f"""
INSERT INTO jobmill.jobs (due_ms, created_ms, priority, updated_ms, id, queue, name, payload, unique_key)
SELECT
    CASE WHEN n % 10 = 0 THEN {NOW_MS} + n ELSE n END, n, n % 2, 1, 'live-' || lpad(n::text, 6, '0'),
    CASE WHEN n <= 10 THEN 'small' ELSE '{QUEUE}' END, 'name-' || n % 2, '{{"n":' || n || '}}', 'live-' || n
FROM generate_series(1, {JOBS}) AS n;
INSERT INTO jobmill.history (
    due_ms, created_ms, priority, errors, crashes, claims, updated_ms, started_ms, finished_ms, expires_ms, state,
    worker, id, queue, name, payload, unique_key
)
SELECT
    n, n, 0, 0, 0, 1, 1, 1, n, n + 10 + n % 2,
    CASE WHEN n % 100 = 0 THEN 'failed' WHEN n % 1000 = 1 THEN 'cancelled' ELSE 'succeeded' END, 'w',
    'final-' || lpad(n::text, 6, '0'), CASE WHEN n <= 10 THEN 'small' ELSE '{QUEUE}' END, 'name-' || n % 2,
    '{{"n":' || n || '}}', 'final-' || n
FROM generate_series(1, {JOBS}) AS n;
"""
READ = """
SELECT (SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = 'jobmill')::bigint
    + (SELECT sum(seq_tup_read) FROM pg_stat_user_tables WHERE schemaname = 'jobmill')::bigint
"""

WAITING, RUNNING, FAILED = (Filter(states=(state,)) for state in ("waiting", "running", "failed"))
DUE = structs.replace(WAITING, held=False, due_before_ms=NOW_MS)
LATER = structs.replace(WAITING, held=False, due_after_ms=NOW_MS)
HELD = structs.replace(WAITING, held=True)

#: Filters that no index answers. Nearly all of them match no job: a search that does not end early reads everything.
SEARCHED = [
    structs.replace(tab, **more)
    for tab in (EVERYTHING, DUE, LATER, RUNNING, Filter(states=("succeeded",)), FAILED, Filter(states=FINAL))
    for more in (
        {"tenant": "acme"},
        {"payload": {"n": 0}},
        {"error_type": "ValueError"},
        {"created_after_ms": JOBS + 1},
        {"queue": QUEUE, "tenant": "acme"},
        {"queue": QUEUE, "name": "name-0", "payload": {"n": 0}, "created_after_ms": JOBS + 1},
        {"tenant": "acme", "payload": {"n": 0}, "error_type": "ValueError"},
    )
]
SEARCHED += [Filter(name="none"), Filter(name_prefix="none"), Filter(states=FINAL, recurring=True), RUNNING]
#: Filters that an index answers, and how many jobs match.
ANSWERED: list[tuple[Filter, int]] = [
    (Filter(unique_key="live-7"), 1),
    (Filter(unique_key="final-7"), 1),
    (Filter(queue=QUEUE, unique_key="final-700", states=("failed",)), 1),
    (Filter(unique_key="none"), 0),
    (Filter(queue="small"), 20),
    (Filter(queue="small", payload={"n": 3}), 2),
    (Filter(queue="small", states=LIVE), 10),
    (Filter(states=LIVE, recurring=True), 3),
    (structs.replace(DUE, recurring=True), 3),
    (Filter(queue="recurring", states=("waiting",), recurring=True), 3),
    (Filter(states=LIVE, declared=True), 1),
    (HELD, 0),
    (structs.replace(HELD, queue=QUEUE), 0),
    (structs.replace(WAITING, name="none"), 0),
    (structs.replace(WAITING, name_prefix="none"), 0),
    (Filter(states=("cancelled",), finished_after_ms=JOBS - 500), 0),
    (Filter(states=("failed",), queue=QUEUE, finished_after_ms=JOBS - 500), 6),
]


@pytest.fixture
async def other(migrated_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    async with connected(migrated_url) as connection:
        yield connection


@pytest.fixture(params=["analyzed", "without statistics"])
async def filled(
    request: pytest.FixtureRequest, direct: PostgresStore, other: asyncpg.Connection[asyncpg.Record]
) -> PostgresStore:
    """A store with many jobs. The planner knows that, or not yet."""
    await other.execute(FILL)
    rules = [Recurrence(key=str(number), every_ms=1_000, declared=number == 0) for number in range(3)]
    await put(direct, *[new(queue="recurring", key=rule.key, recurrence=rule) for rule in rules])
    if request.param == "analyzed":
        await other.execute("ANALYZE jobmill.jobs, jobmill.history")
    return direct


async def read(store: PostgresStore) -> int:
    """How many rows and index entries this store has read."""
    await store.context.use(lambda c: c.execute("SELECT pg_stat_force_next_flush()"))
    number: int = await store.context.use(lambda c: c.fetchval(READ))
    return number


async def test_no_page_and_no_count_reads_more_than_its_bound(filled: PostgresStore) -> None:
    # Jobs of both tables are examined, and counted once more to find where the search ended.
    bound = 4 * SEARCHED_PER_PAGE + 5_000
    for wanted in SEARCHED:
        before = await read(filled)
        page = await filled.find(wanted, None, 50)
        between = await read(filled)
        counted = await filled.count_up_to(wanted, 1_000)
        after = await read(filled)
        assert between - before < bound, wanted
        assert after - between < bound, wanted
        assert (page.jobs, counted.count) == ([], 0), wanted
        assert page.next is not None or counted.exact, wanted


async def test_what_an_index_answers_is_found_at_once(filled: PostgresStore) -> None:
    for wanted, number in ANSWERED:
        before = await read(filled)
        page = await filled.find(wanted, None, 50)
        counted = await filled.count_up_to(wanted, 1_000)
        assert await read(filled) - before < 1_500, wanted
        assert (len(page.jobs), page.next, page.previous) == (number, None, None), wanted
        assert counted == CountUpTo(number, exact=True), wanted


async def test_a_page_that_is_full_reads_little(filled: PostgresStore) -> None:
    tabs = (EVERYTHING, DUE, LATER, Filter(states=("succeeded",)), FAILED)
    for wanted in (structs.replace(tab, queue=queue) for tab in tabs for queue in (None, QUEUE)):
        first = await filled.find(wanted, None, 50)
        before = await read(filled)
        second = await filled.find(wanted, first.next, 50)
        # To see that a queue is not small takes 2,000 entries.
        assert await read(filled) - before < 3_500, wanted
        assert len({job.id for job in first.jobs + second.jobs}) == 100, wanted


# ---------------------------------------------------------------------------------------------------- cursors


async def pages_back(store: PostgresStore, wanted: Filter, last: Page, limit: int) -> list[Page]:
    """The pages before this one, the first page first."""
    pages, previous = list[Page](), last.previous
    for _ in turns():
        if previous is None:
            break
        pages.insert(0, await store.find(wanted, previous, limit))
        previous = pages[0].previous
    return pages


def ids(pages: list[Page]) -> list[str]:
    return [job.id for page in pages for job in page.jobs]


#: A filter, and the number of the jobs that it matches, of each table.
RARE: list[tuple[Filter, dict[str, Any]]] = [
    (EVERYTHING, {"live": (1, 40_000), "final": (1, 2, 20_001)}),
    (Filter(queue=QUEUE), {"live": (11, 40_001), "final": (20_000,)}),
    (Filter(queue=QUEUE, states=("waiting",)), {"live": (11, 40_001, 49_999)}),
    (Filter(queue=QUEUE, states=("succeeded",)), {"final": (11, 40_002, 49_999)}),
    (Filter(states=("waiting",)), {"live": (1, 25_000)}),
    (EVERYTHING, {}),
    (Filter(queue=QUEUE, states=("waiting",)), {}),
    (Filter(queue=QUEUE, states=("succeeded",)), {}),
]


@pytest.mark.parametrize(("wanted", "rare"), RARE)
async def test_cursors_lead_through_all_jobs_and_back(
    direct: PostgresStore, other: asyncpg.Connection[asyncpg.Record], wanted: Filter, rare: dict[str, Any]
) -> None:
    await other.execute(FILL)
    expected = {f"{table}-{number:06}" for table, numbers in rare.items() for number in numbers}
    for table in ("jobs", "history"):
        await other.execute(f"UPDATE jobmill.{table} SET tenant = 'rare' WHERE id = ANY ($1)", list(expected))
    wanted = structs.replace(wanted, tenant="rare")
    pages = await all_pages(direct, wanted, 2)
    assert len(pages) > 2
    assert (len(ids(pages)), set(ids(pages))) == (len(expected), expected)
    back = await pages_back(direct, wanted, pages[-1], 2)
    assert ids([*back, pages[-1]]) == ids(pages)
    again, next = back[:1], back[0].next
    for _ in turns():
        if next is None:
            break
        again.append(await direct.find(wanted, next, 2))
        next = again[-1].next
    assert ids(again) == ids(pages)


@pytest.mark.parametrize("queue", [None, QUEUE])
async def test_jobs_that_run_behind_many_waiting_ones_are_found(
    direct: PostgresStore, other: asyncpg.Connection[asyncpg.Record], queue: str | None
) -> None:
    await other.execute(FILL)
    names = ("name-0", "name-1")
    first = {*await claim_ids(direct, 10, names=names)}
    await other.execute(
        "UPDATE jobmill.jobs SET lease_until_ms = 1, started_ms = 1, token = 't' WHERE id = ANY ($1)",
        elsewhere := [f"live-{number:06}" for number in (20_001, 30_000, 49_999)],
    )
    wanted = Filter(queue=queue, states=("running",))
    pages = await all_pages(direct, wanted, 4)
    found = ids(pages)
    assert {*found[:10]} == first
    assert (len(found), {*found[10:]}) == (13, {*elsewhere})
    back = await pages_back(direct, wanted, pages[-1], 4)
    assert ids([*back, pages[-1]]) == found
    counted = await direct.count_up_to(wanted, 100)
    assert counted == CountUpTo(10, exact=False)
