"""Removing jobs, with their log lines, steps and edges."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bson import ObjectId
from pymongo.errors import PyMongoError

from jobmill.stores.mongo.codec import FINAL, Document, ours_of
from jobmill.stores.mongo.connection import is_unavailable
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.edges import drop_edges, of_jobs

_ABSENT = {"$exists": False}
#: Jobs that nothing else must be deleted with, and that no edges lead to.
_ALONE = dict.fromkeys(("jobmill.hasDependents", "jobmill.dependencies", "jobmill.steps"), _ABSENT)
_REMOVED = {"jobmill.dependencies": 1, "jobmill.steps": 1}


async def remove_marked(ctx: MongoContext, ids: Sequence[ObjectId], mark: ObjectId) -> None:
    """Remove the final jobs among those that this call has changed. Where it cannot, the janitor does it later."""
    given = list(ids)
    mine = {"_id": {"$in": given}, "jobmill.mark": mark, "status": {"$in": FINAL}}
    try:
        deleted = (await ctx.here.jobs.delete_many({**mine, **_ALONE})).deleted_count
        left = await ctx.here.jobs.find(mine, _REMOVED).to_list() if deleted < len(given) else []
        await ctx.here.logs.delete_many({"_id": {"$in": list({*given} - {one["_id"] for one in left})}})
        await remove(ctx, left, FINAL)
    except PyMongoError as error:
        if not is_unavailable(error):
            raise


async def remove(
    ctx: MongoContext, documents: Collection[Document], statuses: Sequence[str], *, pinned: bool = False
) -> set[ObjectId]:
    """Delete those of these jobs that have one of these statuses; which are gone.

    The job goes before its edges: a job without edges would look as if it waited for nothing. `pinned`: also jobs that
    edges lead to, if these are set.
    """
    given = [one["_id"] for one in documents]
    if not given:
        return set()
    unneeded = {"jobmill.outbox" if pinned else "jobmill.hasDependents": _ABSENT}
    await ctx.here.jobs.delete_many({"_id": {"$in": given}, "status": {"$in": statuses}, **unneeded})
    left = {one["_id"] async for one in ctx.here.jobs.find({"_id": {"$in": given}}, {"_id": 1})}
    gone = [one for one in documents if one["_id"] not in left]
    await ctx.here.logs.delete_many({"_id": {"$in": [one["_id"] for one in gone]}})
    if has_edges := [one["_id"] for one in gone if "dependencies" in ours_of(one)]:
        await drop_edges(ctx, of_jobs(has_edges))
    await forget_steps(ctx, gone)
    return {one["_id"] for one in gone}


async def forget_steps(ctx: MongoContext, documents: Sequence[Document]) -> None:
    """Delete what these jobs have recorded; they are gone, or name it no more."""
    has_steps: list[ObjectId] = [one["_id"] for one in documents if "steps" in ours_of(one)]
    if has_steps:
        await ctx.here.steps.delete_many({"job": {"$in": has_steps}})
