"""Extending leases."""

from __future__ import annotations

from collections.abc import Sequence

from bson import ObjectId
from pymongo import UpdateMany

from jobmill.core.values import Lease
from jobmill.stores.mongo.codec import date
from jobmill.stores.mongo.connection import BY_ID
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.ids import claim_id, new_object_id
from jobmill.stores.mongo.leases import guard, located


async def extend(ctx: MongoContext, leases: Sequence[Lease], for_ms: int) -> list[str]:
    """See the port. lockedAt moves as well: a Monque that starts checks nothing else."""
    if not leases:
        return []
    await ctx.measure_clock()
    now_ms, mark = ctx.now(), new_object_id()
    held = [(one, at) for one, at in zip(leases, await located(ctx, leases), strict=True) if at is not None]
    heartbeat = {
        "lockedAt": date(now_ms),
        "lastHeartbeat": date(now_ms),
        "updatedAt": date(now_ms),
        "jobmill.leaseUntil": date(now_ms + for_ms),
        "jobmill.mark": mark,
    }
    by_claim: dict[tuple[str, str], list[ObjectId]] = {}
    for lease, locator in held:
        by_claim.setdefault((lease.token, locator.claimed_by), []).append(locator.id)
    writes = [
        UpdateMany({"_id": {"$in": ids}, **guard(*claim, now_ms)}, {"$set": heartbeat}, hint=BY_ID)
        for claim, ids in by_claim.items()
    ]
    matched = (await ctx.here.heartbeats.bulk_write(writes, ordered=False)).matched_count if writes else 0
    if matched == len(leases):
        return []
    # Two leases of one job may be in one call: the job's own token decides which of them holds.
    query = {"_id": {"$in": [locator.id for _, locator in held]}, "jobmill.mark": mark}
    tokens = {one["_id"]: one.get("claimId") async for one in ctx.here.jobs.find(query, {"claimId": 1}, hint=BY_ID)}
    kept = {(one.id, one.token) for one, locator in held if tokens.get(locator.id) == claim_id(one.token)}
    return [lease.id for lease in leases if (lease.id, lease.token) not in kept]
