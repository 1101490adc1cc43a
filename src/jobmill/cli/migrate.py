"""`jobmill migrate`: bring a store's schema up to date, or print what would do so."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from jobmill.cli.output import print_json
from jobmill.cli.runner import Unusable, json_option, patiently, run, url_option

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.harmonyk import JobsTable
    from jobmill.stores.postgres import PostgresStore


@click.command(short_help="Bring the store's schema up to date.")
@click.option("--sql", "prints_sql", is_flag=True, help="Print the migrations as SQL; change nothing, ask no server.")
@click.option("--roles", "prints_roles", is_flag=True, help="Print roles that may do no more than they need, as SQL.")
@click.option("--jobs-table", metavar="NAME", help="Make rows of this table jobs, such as public.jobs.")
@url_option
@json_option
def migrate(url: str | None, as_json: bool, prints_sql: bool, prints_roles: bool, jobs_table: str | None) -> None:
    """Bring the store's schema up to date. Running it again is harmless.

    The options --sql, --roles and --jobs-table are for PostgreSQL. There
    everything lies in a schema of its own, jobmill, or what the URL says:
    postgresql://host/database?schema=NAME

    \b
    --sql         is for a database that has none of it: review it, then
                  run it with psql.
    --jobs-table  makes the table, or checks the one that is there and
                  enqueues its queued rows.
    --roles       is to be run after every update of Jobmill.
    """
    if prints_sql or prints_roles:
        _check_printing(prints_sql and prints_roles, as_json, prints_roles and jobs_table is not None)
        click.echo(run(url, lambda client: _script(client, prints_sql, jobs_table), creates=True), nl=False)
        return
    ran, table = run(url, lambda client: _migrate(client, jobs_table), creates=True)
    if as_json:
        print_json({"ran": ran} | ({} if table is None else {"jobs_table": _document(table)}))
        return
    for line in _said(ran, table):
        click.echo(line)


def _check_printing(is_both: bool, as_json: bool, is_roles_with_table: bool) -> None:
    if is_both:
        raise click.UsageError("--sql and --roles print two scripts: ask for one after the other")
    if as_json:
        raise click.UsageError("--json tells what was done; --sql and --roles do nothing, they print SQL")
    if is_roles_with_table:
        raise click.UsageError("--roles does not depend on --jobs-table: grant that table like any of yours")


async def _script(client: Client, prints_sql: bool, jobs_table: str | None) -> str:
    store = _postgres(client, "--sql" if prints_sql else "--roles")
    if not prints_sql:
        return store.roles_script()
    from jobmill import harmonyk

    return store.migration_script() if jobs_table is None else harmonyk.migration_script(store, jobs_table)


async def _migrate(client: Client, jobs_table: str | None) -> tuple[list[str], JobsTable | None]:
    from jobmill import harmonyk  # also because a migration renews the jobs table that the schema has

    store = None if jobs_table is None else _postgres(client, "--jobs-table")
    ran = await patiently(client.store.migrate(), "migrating")
    if store is None or jobs_table is None:
        return ran, None
    return ran, await patiently(harmonyk.install_jobs_table(store, jobs_table), f"making {jobs_table} a jobs table")


def _postgres(client: Client, option: str) -> PostgresStore:
    if client.store.name != "postgres":
        advice = "name one with --url postgresql://host/database, or in JOBMILL_URL"
        raise Unusable(f"{option} is for PostgreSQL, and this store is {client.store.name}; {advice}")
    from jobmill.stores.postgres import PostgresStore

    assert isinstance(client.store, PostgresStore)
    return client.store


def _document(table: JobsTable) -> dict[str, object]:
    import msgspec

    document: dict[str, object] = msgspec.to_builtins(table)
    return document


def _said(ran: list[str], table: JobsTable | None) -> Iterator[str]:
    yield from (f"ran {name}" for name in ran)
    if table is None:
        if not ran:
            yield "up to date"
        return
    yield f"made the table {table.table}" if table.created else f"{table.table} is the jobs table"
    yield from (f"added to it: {one}" for one in table.added)
    if table.enqueued:
        yield f"enqueued {table.enqueued} queued rows"
    if table.left_running:
        yield f"left {table.left_running} running rows to the program that runs them"
