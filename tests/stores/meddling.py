"""What others do to a PostgreSQL server while we use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from tests.kit.postgres import connected


@asynccontextmanager
async def locked(url: str, table: str) -> AsyncIterator[asyncpg.Connection]:
    """Whoever reads this table waits."""
    async with connected(url) as connection:
        await connection.execute(f"BEGIN; LOCK TABLE jobmill.{table} IN ACCESS EXCLUSIVE MODE")
        yield connection


async def waiting_for_locks(url: str) -> int:
    async with connected(url) as connection:
        waiting: int = await connection.fetchval(
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return waiting


@asynccontextmanager
async def role_with(url: str, most: int) -> AsyncIterator[str]:
    """The same database for a role that may have so many connections."""
    async with connected(url) as connection:
        await connection.execute(
            f"DROP ROLE IF EXISTS few; CREATE ROLE few LOGIN CONNECTION LIMIT {most}; "
            "GRANT USAGE ON SCHEMA jobmill TO few; GRANT ALL ON ALL TABLES IN SCHEMA jobmill TO few; "
            "GRANT ALL ON ALL SEQUENCES IN SCHEMA jobmill TO few"
        )
        try:
            yield url.replace("postgres@", "few@")
        finally:
            await connection.execute("DROP OWNED BY few; DROP ROLE few")
