"""The jobs table is a table: foreign keys, triggers, row-level security and roles work on it as on any other."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from urllib.parse import urlsplit

import asyncpg
import pytest

import jobmill
from jobmill import StoreError
from jobmill.harmonyk import install_jobs_table
from jobmill.stores.postgres import PostgresStore
from jobmill.testing import drain
from jobmill.testing.contract.support import readable, succeed, wish
from tests.kit.postgres import Databases, PostgresServers, connected
from tests.stores.jobs_tables import TABLE, Desk, desk, installed
from tests.stores.postgres_logins import as_user, granted, login

pytestmark = pytest.mark.stores("postgres")

MINE, YOURS = uuid.uuid4(), uuid.uuid4()
LATER = datetime(2040, 1, 1, tzinfo=UTC)


@pytest.fixture
def server(postgres_servers: PostgresServers, postgres_name: str) -> Databases:
    return postgres_servers[postgres_name]


@pytest.fixture
async def url(server: Databases) -> AsyncIterator[str]:
    async with server.database() as url:
        yield url


POLICY = f"""
    ALTER TABLE {TABLE} ENABLE ROW LEVEL SECURITY;
    ALTER TABLE {TABLE} FORCE ROW LEVEL SECURITY;
    CREATE POLICY own ON {TABLE} USING (org_id = current_setting('app.org', true)::uuid);
"""


# ---------------------------------------------------------------------------------------------------- row security


async def test_whoever_may_only_insert_enqueues_for_their_own_org(server: Databases, url: str) -> None:
    await installed(url)
    async with connected(url) as sql:
        await sql.execute(POLICY)
    grants = f"GRANT INSERT, SELECT ON {TABLE} TO {{role}}"
    async with desk(url) as table, login(server, url, grants) as role, connected(as_user(url, role)) as web:
        await web.execute(f"SET app.org = '{MINE}'")
        insert = f"INSERT INTO {TABLE} (type, org_id) VALUES ('scan', $1) RETURNING id"
        mine = str(await web.fetchval(insert, MINE))
        with pytest.raises(asyncpg.InsufficientPrivilegeError, match="row-level security policy"):
            await web.fetchval(insert, YOURS)
        yours = await table.insert(org_id=YOURS)

        @table.jobs.handler()
        async def scan() -> None: ...

        await drain(table.jobs)
        assert [tuple(row) for row in await web.fetch(f"SELECT id::text, status FROM {TABLE}")] == [(mine, "success")]
        assert await table.status(yours) == "success"
        for refused in (
            f"UPDATE {TABLE} SET status = 'queued'",
            f"DELETE FROM {TABLE}",
            f"TRUNCATE {TABLE}",
            "SELECT * FROM jobmill.jobs",
            "SELECT jobmill.jobs_table_remove(ARRAY['x'])",
            "SELECT * FROM jobmill.jobs_table",
        ):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await web.execute(refused)
        await table.check()


async def test_an_owner_whom_the_policies_bind_too_has_all_rows_written(server: Databases, url: str) -> None:
    """Nobody here is a superuser: the owner migrates, and is not spared by FORCE ROW LEVEL SECURITY."""
    database = urlsplit(url).path[1:]
    grants = (f'GRANT CREATE ON DATABASE "{database}" TO {{role}}', "GRANT ALL ON SCHEMA public TO {role}")
    async with login(server, url, *grants) as owner:
        await installed(as_user(url, owner))
        async with connected(as_user(url, owner)) as sql:
            await sql.execute(POLICY)
            assert await sql.fetchval(f"SELECT count(*) FROM {TABLE}") == 0
        store = PostgresStore(as_user(url, owner))
        jobs = jobmill.connect(store=store)

        @jobs.handler()
        async def scan() -> None: ...

        async with jobs, connected(as_user(url, owner)) as web, desk(url) as table:
            await web.execute(f"SET app.org = '{MINE}'")
            text = f"INSERT INTO {TABLE} (type, org_id) VALUES ('scan', '{MINE}') RETURNING id"
            ids = [str(await web.fetchval(text)) for _ in range(3)]
            await web.execute(f"UPDATE {TABLE} SET status = 'failed' WHERE id = '{ids[0]}'")
            await drain(jobs)
            assert [await table.status(id) for id in ids] == ["failed", "success", "success"]
            await web.execute(f"UPDATE {TABLE} SET status = 'queued' WHERE id = '{ids[1]}'")
            claimed = readable((await store.exchange([], wish(queues=("default",), names=("scan",)))).claimed)
            await web.execute(f"UPDATE {TABLE} SET status = 'failed', last_error = 'enough' WHERE id = '{ids[1]}'")
            assert (await store.exchange([succeed(one) for one in claimed], None)).settled == ["lost"]
            await web.execute(f"SET app.org = '{YOURS}'")
            assert await web.fetchval(f"SELECT count(*) FROM {TABLE}") == 0
            assert await web.execute(f"DELETE FROM {TABLE}") == "DELETE 0"
            await table.check()


async def test_a_superuser_who_migrates_leaves_the_tables_with_their_owner(server: Databases, url: str) -> None:
    database = urlsplit(url).path[1:]
    grants = (f'GRANT CREATE ON DATABASE "{database}" TO {{role}}', "GRANT ALL ON SCHEMA public TO {role}")
    async with login(server, url, *grants) as owner:
        await installed(as_user(url, owner))
        async with connected(url) as sql:
            await sql.execute("DELETE FROM jobmill.migrations WHERE number = 2; DROP TABLE jobmill.rewinds")
            await sql.execute("CREATE SEQUENCE jobmill.rewinds; DROP TRIGGER jobs_table_changed ON jobmill.jobs")
        store = PostgresStore(url)
        assert await store.migrate() == ["0002_rewinds"]
        await store.close()
        async with connected(url) as sql:
            owners = await sql.fetch(
                "SELECT DISTINCT pg_get_userbyid(proowner) FROM pg_proc WHERE proname LIKE 'jobs_table%'"
            )
            assert [row[0] for row in owners] == [owner]
            assert await sql.fetchval("SELECT true FROM pg_trigger WHERE tgname = 'jobs_table_changed'")
            await sql.execute("SELECT jobmill.enqueue('scan', due_at => 'epoch')")
            assert await sql.fetchval("SELECT count(*) FROM jobmill.rewinds") == 1


async def test_a_table_of_somebody_else_is_not_adopted(server: Databases, url: str) -> None:
    """Its owner's triggers would run with the rights of whoever installs it."""
    await installed(url)
    async with connected(url) as sql:
        await sql.execute("DROP VIEW jobmill.jobs_table CASCADE")
    store = PostgresStore(url)
    async with login(server, url, f"ALTER TABLE {TABLE} OWNER TO {{role}}") as role:
        with pytest.raises(
            StoreError, match=f"public.jobs: expected a table of .*, who installs it, found one of {role}"
        ):
            await install_jobs_table(store, TABLE)
    await store.close()


async def test_a_worker_needs_no_rights_on_the_table(server: Databases, url: str) -> None:
    await installed(url)
    store = PostgresStore(url)
    script = store.roles_script()
    await store.close()
    async with granted(url, script), login(server, url, "GRANT jobmill_worker TO {role}") as role, desk(url) as table:
        with_rights = jobmill.connect(as_user(url, role))

        @with_rights.handler()
        async def scan() -> None: ...

        id = await table.insert()
        async with with_rights:
            await drain(with_rights)
        assert await table.status(id) == "success"
        async with connected(as_user(url, role)) as sql:
            with pytest.raises(asyncpg.InsufficientPrivilegeError, match="permission denied for table jobs"):
                await sql.fetch(f"SELECT * FROM {TABLE}")
        await table.check()


# ---------------------------------------------------------------------------------------------------- foreign keys


@pytest.fixture
async def table(url: str) -> AsyncIterator[Desk]:
    await installed(url)
    async with desk(url) as made:
        await made.jobs.open()
        await made.sql.execute(f"""
            CREATE TABLE orgs (id uuid PRIMARY KEY);
            CREATE TABLE files (job uuid REFERENCES {TABLE} ON DELETE CASCADE);
            INSERT INTO orgs VALUES ('{MINE}');
        """)
        yield made


async def run_until_claimed(table: Desk) -> None:
    await table.store.exchange([], wish(queues=("default",), names=("scan",)))


async def test_others_may_refer_to_rows(table: Desk) -> None:
    @table.jobs.handler()
    async def scan() -> None: ...

    id = await table.insert()
    await table.sql.execute("INSERT INTO files VALUES ($1)", id)
    await drain(table.jobs)
    assert await table.status(id) == "success"
    await table.sql.execute(f"DELETE FROM {TABLE}")
    assert await table.sql.fetchval("SELECT count(*) FROM files") == 0
    await table.check()


@pytest.mark.parametrize("runs", [True, False])
async def test_rows_that_go_with_their_org_take_their_jobs_along(table: Desk, runs: bool) -> None:
    await table.sql.execute(f"ALTER TABLE {TABLE} ADD FOREIGN KEY (org_id) REFERENCES orgs ON DELETE CASCADE")
    id = await table.insert(org_id=MINE)
    if runs:
        await run_until_claimed(table)
    await table.sql.execute("DELETE FROM orgs")
    assert await table.job(id) is None
    await table.check()


@pytest.mark.parametrize("runs", [True, False])
async def test_rows_that_stay_without_their_org_keep_their_jobs(table: Desk, runs: bool) -> None:
    await table.sql.execute(f"ALTER TABLE {TABLE} ADD FOREIGN KEY (org_id) REFERENCES orgs ON DELETE SET NULL")
    id = await table.insert(org_id=MINE)
    if runs:
        await run_until_claimed(table)
    await table.sql.execute("DELETE FROM orgs")
    job = await table.job(id)
    assert job is not None
    assert job.tenant is None
    await table.check()


async def test_what_a_constraint_of_the_application_refuses_is_no_job(table: Desk) -> None:
    await table.sql.execute(
        f"ALTER TABLE {TABLE} ADD FOREIGN KEY (org_id) REFERENCES orgs DEFERRABLE INITIALLY DEFERRED"
    )
    with pytest.raises(asyncpg.ForeignKeyViolationError):
        await table.insert(org_id=YOURS)
    assert await table.sql.fetchval("SELECT count(*) FROM jobmill.jobs") == 0


# ---------------------------------------------------------------------------------------------------- user triggers


async def test_triggers_of_the_application_see_every_change_and_may_enqueue(table: Desk) -> None:
    """A chain: whenever a job succeeds, its trigger inserts the next one, and cancels what waits under another type."""
    await table.sql.execute(f"""
        CREATE TABLE seen (id uuid, before text, after text);
        CREATE FUNCTION chain() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO seen VALUES (NEW.id, OLD.status, NEW.status);
            IF NEW.status = 'success' AND NEW.type = 'first' THEN
                INSERT INTO {TABLE} (type) VALUES ('second');
                UPDATE {TABLE} SET status = 'failed' WHERE type = 'other';
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER aa_chain AFTER UPDATE ON {TABLE} FOR EACH ROW EXECUTE FUNCTION chain();
    """)
    for name in ("first", "second"):

        @table.jobs.handler(name=name)
        async def any() -> None: ...

    other = await table.insert("other", next_run_at=LATER)
    first = await table.insert("first")
    await drain(table.jobs)
    rows = await table.sql.fetch("SELECT id::text, before, after FROM seen")
    assert [tuple(row)[1:] for row in rows if row[0] == first] == [("queued", "running"), ("running", "success")]
    assert [tuple(row)[1:] for row in rows if row[0] == other] == [("queued", "failed")]
    statuses = {row[0]: row[1] for row in await table.sql.fetch(f"SELECT type, status FROM {TABLE}")}
    assert statuses == {"first": "success", "second": "success", "other": "failed"}
    await table.check()
