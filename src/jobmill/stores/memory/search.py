"""The verbs find and count_up_to: which index ranges are read, and how many jobs are examined."""

from __future__ import annotations

from jobmill.core.cursors import cut_search, read_ordered_cursor
from jobmill.core.stats import matches
from jobmill.core.values import SEARCHED_PER_PAGE, CountUpTo, Filter, Page
from jobmill.stores.memory.context import MemoryContext
from jobmill.stores.memory.filters import (
    IndexRange,
    Position,
    candidates,
    is_answered,
    merged,
    ordered_ranges,
    ranges_of,
    wanted_states,
)


def find(context: MemoryContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """A page. A cursor is "<" (further) or ">" (back) and the position that the page is beyond."""
    back, start = read_ordered_cursor(cursor)
    ranges, from_end = ordered_ranges(context.jobs, filter)
    descending = from_end != back
    if start is not None:
        ranges = [_beyond(one, start, descending) for one in ranges]
    found: list[Position] = []
    reached: Position | None = None
    for number, position in enumerate(merged(ranges, descending=descending), 1):
        if matches(context.jobs.by_id[position[-1]].job, filter):
            found.append(position)
        if len(found) > limit:
            break
        if number >= max(limit, SEARCHED_PER_PAGE):
            reached = position[:-1]
            break
    ids = {position[:-1]: position[-1] for position in found}
    part, next, previous = cut_search(list(ids), limit, cursor, reached, descending=descending)
    return Page([context.jobs.by_id[ids[one]].job for one in part], next, previous)


def _beyond(one: IndexRange, start: tuple[int, ...], descending: bool) -> IndexRange:
    """The part of an index range that is beyond a position."""
    if descending:
        return one._replace(high=min(one.high, start))
    return one._replace(low=max(one.low, (*start[:-1], start[-1] + 1)))


def count_up_to(context: MemoryContext, filter: Filter, limit: int) -> CountUpTo:
    """How many jobs match, at most `limit`."""
    found = examined = 0
    for state in wanted_states(filter):
        if is_answered(filter, state):
            found += sum(one.positions.count(one.low, one.high) for one in ranges_of(context.jobs, filter, state))
            continue
        for stored in candidates(context.jobs, filter, state):
            if found >= limit or examined >= SEARCHED_PER_PAGE:
                return CountUpTo(min(limit, found), exact=False)
            examined += 1
            found += matches(stored.job, filter)
    return CountUpTo(min(limit, found), exact=found < limit)
