"""The verbs that only read: get, lease_ends, find, count, count_up_to, depths, stats and logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidId
from msgspec import Struct

from jobmill.core import stats as core_stats
from jobmill.core.cursors import cut_page, leads_back, split_cursor
from jobmill.core.due import NEVER_MS
from jobmill.core.job import FINAL, LIVE, STATES, Job
from jobmill.core.queue_limits import QueueLimits
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
from jobmill.stores.mongo import codec, leases, schema
from jobmill.stores.mongo.codec import OURS, STATE, STATUS, UNRANKED, Document, date, ms_of
from jobmill.stores.mongo.connection import BY_ID
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.filters import query_of
from jobmill.stores.mongo.queues import NO_LIMITS, limits_of
from jobmill.stores.mongo.runs import MAX_RUNS, counted_runs

#: Up to this number, the jobs of all queues are counted in three queries; of few queues, up to the smaller number.
#: Where a queue has more in a state, commands count them: `count` reads the keys of one index range and nothing else.
#: Measured for 10,000 jobs: 2.9 ms of server time, instead of 5.1 in such a query.
MANY, FEW, FEW_QUEUES = 1_000, 100, 20
#: The names of a queue with more names are found by reading the keys of all its waiting jobs.
MAX_NAMES = 50
#: A search examines this many jobs first: often most of them match.
SEARCHED_FIRST = 200
#: For each status, the index that contains all jobs with this status, by queue.
INDEX_OF = {"pending": schema.DUE, "processing": schema.LEASE} | dict.fromkeys(codec.FINAL, schema.FINISHED)
#: The durations of the last succeeded jobs that Jobmill ran (see `ran_there`), in the order in which they were added.
#: Monque does not store when its own runs began. For jobs in other states, one value is enough.
_IS_DATE = [{"$eq": [{"$type": field}, "date"]} for field in ("$updatedAt", "$jobmill.startedAt")]
_IS_OF_US = [("$heartbeatInterval", "long"), ("$jobmill.claims", "int")]
_RAN_HERE = {"$and": [*_IS_DATE, {"$or": [{"$eq": [{"$type": field}, type]} for field, type in _IS_OF_US]}]}
_TOOK = {"$cond": [_RAN_HERE, {"$subtract": ["$updatedAt", "$jobmill.startedAt"]}, None]}
_HOW_MANY = {"$cond": [{"$eq": ["$status", "completed"]}, MAX_RUNS, 1]}
_LAST_DURATIONS: Document = {"$lastN": {"input": _TOOK, "n": _HOW_MANY}}
_FIRST_MS = -(2**62)


async def get(ctx: MongoContext, ids: Sequence[str]) -> list[Job | None]:
    """See the port."""
    found = await ctx.by_ids(list(dict.fromkeys(ids)))
    return [ctx.job(found[id]) if id in found else None for id in ids]


async def lease_ends(ctx: MongoContext, ids: Sequence[str]) -> list[int | None]:
    """See the port."""
    found = await ctx.by_ids(list(dict.fromkeys(ids)), {"data": 0})
    return [leases.end_of(found[id], ctx.url) if id in found else None for id in ids]


# ---------------------------------------------------------------------------------------------------- find


#: Jobs in their order; and the position at which the search ended early, if it did.
_Found: TypeAlias = tuple[list[Document], tuple[Any, ...] | None]


class _Search(Struct, frozen=True):
    """How jobs are found: by an index each, in the order of a page, and then by what no index has."""

    #: Queries that indexes answer, and these indexes.
    sources: list[tuple[Document, str]]
    #: What jobs must match as well.
    rest: Document = {}


async def find(ctx: MongoContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """A page. A cursor is "<" (further) or ">" (back) and the position that the page begins after."""
    order, back = _order_of(filter), leads_back(cursor)
    position = _read_cursor(order, cursor)
    search = await _search_of(ctx, filter, order)
    lists = [
        await _matching(ctx, one, search.rest, order, ranges, cursor, limit + 1)
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
    return Page([ctx.job(document) for document in page], next, previous)


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
    return _Search(sources, {field: value for field, value in query.items() if field not in answered})


async def _sources(
    ctx: MongoContext, filter: Filter, order: Order | None, query: Document
) -> list[tuple[Document, str]]:
    """The queries that indexes answer, each with its index. No job matches several of them."""
    is_live = filter.states is not None and set(filter.states) <= set(LIVE)
    if filter.unique_key is not None and is_live:
        queues = [filter.queue] if filter.queue is not None else await _live_queues(ctx)
        keys = [codec.stored_key(queue, filter.unique_key, ctx.url.queue) for queue in queues]
        return [({**query, "uniqueKey": {"$in": keys}}, schema.UNIQUE_KEY)]
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
        base["jobmill.queue"] = {"$in": [ctx.queue_field(queue) for queue in await _queues(ctx, schema.FINISHED)]}
    else:
        base["jobmill.queue"] = _is_queue(ctx, filter.queue)
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
    return {*await _first_dues(ctx), *await _queues(ctx, schema.LEASE)}


_INDEX_OF_ORDER: dict[Order, str] = {"claim": schema.CLAIM, "longest": schema.LEASE, "latest": schema.FINISHED}
#: The fields of a query that the index of an order answers.
_KEYS: dict[Order, tuple[str, ...]] = {
    "claim": ("jobmill.queue", "status", "name"),
    "longest": ("jobmill.queue", "status"),
    "latest": ("jobmill.queue", "status", "updatedAt"),
}


async def _names(ctx: MongoContext, queue: str) -> list[str]:
    """The names of the waiting jobs of a queue. A query for each: the server reads one entry for it."""
    query: Document = {"jobmill.queue": _is_queue(ctx, queue), "status": "pending", "name": {"$gte": ""}}
    names: list[str] = []
    while found := await ctx.find_by(schema.CLAIM, query, {"_id": 0, "name": 1}, 1, sort={"name": 1}):
        names.append(found[0]["name"])
        if len(names) > MAX_NAMES:
            return await ctx.here.jobs.distinct("name", query)
        query["name"] = {"$gt": names[-1]}
    return names


def _is_queue(ctx: MongoContext, queue: str) -> Any:
    """A condition for the jobs of a queue; see `QueueClaim._waiting`."""
    return {"$exists": False} if ctx.queue_field(queue) is None else queue


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
    rest: Document,
    order: Order,
    ranges: Iterable[Document],
    cursor: str | None,
    limit: int,
) -> _Found:
    """The first jobs of these ranges, in their order; and the position at which the search ended early, if it did."""
    turn = -1 if leads_back(cursor) else 1
    base, index = source
    found, some = list[Document](), list[Document]()
    for one in ranges:
        # Sort without the fields that are equal in a range: with them, the server does not merge the ranges of names.
        fields = [one_field for one_field in _FIELDS[order] if isinstance(one.get(one_field[0], {}), dict)]
        sort = {field: direction * turn for field, direction in fields}
        began = [_BEGAN] if order == "longest" else []
        stages: list[Document] = [{"$match": base}, *began, {"$match": one}, {"$sort": sort}]
        for examined in (max(SEARCHED_FIRST, limit), SEARCHED_PER_PAGE) if rest else (None,):
            searched: list[Document] = [{"$limit": examined}, {"$match": rest}] if rest else []
            some = await _aggregate(ctx, [*stages, *searched, {"$limit": limit - len(found)}], index)
            if len(found) + len(some) >= limit:
                break
        found += some
        if len(found) >= limit:
            break
        if rest:
            last: list[Document] = [
                {"$skip": SEARCHED_PER_PAGE - 1},
                {"$limit": 1},
                {"$project": {**leases.IN_ORDER, **_TIMES}},
            ]
            if at := await _aggregate(ctx, [*stages, *last], index):
                return found, _position(order, at[0])
    return found, None


async def _aggregate(ctx: MongoContext, stages: Sequence[Document], index: str | None) -> list[Document]:
    async def run(hint: Document) -> list[Document]:
        return await (await ctx.here.jobs.aggregate(stages, **hint)).to_list()

    return await (run({}) if index is None else ctx.hinted(index, run))


# ---------------------------------------------------------------------------------------------------- counts


async def count(ctx: MongoContext, filter: Filter) -> list[Count]:
    """See the port."""
    return [one for one, _ in await _counted(ctx, filter)]


async def _counted(ctx: MongoContext, filter: Filter, **more: Document) -> list[tuple[Count, Document]]:
    """The number of matching jobs by queue, name and state. `more` are further values of each group."""
    key = {"queue": "$jobmill.queue", "name": "$name", "status": "$status"}
    group = {"_id": key, "count": {"$sum": 1}, **more}
    found = await _aggregate(ctx, [{"$match": query_of(ctx, filter)}, {"$group": group}], None)
    counts = [(Count(*_pair(ctx, one), STATE[one["_id"]["status"]], one["count"]), one) for one in found]
    return sorted(counts, key=lambda one: (one[0].queue, one[0].name, STATES.index(one[0].state)))


async def count_up_to(ctx: MongoContext, filter: Filter, limit: int) -> CountUpTo:
    """See the port."""
    search = await _search_of(ctx, filter, None)
    total, examined = 0, 0
    for base, index in search.sources:
        if total >= limit or examined >= SEARCHED_PER_PAGE:
            break
        if not search.rest:
            total += await _count(ctx, base, index, limit - total)
            continue
        searched: list[Document] = [{"$match": base}, {"$limit": SEARCHED_PER_PAGE - examined}, {"$match": search.rest}]
        found = await _aggregate(ctx, [*searched, {"$limit": limit - total}, {"$count": "n"}], index)
        total += found[0]["n"] if found else 0
        examined += await _count(ctx, base, index, SEARCHED_PER_PAGE - examined)
    return CountUpTo(total, exact=total < limit and examined < SEARCHED_PER_PAGE)


async def _count(ctx: MongoContext, query: Document, index: str, limit: int) -> int:
    """How many jobs match, up to a limit; from the keys of an index where it has all fields of the query."""
    command = partial(ctx.here.database.command, "count", ctx.url.collection, query=query, limit=limit)
    found: Document = await ctx.hinted(index, lambda hint: command(**hint))
    return int(found["n"])


async def depths(ctx: MongoContext, queues: Sequence[str] | None = None, limit: int = DEPTH_LIMIT) -> list[Depth]:
    """See the port."""
    limits, firsts, *known = await asyncio.gather(
        limits_of(ctx, queues),
        _first_dues(ctx) if queues is None else _first_dues_of(ctx, queues),
        *(_queues(ctx, index) for index in (schema.LEASE, schema.FINISHED) if queues is None),
    )
    wanted = sorted(set(limits).union(firsts, *known) if queues is None else set(queues))
    few = min(limit, MANY if len(wanted) > FEW_QUEUES else FEW)
    now, waiting = date(ctx.now()), {"status": "pending"}
    parts: list[dict[str, tuple[Document, int]]] = [
        {
            "due": ({**waiting, "nextRunAt": {"$lte": now}}, few),
            "held": ({**waiting, "jobmill.due": date(NEVER_MS)}, few),
            # This also counts held jobs, because their `nextRunAt` is in the future.
            "later": ({**waiting, "nextRunAt": {"$gt": now}}, 2 * few),
        },
        {"running": ({"status": STATUS["running"]}, few)},
        {state: ({"status": STATUS[state]}, few) for state in FINAL},
    ]
    found = await asyncio.gather(*map(_count_few, [ctx] * 3, [firsts, *(known or [wanted] * 2)], parts))
    none = dict.fromkeys(parts[0] | parts[1] | parts[2], 0)
    rows = {queue: none | {of: n for part in found for of, n in part.get(queue, {}).items()} for queue in wanted}
    many = [
        _count_many(ctx, queue, of, query, row, limit + (row["held"] if row["held"] < few else limit) * (of == "later"))
        for queue, row in rows.items()
        for part in parts
        for of, (query, most) in part.items()
        if few < limit and row[of] >= most
    ]
    await asyncio.gather(*many)
    return await asyncio.gather(
        *(_depth(ctx, queue, row, firsts.get(queue), limits, limit) for queue, row in rows.items())
    )


async def _first_dues(ctx: MongoContext) -> dict[str, Any]:
    """The first due time of each queue with waiting jobs."""
    order = dict.fromkeys(("jobmill.queue", "status", "nextRunAt"), 1)
    group = {"_id": "$jobmill.queue", "first": {"$first": "$nextRunAt"}}
    stages: list[Document] = [{"$sort": order}, {"$group": group}]

    async def run(hint: Document) -> list[Document]:
        # With the index, which has no other jobs, and without a condition the server reads one entry of each queue.
        only = [] if hint else [{"$match": {"status": "pending"}}]
        return await (await ctx.here.jobs.aggregate([*only, *stages], **hint)).to_list()

    return {str(one["_id"] or ctx.url.queue): one["first"] for one in await ctx.hinted(schema.DUE, run)}


async def _first_dues_of(ctx: MongoContext, queues: Iterable[str]) -> dict[str, Any]:
    """The same for some queues."""
    return {queue: due_ms for queue in queues if (due_ms := await _first_due(ctx, queue)) is not None}


async def _first_due(ctx: MongoContext, queue: str) -> DatetimeMS | None:
    # The bound excludes values that are not dates: another program wrote them, and they are never due.
    query = {"jobmill.queue": _is_queue(ctx, queue), "status": "pending", "nextRunAt": {"$gt": date(_FIRST_MS)}}
    found = await ctx.find_by(schema.DUE, query, {"_id": 0, "nextRunAt": 1}, 1, sort={"nextRunAt": 1})
    return found[0]["nextRunAt"] if found else None


async def _queues(ctx: MongoContext, index: str) -> set[str]:
    """The queues of the jobs in an index. The query has no condition, so the server reads one entry per queue."""
    found = await _aggregate(ctx, [{"$group": {"_id": "$jobmill.queue"}}], index)
    return {str(one["_id"] or ctx.url.queue) for one in found}


async def _count_few(
    ctx: MongoContext, queues: Iterable[str], queries: Mapping[str, tuple[Document, int]]
) -> dict[str, dict[str, int]]:
    """For each queue, how many jobs match each query, up to a limit."""
    documents = [{"queue": one, "field": ctx.queue_field(one)} for one in queues]
    stages: list[Document] = [{"$documents": documents}]
    for of, (query, limit) in queries.items():
        pipeline = [{"$match": query}, {"$limit": limit}, {"$count": "n"}]
        fields = {"localField": "field", "foreignField": "jobmill.queue", "as": of}
        stages.append({"$lookup": {"from": ctx.url.collection, **fields, "pipeline": pipeline}})
    rows = await (await ctx.here.database.aggregate(stages)).to_list() if documents else ()
    return {row["queue"]: {of: row[of][0]["n"] if row[of] else 0 for of in queries} for row in rows}


async def _count_many(ctx: MongoContext, queue: str, of: str, query: Document, counts: Document, limit: int) -> None:
    """Count the jobs of a queue again, up to a larger limit."""
    index = schema.FAR if of == "held" else INDEX_OF[query["status"]]
    counts[of] = await _count(ctx, {**query, "jobmill.queue": ctx.queue_field(queue)}, index, limit)


async def _depth(
    ctx: MongoContext, queue: str, numbers: dict[str, int], first: Any, limits: Mapping[str, QueueLimits], limit: int
) -> Depth:
    if numbers["due"] and not isinstance(first, DatetimeMS):  # what is no date stands before all dates
        first = await _first_due(ctx, queue)
    numbers["later"] = min(limit, max(0, numbers["later"] - numbers["held"]))
    return Depth(
        queue=queue,
        **numbers,
        oldest_due_ms=ms_of(first) if numbers["due"] else None,
        limited_until_ms=limits.get(queue, NO_LIMITS).limited_until_ms(ctx.now()),
        exact=all(n < limit for n in numbers.values()),
    )


# ---------------------------------------------------------------------------------------------------- stats


async def stats(ctx: MongoContext, queue: str | None = None, name: str | None = None) -> list[Stats]:
    """See the port. One pass over all jobs: queries for each queue and name would take seconds with 2,000 queues."""
    filter, now_ms = Filter(queue=queue, name=name), ctx.now()
    jobs, (runs, durations), oldest = await asyncio.gather(
        _counted(ctx, filter, last=_LAST_DURATIONS),
        counted_runs(ctx, queue, name),
        _oldest_waiting(ctx, filter, now_ms),
    )
    for one, group in jobs:
        if one.state == "succeeded":
            took = [float(ms) for ms in group["last"] if ms is not None]
            durations[one.queue, one.name] = took + durations.get((one.queue, one.name), [])
    table = core_stats.by_queue_and_name([*(one for one, _ in jobs), *runs])
    return [core_stats.stats(*key, counts, oldest.get(key), durations.get(key, [])) for key, counts in table.items()]


async def _oldest_waiting(ctx: MongoContext, filter: Filter, now_ms: int) -> dict[tuple[str, str], int]:
    """For how long the oldest due job of each queue and name has waited."""
    match = {**query_of(ctx, filter), "status": "pending", "nextRunAt": {"$lte": date(now_ms)}}
    group = {"_id": {"queue": "$jobmill.queue", "name": "$name"}, "first": {"$min": "$nextRunAt"}}
    found = await _aggregate(ctx, [{"$match": match}, {"$group": group}], schema.DUE)
    return {_pair(ctx, one): now_ms - int(one["first"]) for one in found}


def _pair(ctx: MongoContext, group: Document) -> tuple[str, str]:
    return group["_id"].get("queue") or ctx.url.queue, str(group["_id"].get("name"))


async def logs(ctx: MongoContext, id: str, limit: int = 1_000) -> list[LogLine]:
    """See the port."""
    found = await ctx.by_ids([id], {"_id": 1, "status": 1, "jobmill.id": 1})
    if id not in found or limit <= 0:
        return []
    document = await ctx.here.logs.find_one({"_id": found[id]["_id"]}, {"lines": {"$slice": -limit}})
    return [LogLine(int(line["at"]), line["text"]) for line in document["lines"]] if document else []
