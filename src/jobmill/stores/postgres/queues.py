"""Settings of queues."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec
from msgspec import UNSET

from jobmill.core.queue_limits import changed_settings
from jobmill.core.values import Pause, QueueChange, QueueSettings, RateLimit
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext


async def configure(context: PostgresContext, queue: str, change: QueueChange) -> QueueSettings:
    statements = context.statements

    async def work(connection: Connection) -> QueueSettings:
        if change.running_limit is not UNSET:
            # Exchanges that began before do not note the jobs that run here; all that begin later do.
            await connection.execute(f"SELECT pg_advisory_xact_lock({statements.lock})")
        row = await connection.fetchrow(statements("queue_locked"), queue)
        assert row is not None
        before = _settings(row, context.clock.now())
        after = changed_settings(before, change)
        rate = after.rate_limit
        pause = None if after.pause is None else msgspec.json.encode(after.pause).decode()
        if change == QueueChange(paused=change.paused, pause=change.pause):
            await connection.execute(statements("pause"), queue, after.paused, pause)
            return after
        limits = (after.paused, pause, rate and rate.count, rate and rate.per_ms, after.running_limit)
        await connection.execute(statements("configure"), queue, *limits, after.feed, after.events_max_len)
        if before.running_limit is None and after.running_limit is not None:
            await connection.execute(statements("note_running"), queue)
        return after

    after = await context.transact(work)
    context.loops.here().notifications.notify([queue])
    return after


async def settings(context: PostgresContext, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
    rows = await context.use(lambda connection: connection.fetch(context.statements("queues")))
    known = {row["queue"]: _settings(row, context.clock.now()) for row in rows}
    return known if queues is None else {queue: known.get(queue) or QueueSettings() for queue in queues}


def _settings(row: asyncpg.Record, now_ms: int) -> QueueSettings:
    """The settings in a row, as they apply at this time."""
    limit = None if row["rate_count"] is None else RateLimit(row["rate_count"], row["rate_per_ms"])
    settings = QueueSettings(
        paused=row["paused"],
        pause=None if row["pause"] is None or not row["paused"] else msgspec.json.decode(row["pause"], type=Pause),
        rate_limit=limit,
        running_limit=row["running_limit"],
        feed=row["feed"],
        events_max_len=row["events_max_len"],
    )
    return settings.at(now_ms)
