"""PostgreSQL as a crontab's store, where it differs from others: rows that others hold, names, types, a given pool."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest

from jobmill.core.durations import EPOCH, to_datetime
from jobmill.crontab import Changes, Ending, PostgresCrontab
from jobmill.errors import InvalidValue, StoreError, StoreUnavailable
from tests.crontab.harness import Kept
from tests.crontab.harness_postgres import PostgresHarness
from tests.kit.places import port_of
from tests.kit.postgres import PostgresServer
from tests.kit.proxy import Proxy

pytestmark = pytest.mark.stores("postgres")


@pytest.fixture
async def postgres(postgres_url: str) -> AsyncIterator[PostgresHarness]:
    made = await PostgresHarness(postgres_url).open()
    yield made
    await made.close()


def at(postgres: PostgresHarness, seconds: float = 0) -> datetime:
    return to_datetime(postgres.clock() + round(seconds * 1_000))


async def put(postgres: PostgresHarness, id: str, seconds: float = 0) -> None:
    await postgres.add(id, Kept(sleep_until=at(postgres, seconds)))


async def test_rows_that_others_have_locked_are_skipped(postgres: PostgresHarness) -> None:
    for n, id in enumerate("abcd"):
        await put(postgres, id, n - 9)
    async with postgres.connection.transaction():
        await postgres.connection.execute("SELECT 1 FROM crontab WHERE id IN ('a', 'c') FOR UPDATE")
        jobs = await postgres.store.lock_many(at(postgres, 60), 9)
        assert [job.id for job in jobs] == ["b", "d"]
        assert await postgres.store.lock_next(at(postgres, 60)) is None
    assert [job.id for job in await postgres.store.lock_many(at(postgres, 60), 9)] == ["a", "c"]


async def test_a_row_that_was_locked_meanwhile_is_not_locked_again(postgres: PostgresHarness) -> None:
    """Two connections: the second saw it due, and asks when the first has committed."""
    await put(postgres, "a")
    second = postgres.made()
    await second.lock_next(at(postgres, 60))
    async with postgres.connection.transaction():
        await postgres.connection.execute("UPDATE crontab SET sleep_until = $1", at(postgres, 0))
        assert await second.lock_next(at(postgres, 60)) is None
    job = await postgres.store.lock_next(at(postgres, 61))
    assert job is not None
    assert await second.lock_next(at(postgres, 60)) is None
    assert await second.update("a", Changes(sleep_until=None, locked_until=at(postgres, 60))) is False
    assert await second.finish_many([Ending(id="a", locked_until=at(postgres, 60), remove=True)]) == [False]


@pytest.mark.parametrize(
    ("type", "ids"),
    [
        ("bigint", [1, 2]),
        ("uuid", ["00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"]),
        ("varchar(9)", ["x", "y"]),
        ("char(3)", ["xyz", "yyy"]),
        ("bit(3)", ["101", "110"]),
        ('"Odd Domain"', [5, 6]),
    ],
)
async def test_ids_can_have_any_type_and_names_are_quoted(postgres: PostgresHarness, type: str, ids: list[Any]) -> None:
    await postgres.connection.execute(
        f"""CREATE SCHEMA "My schema"; CREATE DOMAIN "Odd Domain" AS int;
            CREATE TABLE "My schema"."my ""odd"" table" ("the id" {type} PRIMARY KEY, "select" timestamptz, x int)"""
    )
    for n, id in enumerate(ids):
        await postgres.connection.execute(
            f"""INSERT INTO "My schema"."my ""odd"" table" VALUES ('{id}', $1, 5)""", at(postgres, n - 9)
        )
    none: dict[str, Any] = {"interval": None, "repeat_until": None, "auto_remove": None}
    store = postgres.made('My schema.my "odd" table', id="the id", sleep_until="select", **none)
    await store.migrate()
    await store.migrate()
    jobs = await store.lock_many(at(postgres, 60), 9)
    assert [_shown(job.id) for job in jobs] == list(map(str, ids))
    assert (jobs[0].interval, jobs[0].repeat_until, jobs[0].auto_remove) == (None, None, False)
    assert jobs[0].data == {"the id": jobs[0].id, "select": at(postgres, -9), "x": 5}
    fence = at(postgres, 60)
    with pytest.raises(InvalidValue, match="auto_remove: expected no value, because the table has no such column"):
        await store.update(jobs[0].id, Changes(auto_remove=True))
    assert await store.update(jobs[0].id, Changes(sleep_until=fence, locked_until=fence)) is True
    written = [Ending(id=jobs[0].id, locked_until=fence), Ending(id=jobs[1].id, locked_until=fence, remove=True)]
    assert await store.finish_many(written) == [True, True]


def _shown(id: Any) -> str:
    return id.as_string() if isinstance(id, asyncpg.BitString) else str(id)


@pytest.mark.parametrize("table", ["due", "jobmill_due", "target", "ending"])
async def test_a_table_can_have_any_name(postgres: PostgresHarness, table: str) -> None:
    await postgres.connection.execute(f"CREATE TABLE {table} (LIKE crontab INCLUDING ALL)")
    await postgres.connection.execute(f"INSERT INTO {table} (id, sleep_until) VALUES ('a', '2020-01-01Z')")
    store = postgres.made(table)
    assert [job.id for job in await store.lock_many(at(postgres, 60), 9)] == ["a"]
    assert await store.finish_many([Ending(id="a", locked_until=at(postgres, 60))]) == [True]


async def test_the_index_is_used(postgres: PostgresHarness) -> None:
    store = postgres.made(where="n IS NULL")
    await store.migrate()
    await postgres.connection.execute(
        """INSERT INTO crontab (id, sleep_until)
           SELECT n, $1::timestamptz + n * interval '1 s' FROM generate_series(1, 20000) n""",
        at(postgres),
    )
    await postgres.connection.execute("ANALYZE crontab")
    statement = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF) {store._lock_sql}"
    plan = [row[0] for row in await postgres.connection.fetch(statement, at(postgres), at(postgres, 60), 100)]
    assert any("Index Scan using crontab_sleep_until_crontab" in line for line in plan), plan
    assert not any("Sort" in line for line in plan), plan


async def test_microseconds_are_dropped(postgres: PostgresHarness) -> None:
    await postgres.connection.execute(
        "INSERT INTO crontab (id, sleep_until) VALUES ('a', '2020-01-01 00:00:00.123456Z')"
    )
    await postgres.connection.execute("INSERT INTO crontab (id, sleep_until) VALUES ('b', '-infinity')")
    jobs = await postgres.store.lock_many(at(postgres, 60), 9)
    assert {job.id: job.sleep_until for job in jobs} == {"a": datetime(2020, 1, 1, 0, 0, 0, 123_000, UTC), "b": EPOCH}


async def test_only_rows_that_match_the_condition_are_jobs(postgres: PostgresHarness) -> None:
    store = postgres.made(where="name = 'mail' OR n > 5 -- and no more")
    for id, name, n in (("a", "mail", 1), ("b", "other", 1), ("c", "other", 9)):
        await postgres.add(id, Kept(sleep_until=at(postgres), data={"name": name, "n": n}))
    assert sorted(job.id for job in await store.lock_many(at(postgres, 60), 9)) == ["a", "c"]


async def test_a_given_pool_is_used_and_stays_open(postgres: PostgresHarness) -> None:
    async with asyncpg.create_pool(postgres.url, min_size=1, max_size=2) as pool:
        store = PostgresCrontab(pool, "crontab", clock=postgres.clock)
        await put(postgres, "a")
        assert await store.lock_next(at(postgres, 60)) is not None
        await store.close()
        assert await pool.fetchval("SELECT 1") == 1


async def test_missing_columns_and_columns_without_dates_are_refused(postgres: PostgresHarness) -> None:
    for options, message in (
        ({"interval": "cron"}, "interval: expected a column of \"crontab\", got 'cron'; give its name, or None"),
        (
            {"sleep_until": "due"},
            "sleep_until: expected a column of \"crontab\", got 'due'; give the name of the column",
        ),
        ({"sleep_until": "name"}, "sleep_until: expected a column of type timestamp with time zone, got 'text'"),
    ):
        with pytest.raises(InvalidValue, match=message):
            await postgres.made(**options).lock_next(at(postgres, 60))
    with pytest.raises(StoreError, match='"other".*does not exist'):
        await postgres.made("other").lock_next(at(postgres, 60))


async def test_an_unavailable_server_is_an_error_until_it_is_back(own_postgres: PostgresServer) -> None:
    async with own_postgres.database() as url:
        postgres = await PostgresHarness(url).open()
        assert await postgres.store.lock_next(at(postgres, 60)) is None
        own_postgres.kill()
        with pytest.raises(StoreUnavailable):
            await postgres.store.lock_next(at(postgres, 60))
        fresh = postgres.made()
        with pytest.raises(StoreUnavailable):
            await fresh.lock_next(at(postgres, 60))
        own_postgres.start()
        assert await postgres.store.lock_next(at(postgres, 60)) is None
        assert await fresh.lock_next(at(postgres, 60)) is None
        postgres.connection = await asyncpg.connect(url)
        await postgres.close()


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(InvalidValue, match="database: expected postgresql://"):
        PostgresCrontab(5, "jobs")  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="table: expected the name of a table"):
        PostgresCrontab("postgresql://host/db", "a.b.c")


# ------------------------------------------------------------------------------------------------ regressions


@pytest.mark.parametrize("digits", [0, 1, 2, 3])
async def test_a_date_column_with_low_resolution_can_be_a_fence(postgres: PostgresHarness, digits: int) -> None:
    await postgres.connection.execute(f"ALTER TABLE crontab ALTER COLUMN sleep_until TYPE timestamptz({digits})")
    for id in "ab":
        await put(postgres, id, -9)
    asked = at(postgres, 60.123)
    jobs = await postgres.store.lock_many(asked, 1) + await postgres.store.lock_many(asked, 5)
    assert len(jobs) == 2
    fences = [job.locked_until or EPOCH for job in jobs]
    for fence in fences:
        assert timedelta(0) <= fence - asked < timedelta(seconds=10**-digits)
    assert await postgres.store.update(jobs[0].id, Changes(sleep_until=None, locked_until=fences[0])) is True
    assert await postgres.store.finish_many([Ending(id=jobs[1].id, locked_until=fences[1])]) == [True]


async def test_a_null_id_does_not_block_other_rows(postgres: PostgresHarness) -> None:
    await postgres.connection.execute("ALTER TABLE crontab DROP CONSTRAINT crontab_pkey, ALTER id DROP NOT NULL")
    await postgres.connection.execute("INSERT INTO crontab (sleep_until) VALUES ('2020-01-01Z')")
    await put(postgres, "a")
    job = await postgres.store.lock_next(at(postgres, 60))
    assert job is not None
    assert job.id == "a"
    assert await postgres.store.lock_many(at(postgres, 60), 5) == []


async def test_an_array_as_an_id_is_refused(postgres: PostgresHarness) -> None:
    await postgres.connection.execute("CREATE TABLE lists (LIKE crontab); ALTER TABLE lists ADD ids int[]")
    with pytest.raises(InvalidValue, match="id: expected a column that is not an array, got 'integer\\[]'"):
        await postgres.made("lists", id="ids").lock_next(at(postgres, 60))


async def test_a_row_that_python_cannot_represent_does_not_block_others(postgres: PostgresHarness) -> None:
    """The first time its batch stays locked; from then on it is locked alone, and those before it run."""
    await put(postgres, "first", -20)
    await postgres.connection.execute("UPDATE crontab SET repeat_until = '12000-01-01Z'")
    await put(postgres, "mate", -19)
    with pytest.raises(StoreError, match='table "crontab": a row cannot be read'):
        await postgres.store.lock_many(at(postgres, 5), 9)
    postgres.clock.advance(6)
    for n in range(3):
        await put(postgres, f"earlier {n}", n - 9)
    await put(postgres, "later")
    ids: list[str] = []
    told = 0
    for _ in range(6):
        try:
            ids += [job.id for job in await postgres.store.lock_many(at(postgres, 60), 9)]
        except StoreError:
            told += 1
    assert (sorted(ids), told) == (["earlier 0", "earlier 1", "earlier 2", "later", "mate"], 1)


async def test_an_unanswered_ending_is_not_lost(postgres: PostgresHarness) -> None:
    for id in "abcd":
        await postgres.add(id, Kept(sleep_until=at(postgres)))
    async with Proxy(port_of(postgres.url)) as proxy:
        store = PostgresCrontab(proxy.url(postgres.url), "crontab", clock=postgres.clock)
        jobs = await store.lock_many(at(postgres, 60), 4)
        fence, next = at(postgres, 60), at(postgres, 9)
        changes = Changes(sleep_until=next, locked_until=fence)
        both = [Ending(id="c", locked_until=fence), Ending(id="d", locked_until=fence, remove=True)]
        calls: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.update("a", changes),
            lambda: store.remove("b", locked_until=fence),
            lambda: store.finish_many(both),
        ]
        assert len(jobs) == 4
        for n, call in enumerate(calls, 1):
            proxy.drop_answer(lambda said: said.lstrip().startswith((b"UPDATE", b"DELETE")))
            with pytest.raises(StoreUnavailable):
                await call()
            assert proxy.dropped_answers == n
            assert await call() in (True, [True, True])
            # The result is known now; another retry has lost the lock.
            assert await call() in (False, [False, False])
        await store.close()
