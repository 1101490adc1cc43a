"""The verb diagnose: how the server and the tables are set up, and how they are doing."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg

from jobmill.core.findings import Finding, StoreFacts, reachable
from jobmill.stores.common.response import response_ms
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.read import READ_SECONDS

# While an older transaction may still read dead rows, vacuum cannot remove them, and claims have to skip them.
MAX_TRANSACTION_SECONDS = 600
# Autovacuum begins at 5,000 dead rows and 2 % of all: see the migration that makes the table.
MAX_DEAD_ROWS, MAX_DEAD_SHARE = 50_000, 0.2
FILLFACTOR = 40


async def diagnose(context: PostgresContext) -> list[Finding]:
    """One finding for each check."""

    async def read(connection: Connection) -> list[Finding]:
        statements = context.statements
        settings = await connection.fetchrow(statements("diagnose_settings"))
        tables = await connection.fetch(statements("diagnose_tables"))
        oldest = await connection.fetchrow(statements("diagnose_oldest"))
        assert settings is not None
        pooled = bool(context.loops.here().connector.pooled)
        # Without parameters it is one message, and nothing is prepared for it.
        answers_ms = await response_ms(lambda: connection.execute("SELECT 1"))
        found = [_facts(connection, settings, answers_ms), _durability(settings), _autovacuum(settings, tables)]
        return [*found, *_jobs(tables), _horizon(oldest), _pooler(pooled)]

    return await context.use(read, READ_SECONDS)


def _facts(connection: Connection, settings: asyncpg.Record, answers_ms: float) -> Finding:
    version = connection.get_server_version()
    facts = StoreFacts(
        product="PostgreSQL",
        version=f"{version.major}.{version.minor}",
        response_ms=answers_ms,
        size_bytes=settings["size_bytes"],
        schema=settings["schema"],
    )
    return reachable(facts)


def _durability(settings: asyncpg.Record) -> Finding:
    off = [name for name in ("fsync", "full_page_writes", "synchronous_commit") if settings[name] == "off"]
    if not off:
        return Finding(check="durability", text="a commit is on disk before it is confirmed")
    # Without synchronous_commit only the last moments before a crash are lost; without the others, perhaps everything.
    return Finding(
        check="durability",
        level="warning" if off == ["synchronous_commit"] else "error",
        text=f"{' and '.join(off)} off: jobs may be lost when the server crashes",
        evidence={"off": off},
        remedy="turn it on in postgresql.conf and reload the server",
    )


def _autovacuum(settings: asyncpg.Record, tables: Sequence[asyncpg.Record]) -> Finding:
    off = [row["name"] for row in tables if "autovacuum_enabled=false" in row["options"]]
    off = ["the server"] if "off" in (settings["autovacuum"], settings["track_counts"]) else off
    if not off:
        return Finding(check="autovacuum", text="autovacuum is on")
    return Finding(
        check="autovacuum",
        level="error",
        text=f"autovacuum is off for {' and '.join(off)}: tables grow, and claims become slow",
        evidence={"off": off},
        remedy="set autovacuum and track_counts on, and autovacuum_enabled on for these tables",
    )


def _jobs(tables: Sequence[asyncpg.Record]) -> list[Finding]:
    """The findings about the table of live jobs."""
    (jobs,) = (row for row in tables if row["name"] == "jobs")
    live, dead = jobs["live"], jobs["dead"]
    evidence = {"live": live, "dead": dead}
    rows = Finding(check="dead_rows", text=f"the table of live jobs has {dead:,} dead rows", evidence=evidence)
    if dead > MAX_DEAD_ROWS + MAX_DEAD_SHARE * live:
        rows = Finding(
            check="dead_rows",
            level="warning",
            text=f"the table of live jobs has {dead:,} dead rows beside {live:,} live ones: claims become slow",
            evidence=evidence,
            remedy="end transactions that are open for long; then VACUUM the table, or let autovacuum run more often",
        )
    fill = Finding(check="fillfactor", text="rows of live jobs have room to be updated in place")
    if f"fillfactor={FILLFACTOR}" not in jobs["options"]:
        fill = Finding(
            check="fillfactor",
            level="warning",
            text=f"the fillfactor of the table of live jobs is not {FILLFACTOR}: claims have to change its indexes",
            evidence={"options": jobs["options"]},
            remedy=f"ALTER TABLE {jobs['table']} SET (fillfactor = {FILLFACTOR})",
        )
    return [rows, fill]


def _horizon(oldest: asyncpg.Record | None) -> Finding:
    seconds = 0 if oldest is None else oldest["seconds"]
    if oldest is None or seconds < MAX_TRANSACTION_SECONDS:
        return Finding(check="xmin_horizon", text="no transaction is open for long", evidence={"seconds": seconds})
    return Finding(
        check="xmin_horizon",
        level="warning",
        text=f"a transaction ({oldest['what']}) is open for {seconds} s: dead rows cannot be removed meanwhile",
        evidence=dict(oldest),
        remedy="end it: pg_terminate_backend(pid), or ROLLBACK PREPARED",
    )


def _pooler(pooled: bool) -> Finding:
    if not pooled:
        return Finding(check="pooler", text="the connection goes directly to the server")
    return Finding(
        check="pooler",
        level="warning",
        text="the connection goes through a pooler, where LISTEN may not work, so workers query for jobs regularly",
        remedy="let workers connect to the server itself, if jobs must start at once",
    )
