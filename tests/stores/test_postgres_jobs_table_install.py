"""The jobs table: made as the notes say, or adopted where there is one of that shape; renamed, dropped and let go."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator

import asyncpg
import pytest

from jobmill import InvalidValue, SchemaTooOld, StoreError
from jobmill.harmonyk import JobsTable, install_jobs_table
from jobmill.stores.common.sql import renewals
from jobmill.stores.memory import MemoryStore
from jobmill.stores.postgres import PostgresStore, schema
from jobmill.testing import drain
from jobmill.testing.contract.support import wish
from tests.kit.postgres import PostgresServers, connected, newest_installation
from tests.stores.jobs_tables import TABLE, desk

pytestmark = pytest.mark.stores("postgres")

#: As the notes have it.
COLUMNS = [
    ("id", "uuid", "NO", "gen_random_uuid()"),
    ("type", "text", "NO", None),
    ("org_id", "uuid", "YES", None),
    ("payload", "jsonb", "NO", "'{}'::jsonb"),
    ("status", "text", "NO", "'queued'::text"),
    ("attempts", "integer", "NO", "0"),
    ("next_run_at", "timestamp with time zone", "YES", None),
    ("last_error", "text", "YES", None),
    ("created_at", "timestamp with time zone", "NO", "now()"),
    ("updated_at", "timestamp with time zone", "NO", "now()"),
]
#: The same as somebody's own migration might have made it, without what may be missing.
OWN = """
    CREATE TABLE public.jobs (
        id uuid PRIMARY KEY, type text NOT NULL, org_id uuid, payload jsonb NOT NULL DEFAULT '{"a": 1}',
        status text NOT NULL, attempts integer NOT NULL DEFAULT 0, next_run_at timestamptz, last_error text,
        created_at timestamptz NOT NULL, updated_at timestamptz NOT NULL DEFAULT now(), dedupe_key text
    )
"""


@pytest.fixture
async def url(postgres_servers: PostgresServers, postgres_name: str) -> AsyncIterator[str]:
    async with postgres_servers[postgres_name].database() as url:
        yield url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.migrate()
    yield store
    await store.close()


@pytest.fixture
async def sql(url: str) -> AsyncIterator[asyncpg.Connection]:
    async with connected(url) as connection:
        yield connection


async def shape(sql: asyncpg.Connection) -> list[tuple[str, ...]]:
    rows = await sql.fetch(
        "SELECT column_name, data_type, is_nullable, column_default FROM information_schema.columns"
        " WHERE table_schema = 'public' AND table_name = 'jobs' ORDER BY ordinal_position"
    )
    return [tuple(row) for row in rows]


async def indexes(sql: asyncpg.Connection) -> dict[str, str]:
    rows = await sql.fetch(
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename = 'jobs'"
    )
    return {row[0]: row[1].partition("btree ")[2] for row in rows}


async def checks(sql: asyncpg.Connection) -> list[str]:
    text = (
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'public.jobs'::regclass AND contype = 'c'"
    )
    return [row[0] for row in await sql.fetch(text)]


# ---------------------------------------------------------------------------------------------------- made


async def test_the_table_is_the_one_of_the_notes(store: PostgresStore, sql: asyncpg.Connection) -> None:
    made = await install_jobs_table(store, TABLE)
    assert made == JobsTable(table=TABLE, created=True, added=(), enqueued=0, left_running=0)
    assert await shape(sql) == COLUMNS
    assert await indexes(sql) == {
        "jobs_pkey": "(id)",
        "idx_jobs_status_next_run_at": "(status, next_run_at)",
        "idx_jobs_type_status": "(type, status)",
    }
    (check,) = await checks(sql)
    assert all(f"'{word}'" in check for word in ("queued", "running", "success", "failed"))


async def test_installing_again_changes_nothing(store: PostgresStore, sql: asyncpg.Connection) -> None:
    await install_jobs_table(store, TABLE)
    await sql.execute("INSERT INTO public.jobs (type) VALUES ('scan')")
    before = (await shape(sql), await indexes(sql), await checks(sql))
    again = await install_jobs_table(store, "jobs")  # in public, where nothing else is said
    assert again == JobsTable(table="jobs", created=False, added=(), enqueued=0, left_running=0)
    assert (await shape(sql), await indexes(sql), await checks(sql)) == before
    assert await sql.fetchval("SELECT count(*) FROM jobmill.jobs") == 1


async def test_several_installing_at_once(store: PostgresStore, url: str) -> None:
    others = [PostgresStore(url) for _ in range(3)]
    made = await asyncio.gather(*(install_jobs_table(one, TABLE) for one in (store, *others)))
    assert sorted(one.created for one in made) == [False, False, False, True]
    for other in others:
        await other.close()


async def test_names_that_need_quotes(url: str, sql: asyncpg.Connection) -> None:
    store = PostgresStore(url, schema='Our "Jobs"')
    await store.migrate()
    await sql.execute('CREATE SCHEMA "My App"')
    await install_jobs_table(store, '"My App"."The ""Jobs"""')
    await sql.execute('INSERT INTO "My App"."The ""Jobs""" (type) VALUES (\'scan\')')
    answer = await store.exchange([], wish(queues=("default",), names=("scan",)))
    assert len(answer.claimed) == 1
    assert await sql.fetchval('SELECT status FROM "My App"."The ""Jobs"""') == "running"
    await store.close()


@pytest.mark.parametrize("name", ["", "a.b.c", "public.", ".jobs", "public.jobs;", "two words", "jobs\n", 'x."y'])
async def test_what_is_no_name_is_refused(store: PostgresStore, name: str) -> None:
    with pytest.raises(InvalidValue, match="jobs_table: expected the name of a table, such as public.jobs"):
        await install_jobs_table(store, name)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("jobmill.jobs", "a table outside of the schema 'jobmill', which is our own"),
        ("nowhere.jobs", "a table in a schema that exists.*nowhere"),
        ('"a{b}"', "a name without {, }, \\$, quotes, backslashes and control characters"),
        ('"a\nb"', "a name without {, }, \\$, quotes, backslashes and control characters"),
        ("pg_catalog.jobs", 'does not begin with "pg_"'),
    ],
)
async def test_tables_that_cannot_be_one(store: PostgresStore, name: str, said: str) -> None:
    with pytest.raises(InvalidValue, match=f"jobs_table: expected .*{said}"):
        await install_jobs_table(store, name)


async def test_a_schema_has_one(store: PostgresStore) -> None:
    await install_jobs_table(store, TABLE)
    with pytest.raises(StoreError, match="the schema jobmill has the jobs table public.jobs already, and can have one"):
        await install_jobs_table(store, "public.other")


async def test_not_before_the_migrations(url: str) -> None:
    store = PostgresStore(url)
    with pytest.raises(SchemaTooOld, match="jobmill migrate"):
        await install_jobs_table(store, TABLE)
    await store.close()


# ---------------------------------------------------------------------------------------------------- adopted


async def test_a_table_that_is_there_is_adopted_with_its_rows(
    url: str, store: PostgresStore, sql: asyncpg.Connection
) -> None:
    await sql.execute(OWN)
    await sql.execute("""
        INSERT INTO public.jobs (id, type, status, attempts, next_run_at, last_error, created_at, dedupe_key) VALUES
        (gen_random_uuid(), 'late', 'queued', 2, '2026-01-01 00:00:00.123456Z', 'before', '2026-01-01Z', NULL),
        (gen_random_uuid(), 'late', 'queued', 0, NULL, NULL, '2026-01-02Z', 'k'),
        (gen_random_uuid(), 'far', 'queued', 0, '2040-01-01Z', NULL, '2026-01-03Z', NULL),
        (gen_random_uuid(), 'theirs', 'running', 1, NULL, NULL, now(), NULL),
        (gen_random_uuid(), 'done', 'success', 1, NULL, NULL, now(), NULL)
    """)
    made = await install_jobs_table(store, TABLE)
    assert (made.created, made.enqueued, made.left_running) == (False, 3, 1)
    assert made.added == (
        "default gen_random_uuid() of id",
        "default 'queued' of status",
        "default now() of created_at",
        "CHECK of status",
        "index idx_jobs_status_next_run_at",
        "index idx_jobs_type_status",
    )
    async with desk(url) as table:
        theirs, done = [
            str(await sql.fetchval("SELECT id FROM public.jobs WHERE type = $1", type)) for type in ("theirs", "done")
        ]
        await table.check(orphans=[theirs, done])

        @table.jobs.handler()
        async def late(a: int) -> None:
            assert a == 1

        await drain(table.jobs)
        rows = await sql.fetch("SELECT status, attempts FROM public.jobs WHERE type = 'late' ORDER BY attempts DESC")
        assert [tuple(row) for row in rows] == [("success", 2), ("success", 0)]
        # Whoever ran it before may still say how it ended; then it can be had run again.
        await table.update(theirs, status="queued")
        await table.check(orphans=[done])
    assert (await install_jobs_table(store, TABLE)).added == ()


async def test_rows_and_jobs_that_went_apart_come_together_again(
    url: str, store: PostgresStore, sql: asyncpg.Connection
) -> None:
    """As after a restore of the one without the other, or with the triggers off."""
    await install_jobs_table(store, TABLE)
    ids = [
        str(row[0]) for row in await sql.fetch("INSERT INTO public.jobs (type) VALUES ('a'), ('b'), ('c') RETURNING id")
    ]
    await sql.execute("ALTER TABLE public.jobs DISABLE TRIGGER USER; ALTER TABLE jobmill.jobs DISABLE TRIGGER USER")
    await sql.execute("DELETE FROM jobmill.jobs WHERE name = 'a'; UPDATE jobmill.jobs SET errors = 3 WHERE name = 'b'")
    await sql.execute("UPDATE public.jobs SET status = 'success' WHERE type = 'c'")
    await sql.execute("ALTER TABLE public.jobs ENABLE TRIGGER USER; ALTER TABLE jobmill.jobs ENABLE TRIGGER USER")
    assert (await install_jobs_table(store, TABLE)).enqueued == 1
    async with desk(url) as table:
        await table.check()
        assert (await table.row(ids[1]))["attempts"] == 3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("ALTER COLUMN attempts TYPE bigint", "column attempts: expected integer NOT NULL, found bigint NOT NULL"),
        ("ALTER COLUMN payload TYPE json", "column payload: expected jsonb NOT NULL, found json NOT NULL"),
        ("ALTER COLUMN payload DROP NOT NULL", "column payload: expected jsonb NOT NULL, found jsonb NULL"),
        ("ALTER COLUMN org_id SET NOT NULL", "column org_id: expected uuid NULL, found uuid NOT NULL"),
        ("ALTER COLUMN type TYPE varchar(50)", "column type: expected text NOT NULL, found character varying.50. NOT"),
        (
            "ALTER COLUMN next_run_at TYPE timestamp",
            "column next_run_at: expected timestamp with time zone NULL, found",
        ),
        ("DROP COLUMN last_error", "column last_error: expected text NULL, found none"),
        ("DROP CONSTRAINT jobs_pkey", "column id: expected the primary key, found none on it"),
    ],
)
async def test_a_table_of_another_shape_is_refused(
    store: PostgresStore, sql: asyncpg.Connection, change: str, said: str
) -> None:
    await sql.execute(OWN)
    await sql.execute(f"ALTER TABLE public.jobs ALTER COLUMN payload DROP DEFAULT, {change}")
    before = await shape(sql)
    with pytest.raises(StoreError, match=f"public.jobs: {said}"):
        await install_jobs_table(store, TABLE)
    assert await shape(sql) == before
    assert await sql.fetchval("SELECT to_regclass('jobmill.jobs_table')") is None


@pytest.mark.parametrize(
    ("make", "said"),
    [
        ("CREATE VIEW public.jobs AS SELECT 1 AS id", "expected an ordinary table, found something else"),
        (
            "CREATE TABLE public.jobs (id uuid) PARTITION BY HASH (id)",
            "expected an ordinary table, found something else",
        ),
        (
            f"{OWN}; CREATE TABLE child () INHERITS (public.jobs)",
            "expected an ordinary table, found part of an inherit",
        ),
    ],
)
async def test_what_is_no_ordinary_table_is_refused(
    store: PostgresStore, sql: asyncpg.Connection, make: str, said: str
) -> None:
    await sql.execute(make)
    with pytest.raises(StoreError, match=said):
        await install_jobs_table(store, TABLE)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("'two words', 'queued'", "type: expected a text of 1 to 255"),
        ("'scan', 'waiting'", "is violated by some row"),
    ],
)
async def test_rows_that_cannot_be_jobs_are_refused(
    store: PostgresStore, sql: asyncpg.Connection, columns: str, said: str
) -> None:
    await sql.execute(OWN)
    await sql.execute(
        f"INSERT INTO public.jobs (id, created_at, type, status) VALUES (gen_random_uuid(), now(), {columns})"
    )
    with pytest.raises(StoreError, match=said):
        await install_jobs_table(store, TABLE)
    assert await sql.fetchval("SELECT count(*) FROM jobmill.jobs") == 0


# ---------------------------------------------------------------------------------------------------- later


async def test_the_table_may_be_renamed_and_moved(store: PostgresStore, sql: asyncpg.Connection) -> None:
    await install_jobs_table(store, TABLE)
    await sql.execute(
        "CREATE SCHEMA app; ALTER TABLE public.jobs RENAME TO work; ALTER TABLE public.work SET SCHEMA app"
    )
    await sql.execute("INSERT INTO app.work (type) VALUES ('scan')")
    answer = await store.exchange([], wish(queues=("default",), names=("scan",)))
    assert len(answer.claimed) == 1
    assert await sql.fetchval("SELECT status FROM app.work") == "running"
    assert (await install_jobs_table(store, "app.work")).created is False


async def test_a_migration_renews_what_belongs_to_the_table(
    url: str, store: PostgresStore, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    await install_jobs_table(store, TABLE)
    await sql.execute("INSERT INTO public.jobs (type) VALUES ('scan')")
    await sql.execute("DELETE FROM jobmill.migrations WHERE number = 1")
    await sql.execute("DROP TRIGGER jobs_table_changed ON jobmill.jobs; DROP TRIGGER jobmill_fill ON public.jobs")
    monkeypatch.setattr(schema, "_script", lambda *_, **__: "INSERT INTO jobmill.migrations VALUES (1, '0001_jobs')")
    assert await store.migrate() == ["0001_jobs"]
    await store.exchange([], wish(queues=("default",), names=("scan",)))
    assert await sql.fetchval("SELECT status FROM public.jobs") == "running"
    assert await sql.fetchval("INSERT INTO public.jobs (type) VALUES ('scan') RETURNING next_run_at IS NOT NULL")


async def test_a_migration_without_what_renews_the_table_changes_nothing(
    store: PostgresStore, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that has not imported jobmill.harmonyk."""
    await install_jobs_table(store, TABLE)
    await sql.execute("DELETE FROM jobmill.migrations WHERE number = 1")
    monkeypatch.delitem(renewals, "jobs_table")
    monkeypatch.setattr(schema, "_script", lambda *_, **__: "INSERT INTO jobmill.migrations VALUES (1, '0001_jobs')")
    with pytest.raises(StoreError, match=r"has a 'jobs_table', which this migration must renew: run `jobmill migrate`"):
        await store.migrate()
    assert await sql.fetchval("SELECT count(*) FROM jobmill.migrations WHERE number = 1") == 0


async def test_other_stores_have_no_jobs_table() -> None:
    with pytest.raises(InvalidValue, match="store: expected a PostgreSQL store, got 'memory'"):
        await install_jobs_table(MemoryStore(), TABLE)


async def run(command: list[str], input: str = "") -> str:
    """What a program said."""
    done = await asyncio.to_thread(
        lambda: subprocess.run(command, input=input, capture_output=True, text=True, check=True, timeout=30)
    )
    return done.stdout


async def test_a_dump_brings_it_all_back(
    postgres_servers: PostgresServers, postgres_name: str, url: str, store: PostgresStore, sql: asyncpg.Connection
) -> None:
    await install_jobs_table(store, TABLE)
    await sql.execute("INSERT INTO public.jobs (type) VALUES ('scan'), ('scan')")
    bin = newest_installation().bin
    async with postgres_servers[postgres_name].database() as copy, connected(copy) as there:
        dump = await run([str(bin / "pg_dump"), url])
        # PostgreSQL 15 does not know a setting that later programs begin with.
        dump = dump.replace("SET transaction_timeout = 0;", "")
        await run([str(bin / "psql"), copy, "-X", "-q", "--set=ON_ERROR_STOP=1", "--output=/dev/null"], dump)
        restored = PostgresStore(copy)
        await restored.open()
        assert len((await restored.exchange([], wish(queues=("default",), names=("scan",)))).claimed) == 2
        statuses = [
            row[0] for row in await there.fetch("INSERT INTO public.jobs (type) VALUES ('scan') RETURNING status")
        ]
        assert statuses == ["queued"]
        assert await there.fetchval("SELECT count(*) FROM public.jobs WHERE status = 'running'") == 2
        assert await there.fetchval("SELECT count(*) FROM jobmill.jobs") == 3
        await restored.close()


async def test_the_table_is_not_dropped_by_mistake(store: PostgresStore, sql: asyncpg.Connection) -> None:
    await install_jobs_table(store, TABLE)
    with pytest.raises(asyncpg.DependentObjectsStillExistError, match="view jobmill.jobs_table depends on table jobs"):
        await sql.execute("DROP TABLE public.jobs")
    await sql.execute("INSERT INTO public.jobs (type) VALUES ('scan')")
    await sql.execute("DROP TABLE public.jobs CASCADE")
    answer = await store.exchange([], wish(queues=("default",), names=("scan",)))
    assert len(answer.claimed) == 1  # an ordinary job now
    assert (await install_jobs_table(store, "public.another")).created


async def test_dropping_the_view_leaves_a_plain_table(store: PostgresStore, sql: asyncpg.Connection) -> None:
    await install_jobs_table(store, TABLE)
    await sql.execute("DROP VIEW jobmill.jobs_table CASCADE")
    await sql.execute("INSERT INTO public.jobs (type, status) VALUES ('scan', 'running')")
    await sql.execute("UPDATE public.jobs SET status = 'success'; DELETE FROM public.jobs")
    assert (
        await sql.fetch("SELECT FROM pg_policy UNION ALL SELECT FROM pg_trigger WHERE tgrelid = 'jobs'::regclass") == []
    )
    assert await sql.fetchval("SELECT count(*) FROM jobmill.jobs") == 0
    await store.purge()
    assert (await install_jobs_table(store, TABLE)).created is False
