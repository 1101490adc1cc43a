"""The verbs find and count_up_to: which index ranges are read, and how many jobs are examined."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Generator, Sequence
from contextlib import closing

from msgspec import structs

from jobmill.core.cursors import Position, cut_search, read_ordered_cursor
from jobmill.core.values import SEARCHED_PER_PAGE, CountUpTo, Filter, Order, Page, max_searched, order_of
from jobmill.errors import InvalidValue
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.filters import conditions, index_of_few, searched_after, split, wanted_states
from jobmill.stores.sqlite.read import readable_jobs
from jobmill.stores.sqlite.statements import sql

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
    examined = max(limit, max_searched(filter))
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
    jobs = readable_jobs(context, [position[-1] for position in part]) if part else []
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
    # Where the index ranges answer the filter, a page needs no more than this of each.
    most = limit + 1 if rest_where == "true" else max(limit, max_searched(filter))
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
        # A lane may have as many jobs as its queue.
        most = SEARCHED_PER_PAGE if filter.lane is not None else -2
        statement = f"SELECT {columns} FROM jobmill_jobs AS jobs INDEXED BY {index} WHERE {where} LIMIT ?"
        rows_of_few = context.cursor.execute(statement, (*parameters, most + 1)).fetchall()
        return None if 0 < most < len(rows_of_few) else [tuple(value or 0 for value in row) for row in rows_of_few]
    if order != "own" or (filter.queue, filter.name, filter.name_prefix, filter.states) == (None,) * 4:
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


def count_up_to(context: SqliteContext, filter: Filter, limit: int) -> CountUpTo:
    """How many jobs match, at most `limit`."""
    if index_of_few(filter) is not None and (few := _few(context, filter, "own", 0)) is not None:
        return CountUpTo(min(limit, len(few)), len(few) < limit)
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
