"""The schema: numbered migrations, run in one transaction under an advisory lock, and recorded in a table.

Other parts of Jobmill may extend the schema. An extension x is a view x and a function x_catch_up(integer), which
purge calls. So the database itself says what a worker has to do for it. A migration renews extensions, for which the
part of Jobmill that knows them must be imported: see `renewals`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from jobmill.errors import SchemaTooOld, StoreError
from jobmill.stores.common.sql import migrations_in, quoted, refuse_newer, renewals
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.statements import HERE, Statements

T = TypeVar("T")

# The first version in which the body of a function may be plain SQL (RETURN …).
MIN_VERSION = 14
MIGRATE_SECONDS = 600.0
MIGRATIONS = migrations_in(HERE / "migrations")
ROLES = ("producer", "reader", "worker", "admin")
_MAX_PREFIX_BYTES = 63 - 1 - max(map(len, ROLES))


async def open_schema(context: PostgresContext) -> None:
    """Check that the schema is up to date, and measure the server's clock; once for each loop."""
    loop = context.loops.here()
    if loop.is_open:
        return

    async def work(connection: Connection) -> None:
        await _check(connection, context.statements)
        began = context.clock.start()
        context.clock.learn(await connection.fetchval(context.statements.call("now_ms", 0)), began)

    await context.use(work)
    await learn_schema_id(context)
    loop.is_open = True


async def learn_schema_id(context: PostgresContext) -> int | None:
    """Ask the server for the id of the schema, which changes if the database is restored from a copy."""
    statement = f"SELECT {context.statements('home')} + {context.statements('database_id')}"
    context.schema_id = await context.use(lambda connection: connection.fetchval(statement))
    return context.schema_id


async def migrate(context: PostgresContext) -> list[str]:
    """Run the migrations that are missing, all or none; their names."""
    statements = context.statements

    async def work(connection: Connection) -> list[str]:
        # A second process waits here, and then finds that nothing is left to do.
        await connection.execute(f"SELECT pg_advisory_xact_lock({statements.lock})")
        applied = await _applied(connection, statements)
        missing = [file for number, file in MIGRATIONS.items() if number not in applied]
        if missing:
            renew = [_renewal(name, statements) for name in await extensions(connection, statements)]
            await connection.execute(_script(missing, statements, fresh=not applied))
            for one in renew:
                await one(connection, statements.schema)
        return [file.stem for file in missing]

    return await context.transact(work, MIGRATE_SECONDS)


async def run_as_migration(context: PostgresContext, work: Callable[[Connection], Awaitable[T]]) -> T:
    """Do something in a transaction under the lock of migrations, when the schema is up to date."""

    async def locked(connection: Connection) -> T:
        await connection.execute(f"SELECT pg_advisory_xact_lock({context.statements.lock})")
        await _check(connection, context.statements)
        return await work(connection)

    return await context.transact(locked, MIGRATE_SECONDS)


async def extensions(connection: Connection, statements: Statements) -> list[str]:
    """The names of the extensions that the schema has."""
    return [row[0] for row in await connection.fetch(statements("extensions"))]


def _renewal(extension: str, statements: Statements) -> Callable[[Connection, str], Awaitable[None]]:
    if extension not in renewals:
        raise StoreError(
            f"the schema {statements.schema!r} has a {extension!r}, which this migration must renew: "
            "run `jobmill migrate`, or first import the module that installed it (such as jobmill.harmonyk); "
            "nothing was changed"
        )
    return renewals[extension]


async def _check(connection: Connection, statements: Statements) -> None:
    """Raise SchemaTooOld where migrations are missing, SchemaTooNew where a migration is unknown."""
    applied = await _applied(connection, statements)
    if missing := MIGRATIONS.keys() - applied:
        what = f"lacks {len(missing)} migrations" if applied else "is not set up yet"
        raise SchemaTooOld(
            f"the schema {statements.schema!r} {what}; run `jobmill migrate` (or `await jobs.store.migrate()`)"
        )


async def _applied(connection: Connection, statements: Statements) -> set[int]:
    """The numbers of the migrations that the schema has; SchemaTooNew where one of them is unknown."""
    version = connection.get_server_version()
    if version.major < MIN_VERSION:
        raise StoreError(f"PostgreSQL {MIN_VERSION} or newer is needed; this server is {version.major}.{version.minor}")
    table = f"{statements.quoted_schema}.migrations"
    if await connection.fetchval("SELECT to_regclass($1)", table) is None:
        return set()
    numbers = {row[0] for row in await connection.fetch(f"SELECT number FROM {table}")}
    refuse_newer(f"the schema {statements.schema!r}", numbers, MIGRATIONS)
    return numbers


def script(statements: Statements, more: str = "") -> str:
    """All migrations, and more SQL, as one script for psql, for a database that has none of them."""
    lock = f"SELECT pg_advisory_xact_lock({statements.lock});\n"
    migrations = _script(list(MIGRATIONS.values()), statements, fresh=True)
    return "".join(["BEGIN;\n", lock, migrations, f"\n{more}" if more else "", "COMMIT;\n"])


def _script(missing: Sequence[Path], statements: Statements, *, fresh: bool) -> str:
    schema = statements.quoted_schema
    parts: list[str] = []
    if fresh:
        parts.append(
            f"CREATE SCHEMA IF NOT EXISTS {schema};\nCREATE TABLE {schema}.migrations (\n"
            "    number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()\n);\n"
        )
    for file in missing:
        parts.append(f"\n-- {file.stem}\n\n{statements.filled(file.read_text('utf-8'))}\n")
        parts.append(f"INSERT INTO {schema}.migrations (number, name) VALUES ({int(file.name[:4])}, '{file.stem}');\n")
    return "".join(parts)


def roles_script(statements: Statements) -> str:
    """SQL that makes the roles, named after the schema, and grants them what they need; harmless when run again."""
    # Roles belong to the whole server: schemas of one name in two databases share theirs.
    prefix = statements.schema.encode()[:_MAX_PREFIX_BYTES].decode(errors="ignore")
    names = {role: quoted(f"{prefix}_{role}") for role in ROLES}
    return Statements(statements.schema, **names).script("roles")
