"""Looks: get, find, count, stats and logs. They change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from jobmill.core.job import STATES, Job
from jobmill.core.stats import by_queue_and_name
from jobmill.core.stats import stats as summary
from jobmill.core.values import Count, Filter, LogLine, Page, Stats
from jobmill.errors import InvalidValue
from jobmill.stores.postgres.codec import looked_at_all
from jobmill.stores.postgres.connection.pool import Connection
from jobmill.stores.postgres.filters import Conditions
from jobmill.stores.postgres.statements import Statements

# Durations are of the last so many succeeded jobs of a name.
DURATIONS = 10_000


async def get(connection: Connection, statements: Statements, ids: Sequence[str]) -> list[Job | None]:
    """Jobs by id."""
    jobs = {job.id: job for job in looked_at_all(await connection.fetch(statements("get"), list(ids)))}
    return [jobs.get(id) for id in ids]


async def find(connection: Connection, statements: Statements, filter: Filter, cursor: str | None, limit: int) -> Page:
    """A page, the greatest id first: ours begin with the time. A cursor is "<" or ">" and the id that it is beyond."""
    newer, id = _read_cursor(cursor)
    where = Conditions(filter, first=2)
    if id is not None:
        where.add("jobs.id > {}" if newer else "jobs.id < {}", id)
    text = where.into(statements("find")).replace("{order}", "ASC" if newer else "DESC")
    rows = await connection.fetch(text, limit + 1, *where.parameters)
    more = len(rows) > limit
    jobs = looked_at_all(rows[:limit])
    if newer:
        jobs.reverse()
    older_on, newer_on = (bool(jobs), more) if newer else (more, cursor is not None and bool(jobs))
    return Page(
        jobs,
        next=f"<{jobs[-1].id}" if older_on and jobs else None,
        previous=f">{jobs[0].id}" if newer_on and jobs else None,
    )


def _read_cursor(cursor: str | None) -> tuple[bool, str | None]:
    if cursor is None:
        return False, None
    if cursor[:1] not in ("<", ">") or len(cursor) < 2 or "\x00" in cursor:
        raise InvalidValue("cursor", "a cursor that a page of this store gave", cursor)
    return cursor[0] == ">", cursor[1:]


async def count(connection: Connection, statements: Statements, filter: Filter) -> list[Count]:
    """How many match, by queue, name and state."""
    where = Conditions(filter)
    rows = await connection.fetch(where.into(statements("count")), *where.parameters)
    counts = [Count(*row) for row in rows]
    return sorted(counts, key=lambda one: (one.queue, one.name, STATES.index(one.state)))


async def stats(
    connection: Connection, statements: Statements, queue: str | None, name: str | None, now_ms: int
) -> list[Stats]:
    """How queues and names are doing."""
    counts = by_queue_and_name(await count(connection, statements, Filter(queue=queue, name=name)))
    oldest = {(row[0], row[1]): row[2] for row in await connection.fetch(statements("oldest"), queue, name, now_ms)}
    rows = await connection.fetch(statements("durations"), queue, name, DURATIONS)
    durations = {(row[0], row[1]): row[2] for row in rows}
    return [
        summary(*lane, numbers, now_ms - oldest[lane] if lane in oldest else None, durations.get(lane, ()))
        for lane, numbers in counts.items()
    ]


async def logs(connection: Connection, statements: Statements, id: str, limit: int) -> list[LogLine]:
    """The last log lines of a job, oldest first."""
    rows = await connection.fetch(statements("logs"), id, limit)
    return [LogLine(at_ms, text) for at_ms, text in reversed(rows)]
