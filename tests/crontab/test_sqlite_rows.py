"""SQLite as a crontab's store: tables and rows that are not as they should be, and databases that others read."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from jobmill.core.durations import to_datetime
from jobmill.crontab import Ending, SqliteCrontab
from jobmill.errors import InvalidValue, StoreError
from tests.crontab.harness_sqlite import SqliteHarness
from tests.helpers import until

pytestmark = pytest.mark.stores("sqlite")


@pytest.fixture
async def sqlite(tmp_path: Path) -> AsyncIterator[SqliteHarness]:
    made = SqliteHarness(tmp_path / "jobs.db")
    yield made
    await made.close()


def at(sqlite: SqliteHarness, seconds: float = 0) -> datetime:
    return to_datetime(sqlite.clock() + round(seconds * 1_000))


def put(sqlite: SqliteHarness, id: object, sleep_until: object = "2020-01-01") -> None:
    sqlite.connection.execute("INSERT INTO jobs (id, sleep_until) VALUES (?, ?)", [id, sleep_until])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"interval": "cron"}, "interval: expected a column of \"jobs\", got 'cron'; give its name, or None"),
        ({"repeat_until": "Repeat_Until"}, "repeat_until: expected a column of .*, got 'Repeat_Until'"),
        ({"sleep_until": "due"}, "sleep_until: expected a column of .*, got 'due'; give the name of the column"),
        ({"id": "rowid"}, "id: expected a column of .*, got 'rowid'; give the name of the column"),
    ],
)
async def test_missing_columns_are_refused(sqlite: SqliteHarness, options: dict[str, Any], message: str) -> None:
    put(sqlite, "a")
    store = sqlite.made(**options)
    for _ in range(2):
        with pytest.raises(InvalidValue, match=message):
            await store.lock_next(at(sqlite, 60))
    assert sqlite.connection.execute("SELECT sleep_until FROM jobs").fetchone() == ("2020-01-01",)


async def test_a_row_with_a_null_id_is_not_a_job(sqlite: SqliteHarness) -> None:
    put(sqlite, None)
    put(sqlite, "a", "2021-01-01")
    assert [job.id for job in await sqlite.store.lock_many(at(sqlite, 60), 1)] == ["a"]
    assert await sqlite.store.lock_many(at(sqlite, 60), 5) == []


async def test_invalid_text_does_not_block_other_documents(sqlite: SqliteHarness) -> None:
    put(sqlite, "a")
    put(sqlite, "b")
    sqlite.connection.execute("UPDATE jobs SET name = CAST(x'62fffe63' AS TEXT) WHERE id = 'a'")
    jobs = {job.id: job.data["name"] for job in await sqlite.store.lock_many(at(sqlite, 60), 5)}
    assert jobs == {"a": "b\ufffd\ufffdc", "b": None}


async def test_a_row_that_its_id_does_not_match_is_reported_and_not_run(sqlite: SqliteHarness) -> None:
    sqlite.connection.execute("INSERT INTO jobs (id, sleep_until) VALUES (CAST(x'ff' AS TEXT), '2020-01-01')")
    with pytest.raises(StoreError, match="the value of an id does not match its own row"):
        await sqlite.store.lock_many(at(sqlite, 60), 5)


async def test_an_end_that_is_not_a_date_is_passed_on(sqlite: SqliteHarness) -> None:
    """The crontab reports it to on_error."""
    put(sqlite, "a")
    sqlite.connection.execute("UPDATE jobs SET repeat_until = 'tomorrow'")
    (job,) = await sqlite.store.lock_many(at(sqlite, 60), 5)
    assert job.repeat_until == "tomorrow"


async def test_dates_are_read_without_the_converters_of_a_connection(sqlite: SqliteHarness) -> None:
    """sqlite3's own gives datetimes without a zone, and fails on what is written here."""
    sqlite.connection.execute(
        "CREATE TABLE typed (id INTEGER PRIMARY KEY, sleep_until TIMESTAMP, repeat_until TIMESTAMP, born DATE)"
    )
    sqlite.connection.execute(
        "INSERT INTO typed VALUES (1, '2020-01-01 00:00:00', '2030-01-01 00:00:00', '2020-02-03')"
    )
    given = sqlite3.connect(sqlite.path, check_same_thread=False, detect_types=sqlite3.PARSE_DECLTYPES)
    store = SqliteCrontab(given, "typed", interval=None, auto_remove=None, clock=sqlite.clock)
    dues = [datetime(2020, 1, 1, tzinfo=UTC), at(sqlite, -5)]
    for due in dues:
        job = await store.lock_next(at(sqlite, 60))
        assert job is not None
        assert (job.sleep_until, job.repeat_until) == (due, datetime(2030, 1, 1, tzinfo=UTC))
        assert str(job.data["born"]) == "2020-02-03"
        ending = Ending(id=1, locked_until=at(sqlite, 60), sleep_until=dues[1])
        assert await store.finish_many([ending]) == [True]
    await store.close()
    given.close()


async def test_a_commit_waits_for_readers(sqlite: SqliteHarness) -> None:
    """Without WAL, a reader blocks a commit."""
    sqlite.connection.execute("PRAGMA journal_mode = DELETE")
    for id in "ab":
        put(sqlite, id)
    reader = sqlite3.connect(sqlite.path, isolation_level=None, timeout=0)
    rows = reader.execute("SELECT * FROM jobs")
    rows.fetchone()
    locking = asyncio.create_task(sqlite.store.lock_many(at(sqlite, 60), 5))
    probe = sqlite3.connect(sqlite.path, isolation_level=None, timeout=0)

    def is_committing() -> bool:
        try:
            probe.execute("SELECT * FROM jobs").fetchall()
        except sqlite3.OperationalError:
            return True
        return locking.done()

    await until(is_committing)
    rows.close()
    assert sorted(job.id for job in await locking) == ["a", "b"]
    probe.close()
    reader.close()


async def test_a_given_connection_keeps_its_busy_timeout(sqlite: SqliteHarness) -> None:
    given = sqlite3.connect(sqlite.path, check_same_thread=False, timeout=1.25)
    store = SqliteCrontab(given, "jobs", clock=sqlite.clock)
    put(sqlite, "a")
    assert await store.lock_next(at(sqlite, 60)) is not None
    assert given.execute("PRAGMA busy_timeout").fetchone() == (1_250,)
    await store.close()
    given.close()
