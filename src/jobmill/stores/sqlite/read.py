"""Reading: get, find, count, depths, stats and logs. They run on the reader's connection and change nothing."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Generator, Sequence
from contextlib import closing

import msgspec
from msgspec import structs

from jobmill.core.cursors import MAX_NUMBER, Position, cut_search, read_ordered_cursor
from jobmill.core.due import NEVER_MS
from jobmill.core.job import FINAL, STATES, Job
from jobmill.core.stats import MAX_DURATIONS, by_queue_and_name
from jobmill.core.stats import stats as summary
from jobmill.core.values import (
    DEPTH_LIMIT,
    SEARCHED_PER_PAGE,
    Count,
    CountUpTo,
    Depth,
    Filter,
    LogLine,
    Order,
    Page,
    Stats,
    order_of,
)
from jobmill.errors import InvalidValue
from jobmill.stores.common.unreadable import UnreadableJob
from jobmill.stores.sqlite.codec import QueueRow, as_json, decode_job, decode_jobs
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.filters import conditions, index_of_few, searched_after, split, wanted_states
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
    jobs = {job.id: job for job in _readable_jobs(context, list(found.values()))} if found else {}
    return [jobs.get(id) for id in ids]


def lease_ends(context: SqliteContext, ids: Sequence[str]) -> list[int | None]:
    """When the leases of jobs end."""
    found: dict[str, int] = dict(context.rows("lease_ends", (as_json(list(ids)),)))
    return [found.get(id) for id in ids]


#: For each order: the condition of one index range, the columns that sort its jobs, whether the largest comes first.
_ORDERS: dict[Order, tuple[str, tuple[str, ...], bool]] = {
    "claim": (
        " AND jobs.queue = ? AND jobs.name = ? AND jobs.priority = ?",
        ("jobs.priority", "jobs.due_ms", "jobs.seq"),
        False,
    ),
    "longest": ("", ("jobs.started_ms", "jobs.seq"), False),
    "latest": (
        " AND jobs.queue = ? AND jobs.name = ? AND jobs.keep_age_ms IS ?",
        ("jobs.finished_ms", "jobs.seq"),
        True,
    ),
    "own": ("", ("jobs.seq",), True),
}
#: The columns at the beginning of an order that are the same in an index range.
_FIXED = {"claim": 1}


def find(context: SqliteContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """A page. A cursor is "<" (further) or ">" (back) and the position that the page is beyond."""
    after = searched_after(context, filter)
    back, start = read_ordered_cursor(cursor)
    order = _order(filter)
    _, columns, largest_first = _ORDERS[order]
    descending = largest_first != back
    if start is not None and len(start) != len(columns):
        raise InvalidValue("cursor", "a cursor that a page of this filter gave", cursor)
    found: list[Position] = []
    reached: Position | None = None
    examined = max(limit, SEARCHED_PER_PAGE)
    with closing(_positions(context, filter, order, after, start, descending, limit)) as positions:
        for number, (position, matches) in enumerate(positions, 1):
            if matches:
                found.append(position)
            if len(found) > limit:
                break
            if number >= examined:
                reached = position
                break
    part, next, previous = cut_search(found, limit, cursor, reached, descending=descending)
    jobs = _readable_jobs(context, [position[-1] for position in part]) if part else []
    return Page(jobs, next, previous, partial=after > 0)


def _order(filter: Filter) -> Order:
    """Jobs of one state come in the order of that state, also those of all queues."""
    return order_of(structs.replace(filter, queue=""))


def _positions(
    context: SqliteContext,
    filter: Filter,
    order: Order,
    after: int,
    start: Position | None,
    descending: bool,
    limit: int,
) -> Generator[tuple[Position, bool], None, None]:
    """The positions beyond `start` of jobs that may match, in order, and whether each does."""
    few = _few(context, filter, order, after)
    if few is not None:
        beyond = [one for one in few if start is None or (one < start if descending else one > start)]
        yield from ((one, True) for one in sorted(beyond, reverse=descending))
        return
    indexed, rest = split(filter, order)
    where, parameters = conditions(indexed, after if order == "own" else 0)
    rest_where, rest_parameters = conditions(rest, 0 if order == "own" else after)
    if order == "own" and indexed.queue is not None:
        where += " AND jobs.seq > 0"  # as the index of queues has it
    # Where the index ranges answer the filter, a page needs no more than this of each.
    most = limit + 1 if rest_where == "true" else max(limit, SEARCHED_PER_PAGE)
    fixed = _FIXED.get(order, 0)
    for part, ranges in sorted(_ranges(context, filter, order).items(), reverse=descending):
        bounds = [0]
        if start is not None and start[:fixed] == part:
            # First jobs that share all columns but the last with the position, then the others.
            bounds = list(range(len(start), fixed, -1))
        elif start is not None and (start[:fixed] < part) == descending:
            continue
        statements = [
            (find_statement(order, where, descending, number, rest_where), (start or ())[fixed:number])
            for number in bounds
        ]
        found = [
            _read_positions(
                context, [(one, (*rest_parameters, *parameters, *range, *bound, most)) for one, bound in statements]
            )
            for range in ranges
        ]
        yield from heapq.merge(*found, reverse=descending)


def _read_positions(
    context: SqliteContext, statements: Sequence[tuple[str, Sequence[object]]]
) -> Generator[tuple[Position, bool], None, None]:
    """The rows of these statements, one after the other. A row is read when it is needed."""
    for statement, parameters in statements:
        with closing(context.cursor.connection.execute(statement, parameters)) as rows:
            # A damaged row may have no time.
            yield from ((tuple(value or 0 for value in row[:-1]), bool(row[-1])) for row in rows)


def find_statement(order: Order, where: str, descending: bool, bounds: int = 0, rest: str = "true") -> str:
    """The statement that reads one index range.

    `bounds`: how many columns have a bound. The last of these must be beyond its bound, those before it equal theirs.
    `rest`: what the index does not answer.
    """
    range, columns, _ = _ORDERS[order]
    way, sign = (" DESC", "<") if descending else ("", ">")
    for column in columns[_FIXED.get(order, 0) : bounds]:
        range += f" AND {column} {sign if column == columns[bounds - 1] else '='} ?"
    parts = {"rest": rest, "conditions": where, "range": range, "columns": ", ".join(columns)}
    ordered = columns[_FIXED.get(order, 0) :]
    return sql("find").format_map(parts | {"order": ", ".join(column + way for column in ordered)})


def _few(context: SqliteContext, filter: Filter, order: Order, after: int) -> list[Position] | None:
    """The positions of all jobs that match, where an index has a few; None where there may be many."""
    columns = ", ".join(_ORDERS[order][1])
    if (index := index_of_few(filter)) is not None:
        where, parameters = conditions(filter, after)
        statement = f"SELECT {columns} FROM jobmill_jobs AS jobs INDEXED BY {index} WHERE {where}"
        return [tuple(value or 0 for value in row) for row in context.cursor.execute(statement, parameters)]
    if order != "own" or (filter.name, filter.name_prefix, filter.states) == (None,) * 3:
        return None
    # Where these have few jobs, it is better to sort them than to read all jobs until a page is full.
    rows: list[tuple[int, bool]] = []
    for state in wanted_states(filter):
        one = structs.replace(filter, states=(state,))
        indexed, rest = split(one, state_order := _order(one))
        where, parameters = conditions(indexed)
        rest_where, rest_parameters = conditions(rest, after)
        statement = (
            f"SELECT jobs.seq, {rest_where} FROM jobmill_jobs AS jobs WHERE {where}{_ORDERS[state_order][0]} LIMIT ?"
        )
        for range in itertools.chain.from_iterable(_ranges(context, one, state_order).values()):
            most = SEARCHED_PER_PAGE + 1 - len(rows)
            rows += context.cursor.execute(statement, (*rest_parameters, *parameters, *range, most))
            if len(rows) > SEARCHED_PER_PAGE:
                return None
    return [(seq,) for seq, matches in rows if matches]


def _ranges(context: SqliteContext, filter: Filter, order: Order) -> dict[Position, list[tuple[object, ...]]]:
    """The parameters of the index ranges that may have matches; by priority in the order of claims."""
    if order not in ("claim", "latest"):
        return {(): [()]}
    queues = [row[0] for row in context.rows("queue_names")] if filter.queue is None else [filter.queue]
    ranges: dict[Position, list[tuple[object, ...]]] = {}
    for queue in queues:
        if order == "claim":
            rows = context.rows("waiting_ranges", (queue, -1))
        else:
            rows = context.rows("final_ranges", (queue, wanted_states(filter)[0]))
        for name, part, *_ in rows[1:]:
            if filter.name in (None, name) and name.startswith(filter.name_prefix or ""):
                ranges.setdefault((part,) if order == "claim" else (), []).append((queue, name, part))
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
    if index_of_few(filter) is not None:
        found = len(_few(context, filter, "own", 0) or ())
        return CountUpTo(min(limit, found), found < limit)
    found = examined = 0
    after = searched_after(context, filter)
    for state in wanted_states(filter):
        one = structs.replace(filter, states=(state,))
        order = _order(one)
        indexed, rest = split(one, order)
        where, parameters = conditions(indexed)
        rest_where, rest_parameters = conditions(rest, after)
        statement = sql("count_up_to").format_map({"rest": rest_where, "conditions": where + _ORDERS[order][0]})
        for range in itertools.chain.from_iterable(_ranges(context, one, order).values()):
            most = limit - found if rest_where == "true" else SEARCHED_PER_PAGE - examined
            matches, read = context.cursor.execute(statement, (*rest_parameters, *parameters, *range, most)).fetchone()
            found += matches
            if found >= limit or (rest_where != "true" and (examined := examined + read) >= SEARCHED_PER_PAGE):
                return CountUpTo(min(limit, found), exact=False)
    return CountUpTo(found, exact=True)


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
