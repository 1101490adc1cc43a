"""Looks: get, find, count, stats and logs. They run on the reader's connection and change nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs

from jobmill.core.cursors import MOST, newer_than, older_than, read_cursor
from jobmill.core.job import STATES, Job
from jobmill.core.stats import by_queue_and_name
from jobmill.core.stats import stats as summary
from jobmill.core.values import Count, Filter, LogLine, Page, Stats
from jobmill.stores.sqlite.filters import conditions, wanted_states
from jobmill.stores.sqlite.codec import read_all
from jobmill.stores.sqlite.statements import sql
from jobmill.stores.sqlite.context import Context

# Durations are of the last so many succeeded jobs of a name.
DURATIONS = 10_000

_encode = msgspec.json.Encoder().encode


def get(context: Context, ids: Sequence[str]) -> list[Job | None]:
    """Jobs by id."""
    found: dict[str, int] = dict(context.rows("seqs_of", (_encode(list(ids)).decode(),)))
    jobs = {job.id: job for job in read_all(context, list(found.values()))} if found else {}
    return [jobs.get(id) for id in ids]


def find(context: Context, filter: Filter, cursor: str | None, limit: int) -> Page:
    """A page, newest first. A cursor is "<" (older) or ">" (newer) and the seq that the page is beyond."""
    newer, seq = read_cursor(cursor)
    seqs = _find_seqs(context, filter, MOST if seq is None else seq, limit + 1, newer=newer)
    more = len(seqs) > limit
    seqs = seqs[:limit]
    if newer:
        seqs.reverse()
    older_on, newer_on = (bool(seqs), more) if newer else (more, cursor is not None and bool(seqs))
    return Page(
        read_all(context, seqs) if seqs else [],
        next=older_than(seqs[-1]) if older_on and seqs else None,
        previous=newer_than(seqs[0]) if newer_on and seqs else None,
    )


def _find_seqs(context: Context, filter: Filter, seq: int, limit: int, *, newer: bool) -> list[int]:
    where, parameters = conditions(filter)
    statement = sql("find_newer" if newer else "find_older").replace("{conditions}", where)
    return [row[0] for row in context.cursor.execute(statement, (*parameters, seq, limit)).fetchall()]


def count(context: Context, filter: Filter) -> list[Count]:
    """How many match, by queue, name and state. One state at a time: each has an index that knows its jobs."""
    counts: list[Count] = []
    for state in wanted_states(filter):
        where, parameters = conditions(structs.replace(filter, states=(state,)))
        statement = sql("count").replace("{conditions}", where)
        rows = context.cursor.execute(statement, parameters).fetchall()
        counts += [Count(queue, name, state, number) for queue, name, number in rows]
    return sorted(counts, key=lambda one: (one.queue, one.name, STATES.index(one.state)))


def stats(context: Context, queue: str | None, name: str | None) -> list[Stats]:
    """How queues and names are doing."""
    table = by_queue_and_name(count(context, Filter(queue=queue, name=name)))
    return [
        summary(queue_, name_, counts, _oldest(context, queue_, name_), _durations(context, queue_, name_))
        for (queue_, name_), counts in table.items()
    ]


def _oldest(context: Context, queue: str, name: str) -> int | None:
    heads = context.row("heads", (queue, _encode([name]).decode(), 0, 0))[0]
    waits = [context.now_ms - due_ms for _, due_ms, _ in msgspec.json.decode(heads) if due_ms <= context.now_ms]
    return max(waits, default=None)


def _durations(context: Context, queue: str, name: str) -> list[float]:
    (durations,) = context.row("durations", (queue, name, DURATIONS))
    return msgspec.json.decode(durations, type=list[float])


def logs(context: Context, id: str, limit: int) -> list[LogLine]:
    """The last log lines of a job, oldest first."""
    lines = [LogLine(at_ms, text) for at_ms, text in context.rows("logs", (id, limit))]
    lines.reverse()
    return lines
