"""The verbs that only read: get, lease_ends, find, count, count_up_to, depths, stats and logs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from bson import ObjectId
from bson.datetime_ms import DatetimeMS
from bson.errors import InvalidId

from jobmill.core import stats as core_stats
from jobmill.core.cursors import cut_page, split_cursor
from jobmill.core.due import NEVER_MS
from jobmill.core.job import FINAL, STATES, Job
from jobmill.core.queue_limits import QueueLimits
from jobmill.core.values import (
    DEPTH_LIMIT,
    PAYLOADS_SEARCHED,
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
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.filters import query_of
from jobmill.stores.mongo.queues import NO_LIMITS, limits_of
from jobmill.stores.mongo.runs import MAX_RUNS, counted_runs

#: If a queue has more due jobs than this, further queries search for its oldest due job.
MANY_DUE = 200
#: Three queries count the jobs of all queues up to this number. If a queue has more jobs in a state, the command
#: `count` counts them: it reads only the keys of one index range. Measured for 10,000 jobs: `count` takes 2.2 ms of
#: server time, such a query 4.3 ms, and 8 ms for due jobs, which have one index range per name.
MANY = 1_000
#: If the jobs of a queue have more names than this, they are counted as one index range.
MAX_NAMES = 20
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
# Jobs of the home queue do not have the field `jobmill.queue`; all other jobs have a text there. With this condition,
# the server finds the names of the home queue without reading all entries. With {"$exists": False} it reads them all.
_NO_QUEUE = {"$not": {"$gte": ""}}


async def get(ctx: MongoContext, ids: Sequence[str]) -> list[Job | None]:
    """See the port."""
    found = await ctx.by_ids(list(dict.fromkeys(ids)))
    return [ctx.job(found[id]) if id in found else None for id in ids]


async def lease_ends(ctx: MongoContext, ids: Sequence[str]) -> list[int | None]:
    """See the port."""
    found = await ctx.by_ids(list(dict.fromkeys(ids)), {"data": 0})
    return [leases.end_of(found[id], ctx.url) if id in found else None for id in ids]


# ---------------------------------------------------------------------------------------------------- find


async def find(ctx: MongoContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """A page. A cursor is "<" (further) or ">" (back) and the position that the page begins after."""
    order = order_of(filter)
    position = _read_cursor(order, cursor)
    query, partial = await _searched(ctx, filter)
    if order == "claim" and filter.name is None:
        # If the query has the names, the server merges one index range per name. Otherwise it would sort all jobs.
        names = await _names(ctx, filter.queue or "")
        query = {**query, "$and": [*query.get("$and", ()), {"name": {"$in": names}}]}
    parts = [
        await _matching(ctx, filter, order, query, some, cursor, limit + 1) for some in _beyond(order, position, cursor)
    ]
    found = [document for part in parts for document in part]
    if len(parts) > 1:
        found.sort(key=_claim_position, reverse=_goes_back(cursor))
    page, next, previous = cut_page(found, limit, cursor, lambda one: ",".join(map(str, _position(order, one))))
    return Page([ctx.job(document) for document in page], next, previous, partial)


async def _searched(ctx: MongoContext, filter: Filter) -> tuple[Document, bool]:
    """A filter as a query, and whether it leaves out jobs: a filter by payload searches only the newest jobs."""
    query = query_of(ctx, filter)
    if filter.payload is None:
        return query, False
    last = ctx.here.jobs.find({}, {"_id": 1}).sort("_id", -1).skip(PAYLOADS_SEARCHED).limit(1)
    older = await last.to_list()
    return query | ({"_id": {"$gt": older[0]["_id"]}} if older else {}), bool(older)


async def _names(ctx: MongoContext, queue: str) -> list[str]:
    """The names of the waiting jobs of a queue."""
    query: Document = {"jobmill.queue": ctx.queue_field(queue) or _NO_QUEUE, "status": "pending"}
    return await ctx.here.jobs.distinct("name", query)


def _goes_back(cursor: str | None) -> bool:
    return cursor is not None and cursor[0] == ">"


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
_HAS_RANK = {"priority": {"$ne": None}}
_IS_OURS = {"$eq": [{"$substrCP": [{"$toString": {"$ifNull": ["$claimedBy", ""]}}, 0, len(OURS)]}, OURS]}
_BEGAN = {"$set": {"began": {"$cond": [_IS_OURS, "$jobmill.startedAt", "$lockedAt"]}}}


def _beyond(order: Order, position: tuple[Any, ...] | None, cursor: str | None) -> list[list[Document]]:
    """Conditions for the jobs after a position. Each is a list of index ranges in their order.

    In claim order there are two lists: jobs with a priority, and jobs without a priority, which count as priority 0.
    """
    back, fields = _goes_back(cursor), _FIELDS[order]
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
    filter: Filter,
    order: Order,
    query: Document,
    ranges: Iterable[Document],
    cursor: str | None,
    limit: int,
) -> list[Document]:
    """The first jobs of these ranges, in their order."""
    turn = -1 if _goes_back(cursor) else 1
    found: list[Document] = []
    for one in ranges:
        if order != "own" and query["jobmill.queue"] is None:
            query = {**query, "jobmill.queue": {"$exists": False}}  # see `QueueClaim._waiting`
        stages: list[Document] = [{"$match": query}, *([_BEGAN] if order == "longest" else []), {"$match": one}]
        # Sort without the fields that are equal in a range: with them, the server does not merge the ranges of names.
        fields = [one_field for one_field in _FIELDS[order] if isinstance(one.get(one_field[0], {}), dict)]
        sort = {field: direction * turn for field, direction in fields}
        stages += [{"$sort": sort}, {"$limit": limit - len(found)}]
        found += await _aggregate(ctx, stages, _index_of(filter, order))
        if len(found) >= limit:
            break
    return found


def _index_of(filter: Filter, order: Order) -> str | None:
    """The index that has the jobs in this order. None if the server finds fewer jobs with another index."""
    if filter.unique_key is not None or filter.declared:
        return None
    if filter.held:
        return schema.FAR
    return {"claim": schema.CLAIM, "longest": schema.LEASE, "latest": schema.FINISHED, "own": None}[order]


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
    """See the port. Each status has an index of its own."""
    query, _ = await _searched(ctx, filter)
    is_indexed = filter.unique_key is None and not filter.declared and filter.payload is None
    total = 0
    for status in query["status"]["$in"] if limit > 0 else ():
        stages: list[Document] = [{"$match": {**query, "status": status}}, {"$limit": limit - total}, {"$count": "n"}]
        index = schema.FAR if filter.held else INDEX_OF[status]
        found = await _aggregate(ctx, stages, index if is_indexed else None)
        total += found[0]["n"] if found else 0
        if total >= limit:
            break
    return CountUpTo(total, total < limit)


async def depths(ctx: MongoContext, queues: Sequence[str] | None = None, limit: int = DEPTH_LIMIT) -> list[Depth]:
    """See the port."""
    now, few = date(ctx.now()), min(limit, MANY)
    indexes = dict.fromkeys(INDEX_OF.values()) if queues is None else ()
    there = asyncio.gather(*(_queues(ctx, index) for index in indexes))
    limits, known = await asyncio.gather(limits_of(ctx, queues), there)
    wanted = sorted(set(limits).union(*known) if queues is None else set(queues))
    waiting, number = {"status": "pending"}, {"$sum": 1}
    due = {**waiting, "nextRunAt": {"$lte": now}}
    parts: list[dict[str, tuple[Document, int, Document]]] = [
        {
            "due": (due, few, number),
            "oldest": (due, MANY_DUE, {"$min": "$nextRunAt"}),
            "held": ({**waiting, "jobmill.due": date(NEVER_MS)}, few, number),
            # This also counts held jobs, because their `nextRunAt` is in the future.
            "later": ({**waiting, "nextRunAt": {"$gt": now}}, 2 * few, number),
        },
        {"running": ({"status": STATUS["running"]}, few, number)},
        {state: ({"status": STATUS[state]}, few, number) for state in FINAL},
    ]
    found = await asyncio.gather(*map(_of_each, [ctx] * 3, known or [set(wanted)] * 3, parts))
    none = dict.fromkeys(parts[0] | parts[1] | parts[2])
    rows = {queue: none | {of: n for part in found for of, n in part.get(queue, {}).items()} for queue in wanted}
    many = [
        _count_many(ctx, queue, of, query, rows[queue], 2 * limit if of == "later" else limit)
        for queue in wanted
        for part in parts
        for of, (query, most, value) in part.items()
        if few < limit and value is number and (rows[queue][of] or 0) >= most
    ]
    await asyncio.gather(*many)
    return await asyncio.gather(*(_depth(ctx, queue, rows[queue], limits, limit) for queue in wanted))


async def _queues(ctx: MongoContext, index: str) -> set[str]:
    """The queues of the jobs in an index. The query has no condition, so the server reads one entry per queue."""
    found = await _aggregate(ctx, [{"$group": {"_id": "$jobmill.queue"}}], index)
    return {str(one["_id"] or ctx.url.queue) for one in found}


async def _of_each(
    ctx: MongoContext, queues: Iterable[str], values: Mapping[str, tuple[Document, int, Document]]
) -> dict[str, Document]:
    """For each queue, values of the first jobs that match a query; None where there is no such job."""
    documents = [{"queue": one, "field": ctx.queue_field(one)} for one in queues]
    stages: list[Document] = [{"$documents": documents}]
    for of, (query, limit, value) in values.items():
        pipeline = [{"$match": query}, {"$limit": limit}, {"$group": {"_id": None, "value": value}}]
        fields = {"localField": "field", "foreignField": "jobmill.queue", "as": of}
        stages.append({"$lookup": {"from": ctx.url.collection, **fields, "pipeline": pipeline}})
    rows = await (await ctx.here.database.aggregate(stages)).to_list() if documents else ()
    return {row["queue"]: {of: row[of][0]["value"] if row[of] else None for of in values} for row in rows}


async def _count_many(ctx: MongoContext, queue: str, of: str, query: Document, counts: Document, limit: int) -> None:
    """Count the jobs of a queue again, up to a larger limit."""
    index = schema.FAR if of == "held" else INDEX_OF[query["status"]]

    async def count(range: Document, limit: int) -> int:
        command = partial(ctx.here.database.command, "count", ctx.url.collection, query=range, limit=limit)
        found: Document = await ctx.hinted(index, lambda hint: command(**hint))
        return int(found["n"])

    ranges: list[Document] = [{**query, "jobmill.queue": ctx.queue_field(queue)}]
    if "nextRunAt" in query and len(names := await _names(ctx, queue)) <= MAX_NAMES:
        ranges = [{**ranges[0], "name": name} for name in names]
    counts[of] = 0
    while ranges and counts[of] < limit:
        counts[of] += await count(ranges.pop(), limit - counts[of])


async def _depth(
    ctx: MongoContext, queue: str, found: Document, limits: Mapping[str, QueueLimits], limit: int
) -> Depth:
    oldest, numbers = found.pop("oldest"), {of: n or 0 for of, n in found.items()}
    if numbers["due"] >= MANY_DUE:
        oldest = await _oldest_due(ctx, queue, oldest)
    numbers["later"] = min(limit, max(0, numbers["later"] - numbers["held"]))
    return Depth(
        queue=queue,
        **numbers,
        oldest_due_ms=ms_of(oldest),
        limited_until_ms=limits.get(queue, NO_LIMITS).limited_until_ms(ctx.now()),
        exact=all(n < limit for n in numbers.values()),
    )


async def _oldest_due(ctx: MongoContext, queue: str, known: DatetimeMS) -> DatetimeMS:
    """The first due time of a queue. The index is sorted within a name: each query finds a name with an older job."""
    query: Document = {"jobmill.queue": ctx.queue_field(queue), "status": "pending"}
    while found := await ctx.find_by(schema.DUE, {**query, "nextRunAt": {"$lt": known}}, {"_id": 0, "nextRunAt": 1}, 1):
        known = found[0]["nextRunAt"]
    return known


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
