"""Queues: what is set for them."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
from msgspec import UNSET, structs

from jobmill.core.values import QueueChange, QueueSettings, RateLimit
from jobmill.stores.postgres.connection.pool import Connection
from jobmill.stores.postgres.statements import Statements


async def configure(connection: Connection, statements: Statements, queue: str, change: QueueChange) -> QueueSettings:
    """Change what is set for a queue, within a transaction."""
    if change.running_limit is not UNSET:
        # Exchanges that began before do not note what runs here; from now on all do.
        await connection.execute(f"SELECT pg_advisory_xact_lock({statements.lock})")
    await connection.execute(statements("queue_row"), queue)
    row = await connection.fetchrow(statements("queue_locked"), queue)
    assert row is not None
    before = _settings(row)
    given = {field: value for field in change.__struct_fields__ if (value := getattr(change, field)) is not UNSET}
    after = structs.replace(before, **given)
    rate = after.rate_limit
    await connection.execute(
        statements("configure"),
        *(queue, after.paused, rate and rate.count, rate and rate.per_ms, after.running_limit),
        *(after.feed, after.events_max_len),
    )
    if before.running_limit is None and after.running_limit is not None:
        await connection.execute(statements("note_running"), queue)
    return after


async def settings(
    connection: Connection, statements: Statements, queues: Sequence[str] | None
) -> dict[str, QueueSettings]:
    """What is set for these queues, or for all that have a row."""
    known = {row["queue"]: _settings(row) for row in await connection.fetch(statements("queues"))}
    return known if queues is None else {queue: known.get(queue) or QueueSettings() for queue in queues}


def _settings(row: asyncpg.Record) -> QueueSettings:
    limit = None if row["rate_count"] is None else RateLimit(row["rate_count"], row["rate_per_ms"])
    return QueueSettings(
        paused=row["paused"],
        rate_limit=limit,
        running_limit=row["running_limit"],
        feed=row["feed"],
        events_max_len=row["events_max_len"],
    )
