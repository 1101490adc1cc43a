"""The verbs that only read: get, find, count, depths, stats and logs."""

from __future__ import annotations

import re
from collections.abc import Sequence

import asyncpg

from jobmill.core.cursors import cut_page, split_cursor
from jobmill.core.job import STATES, Job
from jobmill.core.stats import by_queue_and_name
from jobmill.core.stats import stats as stats_of
from jobmill.core.values import DEPTH_LIMIT, Count, CountUpTo, Depth, Filter, LogLine, Order, Page, Stats, order_of
from jobmill.errors import InvalidValue
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


async def lease_ends(context: PostgresContext, ids: Sequence[str]) -> list[int | None]:
    text = context.statements("lease_ends")
    rows = await context.use(lambda connection: connection.fetch(text, list(ids)), READ_SECONDS)
    found: dict[str, int] = dict(map(tuple, rows))
    return [found.get(id) for id in ids]


#: By the order of `find`: the columns that make it. The statement is named for the order.
_COLUMNS: dict[Order, tuple[str, ...]] = {
    "claim": ("priority", "due_ms", "seq"),
    "longest": ("started_ms", "seq"),
    "latest": ("finished_ms", "id"),
    "own": ("id",),
}


async def find(context: PostgresContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """A page. A cursor is "<" or ">" and the values of the columns that it is beyond.

    The store's own order is the greatest id first: ids begin with the time.
    """
    back, position = split_cursor(cursor)
    order = order_of(filter)
    columns = _COLUMNS[order]
    descends = (order in ("latest", "own")) != back
    where = PostgresConditions(filter, first=2)
    if position is not None:
        sign, types = "<" if descends else ">", ("text" if one == "id" else "bigint" for one in columns)
        values = ", ".join(f"{{}}::{type}" for type in types)
        where.add(f"({', '.join(f'jobs.{one}' for one in columns)}) {sign} ({values})", *_values(columns, position))
    text = where.into(context.statements, f"find_{order}").replace("{order}", "DESC" if descends else "ASC")
    text = text.replace("{state}", (filter.states or ("",))[0])

    async def read(connection: Connection) -> tuple[list[asyncpg.Record], bool]:
        rows = await connection.fetch(text, limit + 1, *where.parameters)
        return rows, filter.payload is not None and await connection.fetchval(context.statements("has_older"))

    rows, partial = await context.use(read, READ_SECONDS)
    part, next, previous = cut_page(rows, limit, cursor, lambda row: ",".join(str(row[one]) for one in columns))
    return Page([stored_job(row) for row in part], next, previous, partial)


def _values(columns: Sequence[str], position: str) -> list[object]:
    texts = position.split(",", len(columns) - 1)
    numbers = texts[:-1] if columns[-1] == "id" else texts
    if len(texts) < len(columns) or not all(re.fullmatch(r"-?[0-9]{1,18}", one, re.ASCII) for one in numbers):
        raise InvalidValue("cursor", "a cursor that a page of this store gave", position)
    return [*map(int, numbers), *texts[len(numbers) :]]


async def count(context: PostgresContext, filter: Filter) -> list[Count]:
    return await context.use(lambda connection: _count(context, connection, filter), READ_SECONDS)


async def _count(context: PostgresContext, connection: Connection, filter: Filter) -> list[Count]:
    where = PostgresConditions(filter)
    rows = await connection.fetch(where.into(context.statements, "count"), *where.parameters)
    counts = [Count(*row) for row in rows]
    return sorted(counts, key=lambda one: (one.queue, one.name, STATES.index(one.state)))


async def count_up_to(context: PostgresContext, filter: Filter, limit: int) -> CountUpTo:
    where = PostgresConditions(filter, first=2)
    text = where.into(context.statements, "count_up_to")
    found = await context.use(lambda connection: connection.fetchval(text, limit, *where.parameters), READ_SECONDS)
    return CountUpTo(found, found < limit)


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
    return [LogLine(at_ms, text) for at_ms, text in reversed(rows)]
