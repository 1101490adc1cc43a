"""The verbs that only read: get, find, count, stats and logs."""

from __future__ import annotations

from collections.abc import Sequence

from jobmill.core.cursors import cut_page, split_cursor
from jobmill.core.job import STATES, Job
from jobmill.core.stats import by_queue_and_name
from jobmill.core.stats import stats as stats_of
from jobmill.core.values import Count, Filter, LogLine, Page, Stats
from jobmill.stores.postgres.codec import stored_job
from jobmill.stores.postgres.connection.connector import Connection
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.filters import PostgresConditions

# These verbs may read many rows.
READ_SECONDS = 60.0
# Statistics of durations are of at most this many succeeded jobs and runs of a name, the latest ones.
MAX_DURATIONS = 10_000


async def get(context: PostgresContext, ids: Sequence[str]) -> list[Job | None]:
    text = context.statements("get")
    rows = await context.use(lambda connection: connection.fetch(text, list(ids)), READ_SECONDS)
    jobs = {job.id: job for job in map(stored_job, rows)}
    return [jobs.get(id) for id in ids]


async def find(context: PostgresContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """A page, the greatest id first: ids begin with the time. A cursor is "<" or ">" and the id that it is beyond."""
    newer, id = split_cursor(cursor)
    where = PostgresConditions(filter, first=2)
    if id is not None:
        where.add("jobs.id > {}" if newer else "jobs.id < {}", id)
    text = where.into(context.statements("find")).replace("{order}", "ASC" if newer else "DESC")
    rows = await context.use(lambda connection: connection.fetch(text, limit + 1, *where.parameters), READ_SECONDS)
    part, next, previous = cut_page(rows, limit, cursor, lambda row: row["id"])
    return Page([stored_job(row) for row in part], next, previous)


async def count(context: PostgresContext, filter: Filter) -> list[Count]:
    return await context.use(lambda connection: _count(context, connection, filter), READ_SECONDS)


async def _count(context: PostgresContext, connection: Connection, filter: Filter) -> list[Count]:
    where = PostgresConditions(filter)
    rows = await connection.fetch(where.into(context.statements("count")), *where.parameters)
    counts = [Count(*row) for row in rows]
    return sorted(counts, key=lambda one: (one.queue, one.name, STATES.index(one.state)))


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
    return [LogLine(at_ms, text) for at_ms, text in reversed(rows)]
