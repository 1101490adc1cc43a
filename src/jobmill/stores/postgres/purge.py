"""The verb purge, in one transaction."""

from __future__ import annotations

import asyncpg

from jobmill.core.announcing import CARD_KEPT_MS
from jobmill.core.audit import AUDIT_KEPT_MS
from jobmill.core.changes import removed_event
from jobmill.core.job import FINAL, RUNS_KEPT_MS
from jobmill.core.tallies import TALLIES_KEPT_MS
from jobmill.core.values import Purged
from jobmill.stores.common.sql import quoted
from jobmill.stores.postgres.change import remove
from jobmill.stores.postgres.codec import subject
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.feed import add_events
from jobmill.stores.postgres.schema import extensions

# How many rows an extension of the schema may catch up on in one purge.
CATCH_UP_ROWS = 10_000
# How many rewinds of claim cursors are kept. A claim looks them up by their numbers, so that many do not matter.
MAX_REWINDS = 1_000


async def purge(context: PostgresContext, limit: int = 1_000) -> Purged:
    """Remove jobs that are too old, then those that are not among the last of their queue and state."""
    return await context.transact(lambda connection: _purge(context, connection, limit))


async def _purge(context: PostgresContext, connection: Connection, limit: int) -> Purged:
    statements = context.statements
    now_ms = await context.now_ms(connection)
    for extension in await extensions(connection, statements):
        function = quoted(f"{extension}_catch_up")
        await connection.execute(f"SELECT {statements.quoted_schema}.{function}($1)", CATCH_UP_ROWS)
    ids = [row[0] for row in await connection.fetch(statements("dropped"), limit)]
    has_more = bool(ids) and await connection.fetchval(statements.call("drop_edges", 2), ids, limit) >= limit
    found: list[asyncpg.Record] = []
    # The planner expects few jobs: it would read and sort all that have expired, and remove some of them.
    await connection.execute("SET LOCAL enable_bitmapscan = off")
    for state in FINAL:
        text = statements("purge_old").replace("{state}", state)
        found += await connection.fetch(text, now_ms, limit + 1)
    for queue, state, last in await connection.fetch(statements("keep_last")):
        if len(found) <= limit:
            rows = await connection.fetch(statements("purge_surplus"), queue, state, last, limit + 1)
            known = {row["id"] for row in found}
            found += [row for row in rows if row["id"] not in known]
    gone = [subject(row) for row in found[:limit]]
    await remove(connection, statements, [one.id for one in gone], now_ms)
    await add_events(connection, statements, [removed_event(one, now_ms) for one in gone])
    # Those that they had waited for may go when their edges are deleted.
    has_more = has_more or any(row["dependencies"] for row in found[:limit])
    has_more = await connection.fetchval(statements("purge_taken_keys"), now_ms, limit) >= limit or has_more
    await connection.execute(statements("purge_rewinds"), MAX_REWINDS)
    await connection.execute(statements("purge_runs"), now_ms - RUNS_KEPT_MS)
    last_starts = [now_ms - kept_ms for kept_ms in TALLIES_KEPT_MS.values()]
    last = (now_ms - CARD_KEPT_MS, list(TALLIES_KEPT_MS), last_starts, now_ms - AUDIT_KEPT_MS)
    await connection.execute(statements("purge_operations"), *last)
    schema = statements.quoted_schema
    await connection.execute(f"SELECT {schema}.number_events(queue) FROM {schema}.queues WHERE feed")
    return Purged(len(gone), more=has_more or len(found) > limit)
