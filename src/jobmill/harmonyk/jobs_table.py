"""The jobs table on PostgreSQL: an application's own table, whose rows are jobs. Its SQL is in sql/.

It extends the schema of the store: see jobmill/stores/postgres/schema.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec
from msgspec import Struct

from jobmill.core.job import JobOptions
from jobmill.errors import InvalidValue
from jobmill.harmonyk.rules import PRESET
from jobmill.stores.common.sql import literal, quoted, renewals

if TYPE_CHECKING:
    from jobmill.store import Store
    from jobmill.stores.postgres import PostgresStore
    from jobmill.stores.postgres.statements import Statements

FOLDER = Path(__file__).parent / "sql"
#: The stored options of a job that came from the jobs table.
OPTIONS = msgspec.json.encode(JobOptions(preset=PRESET)).decode()

_NAME = r'"(?:[^"]|"")+"|[A-Za-z_][A-Za-z0-9_]*'
_TABLE = re.compile(rf"(?:({_NAME})\.)?({_NAME})")
_NO_SUCH_SCHEMA = "3F000"


class JobsTable(Struct, frozen=True, kw_only=True):
    """The result of installing a jobs table."""

    table: str
    #: Whether the table was made; otherwise it existed.
    created: bool
    #: What an existing table lacked: defaults, the CHECK, indexes.
    added: tuple[str, ...]
    #: How many of its queued rows became jobs, and how many running rows were left to the program that runs them.
    enqueued: int
    left_running: int


async def install_jobs_table(store: Store, table: str) -> JobsTable:
    """Make rows of a table such as public.jobs jobs, and make the table if there is none; see docs/harmonyk.md.

    All or nothing; harmless where it is the jobs table already.
    """
    postgres = _postgres(store)
    statements = _statements(postgres.context.url.schema, table)
    return await postgres.run_as_migration(lambda connection: _install(connection, statements, table))


def migration_script(store: Store, table: str) -> str:
    """All migrations of the store and the jobs table, as a script; without asking the server."""
    postgres = _postgres(store)
    statements = _statements(postgres.context.url.schema, table)
    parts = (
        statements.script("table"),
        statements("shape_call"),
        statements.script("triggers"),
        statements("adopt_call"),
    )
    return postgres.migration_script("\n\n".join(part.rstrip(";\n") + ";" for part in parts) + "\n")


async def renew(connection: Any, schema: str) -> None:
    """Install the schema's jobs table again, after a migration and within its transaction."""
    installed = await connection.fetchrow(_statements(schema)("installed"))
    if installed is None:
        return
    name, owner, present = installed
    # The objects of the table stay with the role that installed it.
    await connection.execute(f"SET LOCAL ROLE {quoted(owner)}")
    await _install(connection, _statements(schema, name), name)
    await connection.execute(f"SET LOCAL ROLE {quoted(present)}")


renewals["jobs_table"] = renew


async def _install(connection: Any, statements: Statements, table: str) -> JobsTable:
    name = quoted_name(statements.schema, table)
    created = await connection.fetchval("SELECT to_regclass($1) IS NULL", name)
    try:
        await connection.execute(statements.script("table"))
    except Exception as error:
        if getattr(error, "sqlstate", None) != _NO_SUCH_SCHEMA:
            raise
        raise InvalidValue("jobs_table", "a table in a schema that exists", name, str(error)) from error
    added: list[str] = await connection.fetchval(statements("shape_call"))
    await connection.execute(statements.script("triggers"))
    enqueued, left_running = await connection.fetchrow(statements("adopt_call"))
    lacked = () if created else tuple(added)
    return JobsTable(table=table, created=created, added=lacked, enqueued=enqueued, left_running=left_running)


def _postgres(store: Store) -> PostgresStore:
    if store.name != "postgres":
        raise InvalidValue("store", "a PostgreSQL store", store.name)
    return cast("PostgresStore", store)


def _statements(schema: str, table: str | None = None) -> Statements:
    """The statements for a jobs table of this name and the schema of a store."""
    from jobmill.stores.postgres.codec import SHARED_COLUMNS
    from jobmill.stores.postgres.statements import Statements

    name = "" if table is None else quoted_name(schema, table)
    values = {"table": name, "table_text": literal(name), "options": literal(OPTIONS)}
    # What a job that is cancelled takes along into the history, and how the store moves held jobs.
    values["kept_columns"] = ", ".join(column for column in SHARED_COLUMNS if column not in ("updated_ms", "due_ms"))
    values["held_until"] = Statements(schema)("held_until")
    return Statements(schema, FOLDER, **values)


def quoted_name(own_schema: str, table: str) -> str:
    """A table's name as SQL reads it, with its schema (public, where none is given), and quoted."""
    from jobmill.stores.postgres.statements import check_schema

    found = _TABLE.fullmatch(table)
    if found is None:
        raise InvalidValue("jobs_table", "the name of a table, such as public.jobs", table)
    schema, name = map(_unquoted, found.groups("public"))
    if schema == own_schema:
        raise InvalidValue("jobs_table", f"a table outside of the schema {schema!r}, which is our own", table)
    for part in (schema, name):
        check_schema(part, "jobs_table")
    return f"{quoted(schema)}.{quoted(name)}"


def _unquoted(part: str) -> str:
    return part[1:-1].replace('""', '"') if part[0] == '"' else part.lower()
