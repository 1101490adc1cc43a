"""`jobmill migrate` on PostgreSQL: what it did, as a script, with a jobs table, and with roles."""

from __future__ import annotations

import asyncio
import json

import asyncpg
import pytest
from click.testing import CliRunner, Result

from jobmill.cli import main
from tests.cli.conftest import Shell
from tests.kit.postgres import connected

pytestmark = pytest.mark.stores("postgres")

NOWHERE = "postgresql://nobody@nowhere.invalid/nothing"


def run(url: str, *args: str, code: int = 0) -> Result:
    result = CliRunner(env={"JOBMILL_URL": url, "JOBMILL_DEBUG": ""}).invoke(main, ["migrate", *args])
    assert result.exit_code == code, result.output
    return result


NAMES = (
    "0001_jobs",
    "0002_rewinds",
    "0003_runs",
    "0004_declared",
    "0005_operations",
    "0006_unstarted",
    "0007_log_lines",
    "0008_flows",
    "0009_taken_keys",
    "0010_lanes",
    "0011_rewind_positions",
    "0012_lost_runs",
)
RAN = "".join(f"ran {name}\n" for name in NAMES)


async def beside(url: str, *args: str, code: int = 0) -> Result:
    """Run the command in a thread, because it starts its own event loop."""
    return await asyncio.to_thread(run, url, *args, code=code)


async def test_migrate_prints_the_migrations_that_ran(postgres_url: str) -> None:
    assert (await beside(postgres_url)).stdout == RAN
    assert (await beside(postgres_url)).stdout == "up to date\n"
    assert json.loads((await beside(postgres_url, "--json")).stdout) == {"ran": []}


async def test_a_jobs_table_is_created(postgres_url: str) -> None:
    first = await beside(postgres_url, "--jobs-table", "public.jobs")
    assert first.stdout == RAN + "created the table public.jobs\n"
    again = await beside(postgres_url, "--jobs-table", "public.jobs", "--json")
    table = {"table": "public.jobs", "created": False, "added": [], "enqueued": 0, "left_running": 0}
    assert json.loads(again.stdout) == {"ran": [], "jobs_table": table}
    assert (await beside(postgres_url, "--jobs-table", "public.jobs")).stdout == "public.jobs is the jobs table\n"


async def test_an_existing_jobs_table_is_completed(postgres_url: str) -> None:
    async with connected(postgres_url) as sql:
        await sql.execute("""
            CREATE TABLE work (
                id uuid PRIMARY KEY DEFAULT gen_random_uuid(), type text NOT NULL, org_id uuid,
                payload jsonb NOT NULL DEFAULT '{}', status text NOT NULL DEFAULT 'queued',
                attempts integer NOT NULL DEFAULT 0, next_run_at timestamptz, last_error text,
                created_at timestamptz NOT NULL DEFAULT now(), updated_at timestamptz NOT NULL DEFAULT now()
            );
            INSERT INTO work (type, status) VALUES ('scan', 'queued'), ('scan', 'queued'), ('scan', 'running')
        """)
    said = (await beside(postgres_url, "--jobs-table", "work")).stdout.splitlines()
    assert said == [
        *RAN.splitlines(),
        "work is the jobs table",
        "added CHECK of status",
        "added index idx_work_status_next_run_at",
        "added index idx_work_type_status",
        "enqueued 2 queued rows",
        "left 1 running rows unchanged",
    ]
    refused = await beside(postgres_url, "--jobs-table", "public.another", code=1)
    assert "the schema jobmill has the jobs table public.work already, and can have one only" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert "expected the name of a table" in (await beside(postgres_url, "--jobs-table", "no name", code=2)).stderr


async def test_migrate_into_another_schema(postgres_url: str) -> None:
    assert (await beside(f"{postgres_url}?schema=Ours")).stdout == RAN
    async with connected(postgres_url) as sql:
        assert await sql.fetchval('SELECT count(*) FROM "Ours".migrations') == RAN.count("ran ")
        assert await sql.fetchval("SELECT to_regnamespace('jobmill')") is None


async def test_sql_is_printed_without_a_server(postgres_url: str) -> None:
    script = (await beside(NOWHERE, "--sql")).stdout
    assert "-- 0001_jobs" in script
    both = (await beside(NOWHERE, "--sql", "--jobs-table", "public.jobs")).stdout
    roles = (await beside(NOWHERE, "--roles")).stdout
    assert 'GRANT "jobmill_producer" TO' in roles
    async with connected(postgres_url) as sql:
        await sql.execute(both)
        with pytest.raises(asyncpg.DuplicateTableError):
            await sql.execute(script)
    assert (await beside(postgres_url, "--jobs-table", "public.jobs")).stdout == "public.jobs is the jobs table\n"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--sql", "--roles"), "--sql and --roles print one script each: run the command twice"),
        (("--sql", "--json"), "--json reports changes; --sql and --roles only print SQL"),
        (
            ("--roles", "--jobs-table", "x"),
            "--roles does not depend on --jobs-table: grant that table like your other tables",
        ),
    ],
)
def test_options_that_cannot_be_combined(args: tuple[str, ...], said: str) -> None:
    result = run(NOWHERE, *args, code=2)
    assert result.stderr == f"jobmill: {said} (see jobmill migrate --help)\n"
    assert result.stdout == ""


@pytest.mark.parametrize("args", [("--sql",), ("--roles",), ("--jobs-table", "public.jobs")])
def test_options_for_postgresql_are_refused_for_other_stores(shell: Shell, args: tuple[str, ...]) -> None:
    said = shell.refused("migrate", *args, code=2)
    assert said.startswith(f"jobmill: {args[0]} needs PostgreSQL, and this store is sqlite; give --url")
    assert not shell.file.exists()
