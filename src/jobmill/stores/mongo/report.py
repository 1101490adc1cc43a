"""Progress and log lines of running jobs."""

from __future__ import annotations

from collections.abc import Sequence

from bson import ObjectId
from pymongo import UpdateOne

from jobmill.core.events import Event, progress_event
from jobmill.core.job import LOG_LINES_KEPT
from jobmill.core.values import Report
from jobmill.stores.mongo.codec import Document, date, job_fields
from jobmill.stores.mongo.connection import BY_ID
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.leases import guard, located

#: Longer lines are cut to this many bytes, so that the last thousand fit into a document.
MAX_LINE_BYTES = 15_000

_SHOWN = {"_id": 1, "name": 1, "status": 1, "failCount": 1, "claimId": 1, "jobmill.id": 1, "jobmill.queue": 1}


async def report(ctx: MongoContext, reports: Sequence[Report]) -> list[str]:
    """See the port."""
    now_ms = ctx.now()
    locators = await located(ctx, [one.lease for one in reports])
    guards = [
        {"_id": locator.id, **guard(one.lease.token, locator.claimed_by, now_ms)} if locator else None
        for one, locator in zip(reports, locators, strict=True)
    ]
    documents = await _held_documents(ctx, [one for one in guards if one])
    lost: list[str] = []
    writes: list[UpdateOne] = []
    logs: list[UpdateOne] = []
    events: list[Event] = []
    for one, held in zip(reports, guards, strict=True):
        document = None if held is None else documents.get((held["_id"], held["claimId"]))
        if held is None or document is None:
            lost.append(one.lease.id)
            continue
        if one.progress is not None:
            fields = job_fields({"progress": one.progress, "updated_ms": now_ms})
            writes.append(UpdateOne(held, {"$set": fields}, hint=BY_ID))
            events.append(progress_event(ctx.job(document), one.progress, now_ms))
        if one.lines:
            logs.append(_logged(held["_id"], one, now_ms))
    if writes:
        await ctx.here.heartbeats.bulk_write(writes)
    if logs:
        await ctx.here.logs.bulk_write(logs)
    await publish(ctx, events)
    return lost


async def _held_documents(ctx: MongoContext, guards: Sequence[Document]) -> dict[tuple[ObjectId, str], Document]:
    """The documents of the leases that hold, by _id and claim id."""
    if not guards:
        return {}
    found = ctx.here.jobs.find({"$or": guards}, _SHOWN)
    return {(document["_id"], document["claimId"]): document async for document in found}


def _logged(id: ObjectId, one: Report, now_ms: int) -> UpdateOne:
    common = {"at": date(now_ms), "attempt": one.attempt, "level": one.level}
    entries = [{**common, "text": _cut(text)} for text in one.lines[-LOG_LINES_KEPT:]]
    return UpdateOne({"_id": id}, {"$push": {"lines": {"$each": entries, "$slice": -LOG_LINES_KEPT}}}, upsert=True)


def _cut(text: str) -> str:
    return text.encode(errors="replace")[:MAX_LINE_BYTES].decode(errors="ignore")
