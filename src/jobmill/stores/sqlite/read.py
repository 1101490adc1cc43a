"""Reading: get, find, count, depths, stats and logs. They run on the reader's connection and change nothing."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import structs

from jobmill.core.cursors import MAX_NUMBER, cut_page, read_ordered_cursor, shown_position
from jobmill.core.due import NEVER_MS
from jobmill.core.job import FINAL, LIVE, STATES, Job
from jobmill.core.stats import MAX_DURATIONS, by_queue_and_name
from jobmill.core.stats import stats as summary
from jobmill.core.values import DEPTH_LIMIT, Count, CountUpTo, Depth, Filter, LogLine, Order, Page, Stats, order_of
from jobmill.errors import InvalidValue
from jobmill.stores.common.unreadable import UnreadableJob
from jobmill.stores.sqlite.codec import QueueRow, as_json, decode_job, decode_jobs
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.filters import conditions, searched_after, wanted_states
from jobmill.stores.sqlite.queues import known_queues
from jobmill.stores.sqlite.statements import sql


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


def lease_ends(context: SqliteContext, ids: Sequence[str]) -> list[int | None]:
    """When the leases of jobs end."""
    found: dict[str, int] = dict(context.rows("lease_ends", (as_json(list(ids)),)))
    return [found.get(id) for id in ids]


#: For each order: the condition of one index range, the columns by which the jobs of a range come, the largest first?
_ORDERS: dict[Order, tuple[str, tuple[str, ...], bool]] = {
    "claim": (" AND jobs.name = ? AND jobs.priority = ?", ("jobs.due_ms", "jobs.seq"), False),
    "longest": ("", ("jobs.started_ms", "jobs.seq"), False),
    "latest": (" AND jobs.name = ? AND jobs.keep_age_ms IS ?", ("jobs.finished_ms", "jobs.seq"), True),
    "own": ("", ("jobs.seq",), True),
}

# Where a job is in its order: its priority in the order of claims, and the columns of that order.
_Position = tuple[int, ...]

# Up to this number of jobs of a state, sorting them is faster than reading all jobs until a page is full.
_FEW = 50_000


def find(context: SqliteContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """A page. A cursor is "<" (further) or ">" (back) and the position that the page is beyond."""
    after = searched_after(context, filter)
    positions, next, previous = cut_page(_beyond(context, filter, after, cursor, limit), limit, cursor, shown_position)
    jobs = _readable_jobs(context, [position[-1] for position in positions]) if positions else []
    return Page(jobs, next, previous, partial=after > 0)


def _beyond(context: SqliteContext, filter: Filter, after: int, cursor: str | None, limit: int) -> list[_Position]:
    """The positions of at least the first `limit + 1` matches beyond a cursor.

    Within an index range, the index has the order. The ranges of one priority are merged.
    """
    back, position = read_ordered_cursor(cursor)
    order = order_of(filter)
    _, columns, largest_first = _ORDERS[order]
    descending, width = largest_first != back, len(columns)
    if position is not None and len(position) != width + (order == "claim"):
        raise InvalidValue("cursor", "a cursor that a page of this filter gave", cursor)
    where, parameters = conditions(filter, after)
    hint = _hint(context, filter)
    found: list[_Position] = []
    for priority, ranges in sorted(_ranges(context, filter, order).items(), reverse=descending):
        same = [0]
        if position is not None and position[:-width] == priority:
            # First jobs that share all columns but the last with the position, then the others.
            same = list(range(width, 0, -1))
        elif position is not None and (position[:-width] < priority) == descending:
            continue
        for one in ranges:
            for number in same:
                statement = find_statement(order, where, descending, number, hint)
                bound = position[-width:][:number] if position else ()
                rows = context.cursor.execute(statement, (*parameters, *one, *bound, limit + 1))
                # A damaged row may have no time.
                found += [(*priority, *(value or 0 for value in row)) for row in rows]
        if len(found) > limit:
            break
    return sorted(found, reverse=descending)


def find_statement(order: Order, where: str, descending: bool, bounds: int = 0, hint: str = "") -> str:
    """The statement that finds the first matches in one index range.

    `bounds`: how many columns have a bound. The last of these must be beyond its bound, those before it equal theirs.
    """
    range, columns, _ = _ORDERS[order]
    way, sign = (" DESC", "<") if descending else ("", ">")
    for column in columns[:bounds]:
        range += f" AND {column} {sign if column == columns[bounds - 1] else '='} ?"
    parts = {"hint": hint, "conditions": where, "range": range, "columns": ", ".join(columns)}
    return sql("find").format_map(parts | {"order": ", ".join(column + way for column in columns)})


def _hint(context: SqliteContext, filter: Filter) -> str:
    """How to find jobs of one state of all queues. The planner does not know how many jobs each state has."""
    if filter != Filter(states=filter.states) or len(states := wanted_states(filter)) != 1:
        return ""
    is_few = count_up_to(context, filter, _FEW).count < _FEW
    index = f"jobmill_{states[0] if states[0] in LIVE else 'final'}"
    return f" INDEXED BY {index}" if is_few else " NOT INDEXED"


def _ranges(context: SqliteContext, filter: Filter, order: Order) -> dict[_Position, list[tuple[object, ...]]]:
    """The parameters of the index ranges that may have matches; by priority in the order of claims."""
    if order == "claim":
        rows = context.rows("waiting_ranges", (filter.queue, -1))
    elif order == "latest":
        rows = context.rows("final_ranges", (filter.queue, wanted_states(filter)[0]))
    else:
        return {(): [()]}
    ranges: dict[_Position, list[tuple[object, ...]]] = {}
    for name, part, *_ in rows[1:]:
        if filter.name in (None, name) and name.startswith(filter.name_prefix or ""):
            ranges.setdefault((part,) if order == "claim" else (), []).append((name, part))
    return ranges


def count(context: SqliteContext, filter: Filter) -> list[Count]:
    """How many jobs match, by queue, name and state. One query for each state: each has an index of its own."""
    counts: list[Count] = []
    after = searched_after(context, filter)
    for state in wanted_states(filter):
        where, parameters = conditions(structs.replace(filter, states=(state,)), after)
        rows = context.cursor.execute(sql("count").replace("{conditions}", where), parameters).fetchall()
        counts += [Count(queue, name, state, number) for queue, name, number in rows]
    return sorted(counts, key=lambda one: (one.queue, one.name, STATES.index(one.state)))


def count_up_to(context: SqliteContext, filter: Filter, limit: int) -> CountUpTo:
    """How many jobs match, at most `limit`."""
    found = 0
    after = searched_after(context, filter)
    for state in wanted_states(filter):
        where, parameters = conditions(structs.replace(filter, states=(state,)), after)
        statement = sql("count_up_to").replace("{conditions}", where)
        found += context.cursor.execute(statement, (*parameters, limit - found)).fetchone()[0]
    return CountUpTo(found, found < limit)


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
    lines = [LogLine(at_ms, text) for at_ms, text in context.rows("logs", (id, limit))]
    lines.reverse()
    return lines
