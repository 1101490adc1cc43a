"""The verbs that only read: get, lease_ends, count, depths, stats and logs; search.py has find and count_up_to."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from bson.datetime_ms import DatetimeMS

from jobmill.core import stats as core_stats
from jobmill.core.due import NEVER_MS
from jobmill.core.job import FINAL, STATES, Job
from jobmill.core.queue_limits import QueueLimits
from jobmill.core.values import DEPTH_LIMIT, Count, Depth, Filter, LogLine, Stats
from jobmill.stores.mongo import codec, leases, schema
from jobmill.stores.mongo.codec import STATE, STATUS, Document, date, ms_of
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.filters import query_of
from jobmill.stores.mongo.queues import NO_LIMITS, limits_of
from jobmill.stores.mongo.runs import MAX_RUNS, counted_runs

#: Up to this number, the jobs of all queues are counted in three queries; of few queues, up to the smaller number.
#: Where a queue has more in a state, commands count them: `count` reads the keys of one index range and nothing else.
#: Measured for 10,000 jobs: 2.9 ms of server time, instead of 5.1 in such a query.
MANY, FEW, FEW_QUEUES = 1_000, 100, 20
#: For each status, the index that contains all jobs with this status, by queue.
INDEX_OF = {"pending": schema.DUE, "processing": schema.LEASE} | dict.fromkeys(codec.FINAL, schema.FINISHED)
#: The numbers of `Depth` that are counted together: each part reads one index.
_PARTS: tuple[tuple[str, ...], ...] = (("due", "held", "later"), ("running",), FINAL)
_STATUS: dict[str, str] = {state: STATUS[state] for state in STATES}
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


def is_queue(ctx: MongoContext, queue: str) -> Any:
    """A condition for the jobs of a queue; see `QueueClaim._waiting`."""
    return {"$exists": False} if ctx.queue_field(queue) is None else queue


async def aggregate(ctx: MongoContext, stages: Sequence[Document], index: str | None) -> list[Document]:
    """What a pipeline over the jobs returns; with an index, it reads that one."""

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
    found = await aggregate(ctx, [{"$match": query_of(ctx, filter)}, {"$group": group}], None)
    counts = [(Count(*_pair(ctx, one), STATE[one["_id"]["status"]], one["count"]), one) for one in found]
    return sorted(counts, key=lambda one: (one[0].queue, one[0].name, STATES.index(one[0].state)))


async def count_range(ctx: MongoContext, query: Document, index: str, limit: int) -> int:
    """How many jobs match, up to a limit; from the keys of an index where it has all fields of the query."""
    command = partial(ctx.here.database.command, "count", ctx.url.collection, query=query, limit=limit)
    found: Document = await ctx.hinted(index, lambda hint: command(**hint))
    return int(found["n"])


async def depths(ctx: MongoContext, queues: Sequence[str] | None = None, limit: int = DEPTH_LIMIT) -> list[Depth]:
    """See the port."""
    # What was a large number in the last call probably is one again: it is counted at once, beside the other queries.
    large = [key for key in ctx.large_depths if limit > MANY and (queues is None or key[0] in queues)]
    (limits, firsts, rows, few), *counts = await asyncio.gather(
        _small_depths(ctx, queues, limit, large), *(_count_up_to(ctx, queue, of, limit) for queue, of in large)
    )
    if limit == 0:
        return [Depth(queue=queue, exact=False) for queue in rows]
    counted = dict(zip(large, counts, strict=True))
    more = []
    for queue, row in rows.items():
        for of in row:
            n = counted.get((queue, of))
            # The jobs that are due later include the held ones: together they may be more than were counted.
            if n is not None and not (of == "later" and n == limit and row["held"]):
                row[of] = n
            elif n is not None or (few < limit and row[of] >= few * (1 + (of == "later"))):
                more.append((queue, row, of))

    async def count_more(queue: str, row: dict[str, int], of: str) -> None:
        most = limit + (row["held"] if row["held"] < few else limit) * (of == "later")
        row[of] = await _count_up_to(ctx, queue, of, most)

    await asyncio.gather(*(count_more(*one) for one in more))
    ctx.large_depths = {(queue, of) for queue, row in rows.items() for of, n in row.items() if few <= n}
    return await asyncio.gather(
        *(_depth(ctx, queue, row, firsts.get(queue), limits, limit) for queue, row in rows.items())
    )


async def _small_depths(
    ctx: MongoContext, queues: Sequence[str] | None, limit: int, large: Sequence[tuple[str, str]]
) -> tuple[Mapping[str, QueueLimits], dict[str, Any], dict[str, dict[str, int]], int]:
    """The limits and first due time of each queue, its numbers as far as they are small, and what small means.

    Numbers that are large in all queues are left out.
    """
    limits, firsts, *known = await asyncio.gather(
        limits_of(ctx, queues),
        first_dues(ctx) if queues is None else _first_dues_of(ctx, queues),
        *(queues_in(ctx, index) for index in (schema.LEASE, schema.FINISHED) if queues is None),
    )
    wanted = sorted(set(limits).union(firsts, *known) if queues is None else set(queues))
    few = min(limit, MANY if len(wanted) > FEW_QUEUES else FEW)
    found = await asyncio.gather(
        *(
            _count_few(ctx, some, {of: _query(ctx, of) for of in part if not _are_all(large, some, of)}, few)
            for part, some in zip(_PARTS, [firsts, *(known or [wanted] * 2)], strict=True)
            if few
        )
    )
    none = {of: 0 for part in _PARTS for of in part}
    rows = {queue: none | {of: n for part in found for of, n in part.get(queue, {}).items()} for queue in wanted}
    return limits, firsts, rows, few


def _are_all(large: Sequence[tuple[str, str]], queues: Iterable[str], of: str) -> bool:
    return all((queue, of) in large for queue in queues)


def _query(ctx: MongoContext, of: str) -> Document:
    """The jobs of a number in `Depth`; those that are due later include the held ones, which are due never."""
    if of == "held":
        return {"status": "pending", "jobmill.due": date(NEVER_MS)}
    if of in ("due", "later"):
        return {"status": "pending", "nextRunAt": {"$lte" if of == "due" else "$gt": date(ctx.now())}}
    return {"status": _STATUS[of]}


async def first_dues(ctx: MongoContext) -> dict[str, Any]:
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
    query = {"jobmill.queue": is_queue(ctx, queue), "status": "pending", "nextRunAt": {"$gt": date(_FIRST_MS)}}
    found = await ctx.find_by(schema.DUE, query, {"_id": 0, "nextRunAt": 1}, 1, sort={"nextRunAt": 1})
    return found[0]["nextRunAt"] if found else None


async def queues_in(ctx: MongoContext, index: str) -> set[str]:
    """The queues of the jobs in an index. The query has no condition, so the server reads one entry per queue."""
    found = await aggregate(ctx, [{"$group": {"_id": "$jobmill.queue"}}], index)
    return {str(one["_id"] or ctx.url.queue) for one in found}


async def _count_few(
    ctx: MongoContext, queues: Iterable[str], queries: Mapping[str, Document], few: int
) -> dict[str, dict[str, int]]:
    """For each queue, how many jobs match each query, up to a small number."""
    documents = [{"queue": one, "field": ctx.queue_field(one)} for one in queues]
    stages: list[Document] = [{"$documents": documents}]
    for of, query in queries.items():
        pipeline = [{"$match": query}, {"$limit": few * (1 + (of == "later"))}, {"$count": "n"}]
        fields = {"localField": "field", "foreignField": "jobmill.queue", "as": of}
        stages.append({"$lookup": {"from": ctx.url.collection, **fields, "pipeline": pipeline}})
    rows = await (await ctx.here.database.aggregate(stages)).to_list() if documents and queries else ()
    return {row["queue"]: {of: row[of][0]["n"] if row[of] else 0 for of in queries} for row in rows}


async def _count_up_to(ctx: MongoContext, queue: str, of: str, limit: int) -> int:
    """One number of a queue, up to a limit."""
    query = _query(ctx, of)
    index = schema.FAR if of == "held" else INDEX_OF[query["status"]]
    return await count_range(ctx, {**query, "jobmill.queue": ctx.queue_field(queue)}, index, limit)


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
    found = await aggregate(ctx, [{"$match": match}, {"$group": group}], schema.DUE)
    return {_pair(ctx, one): now_ms - int(one["first"]) for one in found}


def _pair(ctx: MongoContext, group: Document) -> tuple[str, str]:
    return group["_id"].get("queue") or ctx.url.queue, str(group["_id"].get("name"))


async def logs(ctx: MongoContext, id: str, limit: int = 1_000) -> list[LogLine]:
    """See the port."""
    found = await ctx.by_ids([id], codec.ID_SHOWN)
    if id not in found or limit <= 0:
        return []
    document = await ctx.here.logs.find_one({"_id": found[id]["_id"]}, {"lines": {"$slice": -limit}})
    return [_log_line(line) for line in document["lines"]] if document else []


def _log_line(line: Document) -> LogLine:
    """Older versions wrote neither attempt nor level."""
    return LogLine(int(line["at"]), line["text"], line.get("attempt"), line.get("level", "info"))
