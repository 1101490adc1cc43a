"""The verbs find and count_up_to: which index ranges are read, and how many jobs are examined."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

from bson import ObjectId
from bson.errors import InvalidId
from msgspec import Struct

from jobmill.core.cursors import cut_page, leads_back, split_cursor
from jobmill.core.job import FINAL, LIVE
from jobmill.core.values import SEARCHED_PER_PAGE, CountUpTo, Filter, Order, Page, max_searched, order_of
from jobmill.errors import InvalidValue
from jobmill.stores.mongo import codec, leases, schema
from jobmill.stores.mongo.codec import OURS, STATUS, UNRANKED, Document, date, ms_of
from jobmill.stores.mongo.connection import BY_ID
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.filters import query_of
from jobmill.stores.mongo.read import INDEX_OF, aggregate, count_range, first_dues, is_queue, queues_in

#: The names of a queue with more names are found by reading the keys of all its waiting jobs.
MAX_NAMES = 50
#: A search examines this many jobs first: often most of them match.
SEARCHED_FIRST = 200

#: Jobs in their order; and the position at which the search ended early, if it did.
_Found: TypeAlias = tuple[list[Document], tuple[Any, ...] | None]


class _Search(Struct, frozen=True):
    """How jobs are found: by an index each, in the order of a page, and then by what no index has."""

    #: Queries that indexes answer, and these indexes.
    sources: list[tuple[Document, str]]
    #: What jobs must match as well.
    rest: Document = {}
    #: How many jobs are examined for that.
    examined: int = SEARCHED_PER_PAGE


async def find(ctx: MongoContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """A page. A cursor is "<" (further) or ">" (back) and the position that the page begins after."""
    order, back = _order_of(filter), leads_back(cursor)
    position = _read_cursor(order, cursor)
    search = await _search_of(ctx, filter, order)
    lists = [
        await _matching(ctx, one, search, order, ranges, cursor, limit + 1)
        for one in search.sources
        for ranges in _beyond(order, position, cursor)
    ]
    found, end = lists[0] if len(lists) == 1 else _joined(lists, order, back)
    page, next, previous = cut_page(found, limit, cursor, lambda one: _shown(_position(order, one)))
    if end is not None and len(found) <= limit:
        next, previous = (next, f">{_shown(end)}") if back else (f"<{_shown(end)}", previous)
    if search.rest and not page and position is not None:
        # The way back begins one step further, so that the job at the position is on it.
        step = _FIELDS[order][-1][1] * (-1 if back else 1)
        turn = _shown((*position[:-1], ObjectId(f"{max(0, int(str(position[-1]), 16) + step):024x}")))
        next, previous = (f"<{turn}", previous) if back else (next, f">{turn}")
    return Page([ctx.job(document) for document in page if codec.is_known(document)], next, previous)


def _order_of(filter: Filter) -> Order:
    """The order of a page. Also for all queues, final jobs of one state stand in the order of an index."""
    of_one = filter.states is not None and len(filter.states) == 1 and filter.states[0] in FINAL
    return "latest" if of_one and filter.queue is None else order_of(filter)


def _joined(lists: Sequence[_Found], order: Order, back: bool) -> _Found:
    """Several lists as one. Jobs after the first end of a search, of lists that were searched further, come later."""
    ascends = (order in ("claim", "longest")) != back
    found = [(_position(order, one), one) for some, _ in lists for one in some]
    found.sort(key=lambda one: one[0], reverse=not ascends)
    ends = sorted((end for _, end in lists if end is not None), reverse=not ascends)
    if not ends:
        return [one for _, one in found], None
    return [one for at, one in found if (at <= ends[0] if ascends else at >= ends[0])], ends[0]


async def _search_of(ctx: MongoContext, filter: Filter, order: Order | None) -> _Search:
    query = query_of(ctx, filter)
    sources = await _sources(ctx, filter, order, query)
    answered = {field for base, _ in sources[:1] for field in base}
    rest = {field: value for field, value in query.items() if field not in answered}
    return _Search(sources, rest, max_searched(filter))


async def _sources(
    ctx: MongoContext, filter: Filter, order: Order | None, query: Document
) -> list[tuple[Document, str]]:
    """The queries that indexes answer, each with its index. No job matches several of them."""
    is_live = filter.states is not None and set(filter.states) <= set(LIVE)
    if filter.unique_key is not None and is_live:
        queues = [filter.queue] if filter.queue is not None else await _live_queues(ctx)
        keys = [codec.stored_key(queue, filter.unique_key, ctx.url.queue) for queue in queues]
        return [({**query, "uniqueKey": {"$in": keys}}, schema.UNIQUE_KEY)]
    if filter.flow is not None:
        return [(query, schema.FLOW)]
    if filter.held:
        return [(query, schema.FAR)]
    if (filter.recurring or filter.declared) and is_live:
        armed = {"status": query["status"], "jobmill.armed": True, "jobmill.declared": True}
        if filter.declared:
            return [(armed, schema.RECURRING)]
        theirs = {"jobmill.armed": None, "jobmill.declared": None, "repeatInterval": {"$exists": True}}
        return [
            ({**armed, "jobmill.declared": {"$in": [None, True]}}, schema.RECURRING),
            ({**armed, **theirs}, schema.RECURRING),
        ]
    if order is None and _order_of(filter) == "latest":
        order = "latest"
    if order is None or order == "own":
        found = _unordered_sources(filter, order, query)
        if filter.queue is None or found[0][1] != BY_ID:
            return found
        # Few jobs are found by their states, and sorted. For many of them, the newest jobs of all queues are examined.
        few = await count_up_to(ctx, Filter(queue=filter.queue, states=filter.states), SEARCHED_PER_PAGE)
        return _unordered_sources(filter, None, query) if few.exact else found
    return await _ordered_sources(ctx, filter, order, query)


async def _ordered_sources(
    ctx: MongoContext, filter: Filter, order: Order, query: Document
) -> list[tuple[Document, str]]:
    """The same for jobs of one state in the order of an index."""
    base = {field: query[field] for field in _KEYS[order] if field in query}
    if filter.queue is None:
        base["jobmill.queue"] = {"$in": [ctx.queue_field(queue) for queue in await queues_in(ctx, schema.FINISHED)]}
    else:
        base["jobmill.queue"] = is_queue(ctx, filter.queue)
    if order == "claim":
        if filter.due_before_ms is not None:  # no job is due before its nextRunAt
            base["nextRunAt"] = {"$lt": date(filter.due_before_ms)}
        if filter.name is None:
            # With the names, the server merges one index range for each; without, it would sort all jobs.
            prefix = filter.name_prefix or ""
            base["name"] = {"$in": [name for name in await _names(ctx, filter.queue or "") if name.startswith(prefix)]}
    return [(base, _INDEX_OF_ORDER[order])]


def _unordered_sources(filter: Filter, order: Order | None, query: Document) -> list[tuple[Document, str]]:
    """The same for jobs in the order of their ids, or to count them."""
    if order is None:
        base = {field: query[field] for field in ("jobmill.queue",) if field in query}
        if filter.states == ("waiting",) and filter.due_before_ms is not None:  # no job is due before its nextRunAt
            base["nextRunAt"] = {"$lt": date(filter.due_before_ms)}
        return [({**base, "status": status}, INDEX_OF[status]) for status in query["status"]["$in"]]
    if filter.states == ("running",):
        return [({"status": STATUS["running"]}, schema.LEASE)]
    return [({}, BY_ID)]


async def _live_queues(ctx: MongoContext) -> set[str]:
    return {*await first_dues(ctx), *await queues_in(ctx, schema.LEASE)}


_INDEX_OF_ORDER: dict[Order, str] = {"claim": schema.CLAIM, "longest": schema.LEASE, "latest": schema.FINISHED}
#: The fields of a query that the index of an order answers.
_KEYS: dict[Order, tuple[str, ...]] = {
    "claim": ("jobmill.queue", "status", "name"),
    "longest": ("jobmill.queue", "status"),
    "latest": ("jobmill.queue", "status", "updatedAt"),
}


async def _names(ctx: MongoContext, queue: str) -> list[str]:
    """The names of the waiting jobs of a queue. A query for each: the server reads one entry for it."""
    query: Document = {"jobmill.queue": is_queue(ctx, queue), "status": "pending", "name": {"$gte": ""}}
    names: list[str] = []
    while found := await ctx.find_by(schema.CLAIM, query, {"_id": 0, "name": 1}, 1, sort={"name": 1}):
        names.append(found[0]["name"])
        if len(names) > MAX_NAMES:
            return await ctx.here.jobs.distinct("name", query)
        query["name"] = {"$gt": names[-1]}
    return names


def _claim_position(document: Document) -> tuple[Any, ...]:
    """The position of a job in claim order. A missing priority counts as 0."""
    rank, due_ms, id = codec.order_of(document)
    return 0 if rank == UNRANKED else rank, due_ms, id


def _position(order: Order, document: Document) -> tuple[Any, ...]:
    match order:
        case "claim":
            return _claim_position(document)
        case "longest":
            return ms_of(document.get("began")) or 0, document["_id"]
        case "latest":
            return ms_of(document.get("updatedAt")) or 0, document["_id"]
        case "own":
            return (document["_id"],)


def _shown(position: tuple[Any, ...]) -> str:
    return ",".join(map(str, position))


def _read_cursor(order: Order, cursor: str | None) -> tuple[Any, ...] | None:
    """The position after which a page begins. None means that it begins at the first job."""
    _, text = split_cursor(cursor)
    if text is None:
        return None
    *numbers, id = text.split(",")
    try:
        if len(numbers) != {"claim": 2, "own": 0}.get(order, 1):
            raise ValueError
        return (*(float(one) for one in numbers[:-1]), *(int(one) for one in numbers[-1:]), ObjectId(id))
    except (InvalidId, ValueError):
        raise InvalidValue("cursor", "a cursor that a page of this store gave", cursor) from None


#: By order: fields and directions. `began` is computed.
_FIELDS: dict[Order, list[tuple[str, int]]] = {
    "claim": [("priority", -1), ("nextRunAt", 1), ("_id", 1)],
    "longest": [("began", 1), ("_id", 1)],
    "latest": [("updatedAt", -1), ("_id", -1)],
    "own": [("_id", -1)],
}
_TIMES = {"updatedAt": 1, "began": 1}
_HAS_RANK = {"priority": {"$ne": None}}
_IS_OURS = {"$eq": [{"$substrCP": [{"$toString": {"$ifNull": ["$claimedBy", ""]}}, 0, len(OURS)]}, OURS]}
_BEGAN = {"$set": {"began": {"$cond": [_IS_OURS, "$jobmill.startedAt", "$lockedAt"]}}}


def _beyond(order: Order, position: tuple[Any, ...] | None, cursor: str | None) -> list[list[Document]]:
    """Conditions for the jobs after a position. Each is a list of index ranges in their order.

    In claim order there are two lists: jobs with a priority, and jobs without a priority, which count as priority 0.
    """
    back, fields = leads_back(cursor), _FIELDS[order]
    if position is None:
        return [[_HAS_RANK], [{"priority": None}]] if order == "claim" else [[{}]]
    if order != "claim":
        return [_ranges(fields, [*map(date, position[:-1]), position[-1]], back)]
    rank, due_ms, id = position
    place = [date(due_ms), id]
    unranked = _ranges(fields[1:], place, back) if rank == 0 else [{}] if (rank < 0) != back else []
    return [_ranges(fields, [-rank, *place], back), [{**one, "priority": None} for one in unranked]]


def _ranges(fields: Sequence[tuple[str, int]], position: Sequence[Any], back: bool) -> list[Document]:
    ranges = []
    for last in reversed(range(len(fields))):
        same: Document = {field: value for (field, _), value in zip(fields[:last], position, strict=False)}
        field, direction = fields[last]
        ranges.append(same | {field: {"$lt" if (direction < 0) != back else "$gt": position[last]}})
    return ranges


async def _matching(
    ctx: MongoContext,
    source: tuple[Document, str],
    search: _Search,
    order: Order,
    ranges: Iterable[Document],
    cursor: str | None,
    limit: int,
) -> _Found:
    """The first jobs of these ranges, in their order; and the position at which the search ended early, if it did."""
    turn = -1 if leads_back(cursor) else 1
    (base, index), rest = source, search.rest
    found, some = list[Document](), list[Document]()
    for one in ranges:
        # Sort without the fields that are equal in a range: with them, the server does not merge the ranges of names.
        fields = [one_field for one_field in _FIELDS[order] if isinstance(one.get(one_field[0], {}), dict)]
        sort = {field: direction * turn for field, direction in fields}
        began = [_BEGAN] if order == "longest" else []
        stages: list[Document] = [{"$match": base}, *began, {"$match": one}, {"$sort": sort}]
        for examined in (max(SEARCHED_FIRST, limit), search.examined) if rest else (None,):
            searched: list[Document] = [{"$limit": examined}, {"$match": rest}] if rest else []
            some = await aggregate(ctx, [*stages, *searched, {"$limit": limit - len(found)}], index)
            if len(found) + len(some) >= limit:
                break
        found += some
        if len(found) >= limit:
            break
        if rest:
            last: list[Document] = [
                {"$skip": search.examined - 1},
                {"$limit": 1},
                {"$project": {**leases.IN_ORDER, **_TIMES}},
            ]
            if at := await aggregate(ctx, [*stages, *last], index):
                return found, _position(order, at[0])
    return found, None


async def count_up_to(ctx: MongoContext, filter: Filter, limit: int) -> CountUpTo:
    """See the port."""
    search = await _search_of(ctx, filter, None)
    total, examined = 0, 0
    for base, index in search.sources:
        if total >= limit or examined >= SEARCHED_PER_PAGE:
            break
        if not search.rest:
            total += await count_range(ctx, base, index, limit - total)
            continue
        searched: list[Document] = [{"$match": base}, {"$limit": SEARCHED_PER_PAGE - examined}, {"$match": search.rest}]
        found = await aggregate(ctx, [*searched, {"$limit": limit - total}, {"$count": "n"}], index)
        total += found[0]["n"] if found else 0
        examined += await count_range(ctx, base, index, SEARCHED_PER_PAGE - examined)
    return CountUpTo(total, exact=total < limit and examined < SEARCHED_PER_PAGE)
