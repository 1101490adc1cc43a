"""Reading: get, find, count, stats and logs. They run on the reader's connection and change nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs

from jobmill.core.cursors import MAX_NUMBER, cut_page, read_cursor
from jobmill.core.job import STATES, Job
from jobmill.core.stats import by_queue_and_name
from jobmill.core.stats import stats as summary
from jobmill.core.values import Count, Filter, LogLine, Page, Stats
from jobmill.stores.common.unreadable import UnreadableJob
from jobmill.stores.sqlite.codec import as_json, decode_job, decode_jobs
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.filters import conditions, wanted_states
from jobmill.stores.sqlite.statements import sql

# Durations are measured over this number of succeeded jobs, and of succeeded runs, of a name: the last ones.
MAX_DURATIONS = 10_000


def read_jobs(context: SqliteContext, seqs: Sequence[int]) -> list[Job]:
    """Jobs by seq, in order; raises UnreadableJob where one of them cannot be read."""
    (text,) = context.row("read", (as_json(seqs),))
    return decode_jobs(text, len(seqs))


def read_job(context: SqliteContext, seq: int) -> tuple[str, str, str, Job | UnreadableJob]:
    """One job's id, queue and name; and the job, or why it cannot be read."""
    id, queue, name, text = context.row("read_one", (seq,))
    try:
        return id, queue, name, decode_job(text)
    except UnreadableJob as error:
        return id, queue, name, error


def _readable_jobs(context: SqliteContext, seqs: Sequence[int]) -> list[Job]:
    """Jobs for people to read: where one is unreadable, what can be read of it, and the reason."""
    try:
        return read_jobs(context, seqs)
    except UnreadableJob:
        return [_readable_job(context, seq) for seq in seqs]


def _readable_job(context: SqliteContext, seq: int) -> Job:
    *_, job = read_job(context, seq)
    if isinstance(job, Job):
        return job
    plain = decode_job(context.row("read_plain", (seq,))[0])
    return structs.replace(plain, deferred_error=f"the stored job cannot be read: {job}")


def get(context: SqliteContext, ids: Sequence[str]) -> list[Job | None]:
    """Jobs by id."""
    found: dict[str, int] = dict(context.rows("seqs_of", (as_json(list(ids)),)))
    jobs = {job.id: job for job in _readable_jobs(context, list(found.values()))} if found else {}
    return [jobs.get(id) for id in ids]


def find(context: SqliteContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """A page, newest first. A cursor is "<" (older) or ">" (newer) and the seq that the page is beyond."""
    newer, seq = read_cursor(cursor)
    where, parameters = conditions(filter)
    beyond, order = (">", "ASC") if newer else ("<", "DESC")
    statement = sql("find").replace("{conditions}", where).replace("{beyond}", beyond).replace("{order}", order)
    parameters += [MAX_NUMBER if seq is None else seq, limit + 1]
    found = [row[0] for row in context.cursor.execute(statement, parameters).fetchall()]
    seqs, next, previous = cut_page(found, limit, cursor, str)
    return Page(_readable_jobs(context, seqs) if seqs else [], next, previous)


def count(context: SqliteContext, filter: Filter) -> list[Count]:
    """How many jobs match, by queue, name and state. One query for each state: each has an index of its own."""
    counts: list[Count] = []
    for state in wanted_states(filter):
        where, parameters = conditions(structs.replace(filter, states=(state,)))
        rows = context.cursor.execute(sql("count").replace("{conditions}", where), parameters).fetchall()
        counts += [Count(queue, name, state, number) for queue, name, number in rows]
    return sorted(counts, key=lambda one: (one.queue, one.name, STATES.index(one.state)))


def stats(context: SqliteContext, queue: str | None = None, name: str | None = None) -> list[Stats]:
    """Counts, the oldest wait and durations by queue and name."""
    runs = [Count(*row) for row in context.rows("run_counts", (queue, name))]
    table = by_queue_and_name(count(context, Filter(queue=queue, name=name)) + runs)
    return [
        summary(queue_, name_, counts, _oldest_wait(context, queue_, name_), _durations(context, queue_, name_))
        for (queue_, name_), counts in table.items()
    ]


def _oldest_wait(context: SqliteContext, queue: str, name: str) -> int | None:
    ranges = context.row("ranges", (queue, as_json([name]), 0, 0))[0]
    waits = [context.now_ms - due_ms for _, due_ms, _ in msgspec.json.decode(ranges) if due_ms <= context.now_ms]
    return max(waits, default=None)


def _durations(context: SqliteContext, queue: str, name: str) -> list[float]:
    (durations,) = context.row("durations", (queue, name, MAX_DURATIONS))
    return msgspec.json.decode(durations, type=list[float])


def logs(context: SqliteContext, id: str, limit: int = 1_000) -> list[LogLine]:
    """The last log lines of a job, oldest first."""
    lines = [LogLine(at_ms, text) for at_ms, text in context.rows("logs", (id, limit))]
    lines.reverse()
    return lines
