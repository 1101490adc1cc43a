"""Leases: what a claim writes, the guard of a lease, and which leases have ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from bson import Int64, ObjectId
from msgspec import Struct

from jobmill.core.changes import Seize
from jobmill.core.job import Job
from jobmill.core.values import AHEAD, Claim, Lease
from jobmill.stores.mongo.codec import OURS, Document, date, int_of, ms_of, ours_of
from jobmill.stores.mongo.connection import BY_ID
from jobmill.stores.mongo.context import SCAN_SHARE, MongoContext
from jobmill.stores.mongo.ids import claim_id
from jobmill.stores.mongo.schema import LEASE
from jobmill.stores.mongo.url import MongoUrl

#: While jobs that wait fill every claim, ended leases are searched for at this interval.
ENDED_SECONDS = 0.5
#: Stale claims of Monque are searched for at this interval; more often where the lock timeout is short.
STALE_MS = 15_000
_MIN_STALE_MS = 250
#: The interval of Monque's heartbeats, unless its job says otherwise.
MONQUE_HEARTBEAT_MS = 30_000
#: A heartbeat of Monque may be this much later than its interval.
LATE_HEARTBEAT_MS = 1_000

#: The fields by which claims order jobs and leave some of them to Monque, and the worker that had a lost job.
IN_ORDER = dict.fromkeys(("_id", "name", "priority", "nextRunAt", "status", "claimedBy", "jobmill.id", "jobmill.v"), 1)
IN_ORDER |= dict.fromkeys(("repeatInterval", "timezone", "jobmill.slot", "jobmill.slotDue"), 1)
IN_ORDER |= dict.fromkeys(("jobmill.due", "jobmill.dueOf", "jobmill.held", "claimId", "jobmill.unstarted"), 1)
# A claim cannot be written where `jobmill` is one of these; and a job never has a document as its _id.
_NO_OBJECTS = ["null", "string", "number", "bool", "array", "date", "objectId", "binData"]
_LOCATED = dict.fromkeys(("status", "claimedBy", "jobmill", "nextRunAt", "name", "repeatInterval"), 1)


class MongoLocator(Struct, frozen=True, gc=False):
    """Where a lease finds its document, who has claimed it, and whether our rules of retention apply."""

    id: ObjectId
    claimed_by: str
    is_ours: bool
    #: Whether the job has a recurrence.
    recurs: bool = False
    #: Where edges lead to the job: its `hasDependents` and `round` when it was claimed. Edges may be younger.
    pin: ObjectId | None = None
    round: int = 0
    #: Whether the job has edges.
    has_dependencies: bool = False
    #: Whether its lane is strict; only a settlement knows this.
    is_strict: bool = False


def locator_of(document: Document, job: Job) -> MongoLocator:
    """The locator of a job."""
    ours, claimed_by = ours_of(document), str(document.get("claimedBy", OURS))
    edges = (ours.get("hasDependents"), ours.get("round", 0), "dependencies" in ours)
    return MongoLocator(document["_id"], claimed_by, ours.get("v") == 1, job.recurrence is not None, *edges)


def worker_of(document: Document) -> str:
    """The worker that has, or had, a job; of Monque: the id of its process."""
    return str(document.get("claimedBy") or "").removeprefix(OURS)


async def located(ctx: MongoContext, leases: Sequence[Lease]) -> list[MongoLocator | None]:
    """The locators of leases. Those that other code made are looked up; None where the job does not exist."""
    unknown = [lease.id for lease in leases if not isinstance(lease.locator, MongoLocator)]
    found = await ctx.by_ids(unknown, _LOCATED) if unknown else {}
    locators = {id: locator_of(document, ctx.job(document)) for id, document in found.items()}
    return [one.locator if isinstance(one.locator, MongoLocator) else locators.get(one.id) for one in leases]


def guard(token: str, claimed_by: str, now_ms: int) -> Document:
    """A filter that matches while a lease holds; for all jobs of one claim."""
    held = {"status": "processing", "claimedBy": claimed_by, "claimId": claim_id(token)}
    return held | {"jobmill.leaseUntil": {"$gt": date(now_ms)}}


def is_uncounted(document: Document) -> bool:
    """Whether the lease of a running job is its first one of a claim ahead: its loss is no crash."""
    is_ahead = str(document.get("claimId")).startswith(AHEAD)
    return document["status"] == "processing" and is_ahead and "unstarted" not in ours_of(document)


def lease_update(claim: Claim | Seize, now_ms: int, *, counts: str | None = None) -> Document:
    """What a claim writes. `counts`: the field that counts that another lease has ended.

    Only a job that waited and was due then loses its due time: if a rule was updated while its job ran, the job is due
    as the update says when the run is over, and a seized job may be due later.
    """
    was_due = counts is None and isinstance(claim, Claim)
    fields: Document = {"status": "processing", "claimedBy": OURS + claim.worker, "claimId": claim_id(claim.token)}
    fields |= dict.fromkeys(("lockedAt", "lastHeartbeat", "updatedAt", "jobmill.startedAt"), date(now_ms))
    fields |= {"jobmill.leaseUntil": date(now_ms + claim.lease_ms), "jobmill.worker": claim.worker}
    fields["heartbeatInterval"] = Int64(min(max(1, claim.lease_ms // 3), 2**31 - 1))  # see `ran_there`
    return {
        "$set": fields,
        "$inc": {"jobmill.claims": Int64(1)} | ({f"jobmill.{counts}": 1} if counts else {}),
        # Monque must not take the lease of an earlier claim for its own.
        "$unset": {"leaseExpiresAt": ""} | ({"jobmill.due": "", "jobmill.dueOf": ""} if was_due else {}),
        # A Node worker retries a job without a number here, or with a negative one, for ever.
        "$max": {"failCount": 0},
    }


def writable(excluded: Sequence[Any]) -> Document:
    """A filter for jobs to which a claim can be written, except the jobs with these _ids."""
    return {"jobmill": {"$not": {"$type": _NO_OBJECTS}}, "_id": {"$not": {"$type": "object"}, "$nin": excluded}}


def ended(now_ms: int) -> Document:
    """A filter for claims of ours whose lease has ended."""
    until = {"$lte": date(now_ms)}
    return {"status": "processing", "jobmill.leaseUntil": until, "claimedBy": {"$regex": f"^{OURS}"}}


def stale(now_ms: int, lock_timeout_ms: int) -> Document:
    """A filter for claims of Monque without a lease whose lockedAt and heartbeat are both too old.

    A job whose worker sends heartbeats less often than the lock timeout gets the time until the next one.
    """
    long_ago = date(now_ms - lock_timeout_ms)
    silent_ms = {"$subtract": [date(now_ms), {"$max": ["$lockedAt", "$lastHeartbeat"]}]}
    interval_ms = {"$cond": [{"$isNumber": "$heartbeatInterval"}, "$heartbeatInterval", 0]}
    return {
        "status": "processing",
        "claimedBy": {"$not": {"$regex": f"^{OURS}"}},
        "lockedAt": {"$lt": long_ago},
        "$and": [
            {"$or": [{"lastHeartbeat": None}, {"lastHeartbeat": {"$lt": long_ago}}]},
            {"$or": [{"leaseExpiresAt": None}, {"leaseExpiresAt": {"$lte": date(now_ms)}}]},
            {"$expr": {"$gt": [silent_ms, {"$add": [interval_ms, LATE_HEARTBEAT_MS]}]}},
        ],
    }


def has_heartbeat(document: Document, now_ms: int) -> bool:
    """Whether the process of Monque that has claimed a job shows that it lives."""
    interval_ms = int_of(document.get("heartbeatInterval")) or MONQUE_HEARTBEAT_MS
    seen_ms = max(ms_of(document.get(field)) or 0 for field in ("lockedAt", "lastHeartbeat"))
    return now_ms < max(seen_ms + 2 * interval_ms + LATE_HEARTBEAT_MS, ms_of(document.get("leaseExpiresAt")) or 0)


def end_of(document: Document, url: MongoUrl) -> int | None:
    """When the lease of a job ends; for a claim of Monque, when a claim of ours may take it over."""
    if document["status"] != "processing":
        return None
    if str(document.get("claimedBy", "")).startswith(OURS):
        return ms_of(ours_of(document).get("leaseUntil"))
    if not url.recover_foreign:
        return None
    silent_ms = max(url.lock_timeout_ms, int_of(document.get("heartbeatInterval")) + LATE_HEARTBEAT_MS)
    seen_ms = max(ms_of(document.get(field)) or 0 for field in ("lockedAt", "lastHeartbeat"))
    return max(seen_ms + silent_ms, ms_of(document.get("leaseExpiresAt")) or 0)


async def find_lost(
    ctx: MongoContext, mine: Document, limit: int, now_ms: int, *, is_full: bool
) -> list[Document] | None:
    """Running jobs that match `mine`, in one queue: those whose lease has ended, and stale ones of Monque.

    None where it does not search: not at each call if that takes long, or if jobs that wait fill the claim already
    (`is_full`).
    """
    memory, queue, began = ctx.claims, mine["jobmill.queue"], time.monotonic()
    searched, took = memory.ended_searches.get(queue, (0.0, 0.0))
    pause = SCAN_SHARE * took if memory.is_busy else 0.0
    if began - searched < (max(ENDED_SECONDS, pause) if is_full else pause):
        return None
    lost = await ctx.find_by(LEASE, {**ended(now_ms), **mine}, IN_ORDER, limit)
    now = time.monotonic()
    memory.ended_searches[queue] = (now, now - began)
    if queue is None and ctx.url.recover_foreign and now_ms >= memory.stale_from_ms:
        lost += await _find_stale(ctx, mine, limit, now_ms)
    return lost


async def first_end(ctx: MongoContext, queue: str, names: Sequence[str], now_ms: int) -> int | None:
    """The first end of a lease on jobs of these names that is still to come."""
    mine: Document = {"jobmill.queue": ctx.queue_field(queue), "name": {"$in": names}, "status": "processing"}
    query, shown = {**mine, "jobmill.leaseUntil": {"$gt": date(now_ms)}}, {"_id": 0, "jobmill.leaseUntil": 1}
    first = await ctx.find_by(LEASE, query, shown, 1, sort={"jobmill.leaseUntil": 1})
    return ms_of(first[0]["jobmill"]["leaseUntil"]) if first else None


async def _find_stale(ctx: MongoContext, mine: Document, limit: int, now_ms: int) -> list[Document]:
    query = {**stale(now_ms, ctx.url.lock_timeout_ms), **mine}
    found = await ctx.find_by(LEASE, query, IN_ORDER, limit)
    pause_ms = max(_MIN_STALE_MS, min(STALE_MS, ctx.url.lock_timeout_ms // 2))
    ctx.claims.stale_from_ms = now_ms + (0 if found else pause_ms)  # where there is one there may be more
    return found


async def count_running(ctx: MongoContext, queue: str, now_ms: int) -> int:
    """How many jobs of a queue run under a lease that has not ended."""
    jobs, mine = ctx.here.jobs, {"jobmill.queue": ctx.queue_field(queue)}
    running: Document = {**mine, "status": "processing"}
    lost: Document = {**ended(now_ms), **mine}
    count = await ctx.hinted(LEASE, lambda hint: jobs.count_documents(running, **hint))
    return count - await ctx.hinted(LEASE, lambda hint: jobs.count_documents(lost, **hint))


# ---------------------------------------------------------------------------------------------------- marks


async def marked(ctx: MongoContext, ids: Sequence[ObjectId], mark: ObjectId) -> set[ObjectId]:
    """Which of these jobs the call with this mark has changed."""
    found = ctx.here.jobs.find({"_id": {"$in": list(ids)}, "jobmill.mark": mark}, {"_id": 1}, hint=BY_ID)
    return {document["_id"] async for document in found}


async def with_dependents(ctx: MongoContext, ids: Sequence[ObjectId]) -> set[ObjectId]:
    """Which of these jobs edges lead to."""
    query = {"_id": {"$in": list(ids)}, "jobmill.hasDependents": {"$exists": True}}
    return {document["_id"] async for document in ctx.here.jobs.find(query, {"_id": 1}, hint=BY_ID)}
