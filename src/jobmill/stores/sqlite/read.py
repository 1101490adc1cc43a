"""The verbs that only read: get, count, depths, stats and logs; search.py has find and count_up_to.

They run on the connection of the reader.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs

from jobmill.core.cursors import MAX_NUMBER
from jobmill.core.due import NEVER_MS
from jobmill.core.job import FINAL, STATES, Job
from jobmill.core.stats import MAX_DURATIONS, by_queue_and_name
from jobmill.core.stats import stats as summary
from jobmill.core.values import DEPTH_LIMIT, Count, Depth, Filter, LogLine, Stats
from jobmill.stores.common.unreadable import UnreadableJob
from jobmill.stores.sqlite.codec import QueueRow, as_json, decode_job, decode_jobs
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.filters import filtered, searched_after, wanted_states
from jobmill.stores.sqlite.queues import known_queues


def read_jobs(context: SqliteContext, seqs: Sequence[int]) -> list[Job]:
    """Jobs by seq, in order; raises UnreadableJob where one of them cannot be read."""
    (text,) = context.row("read", (as_json(seqs),))
    return decode_jobs(text, len(seqs))


def read_job(context: SqliteContext, seq: int) -> tuple[str, str, str, str | None, Job | UnreadableJob]:
    """One job's id, queue, name and lane; and the job, or why it cannot be read."""
    id, queue, name, lane, text = context.row("read_one", (seq,))
    try:
        return id, queue, name, lane, decode_job(text)
    except UnreadableJob as error:
        return id, queue, name, lane, error


def readable_jobs(context: SqliteContext, seqs: Sequence[int]) -> list[Job]:
    """Jobs for people to read. An unreadable job has the fields that can be read, and the reason."""
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
    jobs = {job.id: job for job in readable_jobs(context, list(found.values()))} if found else {}
    return [jobs.get(id) for id in ids]


def lease_ends(context: SqliteContext, ids: Sequence[str]) -> list[int | None]:
    """When the leases of jobs end."""
    found: dict[str, int] = dict(context.rows("lease_ends", (as_json(list(ids)),)))
    return [found.get(id) for id in ids]


def count(context: SqliteContext, filter: Filter) -> list[Count]:
    """How many jobs match, by queue, name and state. One query for each state: each has an index of its own."""
    counts: list[Count] = []
    after = searched_after(context, filter)
    for state in wanted_states(filter):
        statement, parameters = filtered("count", structs.replace(filter, states=(state,)), after)
        rows = context.cursor.execute(statement, parameters).fetchall()
        counts += [Count(queue, name, state, number) for queue, name, number in rows]
    return sorted(counts, key=lambda one: (one.queue, one.name, STATES.index(one.state)))


def depths(context: SqliteContext, queues: Sequence[str] | None = None, limit: int = DEPTH_LIMIT) -> list[Depth]:
    """How many jobs queues have in each state."""
    names = [row[0] for row in context.rows("queue_names")] if queues is None else sorted(set(queues))
    return [_depth(context, queue, limit) for queue in names]


def _depth(context: SqliteContext, queue: str, limit: int) -> Depth:
    ranges = context.rows("waiting_ranges", (queue, limit + 2))[1:]
    now_ms = context.now_ms
    dues = {
        "due": [(0, now_ms)],
        "later": [(now_ms + 1, NEVER_MS - 1), (NEVER_MS + 1, MAX_NUMBER)],
        "held": [(NEVER_MS, NEVER_MS)],
    }
    others = context.row("depth", (queue, limit))
    counts = dict(zip(("running", *FINAL), others, strict=True))
    for wait, spans in dues.items():
        parts = [(name, priority, *span) for name, priority, _ in ranges for span in spans]
        (counts[wait],) = context.row("depth_waiting", (queue, as_json(parts), limit))
    return Depth(
        queue=queue,
        **counts,
        oldest_due_ms=min((due_ms for _, _, due_ms in ranges if due_ms <= context.now_ms), default=None),
        limited_until_ms=known_queues(context).get(queue, QueueRow()).limits.limited_until_ms(context.now_ms),
        exact=max(counts.values()) < limit and len(ranges) <= limit,
    )


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
    lines = [LogLine(*row) for row in context.rows("logs", (id, limit))]
    lines.reverse()
    return lines
