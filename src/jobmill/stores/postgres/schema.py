"""Schema: numbered migrations, applied in one transaction under an advisory lock, recorded in a table of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jobmill.errors import SchemaTooNew, SchemaTooOld, StoreError
from jobmill.stores.postgres import jobs_table
from jobmill.stores.postgres.connection.pool import Connection, transaction
from jobmill.stores.postgres.statements import HERE, Statements, quoted

# The first in which the body of a function may be plain SQL (RETURN …).
OLDEST = 14


def files() -> list[tuple[int, Path]]:
    """Number and file of all migrations that this Jobmill knows."""
    return [(int(file.name[:4]), file) for file in sorted((HERE / "migrations").glob("[0-9]*.sql"))]


def newest() -> int:
    """The number of the last of them."""
    return max(number for number, _ in files())


async def applied(connection: Connection, statements: Statements) -> set[int]:
    """The numbers of the migrations that the schema has; SchemaTooNew where one is not ours."""
    version = connection.get_server_version()
    if version.major < OLDEST:
        raise StoreError(f"PostgreSQL {OLDEST} or newer is needed; this server is {version.major}.{version.minor}")
    table = f"{quoted(statements.schema)}.migrations"
    if await connection.fetchval("SELECT to_regclass($1)", table) is None:
        return set()
    numbers = {row[0] for row in await connection.fetch(f"SELECT number FROM {table}")}
    if numbers and max(numbers) > newest():
        raise SchemaTooNew(
            f"the schema {statements.schema!r} was written by a newer Jobmill (schema {max(numbers)}, this one knows "
            f"{newest()}); update Jobmill; nothing was changed"
        )
    return numbers


async def check(connection: Connection, statements: Statements) -> None:
    """Raise SchemaTooOld where migrations are missing, SchemaTooNew where there are too many."""
    missing = [number for number, _ in files() if number not in await applied(connection, statements)]
    if missing:
        what = "is not set up yet" if len(missing) == len(files()) else f"lacks {len(missing)} migrations"
        raise SchemaTooOld(
            f"the schema {statements.schema!r} {what}; run `jobmill migrate` (or `await jobs.store.migrate()`)"
        )


async def bring_up_to_date(connection: Connection, statements: Statements) -> list[str]:
    """Run what is missing, all or nothing; the names of the migrations that ran."""
    async with transaction(connection):
        # Whoever comes second waits here, and then finds that there is nothing left to do.
        await connection.execute(f"SELECT pg_advisory_xact_lock({statements.lock})")
        done = await applied(connection, statements)
        missing = [file for number, file in files() if number not in done]
        if missing:
            await connection.execute(_script(missing, statements, fresh=not done))
            await jobs_table.renew(connection, statements)
        return [file.stem for file in missing]


def script(statements: Statements, table: str | None = None) -> str:
    """All migrations as one script for psql, for a database that has none of them; and with a jobs table."""
    lock = f"SELECT pg_advisory_xact_lock({statements.lock});\n"
    parts = ["BEGIN;\n", lock, _script([file for _, file in files()], statements, fresh=True)]
    if table is not None:
        parts += ["\n", jobs_table.script(statements, table)]
    return "".join([*parts, "COMMIT;\n"])


def _script(missing: Sequence[Path], statements: Statements, *, fresh: bool) -> str:
    schema = quoted(statements.schema)
    parts: list[str] = []
    if fresh:
        parts.append(
            f"CREATE SCHEMA IF NOT EXISTS {schema};\nCREATE TABLE {schema}.migrations (\n"
            "    number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now()\n);\n"
        )
    for file in missing:
        parts.append(f"\n-- {file.stem}\n\n{statements.migration(file)}\n")
        parts.append(f"INSERT INTO {schema}.migrations (number, name) VALUES ({int(file.name[:4])}, '{file.stem}');\n")
    return "".join(parts)
