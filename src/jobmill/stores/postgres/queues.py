"""Settings of queues."""

from __future__ import annotations

from collections.abc import Sequence

import asyncpg
import msgspec
from msgspec import UNSET

from jobmill.core.queue_limits import changed_settings
from jobmill.core.queue_settings import LaneRule
from jobmill.core.values import Pause, QueueChange, QueueSettings, RateLimit
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.lanes import review


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
        rule = (*_rule_columns(after.lanes), before.lanes != after.lanes)
        await connection.execute(statements("configure"), queue, *limits, after.feed, after.events_max_len, *rule)
        if before.running_limit is None and after.running_limit is not None:
            await connection.execute(statements("note_running"), queue)
        return after

    after = await context.transact(work)
    if change.lanes is not UNSET:
        await review(context, queue)
    context.loops.here().notifications.notify([queue])
    return after


async def settings(context: PostgresContext, queues: Sequence[str] | None = None) -> dict[str, QueueSettings]:
    rows = await context.use(lambda connection: connection.fetch(context.statements("queues")))
    known = {row["queue"]: _settings(row, context.clock.now()) for row in rows}
    if queues is None:
        # The row of a queue with lanes need not have settings.
        has_lanes = {row["queue"] for row in rows if row["has_lanes"]}
        return {queue: one for queue, one in known.items() if queue not in has_lanes or one != QueueSettings()}
    return {queue: known.get(queue) or QueueSettings() for queue in queues}


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
        lanes=_rule(row),
    )
    return settings.at(now_ms)


def _rule(row: asyncpg.Record) -> LaneRule | None:
    """The rule for all lanes, in the row of their queue."""
    if row["lane_strict"] is None:
        return None
    rate = None if row["lane_rate_count"] is None else RateLimit(row["lane_rate_count"], row["lane_rate_per_ms"])
    return LaneRule(running=row["lane_running"], rate=rate, strict=row["lane_strict"])


def _rule_columns(rule: LaneRule | None) -> tuple[object, ...]:
    if rule is None:
        return (None, None, None, None)
    return (rule.running, rule.rate and rule.rate.count, rule.rate and rule.rate.per_ms, rule.strict)
