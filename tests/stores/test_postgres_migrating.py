"""Migrations on PostgreSQL: explicit, once, all or nothing; as a script, in any schema, none of a newer Jobmill."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import asyncpg
import pytest

from jobmill import InvalidValue, SchemaTooNew, SchemaTooOld, StoreError
from jobmill.core.values import QueueChange
from jobmill.harmonyk import install_jobs_table, migration_script
from jobmill.stores.postgres import PostgresStore
from jobmill.stores.postgres import schema as schemas
from jobmill.testing.contract.support import claim_one, new, put_one, settle, state_of, succeed, wish
from tests.helpers import until
from tests.kit.postgres import PostgresServers, connected, newest_installation
from tests.stores.postgres_logins import granted

pytestmark = pytest.mark.stores("postgres")

ROOT = Path(__file__).parents[2]
AWKWARD = ("two words", 'a "quoted" name', "UPPER", "naïve-ünïcode", "x" * 63)


@pytest.fixture
async def url(postgres_servers: PostgresServers, postgres_name: str) -> AsyncIterator[str]:
    async with postgres_servers[postgres_name].database() as url:
        yield url


@pytest.fixture
async def sql(url: str) -> AsyncIterator[asyncpg.Connection]:
    async with connected(url) as connection:
        yield connection


async def objects(sql: asyncpg.Connection, schema: str = "jobmill") -> list[tuple[str, str]]:
    """What a schema has, whoever asks."""
    rows = await sql.fetch(
        "SELECT relkind::text, relname FROM pg_class WHERE relnamespace = to_regnamespace($1)"
        " UNION ALL SELECT 'function', proname || pg_get_function_arguments(oid) FROM pg_proc"
        " WHERE pronamespace = to_regnamespace($1) ORDER BY 1, 2",
        '"' + schema.replace('"', '""') + '"',
    )
    return [tuple(row) for row in rows]


async def works(store: PostgresStore) -> None:
    """A short life of a job."""
    await store.open()
    id = await put_one(store)
    assert await settle(store, succeed(await claim_one(store))) == ["done"]
    assert await state_of(store, id) == "succeeded"


# ---------------------------------------------------------------------------------------------------- once


async def test_nothing_is_made_without_being_asked(url: str, sql: asyncpg.Connection) -> None:
    store = PostgresStore(url)
    with pytest.raises(SchemaTooOld, match="the schema 'jobmill' is not set up yet; run `jobmill migrate`"):
        await store.open()
    assert await objects(sql) == []
    await store.close()


async def test_migrations_run_once_and_are_recorded(url: str, sql: asyncpg.Connection) -> None:
    store = PostgresStore(url)
    names = [file.stem for file in schemas.MIGRATIONS.values()]
    assert await store.migrate() == names
    rows = await sql.fetch("SELECT number, name FROM jobmill.migrations ORDER BY number")
    assert [tuple(row) for row in rows] == [(number, file.stem) for number, file in schemas.MIGRATIONS.items()]
    assert [row[0] for row in rows] == list(range(1, len(names) + 1))
    before = await objects(sql)
    assert await store.migrate() == []
    assert await objects(sql) == before
    await works(store)
    await store.close()


async def test_two_processes_at_once(url: str) -> None:
    command = [sys.executable, "-m", "jobmill", "migrate", "--url", url, "--jobs-table", "public.jobs"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    processes = [
        await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.PIPE) for _ in range(3)
    ]
    async with asyncio.timeout(30):
        said = [(await process.communicate())[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sum(b"ran 0001_jobs" in one for one in said) == 1
    assert sum(b"created the table public.jobs" in one for one in said) == 1
    store = PostgresStore(url)
    await works(store)
    await store.close()


async def test_a_migration_that_fails_leaves_nothing(
    url: str, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = schemas._script
    monkeypatch.setattr(schemas, "_script", lambda *args, **named: script(*args, **named) + "SELECT 1 / 0;")
    store = PostgresStore(url)
    with pytest.raises(StoreError, match="division by zero"):
        await store.migrate()
    assert await objects(sql) == []
    monkeypatch.undo()
    assert await store.migrate()
    await works(store)
    await store.close()


async def test_a_schema_that_is_half_there_says_so(url: str, sql: asyncpg.Connection) -> None:
    store = PostgresStore(url)
    await store.migrate()
    await sql.execute(
        "DELETE FROM jobmill.migrations; INSERT INTO jobmill.migrations (number, name) VALUES (0, 'older')"
    )
    with pytest.raises(SchemaTooOld, match="jobmill migrate"):
        await store.open()
    await store.close()


async def test_an_old_server_is_refused(url: str, sql: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "MIN_VERSION", 99)
    store = PostgresStore(url)
    for refused in (store.migrate(), store.open()):
        with pytest.raises(StoreError, match="PostgreSQL 99 or newer is needed; this server is 1"):
            await refused
    await store.close()
    assert await sql.fetchval("SELECT to_regnamespace('jobmill')") is None


async def test_a_newer_schema_is_refused_and_left_untouched(url: str, sql: asyncpg.Connection) -> None:
    store = PostgresStore(url)
    await store.migrate()
    await sql.execute("INSERT INTO jobmill.migrations (number, name) VALUES (9000, '9000_the_future')")
    before = await objects(sql)
    for verb in (store.open, store.migrate, lambda: install_jobs_table(store, "public.jobs")):
        with pytest.raises(SchemaTooNew, match=r"newer Jobmill \(schema 9000, this one knows \d+\); update Jobmill"):
            await verb()
    assert await objects(sql) == before
    assert await sql.fetchval("SELECT to_regclass('public.jobs')") is None
    await store.close()


async def test_whoever_migrates_waits_for_exchanges_and_they_for_it(url: str, sql: asyncpg.Connection) -> None:
    store = PostgresStore(url)
    await store.migrate()
    await store.open()
    await sql.execute("BEGIN")
    await sql.execute(f"SELECT pg_advisory_xact_lock({store.context.statements.lock})")  # as a migration does
    exchanging = asyncio.create_task(store.exchange([], wish()))
    async with connected(url) as other:
        await until(lambda: other.fetchval("SELECT true FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))
    await sql.execute("COMMIT")
    assert (await exchanging).claimed == []
    await store.close()


# ---------------------------------------------------------------------------------------------------- the script


@pytest.mark.parametrize("table", [None, "public.jobs"])
@pytest.mark.parametrize("schema", ["jobmill", *AWKWARD])
async def test_the_script_makes_what_migrating_makes(
    postgres_servers: PostgresServers, postgres_name: str, url: str, schema: str, table: str | None
) -> None:
    store = PostgresStore(url, schema=schema)
    async with connected(url) as sql:
        await sql.execute(store.migration_script() if table is None else migration_script(store, table))
        await works(store)
        assert await store.migrate() == []
        by_script = await objects(sql, schema)
        if table is not None:
            await sql.execute("INSERT INTO public.jobs (type) VALUES ('scan')")
            await store.exchange([], wish(queues=("default",), names=("scan",)))
            assert await sql.fetchval("SELECT status FROM public.jobs") == "running"
    await store.close()
    async with postgres_servers[postgres_name].database() as another, connected(another) as sql:
        store = PostgresStore(another, schema=schema)
        await store.migrate()
        if table is not None:
            await install_jobs_table(store, table)
        assert await objects(sql, schema) == by_script
        await store.close()


async def test_psql_runs_the_scripts(url: str) -> None:
    store = PostgresStore(url)
    command = [
        str(newest_installation().bin / "psql"),
        url,
        "--no-psqlrc",
        "--quiet",
        "--set=ON_ERROR_STOP=1",
        "--output=/dev/null",
    ]
    for script in (migration_script(store, "public.jobs"), store.roles_script(), store.roles_script()):
        done = await asyncio.to_thread(
            subprocess.run, command, input=script, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 0
        assert all(line.startswith("NOTICE: ") for line in done.stderr.splitlines())
    async with granted(url, store.roles_script()):
        await works(store)
    await store.close()


def test_a_script_needs_no_server() -> None:
    store = PostgresStore("postgresql://nobody@nowhere.invalid/nothing?schema=ours")
    script = store.migration_script()
    assert script.startswith("BEGIN;\n")
    assert script.endswith("COMMIT;\n")
    assert 'CREATE TABLE "ours".jobs (' in script
    assert "jobs_table" not in script.replace("ours\".jobs_table') IS NOT NULL", "")
    assert 'CREATE TABLE IF NOT EXISTS "public"."jobs" (' in migration_script(store, "public.jobs")


# ---------------------------------------------------------------------------------------------------- schemas


@pytest.mark.parametrize("schema", AWKWARD)
async def test_schemas_of_any_name(url: str, schema: str) -> None:
    store = PostgresStore(url, schema=schema)
    await store.migrate()
    await works(store)
    assert await store.migrate() == []
    await store.configure("mail", QueueChange(feed=True, running_limit=2))
    await put_one(store, new(queue="mail"))
    assert [event.type for event in await store.events("mail")] == ["enqueued"]
    await store.close()


@pytest.mark.parametrize("schema", ["", "pg_jobs", "x" * 64, "a$b", "a'b", "a{schema}b", "a\\b", "a\nb"])
def test_names_that_no_schema_may_have(schema: str) -> None:
    with pytest.raises(InvalidValue, match="schema: expected a name"):
        PostgresStore("postgresql://localhost/x", schema=schema or "\x00")


async def test_two_schemas_of_one_database_do_not_disturb_each_other(url: str) -> None:
    first, second = PostgresStore(url, schema="first"), PostgresStore(f"{url}?schema=second")
    for store in (first, second):
        await store.migrate()
        await store.open()
    assert first.context.statements.channel != second.context.statements.channel
    assert first.context.statements.lock != second.context.statements.lock
    id = await put_one(first)
    assert await state_of(second, id) is None
    assert (await second.exchange([], wish())).claimed == []
    async with connected(url) as sql:
        # Neither waits while the other is being migrated.
        await sql.execute("BEGIN")
        await sql.execute(f"SELECT pg_advisory_xact_lock({first.context.statements.lock})")
        async with asyncio.timeout(20):
            await works(second)
            assert await second.migrate() == []
        heard: list[object] = []
        await sql.execute("COMMIT")
        await sql.add_listener(first.context.statements.channel, lambda *_: heard.append("first"))
        await sql.add_listener(second.context.statements.channel, lambda *_: heard.append("second"))
        await sql.execute("INSERT INTO second.sleepers VALUES ('me', ARRAY['default'], 9e15)")
        await sql.execute("SELECT first.enqueue('scan'), second.enqueue('scan')")
        await until(lambda: heard)
        assert heard == ["second"]
    # One goes, the other stays.
    async with connected(url) as sql:
        await sql.execute("DROP SCHEMA first CASCADE")
    await works(second)
    await first.close()
    await second.close()
