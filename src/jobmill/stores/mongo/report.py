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
from jobmill.stores.mongo.ids import claim_id
from jobmill.stores.mongo.leases import LocatedLease, located

#: Longer lines are cut to this many bytes, so that the last thousand fit into a document.
MAX_LINE_BYTES = 15_000

_SHOWN = {"_id": 1, "name": 1, "status": 1, "failCount": 1, "claimId": 1, "jobmill.id": 1, "jobmill.queue": 1}


async def report(ctx: MongoContext, reports: Sequence[Report]) -> list[str]:
    """See the port."""
    now_ms = ctx.now()
    held = await located(ctx, [one.lease for one in reports])
    documents = await _held_documents(ctx, [one for one in held if one is not None], now_ms)
    lost: list[str] = []
    writes: list[UpdateOne] = []
    logs: list[UpdateOne] = []
    events: list[Event] = []
    for one, lease in zip(reports, held, strict=True):
        document = None if lease is None else documents.get((lease.locator.id, claim_id(one.lease.token)))
        if lease is None or document is None:
            lost.append(one.lease.id)
            continue
        if one.progress is not None:
            fields = job_fields({"progress": one.progress, "updated_ms": now_ms})
            writes.append(UpdateOne(lease.guard(now_ms), {"$set": fields}, hint=BY_ID))
            events.append(progress_event(ctx.job(document), one.progress, now_ms))
        if one.lines:
            logs.append(_logged(lease.locator.id, one.lines, now_ms))
    if writes:
        await ctx.here.heartbeats.bulk_write(writes)
    if logs:
        await ctx.here.logs.bulk_write(logs)
    await publish(ctx, events)
    return lost


async def _held_documents(
    ctx: MongoContext, held: Sequence[LocatedLease], now_ms: int
) -> dict[tuple[ObjectId, str], Document]:
    """The documents of the leases that hold, by _id and claim id."""
    if not held:
        return {}
    found = ctx.here.jobs.find({"$or": [one.guard(now_ms) for one in held]}, _SHOWN)
    return {(document["_id"], document["claimId"]): document async for document in found}


def _logged(id: ObjectId, lines: Sequence[str], now_ms: int) -> UpdateOne:
    entries = [{"at": date(now_ms), "text": _cut(text)} for text in lines[-LOG_LINES_KEPT:]]
    return UpdateOne({"_id": id}, {"$push": {"lines": {"$each": entries, "$slice": -LOG_LINES_KEPT}}}, upsert=True)


def _cut(text: str) -> str:
    return text.encode(errors="replace")[:MAX_LINE_BYTES].decode(errors="ignore")
