"""`jobmill migrate`: brings the schema of a store up to date, or prints the SQL for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from jobmill.cli.output import print_json
from jobmill.cli.params import store_options
from jobmill.cli.runner import Unusable, run, with_spinner

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.harmonyk import JobsTable
    from jobmill.stores.postgres import PostgresStore


@click.command(short_help="Bring the store's schema up to date.")
@click.option(
    "--sql", "prints_sql", is_flag=True, help="Print the migrations as SQL, without a connection to the server."
)
@click.option("--roles", "prints_roles", is_flag=True, help="Print SQL that creates roles with the least privileges.")
@click.option("--jobs-table", metavar="NAME", help="Turn the rows of this table into jobs, for example public.jobs.")
@store_options
def migrate(url: str | None, as_json: bool, prints_sql: bool, prints_roles: bool, jobs_table: str | None) -> None:
    """Bring the store's schema up to date. Running it again changes nothing.

    The options --sql, --roles and --jobs-table are for PostgreSQL. Its tables
    are in the schema jobmill, or in the schema that the URL names:
    postgresql://host/database?schema=NAME

    \b
    --sql         is for a database without these tables: review the SQL, then
                  run it with psql.
    --jobs-table  creates the table, or checks the existing one and enqueues
                  its queued rows.
    --roles       prints SQL: run this SQL again after every update of Jobmill.
    """
    if prints_sql or prints_roles:
        if prints_sql and prints_roles:
            raise click.UsageError("--sql and --roles print one script each: run the command twice")
        if as_json:
            raise click.UsageError("--json reports changes; --sql and --roles only print SQL")
        if prints_roles and jobs_table is not None:
            raise click.UsageError("--roles does not depend on --jobs-table: grant that table like your other tables")
        click.echo(run(url, lambda client: _script(client, prints_sql, jobs_table), creates=True), nl=False)
        return
    ran, table = run(url, lambda client: _migrate(client, jobs_table), creates=True)
    if as_json:
        from msgspec import to_builtins

        print_json({"ran": ran} | ({} if table is None else {"jobs_table": to_builtins(table)}))
        return
    for line in _summary(ran, table):
        click.echo(line)


async def _script(client: Client, prints_sql: bool, jobs_table: str | None) -> str:
    store = _postgres(client, "--sql" if prints_sql else "--roles")
    if not prints_sql:
        return store.roles_script()
    from jobmill import harmonyk

    return store.migration_script() if jobs_table is None else harmonyk.migration_script(store, jobs_table)


async def _migrate(client: Client, jobs_table: str | None) -> tuple[list[str], JobsTable | None]:
    from jobmill import harmonyk  # needed in both cases: its import also makes a migration renew an existing jobs table

    store = None if jobs_table is None else _postgres(client, "--jobs-table")
    ran = await with_spinner(client.store.migrate(), "migrating")
    if store is None or jobs_table is None:
        return ran, None
    return ran, await with_spinner(
        harmonyk.install_jobs_table(store, jobs_table), f"turning {jobs_table} into a jobs table"
    )


def _postgres(client: Client, option: str) -> PostgresStore:
    if client.store.name != "postgres":
        advice = "give --url postgresql://host/database, or set JOBMILL_URL"
        raise Unusable(f"{option} needs PostgreSQL, and this store is {client.store.name}; {advice}")
    from jobmill.stores.postgres import PostgresStore

    assert isinstance(client.store, PostgresStore)
    return client.store


def _summary(ran: list[str], table: JobsTable | None) -> Iterator[str]:
    yield from (f"ran {name}" for name in ran)
    if table is None:
        if not ran:
            yield "up to date"
        return
    yield f"created the table {table.table}" if table.created else f"{table.table} is the jobs table"
    yield from (f"added {one}" for one in table.added)
    if table.enqueued:
        yield f"enqueued {table.enqueued} queued rows"
    if table.left_running:
        yield f"left {table.left_running} running rows unchanged"
