"""The verbs find and count_up_to: which index finds the jobs, and how many jobs are examined.

A search reads an index that has the order of the page, or merges ranges of one, and examines about `SEARCHED_PER_PAGE`
jobs. Where it ends before it is complete, `ended` in its rows says where, and the next page continues there.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import asyncpg
from msgspec import Struct, structs

from jobmill.core.cursors import cut_page, leads_back, split_cursor
from jobmill.core.due import NEVER_MS
from jobmill.core.job import FINAL, LIVE
from jobmill.core.values import EVERYTHING, SEARCHED_PER_PAGE, CountUpTo, Filter, Order, Page, max_searched
from jobmill.errors import InvalidValue
from jobmill.stores.postgres.codec import stored_job
from jobmill.stores.postgres.connection.connector import Connection, transaction
from jobmill.stores.postgres.context import PostgresContext
from jobmill.stores.postgres.filters import PostgresConditions
from jobmill.stores.postgres.read import READ_SECONDS
from jobmill.stores.postgres.statements import Statements

T = TypeVar("T")

#: The jobs of a queue with fewer jobs are found by its indexes, and sorted. In larger queues jobs are searched by id.
FEW_JOBS = 2_000
#: Of each index range at least this many jobs are examined, however many ranges there are.
RANGE_EXAMINED = 100

#: A position in a cursor that is not one of a job: before all jobs, or after them. No id has a control character.
_END = "\t"
#: The same: where running jobs follow that are not at the start of an index range. Positions among them begin with it.
_ELSEWHERE = "\n"

#: By the order of jobs: the columns that make it.
_COLUMNS: dict[Order, tuple[str, ...]] = {
    "claim": ("priority", "due_ms", "seq"),
    "longest": ("started_ms", "seq"),
    "latest": ("finished_ms", "id"),
    "own": ("id",),
}


class JobSearch(Struct, frozen=True):
    """What is searched for, beyond which position, and whether payloads are expected to be JSON."""

    statements: Statements
    filter: Filter
    order: Order
    trusts: bool
    cursor: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the order."""
        return _COLUMNS[self.order]

    @property
    def descends(self) -> bool:
        """Whether the columns go down."""
        return (self.order in ("latest", "own")) != leads_back(self.cursor)

    def conditions(self, first: int) -> PostgresConditions:
        """The filter as conditions."""
        return PostgresConditions(self.filter, first, pages=True, trusts=self.trusts)

    def beyond(self, where: PostgresConditions) -> list[str]:
        """The condition that jobs are beyond the cursor, if it has a position."""
        _, position = split_cursor(self.cursor)
        if position in (None, _END):
            return []
        types = ", ".join("{}::text" if one == "id" else "{}::bigint" for one in self.columns)
        columns = ", ".join(f"jobs.{one}" for one in self.columns)
        return [where.text(f"({columns}) {'<' if self.descends else '>'} ({types})", *self._values(position))]

    def _values(self, position: str) -> list[object]:
        columns = self.columns
        texts = position.split(",", len(columns) - 1)
        numbers = texts[:-1] if columns[-1] == "id" else texts
        if len(texts) < len(columns) or not all(re.fullmatch(r"-?[0-9]{1,18}", one, re.ASCII) for one in numbers):
            raise InvalidValue("cursor", "a cursor that a page of this store gave", position)
        return [*map(int, numbers), *texts[len(numbers) :]]

    def in_order(self) -> dict[str, str]:
        """The parts of a statement that say the order."""
        order = "DESC" if self.descends else "ASC"
        return {
            "by": ", ".join(f"jobs.{one} {order}" for one in self.columns),
            "found": ", ".join(f"jobs.{one}" for one in dict.fromkeys(("id", *self.columns))),
            "columns": ", ".join(f"jobs.{one}" for one in self.columns),
            "ended": ", ".join(f"ended.{one}" for one in self.columns),
            "order": order,
            "last": "greatest" if self.descends else "least",
            "beyond": "<" if self.descends else ">",
        }

    def page(self, rows: Sequence[asyncpg.Record], limit: int) -> Page:
        """The page that rows make, and its cursors."""
        found = [row for row in rows if row["id"] is not None]
        part, next, previous = cut_page(
            found, limit, self.cursor, lambda row: ",".join(str(row[one]) for one in self.columns)
        )
        ended = rows[0]["ended"] if rows and len(found) <= limit else None
        if leads_back(self.cursor):
            next = next or f"<{ended or _END}"
            previous = f">{ended}" if ended else previous
        elif self.cursor is not None or ended:
            next = f"<{ended}" if ended else next
            previous = previous or (None if self.cursor is None else f">{ended or _END}")
        return Page([stored_job(row) for row in part], next, previous)


def order_here(filter: Filter) -> Order:
    """As `order_of`, also without a queue. Our own order is the greatest id first: ids begin with the time."""
    if filter.states is None or len(filter.states) != 1:
        return "own"
    if filter.states[0] == "waiting":
        return "claim" if filter.queue is not None or _is_by_ranges(filter) else "own"
    return "longest" if filter.states[0] == "running" else "latest"


def _is_by_ranges(filter: Filter) -> bool:
    """Whether index ranges answer all of the filter: jobs that wait, or that are in one final state."""
    if filter.states is None or len(filter.states) != 1 or filter.states == ("running",):
        return False
    known = ["queue", "states"]
    if filter.states == ("waiting",):
        known += ["name", "name_prefix", "held", "due_after_ms", "due_before_ms"]
    else:
        known += ["finished_after_ms", "finished_before_ms"]
    return structs.replace(filter, **dict.fromkeys(known)) == EVERYTHING


# ---------------------------------------------------------------------------------------------------- find


async def find(context: PostgresContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """A page. A cursor is "<" or ">" and the values of the columns that it is beyond."""

    async def page(connection: Connection, search: JobSearch) -> Page:
        if await _is_few(connection, search):
            return await _find_few(connection, search, limit)
        if search.order == "longest":
            return await _find_running(connection, search, limit)
        return await (_find_own if search.order == "own" else _find_ranges)(connection, search, limit)

    return await _searched(context, filter, cursor, page)


async def _searched(
    context: PostgresContext,
    filter: Filter,
    cursor: str | None,
    work: Callable[[Connection, JobSearch], Awaitable[T]],
) -> T:
    search = JobSearch(context.statements, filter, order_here(filter), True, cursor)

    async def read(connection: Connection) -> T:
        try:
            return await _planned(connection, search, work)
        except asyncpg.DataError:
            if filter.payload is None:
                raise
            # A payload is not JSON. To expect that of every payload takes many times as long.
            return await _planned(connection, structs.replace(search, trusts=False), work)

    return await context.use(read, READ_SECONDS)


async def _planned(
    connection: Connection, search: JobSearch, work: Callable[[Connection, JobSearch], Awaitable[T]]
) -> T:
    """Search by indexes in their order, also in a table without statistics. To compile a statement takes longer."""
    async with transaction(connection, "enable_seqscan = off", "enable_bitmapscan = off", "jit = off"):
        return await work(connection, search)


async def _is_few(connection: Connection, search: JobSearch) -> bool:
    """Whether an index finds few jobs: by unique key or flow, live recurring ones, or those of a small queue."""
    filter = search.filter
    is_live = filter.states is not None and {*filter.states} <= {*LIVE}
    if filter.unique_key is not None or filter.flow is not None or (is_live and (filter.recurring or filter.declared)):
        return True
    if filter.queue is None or search.order != "own":
        return False
    text, own = ("is_few", ()) if filter.lane is None else ("is_few_lane", (filter.lane,))
    is_few: bool = await connection.fetchval(search.statements(text), filter.queue, FEW_JOBS, *own)
    return is_few


async def _find_few(connection: Connection, search: JobSearch, limit: int) -> Page:
    where = search.conditions(2)
    parts = {"page_where": _all(search.beyond(where)), **search.in_order()}
    text = where.into(search.statements, "find_few", **parts)
    return search.page(await connection.fetch(text, limit + 1, *where.parameters), limit)


async def _find_own(connection: Connection, search: JobSearch, limit: int) -> Page:
    where = search.conditions(3)
    parts = _own_ranges(search, where)
    if search.filter.states == ("running",):
        where.add_live(search.statements("not_first_running"))
        parts |= _ranges(search, where)
    text = where.into(search.statements, "find_own", **parts, **search.in_order())
    return search.page(await connection.fetch(text, limit + 1, max_searched(search.filter), *where.parameters), limit)


def _own_ranges(search: JobSearch, where: PostgresConditions) -> dict[str, str]:
    """The parts of a statement that say which jobs are examined, by id."""
    beyond = search.beyond(where)
    recurring = ["jobs.recurrence IS NOT NULL"] if search.filter.recurring or search.filter.declared else []
    live, final = [*beyond, *recurring], beyond
    return {
        "live_range": _all(live) if where.has_live else "false",
        "final_range": _all(final) if where.has_final else "false",
    }


async def _find_ranges(connection: Connection, search: JobSearch, limit: int) -> Page:
    where = search.conditions(3)
    text = where.into(search.statements, "find_ranges", **_ranges(search, where), **search.in_order())
    return search.page(await connection.fetch(text, limit + 1, SEARCHED_PER_PAGE, *where.parameters), limit)


def _ranges(search: JobSearch, where: PostgresConditions) -> dict[str, str]:
    """The parts of a statement that say which index ranges are read, and from where to where."""
    filter, text, is_live = search.filter, where.text, search.order != "latest"
    fixed = {"queue": filter.queue}
    # Where running jobs are searched for, only the filter says which of a range are found: see find_longest.
    has_bounds = search.order in ("claim", "latest")
    of_known, bounds = list[str](), search.beyond(where) if has_bounds else []
    if is_live:
        times = {"due_ms >= {}": filter.due_after_ms, "due_ms < {}": filter.due_before_ms}
        if filter.queue is not None:
            fixed["name"] = filter.name
        elif filter.name is not None:
            # Between the ranges of a name in several queues there are others.
            of_known.append(text("known.name = {}", filter.name))
        if filter.name_prefix is not None:
            of_known.append(text("starts_with(known.name, {})", filter.name_prefix))
        if filter.held:
            bounds.append(f"jobs.due_ms >= {NEVER_MS}")
    else:
        times = {"finished_ms >= {}": filter.finished_after_ms, "finished_ms < {}": filter.finished_before_ms}
        bounds.append(f"jobs.state = '{(filter.states or FINAL)[0]}'")
    of_ranges = [] if is_live else [bounds[-1]]
    of_ranges += [text(f"jobs.{column} = {{}}", value) for column, value in fixed.items() if value is not None]
    if has_bounds:
        bounds += [text(f"jobs.{condition}", value) for condition, value in times.items() if value is not None]
    kind, open = ("claim", ["queue", "name", "priority"]) if is_live else ("latest", ["queue", "age_ms"])
    open = [column for column in open if fixed.get(column) is None]
    after = ", ".join("{kept_ms}" if column == "age_ms" else f"jobs.{column}" for column in open)
    order = "DESC" if search.descends else "ASC"
    return {
        "ranges": f"{{{kind}_ranges}}",
        "of_ranges": _all(of_ranges),
        "after_known": f"({after}) > ({', '.join(f'known.{column}' for column in open)})",
        "of_known": _all(of_known),
        "in_range": _all([f"{{in_{kind}_range}}", *bounds]),
        "by_range": ", ".join(f"jobs.{one} {order}" for one in (("due_ms", "seq") if is_live else search.columns)),
        "from": "{live}" if is_live else "{schema}.history AS jobs",
        "where": "{live_where}" if is_live else "{final_where}",
        "seq": ", jobs.seq" if is_live else "",
    }


async def _find_running(connection: Connection, search: JobSearch, limit: int) -> Page:
    """Running jobs at the start of index ranges, longest first; after them those that run elsewhere, by id."""
    back, position = split_cursor(search.cursor)
    if position == _ELSEWHERE and back:
        page = await _find_first_running(connection, structs.replace(search, cursor=f">{_END}"), limit)
        return structs.replace(page, next=f"<{_ELSEWHERE}")
    if position is None or not position.startswith(_ELSEWHERE):
        return await _find_first_running(connection, search, limit)
    rest = position.removeprefix(_ELSEWHERE)
    cursor = f"{'>' if back else '<'}{rest}" if rest else None
    page = await _find_own(connection, structs.replace(search, order="own", cursor=cursor), limit)
    next, previous = (one and one[1:] for one in (page.next, page.previous))
    return structs.replace(page, next=next and f"<{_ELSEWHERE}{next}", previous=f">{_ELSEWHERE}{previous or ''}")


async def _find_first_running(connection: Connection, search: JobSearch, limit: int) -> Page:
    where = search.conditions(3)
    parts = _ranges(search, where)
    parts["page_where"] = _all(search.beyond(where))
    parts["continues"] = "false" if leads_back(search.cursor) else "true"
    text = where.into(search.statements, "find_longest", **parts, **search.in_order())
    return search.page(await connection.fetch(text, limit + 1, SEARCHED_PER_PAGE, *where.parameters), limit)


# ---------------------------------------------------------------------------------------------------- count


async def count_up_to(context: PostgresContext, filter: Filter, limit: int) -> CountUpTo:
    """The number of jobs among those that a first page would examine; or of all, where an index answers the filter."""

    async def count(connection: Connection, search: JobSearch) -> CountUpTo:
        statements, order = search.statements, search.order
        if await _is_few(connection, search):
            where = search.conditions(2)
            row = await connection.fetchrow(where.into(statements, "count_few"), limit, *where.parameters)
        else:
            where = search.conditions(3)
            parts = (_own_ranges if order == "own" else _ranges)(search, where)
            text = where.into(statements, "count_own" if order == "own" else "count_ranges", **parts)
            is_all = order == "own" and structs.replace(filter, states=None) == EVERYTHING
            least, examined = RANGE_EXAMINED, SEARCHED_PER_PAGE
            if is_all or _is_by_ranges(filter):
                least, examined = limit, max(limit, examined)
            row = await connection.fetchrow(text, least, examined, *where.parameters)
        number, has_more = row or (0, False)
        return CountUpTo(min(number, limit), not has_more and number < limit)

    return await _searched(context, filter, None, count)


def _all(conditions: Sequence[str]) -> str:
    return " AND ".join(conditions) or "true"
