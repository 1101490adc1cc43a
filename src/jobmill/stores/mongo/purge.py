"""The janitor's part: remove final jobs past their retention, and re-arm recurring jobs that another program ended."""

from __future__ import annotations

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import DuplicateKeyError

from jobmill.core.due import NEVER_MS, at, lane_fields
from jobmill.core.events import job_event
from jobmill.core.job import Job, keep_final
from jobmill.core.recurrence import next_occurrence
from jobmill.core.values import Purged
from jobmill.errors import InvalidValue
from jobmill.stores.mongo import schema
from jobmill.stores.mongo.announce import purge_announced
from jobmill.stores.mongo.audit import purge_audit
from jobmill.stores.mongo.codec import (
    ENDED_BY_RUN,
    FAR_MS,
    FINAL,
    NO_CLAIM,
    STATE,
    WITHOUT_PAYLOAD,
    Document,
    date,
    due_fields,
    job_fields,
    keep_fields,
    lane_mark_fields,
    ours_of,
    update_of,
)
from jobmill.stores.mongo.connection import BY_ID
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.lane_settings import purge_windows
from jobmill.stores.mongo.queues import resume
from jobmill.stores.mongo.remove import remove
from jobmill.stores.mongo.runs import purge_runs
from jobmill.stores.mongo.taken_keys import purge_taken_keys
from jobmill.stores.mongo.wake import unknown_status

#: Workers search at this interval for recurring jobs that Monque ended; sooner if the change stream reports one.
REARM_MS = 500
_NO_DATES = ["number", "string", "null", "object", "bool"]
_ODD = {"nextRunAt": 1, "status": 1}


async def purge(ctx: MongoContext, limit: int = 1_000) -> Purged:
    """See the port. Of the jobs of which the last n are kept, those beyond n are removed."""
    await ctx.measure_clock()  # an idle worker has no other reason to ask
    now_ms = ctx.now()
    await _report_odd(ctx)
    await rearm(ctx, now_ms, limit)
    await purge_runs(ctx, now_ms)
    await purge_announced(ctx, now_ms)
    await purge_audit(ctx, now_ms)
    await purge_taken_keys(ctx, now_ms)
    await purge_windows(ctx, now_ms)
    await resume(ctx, now_ms)
    await postpone(ctx, now_ms)
    noted = await _note_ended(ctx, limit, now_ms)
    past = await _too_old(ctx, limit + 1, now_ms)
    if len(past) <= limit:
        past |= await _too_many(ctx, limit + 1 - len(past))
    chosen = dict(list(past.items())[:limit])
    gone = await remove(ctx, list(chosen.values()), FINAL)
    await publish(ctx, [job_event(ctx.job(chosen[id]), "removed", now_ms) for id in chosen if id in gone])
    # Those that they had waited for may go now.
    frees = any("dependencies" in ours_of(chosen[id]) for id in gone)
    return Purged(len(gone), more=frees or len(past) > limit or noted >= limit)


async def _report_odd(ctx: MongoContext) -> None:
    """Log, once, jobs that will never run: their due time is no date, or their status is unknown."""
    if not ctx.names:
        return
    mine = {"jobmill.queue": None, "name": {"$in": list(ctx.names)}}
    no_dates = {**mine, "status": "pending", "nextRunAt": {"$type": _NO_DATES}}
    for document in await ctx.find_by(schema.DUE, no_dates, _ODD, 100):
        ctx.report_once(document, f"its nextRunAt is not a date: {document.get('nextRunAt')!r}")
    if schema.NAME_STATUS in ctx.indexes:  # without it all documents would be read; then only the stream reports them
        unknown = {**mine, "status": {"$nin": list(STATE)}}
        for document in await ctx.find_by(schema.NAME_STATUS, unknown, _ODD, 100):
            ctx.report_once(document, unknown_status(document))


async def postpone(ctx: MongoContext, now_ms: int) -> None:
    """Move nextRunAt of held jobs, and of jobs that are due much later, on before Node or an older version runs them.

    Where another program has changed nextRunAt, a job that is not held is due then.
    """
    is_ours = {"$expr": {"$and": [{"$eq": ["$nextRunAt", "$jobmill.dueOf"]}, {"$lt": ["$nextRunAt", "$jobmill.due"]}]}}
    far = {"status": "pending", "jobmill.due": {"$gt": date(now_ms)}, "nextRunAt": {"$lt": date(now_ms + FAR_MS // 2)}}
    next_at = {"$min": ["$jobmill.due", date(now_ms + FAR_MS)]}
    query = {**far, "$or": [{"jobmill.held": {"$exists": True}}, is_ours]}
    update = [{"$set": {"nextRunAt": next_at, "jobmill.dueOf": next_at}}]
    await ctx.hinted(schema.FAR, lambda hint: ctx.here.jobs.update_many(query, update, **hint))


async def _too_old(ctx: MongoContext, limit: int, now_ms: int) -> dict[ObjectId, Document]:
    old = {"jobmill.v": 1, "jobmill.purgeAt": {"$lte": date(now_ms)}, "status": {"$in": FINAL}}
    old["jobmill.hasDependents"] = {"$exists": False}  # others wait for it, or have waited for it
    # A job that Monque ended again after that time gets another one.
    query = {**old, "$expr": {"$lte": ["$updatedAt", "$jobmill.purgeAt"]}}
    return {one["_id"]: one for one in await ctx.find_by(schema.KEPT, query, WITHOUT_PAYLOAD, limit)}


async def _note_ended(ctx: MongoContext, limit: int, now_ms: int) -> int:
    """Write how long they stay to jobs of ours that Monque ended; how many there were."""
    ended: Document = {"jobmill.v": 1, "status": {"$in": FINAL}}
    # Recurring jobs that Monque completed or failed are re-armed instead.
    unarmed = {"$or": [{"jobmill.armed": None}, {"status": {"$nin": ENDED_BY_RUN}}]}
    first = {**ended, **unarmed, "jobmill.purgeAt": None, "jobmill.keepLast": None}
    again = {**ended, "jobmill.purgeAt": {"$lte": date(now_ms)}, "$expr": {"$gt": ["$updatedAt", "$jobmill.purgeAt"]}}
    found = await ctx.find_by(schema.KEPT, again, WITHOUT_PAYLOAD, limit)
    if schema.KEPT in ctx.indexes:  # without it all final jobs would be read
        found += await ctx.find_by(schema.KEPT, first, WITHOUT_PAYLOAD, limit)
    writes = []
    for document in found:
        job, unchanged = ctx.job(document), {name: document.get(name) for name in ("_id", "status", "updatedAt")}
        fields = keep_fields(keep_final(job.options, job.state), job.updated_ms)
        if job.lane is not None:
            # Another job has its slot by now, whose number would refuse a retry by hand.
            fields["jobmill.laneSlot"] = None
        writes.append(UpdateOne(unchanged, update_of(fields), hint=BY_ID))
    if writes:
        await ctx.here.jobs.bulk_write(writes, ordered=False)
    return len(writes)


async def _too_many(ctx: MongoContext, limit: int) -> dict[ObjectId, Document]:
    """Jobs beyond the last n of their queue and state."""
    kept = {"jobmill.keepLast": {"$exists": True}, "status": {"$in": FINAL}}
    group = {
        "_id": {"queue": "$jobmill.queue", "status": "$status"},
        "least": {"$min": "$jobmill.keepLast"},
        "count": {"$sum": 1},
    }
    jobs = ctx.here.jobs

    async def counted(hint: Document) -> list[Document]:
        return await (await jobs.aggregate([{"$match": kept}, {"$group": group}], **hint)).to_list()

    past: dict[ObjectId, Document] = {}
    for one in await ctx.hinted(schema.LAST, counted):
        if one["count"] <= one["least"] or len(past) >= limit:
            continue
        mine = {**kept, "jobmill.queue": one["_id"].get("queue"), "status": one["_id"]["status"]}
        found = jobs.find(mine, WITHOUT_PAYLOAD).sort([("updatedAt", -1), ("_id", -1)]).skip(one["least"])
        number = one["least"]
        async for document in found:
            number += 1
            if number > document["jobmill"]["keepLast"] and "hasDependents" not in document["jobmill"]:
                past[document["_id"]] = document
            if len(past) >= limit:
                break
    return past


async def rearm(ctx: MongoContext, now_ms: int, limit: int = 100) -> None:
    """Re-arm recurring jobs of ours that Monque ended, because it does not know their rule or gave up."""
    ctx.claims.rearm_from_ms = now_ms + REARM_MS
    query = {"jobmill.armed": True, "status": {"$in": ENDED_BY_RUN}}
    for document in await ctx.find_by(schema.RECURRING, query, WITHOUT_PAYLOAD, limit):
        await _rearm(ctx, document, now_ms)


async def _rearm(ctx: MongoContext, document: Document, now_ms: int) -> None:
    unchanged = {"_id": document["_id"], "status": document["status"], "updatedAt": document.get("updatedAt")}
    job = ctx.job(document)
    update = update_of(_next_run(job, now_ms))
    try:
        await ctx.here.jobs.update_one({**unchanged, "jobmill.armed": True}, update)
        ctx.lanes.touch(job.queue, job.lane)
    except DuplicateKeyError:
        # Another job has its unique key by now and replaces it.
        await ctx.here.jobs.update_one(unchanged, {"$unset": {"jobmill.armed": ""}})


def _next_run(job: Job, now_ms: int) -> Document:
    """The fields that re-arm a job; where its recurrence is over, it is no longer armed."""
    try:
        occurrence_ms = (
            next_occurrence(job.recurrence, job.occurrence_ms or job.due_ms, now_ms) if job.recurrence else None
        )
    except InvalidValue:
        occurrence_ms = None
    if occurrence_ms is None:
        return {"jobmill.armed": None}
    failed = job.state == "failed"
    return {
        "status": "pending",
        "failCount": 0,
        "updatedAt": date(now_ms),
        "jobmill.held": None,
        **due_fields(occurrence_ms, now_ms),
        **({} if job.lane is None else _lane_fields(job.lane, occurrence_ms, now_ms)),
        **NO_CLAIM,
        "jobmill.progress": None,
        "jobmill.crashes": None,
        "jobmill.runs": job.runs + 1,
        "jobmill.failedRuns": job.failed_runs + failed,
        "jobmill.lastFinishedAt": date(job.updated_ms),
        **({"jobmill.lastError": job.error} if failed and job.error is not None else {}),
    }


def _lane_fields(lane: str, occurrence_ms: int, now_ms: int) -> Document:
    """The fields of a job that waits in its lane again."""
    held = lane_fields(None, at(occurrence_ms), now_ms)
    marks = lane_mark_fields(lane, held["held"], now_ms)
    return {**due_fields(NEVER_MS, now_ms, occurrence_ms), **job_fields(held), **marks}
