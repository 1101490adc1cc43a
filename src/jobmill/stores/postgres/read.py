"""The verbs that only read: get, count, depths, stats and logs; search.py has find and count_up_to."""

from __future__ import annotations

from collections.abc import Sequence

from jobmill.core.job import STATES, Job
from jobmill.core.stats import MAX_DURATIONS, by_queue_and_name
from jobmill.core.stats import stats as stats_of
from jobmill.core.values import DEPTH_LIMIT, Count, Depth, Filter, LogLine, Stats
from jobmill.stores.postgres.codec import stored_job
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.filters import PostgresConditions

# These verbs may read many rows.
READ_SECONDS = 60.0


async def get(context: PostgresContext, ids: Sequence[str]) -> list[Job | None]:
    text = context.statements("get")
    rows = await context.use(lambda connection: connection.fetch(text, list(ids)), READ_SECONDS)
    jobs = {job.id: job for job in map(stored_job, rows)}
    return [jobs.get(id) for id in ids]


async def lease_ends(context: PostgresContext, ids: Sequence[str]) -> list[int | None]:
    text = context.statements("lease_ends")
    rows = await context.use(lambda connection: connection.fetch(text, list(ids)), READ_SECONDS)
    found: dict[str, int] = dict(map(tuple, rows))
    return [found.get(id) for id in ids]


async def count(context: PostgresContext, filter: Filter) -> list[Count]:
    return await context.use(lambda connection: _count(context, connection, filter), READ_SECONDS)


async def _count(context: PostgresContext, connection: Connection, filter: Filter) -> list[Count]:
    where = PostgresConditions(filter)
    rows = await connection.fetch(where.into(context.statements, "count"), *where.parameters)
    counts = [Count(*row) for row in rows]
    return sorted(counts, key=lambda one: (one.queue, one.name, STATES.index(one.state)))


async def depths(
    context: PostgresContext, queues: Sequence[str] | None = None, limit: int = DEPTH_LIMIT
) -> list[Depth]:
    parameters = (context.clock.given_ms(), None if queues is None else list(queues), limit)
    text = context.statements.call("depths", len(parameters))
    rows = await context.use(lambda connection: connection.fetch(text, *parameters), READ_SECONDS)
    return [Depth(**dict(row)) for row in rows]


async def stats(context: PostgresContext, queue: str | None = None, name: str | None = None) -> list[Stats]:
    now_ms, statements = context.clock.now(), context.statements

    async def read(connection: Connection) -> list[Stats]:
        jobs = await _count(context, connection, Filter(queue=queue, name=name))
        runs = [Count(*row) for row in await connection.fetch(statements("run_counts"), queue, name)]
        counts = by_queue_and_name(jobs + runs)
        oldest = {(row[0], row[1]): row[2] for row in await connection.fetch(statements("oldest"), queue, name, now_ms)}
        rows = await connection.fetch(statements("durations"), queue, name, MAX_DURATIONS)
        durations = {(row[0], row[1]): row[2] for row in rows}
        return [
            stats_of(*key, numbers, now_ms - oldest[key] if key in oldest else None, durations.get(key, ()))
            for key, numbers in counts.items()
        ]

    return await context.use(read, READ_SECONDS)


async def logs(context: PostgresContext, id: str, limit: int = 1_000) -> list[LogLine]:
    text = context.statements("logs")
    rows = await context.use(lambda connection: connection.fetch(text, id, limit), READ_SECONDS)
    return [LogLine(*row) for row in reversed(rows)]
