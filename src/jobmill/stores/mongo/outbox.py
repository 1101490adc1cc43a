"""The verb flush_outbox: do what processes have left that ended too soon, and what one call may not do."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bson import ObjectId

from jobmill.stores.mongo import schema, stages
from jobmill.stores.mongo.codec import FINAL, WITHOUT_PAYLOAD, Document, ours_of
from jobmill.stores.mongo.connection import BY_ID
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.edges import CHUNK, FIRST_EDGE, drop_edges, of_jobs, pin
from jobmill.stores.mongo.flows import close_edges, ended_of, release, resolve_ended, set_edges
from jobmill.stores.mongo.lane_walk import heal
from jobmill.stores.mongo.notes import noted

#: At this interval, some edges are checked: another program may have removed their jobs.
SWEEP_MS = 10_000
#: How many edges are checked each time.
SWEPT = 1_000
_FINAL_SHOWN = {"status": 1, "jobmill.outbox": 1}


async def flush_outbox(ctx: MongoContext, limit: int = 1_000) -> int:
    """See the port."""
    await stages.repair(ctx)
    done = await flush_ended(ctx, limit)
    if ctx.now() >= ctx.flows.sweep_from_ms:
        ctx.flows.sweep_from_ms = ctx.now() + SWEEP_MS
        done += await _sweep(ctx)
    return done + await heal(ctx)


async def flush_ended(ctx: MongoContext, limit: int = 1_000) -> int:
    """Set the edges that lead to final jobs, also to those that Monque has ended; how many."""
    ctx.flows.has_ended = False
    query = {"jobmill.outbox": True, "jobmill.staged": None, "status": {"$in": FINAL}}
    found = await ctx.find_by(schema.OUTBOX, query, WITHOUT_PAYLOAD, CHUNK)
    return (await set_edges(ctx, [ended_of(ctx, one) for one in found], limit)).edges if limit > 0 else 0


# ---------------------------------------------------------------------------------------------------- edges


async def _sweep(ctx: MongoContext) -> int:
    """Look at some edges: of jobs that are gone, or pending although the other job has ended; how many were set."""
    after = ctx.flows.swept_to or FIRST_EDGE
    query = {"_id": {"$gt": after}, "jobs": ctx.url.collection}
    edges = await ctx.here.edges.find(query).sort("_id", 1).limit(SWEPT).to_list()
    ctx.flows.swept_to = edges[-1]["_id"] if len(edges) == SWEPT else None
    await drop_orphans(ctx, edges)
    done = await resolve_invalid(ctx, edges)
    await release(ctx, {one["_id"]["job"] for one in edges})
    return done


async def orphans(ctx: MongoContext, edges: Sequence[Document]) -> set[ObjectId]:
    """The _ids of jobs that these edges belong to, and that do not exist."""
    jobs = {one["_id"]["job"] for one in edges}
    return jobs - (await _found(ctx, jobs)).keys()


async def drop_orphans(ctx: MongoContext, edges: Sequence[Document]) -> int:
    """Delete the edges of jobs that do not exist; how many."""
    gone = await orphans(ctx, edges)
    return await drop_edges(ctx, of_jobs(gone)) if gone else 0


async def invalid(ctx: MongoContext, edges: Sequence[Document]) -> tuple[set[ObjectId], set[ObjectId]]:
    """Dependencies of open edges that do not exist, and those that are final, with nothing in the outbox."""
    wanted = {one["on"] for one in edges if one.get("open")}
    found = await _found(ctx, wanted)
    ended = {id for id, one in found.items() if one.get("status") in FINAL and "outbox" not in ours_of(one)}
    if ended:
        # A call settles some of them now, or has done so since the edges were read.
        ended -= await noted(ctx, ended)
        ended.intersection_update(await ctx.here.edges.distinct("on", {"on": {"$in": list(ended)}, "open": True}))
    return wanted - found.keys(), ended


async def resolve_invalid(ctx: MongoContext, edges: Sequence[Document]) -> int:
    """Set open edges to jobs that are gone, as if these had been cancelled, or that are final; how many."""
    gone, ended = await invalid(ctx, edges)
    done = 0
    if gone:
        left = await ctx.here.edges.find({"on": {"$in": list(gone)}, "open": True}).limit(CHUNK).to_list()
        pending = {"_id": {"$in": [one["_id"] for one in left]}, "state": "pending"}
        done += (await ctx.here.edges.update_many(pending, {"$set": {"state": "cancelled"}})).modified_count
        if not await release(ctx, {one["_id"]["job"] for one in left}):
            await close_edges(ctx, left)
    if ended:
        await pin(ctx, ended)
        done += (await resolve_ended(ctx, ended)).edges
    return done


async def _found(ctx: MongoContext, ids: Collection[ObjectId]) -> dict[ObjectId, Document]:
    if not ids:
        return {}
    found = ctx.here.jobs.find({"_id": {"$in": list(ids)}}, _FINAL_SHOWN, hint=BY_ID)
    return {one["_id"]: one async for one in found}
