"""The verbs that only read: get, find, count, stats and logs."""

from __future__ import annotations

from collections.abc import Sequence

from bson import ObjectId
from bson.errors import InvalidId

from jobmill.core import stats as core_stats
from jobmill.core.cursors import cut_page
from jobmill.core.job import STATES, Job
from jobmill.core.values import Count, Filter, LogLine, Page, Stats
from jobmill.errors import InvalidValue
from jobmill.stores.mongo.codec import STATE, Document, date
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.filters import query_of
from jobmill.stores.mongo.runs import MAX_RUNS, counted_runs


async def get(ctx: MongoContext, ids: Sequence[str]) -> list[Job | None]:
    """See the port."""
    found = await ctx.by_ids(list(dict.fromkeys(ids)))
    return [ctx.job(found[id]) if id in found else None for id in ids]


async def find(ctx: MongoContext, filter: Filter, cursor: str | None = None, limit: int = 100) -> Page:
    """Newest first. A cursor is "<" or ">" and the _id that the page begins after."""
    query = query_of(ctx, filter)
    backwards, id = _read_cursor(cursor)
    if id is not None:
        query = {"$and": [query, {"_id": {"$gt" if backwards else "$lt": id}}]}
    found = await ctx.here.jobs.find(query).sort("_id", 1 if backwards else -1).limit(limit + 1).to_list()
    page, next, previous = cut_page(found, limit, cursor, lambda document: document["_id"])
    return Page([ctx.job(document) for document in page], next, previous)


def _read_cursor(cursor: str | None) -> tuple[bool, ObjectId | None]:
    """Whether a page goes back to newer jobs, and the _id that it begins after; None: it begins at the newest job."""
    if cursor is None:
        return False, None
    try:
        if cursor[:1] not in ("<", ">"):
            raise InvalidId
        return cursor[0] == ">", ObjectId(cursor[1:])
    except InvalidId:
        raise InvalidValue("cursor", "a cursor that a page of this store gave", cursor) from None


async def count(ctx: MongoContext, filter: Filter) -> list[Count]:
    """See the port."""
    group = {"_id": {"queue": "$jobmill.queue", "name": "$name", "status": "$status"}, "count": {"$sum": 1}}
    cursor = await ctx.here.jobs.aggregate([{"$match": query_of(ctx, filter)}, {"$group": group}])
    counts = [
        Count(one["_id"].get("queue") or ctx.url.queue, str(one["_id"].get("name")), STATE[one["_id"]["status"]], n)
        for one in await cursor.to_list()
        if (n := one["count"])
    ]
    return sorted(counts, key=lambda one: (one.queue, one.name, STATES.index(one.state)))


async def stats(ctx: MongoContext, queue: str | None = None, name: str | None = None) -> list[Stats]:
    """See the port."""
    runs, run_durations = await counted_runs(ctx, queue, name)
    table = core_stats.by_queue_and_name(await count(ctx, Filter(queue=queue, name=name)) + runs)
    now_ms = ctx.now()
    result = []
    for (queue_, name_), counts in table.items():
        mine = {"jobmill.queue": ctx.queue_field(queue_), "name": name_}
        oldest_ms = await _oldest_waiting(ctx, mine, now_ms) if counts.get("waiting") else None
        durations = await _durations(ctx, mine) if counts.get("succeeded") else []
        durations += run_durations.get((queue_, name_), [])
        result.append(core_stats.stats(queue_, name_, counts, oldest_ms, durations))
    return result


async def _oldest_waiting(ctx: MongoContext, mine: Document, now_ms: int) -> int | None:
    """For how long the oldest due job has waited."""
    due = {**mine, "status": "pending", "nextRunAt": {"$lte": date(now_ms)}}
    first = await ctx.here.jobs.find(due, {"nextRunAt": 1}).sort("nextRunAt", 1).limit(1).to_list()
    return now_ms - int(first[0]["nextRunAt"]) if first else None


async def _durations(ctx: MongoContext, mine: Document) -> list[float]:
    """How long the last runs took that succeeded; only those of workers of ours, because Monque keeps no start."""
    ran_here = [{"heartbeatInterval": {"$type": "long"}}, {"jobmill.claims": {"$type": "int"}}]  # see `ran_there`
    done = {**mine, "status": "completed", "jobmill.startedAt": {"$exists": True}, "$or": ran_here}
    found = ctx.here.jobs.find(done, {"updatedAt": 1, "jobmill.startedAt": 1}).sort("_id", -1).limit(MAX_RUNS)
    return [float(int(one["updatedAt"]) - int(one["jobmill"]["startedAt"])) async for one in found]


async def logs(ctx: MongoContext, id: str, limit: int = 1_000) -> list[LogLine]:
    """See the port."""
    found = await ctx.by_ids([id], {"_id": 1, "status": 1, "jobmill.id": 1})
    if id not in found or limit <= 0:
        return []
    document = await ctx.here.logs.find_one({"_id": found[id]["_id"]}, {"lines": {"$slice": -limit}})
    return [LogLine(int(line["at"]), line["text"]) for line in document["lines"]] if document else []
