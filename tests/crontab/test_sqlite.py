"""SQLite as a crontab's store, where it differs from others: dates as text or numbers, names, a given connection."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobmill.core.durations import EPOCH, to_datetime
from jobmill.crontab import Changes, Ending, SqliteCrontab
from jobmill.errors import InvalidValue, StoreBusy, StoreError, StoreUnavailable
from tests.crontab.harness import Kept
from tests.crontab.harness_sqlite import SqliteHarness

pytestmark = pytest.mark.stores("sqlite")


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[SqliteHarness]:
    made = SqliteHarness(tmp_path / "jobs.db")
    yield made
    await made.close()


@pytest.fixture
async def in_ms(tmp_path: Path) -> AsyncIterator[SqliteHarness]:
    made = SqliteHarness(tmp_path / "ms.db", "ms")
    yield made
    await made.close()


def at(sqlite: SqliteHarness, seconds: float = 0) -> datetime:
    return to_datetime(sqlite.clock() + round(seconds * 1_000))


def put(sqlite: SqliteHarness, id: object, sleep_until: object, **fields: object) -> None:
    named = {"id": id, "sleep_until": sleep_until, **fields}
    marks = ", ".join("?" * len(named))
    sqlite.connection.execute(f"INSERT INTO jobs ({', '.join(named)}) VALUES ({marks})", list(named.values()))


def sleeps(sqlite: SqliteHarness) -> dict[object, object]:
    return dict(sqlite.connection.execute("SELECT id, sleep_until FROM jobs").fetchall())


# ------------------------------------------------------------------------------------------------ dates


@pytest.mark.parametrize(
    "text",
    [
        "2023-11-14T22:13:19.5Z",
        "2023-11-14 22:13:19.500",
        "2023-11-14T23:13:19.500+01:00",
        "2023-11-14T22:13:19.500000",
    ],
)
async def test_text_is_compared_as_an_instant(sqlite: SqliteHarness, text: str) -> None:
    """At 22:13:20, whatever the text's form; by its letters some would come late, and some never."""
    put(sqlite, "a", text)
    put(sqlite, "later", "2023-11-14 22:13:20.001")
    put(sqlite, "elsewhere", "2023-11-14T22:13:19-01:00")
    job = await sqlite.store.lock_next(at(sqlite, 60))
    assert job is not None
    assert (job.id, job.sleep_until) == ("a", at(sqlite, -0.5))
    assert job.data["sleep_until"] == text
    assert await sqlite.store.lock_next(at(sqlite, 60)) is None
    assert sleeps(sqlite)["a"] == "2023-11-14T22:14:20.000Z"


async def test_a_day_without_a_time_is_its_midnight(sqlite: SqliteHarness) -> None:
    put(sqlite, "a", "2023-11-14", repeat_until="2024-01-01")
    job = await sqlite.store.lock_next(at(sqlite, 60))
    assert job is not None
    assert job.sleep_until == datetime(2023, 11, 14, tzinfo=UTC)
    assert job.repeat_until == datetime(2024, 1, 1, tzinfo=UTC)


async def test_text_that_is_not_a_date_is_ignored(sqlite: SqliteHarness) -> None:
    wrong = ["now", "", "soon", "12:00", "2460000.5", 0, 1_500_000_000_000, 2.5, b"2020-01-01", "2020-13-01", None]
    for n, value in enumerate(wrong):
        put(sqlite, n, value)
    assert await sqlite.store.lock_many(at(sqlite, 60), 50) == []
    assert list(sleeps(sqlite).values()) == wrong


async def test_numbers_that_are_not_milliseconds_are_ignored(in_ms: SqliteHarness) -> None:
    for n, value in enumerate(["2020-01-01", 1.5, b"1", None, "12"]):
        put(in_ms, n, value)
    put(in_ms, "right", in_ms.clock())
    put(in_ms, "long ago", -5)
    jobs = await in_ms.store.lock_many(at(in_ms, 60), 50)
    assert [(job.id, job.sleep_until) for job in jobs] == [("long ago", EPOCH), ("right", at(in_ms))]


async def test_milliseconds_are_written_as_numbers(in_ms: SqliteHarness) -> None:
    document = Kept(sleep_until=at(in_ms), repeat_until=at(in_ms, 9), interval="@daily")
    await in_ms.add("a", document)
    job = await in_ms.store.lock_next(at(in_ms, 60))
    assert job is not None
    assert (job.sleep_until, job.repeat_until) == (at(in_ms), at(in_ms, 9))
    assert sleeps(in_ms) == {"a": in_ms.clock() + 60_000}
    fence = at(in_ms, 60)
    assert await in_ms.store.finish_many([Ending(id="a", locked_until=fence, sleep_until=at(in_ms, 7))]) == [True]
    assert sleeps(in_ms) == {"a": in_ms.clock() + 7_000}


@pytest.mark.parametrize("dates", ["iso", "ms"])
async def test_the_index_is_used(tmp_path: Path, dates: Any) -> None:
    sqlite = SqliteHarness(tmp_path / "indexed.db", dates)
    await sqlite.store.migrate()
    store = sqlite.made()
    assert await store.lock_next(at(sqlite, 60)) is None  # the columns are known now
    sqlite.connection.execute("SELECT * FROM sqlite_master").fetchall()  # or it plans by what it knows
    statement = f"EXPLAIN QUERY PLAN SELECT {store._all} FROM jobs WHERE {store._due} ORDER BY {store._key} LIMIT 5"
    plan = [row[3] for row in sqlite.connection.execute(statement, [store._written(at(sqlite))])]
    terms = "<expr><?" if dates == "iso" else "sleep_until>? AND sleep_until<?"
    assert plan == [f"SEARCH jobs USING INDEX jobs_sleep_until_crontab ({terms})"]
    await sqlite.close()


# ------------------------------------------------------------------------------------------------ names


async def test_names_are_quoted_and_columns_can_be_missing(sqlite: SqliteHarness) -> None:
    sqlite.connection.execute('CREATE TABLE "my ""odd"" table" ("the id" INTEGER PRIMARY KEY, "select" TEXT, x)')
    sqlite.connection.execute("""INSERT INTO "my ""odd"" table" VALUES (1, '2020-01-01', 5)""")
    none: dict[str, Any] = {"interval": None, "repeat_until": None, "auto_remove": None}
    store = SqliteCrontab(
        sqlite.path, 'main.my "odd" table', id="the id", sleep_until="select", clock=sqlite.clock, **none
    )
    await store.migrate()
    job = await store.lock_next(at(sqlite, 60))
    assert job is not None
    assert (job.id, job.interval, job.repeat_until, job.auto_remove) == (1, None, None, False)
    assert job.data == {"the id": 1, "select": "2020-01-01", "x": 5}
    assert await store.update(1, Changes(sleep_until=None, locked_until=at(sqlite, 60))) is True
    with pytest.raises(InvalidValue, match="auto_remove: expected no value, because the table has no such column"):
        await store.update(1, Changes(auto_remove=True))
    assert await store.remove(1) is True
    await store.close()


async def test_only_rows_that_match_the_condition_are_jobs(sqlite: SqliteHarness) -> None:
    store = sqlite.made(where="name = 'mail' OR n > 5 -- and no more")
    for id, name, n in (("a", "mail", 1), ("b", "other", 1), ("c", "other", 9)):
        put(sqlite, id, "2020-01-01", name=name, n=n)
    assert sorted(job.id for job in await store.lock_many(at(sqlite, 60), 9)) == ["a", "c"]


@pytest.mark.slow
async def test_more_rows_than_the_parameters_of_a_statement(sqlite: SqliteHarness) -> None:
    sqlite.connection.execute("BEGIN")
    for n in range(2_000):
        put(sqlite, n, "2020-01-01")
    sqlite.connection.execute("COMMIT")
    jobs = await sqlite.store.lock_many(at(sqlite, 60), 1_900)
    assert len({job.id for job in jobs}) == 1_900
    done = [Ending(id=job.id, locked_until=at(sqlite, 60)) for job in jobs]
    assert await sqlite.store.finish_many(done) == [True] * 1_900
    assert list(sleeps(sqlite).values()).count(None) == 1_900


# ------------------------------------------------------------------------------------------------ connections


async def test_a_given_connection_is_used_unchanged_and_stays_open(sqlite: SqliteHarness) -> None:
    given = sqlite3.connect(sqlite.path, check_same_thread=False)
    given.row_factory = sqlite3.Row
    store = SqliteCrontab(given, "jobs", clock=sqlite.clock)
    put(sqlite, "a", "2020-01-01")
    job = await store.lock_next(at(sqlite, 60))
    assert job is not None
    assert job.data["id"] == "a"
    assert await store.remove("a", locked_until=at(sqlite, 60)) is True
    await store.close()
    assert given.execute("SELECT count(*) FROM jobs").fetchone()[0] == 0
    given.close()


async def test_a_connection_of_one_thread_is_refused(sqlite: SqliteHarness) -> None:
    store = SqliteCrontab(sqlite.connection, "jobs", clock=sqlite.clock)
    with pytest.raises(
        InvalidValue, match="database: expected a connection that any thread may use.*check_same_thread=False"
    ):
        await store.lock_next(at(sqlite, 60))
    await store.close()


async def test_an_open_transaction_of_the_user_is_not_ended(sqlite: SqliteHarness) -> None:
    given = sqlite3.connect(sqlite.path, check_same_thread=False)
    given.execute("INSERT INTO jobs (id, sleep_until) VALUES ('a', '2020-01-01')")
    store = SqliteCrontab(given, "jobs", clock=sqlite.clock)
    with pytest.raises(StoreBusy, match="has an open transaction"):
        await store.lock_next(at(sqlite, 60))
    given.rollback()
    assert await store.lock_next(at(sqlite, 60)) is None
    await store.close()
    given.close()


async def test_an_idle_poll_does_not_wait_for_a_writer(sqlite: SqliteHarness) -> None:
    sqlite.connection.execute("BEGIN IMMEDIATE")
    async with asyncio.timeout(4):  # a writer is waited for five seconds
        assert await sqlite.store.lock_many(at(sqlite, 60), 5) == []
    sqlite.connection.execute("ROLLBACK")


async def test_a_closed_store_can_be_used_again(sqlite: SqliteHarness) -> None:
    await sqlite.store.close()
    await sqlite.store.close()
    put(sqlite, "a", "2020-01-01")
    assert await sqlite.store.lock_next(at(sqlite, 60)) is not None


async def test_a_missing_file_is_not_created(tmp_path: Path) -> None:
    store = SqliteCrontab(tmp_path / "none.db", "jobs")
    with pytest.raises(StoreUnavailable, match="none.db"):
        await store.lock_next(datetime.now(UTC))
    assert not (tmp_path / "none.db").exists()
    await store.close()


async def test_a_missing_table_is_an_error(sqlite: SqliteHarness) -> None:
    store = SqliteCrontab(sqlite.path, "other")
    with pytest.raises(StoreError, match="no such table: other"):
        await store.lock_next(datetime.now(UTC))
    await store.close()


def test_invalid_arguments_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    for bad, message in (
        ({"table": "a.b.c"}, "table: expected the name of a table"),
        ({"table": ""}, "table: expected the name of a table"),
        ({"id": None}, "id: expected a name"),
        ({"sleep_until": ""}, "sleep_until: expected a name"),
        ({"interval": "a\0"}, "interval: expected a name"),
        ({"where": " "}, "where: expected a condition in SQL"),
        ({"dates": "s"}, 'dates: expected "iso" or "ms"'),
        ({"database": ":memory:"}, "database: expected the path of a file"),
        ({"database": 5}, "database: expected the path of a file"),
    ):
        options: dict[str, Any] = {"database": path, "table": "jobs", **bad}
        with pytest.raises(InvalidValue, match=message):
            SqliteCrontab(**options)
