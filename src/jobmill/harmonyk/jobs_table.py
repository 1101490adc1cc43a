"""The jobs table: an application's own table, whose rows are jobs. Its SQL is in sql/jobs_table*.sql."""

from __future__ import annotations

import re

import asyncpg
from msgspec import Struct

from jobmill.errors import InvalidValue
from jobmill.stores.postgres.connection.pool import Connection, transaction
from jobmill.stores.postgres.statements import Statements, check_schema, literal, quoted

_PART = re.compile(r'"((?:[^"]|"")+)"|([A-Za-z_][A-Za-z0-9_]*)')
_EXPECTED = "the name of a table, such as public.jobs"


class JobsTable(Struct, frozen=True, kw_only=True):
    """What installing a jobs table came to."""

    table: str
    #: Whether the table was made; if not, one was there.
    created: bool
    #: What that one lacked: defaults, the CHECK, indexes.
    added: tuple[str, ...]
    #: How many of its queued rows have become jobs, and how many running ones were left to whoever runs them.
    enqueued: int
    left_running: int


def script(statements: Statements, table: str) -> str:
    """What makes a table a jobs table, as SQL."""
    name = read_name(statements, table)
    parts = (_first(statements, name), _shape(statements, name), _triggers(statements, name), _adopt(statements))
    return "\n\n".join(part.rstrip(";\n") + ";" for part in parts) + "\n"


async def install(connection: Connection, statements: Statements, table: str) -> JobsTable:
    """Make a jobs table, or one of what is there, all or nothing; harmless when it is one already."""
    name = read_name(statements, table)
    async with transaction(connection):
        await connection.execute(f"SELECT pg_advisory_xact_lock({statements.lock})")
        return await _install(connection, statements, name, table)


async def renew(connection: Connection, statements: Statements) -> None:
    """The same for the jobs table that the schema has, if it has one: after a migration, within its transaction."""
    row = await connection.fetchrow(statements("jobs_table_where"))
    if row is None:
        return
    name, owner, present = row
    # Whoever installed it owns what belongs to it, and goes on to do so.
    await connection.execute(f"SET LOCAL ROLE {quoted(owner)}")
    await _install(connection, statements, name, name)
    await connection.execute(f"SET LOCAL ROLE {quoted(present)}")


async def catch_up(connection: Connection, statements: Statements) -> None:
    """Write the rows that were locked when their jobs changed."""
    schema = quoted(statements.schema)
    if await connection.fetchval("SELECT to_regclass($1)", f"{schema}.jobs_table") is not None:
        await connection.execute(f"SELECT {schema}.jobs_table_catch_up(10000)")


async def _install(connection: Connection, statements: Statements, name: str, given: str) -> JobsTable:
    created = await connection.fetchval("SELECT to_regclass($1) IS NULL", name)
    try:
        await connection.execute(_first(statements, name))
    except asyncpg.InvalidSchemaNameError as error:
        raise InvalidValue("jobs_table", "a table in a schema that exists", name, str(error)) from error
    added: list[str] = await connection.fetchval(_shape(statements, name))
    await connection.execute(_triggers(statements, name))
    row = await connection.fetchrow(_adopt(statements))
    assert row is not None
    lacked = () if created else tuple(added)
    return JobsTable(table=given, created=created, added=lacked, enqueued=row[0], left_running=row[1])


def _first(statements: Statements, name: str) -> str:
    return _for(statements.script("jobs_table"), name)


def _triggers(statements: Statements, name: str) -> str:
    return _for(statements.script("jobs_table_triggers"), name)


def _shape(statements: Statements, name: str) -> str:
    return f"SELECT {quoted(statements.schema)}.jobs_table_shape({literal(name)})"


def _adopt(statements: Statements) -> str:
    return f"SELECT enqueued, left_running FROM {quoted(statements.schema)}.jobs_table_adopt()"


def _for(text: str, name: str) -> str:
    return text.replace("{table}", name)


def read_name(statements: Statements, table: str) -> str:
    """A table's name as SQL reads it, with its schema (public, where none is said), and quoted."""
    parts: list[str] = []
    at = 0
    while found := _PART.match(table, at):
        parts.append(found[1].replace('""', '"') if found[1] else found[2].lower())
        at = found.end() + 1
        if table[found.end() : at] != ".":
            break
    if not 1 <= len(parts) <= 2 or at != len(table) + 1:
        raise InvalidValue("jobs_table", _EXPECTED, table)
    schema, name = parts if len(parts) == 2 else ("public", parts[0])
    if schema == statements.schema:
        raise InvalidValue("jobs_table", f"a table outside of the schema {schema!r}, which is our own", table)
    for part in (schema, name):
        check_schema(part, "jobs_table")
    return f"{quoted(schema)}.{quoted(name)}"
