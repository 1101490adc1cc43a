"""Calls that enqueue jobs with edges: all of them or none (the collection jobmill_stages, see also notes.py).

_id           the id of the call
jobs          the collection of the jobs
state         "staging", then "committed"; "aborting" if another process found that the call had taken too long; of
              children "prepared" instead of "committed"
at            when the call began, by the server's clock
dependents    the _ids of the new jobs that wait, and `dependencies`: of the old jobs that they wait for
parent        of children: the job that waits for them, and `first`: the number of its first new edge
lanes         of the new jobs: queue and lane
takes         of new jobs that take the unique key of a live job: `job`, the _id; `name` and `key`, as the index has it

The new jobs are inserted with the id of the call (`jobmill.staged`): nobody sees or claims them. One write commits the
call: for children it is the settlement of their parent, which then has the id of the call in `jobmill.suspended`. Where
a process ends before that write, `repair` deletes what is staged. After that write, `finish` does the rest, here or in
another process, any number of times.

A new job that takes the place of a live one (unique_policy.py) is staged without its unique key, which the live job
has. `finish` cancels the live job. If a process ended after it had cancelled a job and before it inserted the new one,
the work of both would be lost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from bson import ObjectId
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from jobmill.core.changes import Cancel
from jobmill.core.values import NewJob
from jobmill.errors import StoreUnavailable
from jobmill.stores.mongo import notes, schema
from jobmill.stores.mongo.change import change
from jobmill.stores.mongo.codec import FAR_MS, WITHOUT_PAYLOAD, Document, date, ms_of, ours_of
from jobmill.stores.mongo.connection import BY_ID, DUPLICATE_KEY, refused_writes
from jobmill.stores.mongo.context import MongoContext, live_with
from jobmill.stores.mongo.edges import CHUNK, drop_edges, of_job, of_jobs
from jobmill.stores.mongo.flows import release, resolve_ended

#: A call that has not committed after this time is aborted.
GRACE_MS = 5_000
#: A call that meets jobs of another call waits for the end of that one, at most this long.
WAIT_SECONDS = 10.0
_PAUSE_SECONDS = 0.01
#: How often a call tries to take a unique key that other calls take too.
MAX_ATTEMPTS = 50
_MAX_STAGES = 100
_HAS_DEPENDENTS = {"$ne": [{"$type": "$jobmill.hasDependents"}, "missing"]}
#: What makes staged jobs visible. Without dependents, they have nothing in the outbox.
_UNSTAGE: list[Document] = [
    {
        "$set": {
            "nextRunAt": {"$ifNull": ["$jobmill.stagedDue", "$nextRunAt"]},
            "jobmill.outbox": {"$cond": [_HAS_DEPENDENTS, True, "$$REMOVE"]},
            "jobmill.turn": {"$ifNull": ["$jobmill.stagedTurn", "$$REMOVE"]},
        }
    },
    {"$unset": ["jobmill.staged", "jobmill.stagedDue", "jobmill.stagedTurn"]},
]


def stage(stage_id: ObjectId, is_awaited: bool, now_ms: int, document: Document) -> None:
    """Hide a new document until the call commits. `is_awaited`: edges will lead to it."""
    document["jobmill"] |= {"staged": stage_id, "stagedDue": document["nextRunAt"], "outbox": True}
    document["jobmill"] |= {"hasDependents": stage_id} if is_awaited else {}
    if "turn" in document["jobmill"]:
        document["jobmill"]["stagedTurn"] = document["jobmill"].pop("turn")
    document["nextRunAt"] = date(now_ms + FAR_MS)


async def begin(ctx: MongoContext, stage_id: ObjectId, parent: ObjectId | None = None, first: int = 0) -> None:
    """Before anything else is written."""
    document = {"_id": stage_id, "jobs": ctx.url.collection, "state": "staging", "at": date(ctx.now())}
    await ctx.here.stages.insert_one(document | ({} if parent is None else {"parent": parent, "first": first}))


async def commit(
    ctx: MongoContext,
    stage_id: ObjectId,
    dependents: Sequence[ObjectId],
    dependencies: Sequence[ObjectId],
    parent: ObjectId | None = None,
    takes: Sequence[Document] = (),
    new_jobs: Sequence[NewJob] = (),
) -> Document:
    """All is written: from now on the jobs will exist. For children, the settlement of their parent commits."""
    known: Document = {"dependents": list(dependents), "dependencies": list(dependencies)}
    known |= {"takes": list(takes)} if takes else {}
    if lanes := {(new.queue, new.lane) for new in new_jobs if new.lane is not None}:
        known["lanes"] = [{"queue": queue, "lane": lane} for queue, lane in sorted(lanes)]
    update = {"$set": {"state": "committed" if parent is None else "prepared", **known}}
    done = await ctx.here.stages.update_one({"_id": stage_id, "state": "staging"}, update)
    if not done.matched_count:
        raise StoreUnavailable(
            f"the call took longer than {GRACE_MS / 1000:g} s, so another process has undone it; try again"
        )
    return {"_id": stage_id, **known, **({} if parent is None else {"parent": parent})}


async def finish(ctx: MongoContext, committed: Document) -> None:
    """Make the jobs visible, and release those that need not wait."""
    id, parent = committed["_id"], committed.get("parent")
    if "takes" in committed:
        await _take_keys(ctx, id, committed["takes"])
    await ctx.here.jobs.update_many({"jobmill.staged": id, "jobmill.outbox": True}, _UNSTAGE)
    for one in committed.get("lanes", ()):
        ctx.lanes.touch(one["queue"], one["lane"])
    await resolve_ended(ctx, committed["dependencies"])
    if await release(ctx, [*committed["dependents"], *([] if parent is None else [parent])]):
        raise StoreUnavailable("jobs could not be released, because other processes change them; a worker will")
    await ctx.here.stages.delete_one({"_id": id})


async def _take_keys(ctx: MongoContext, stage_id: ObjectId, takes: list[Document]) -> None:
    """Make jobs visible with their unique keys, and cancel the live jobs that have these keys."""
    for _ in range(MAX_ATTEMPTS):
        # Read before the attempt that fails: then the new job was still hidden, so the live one is not its successor.
        keys = [(one["name"], one["key"]) for one in takes]
        found = await ctx.here.jobs.find(live_with(keys), WITHOUT_PAYLOAD).to_list()
        owners = {(one["name"], one["uniqueKey"]): one for one in found}
        writes = [
            UpdateOne(
                {"_id": one["job"], "jobmill.staged": stage_id},
                [{"$set": {"uniqueKey": {"$literal": one["key"]}}}, *_UNSTAGE],
                hint=BY_ID,
            )
            for one in takes
        ]
        try:
            await ctx.here.jobs.bulk_write(writes, ordered=False)
            return
        except BulkWriteError as error:
            takes = [takes[index] for index in sorted(refused_writes(error, (DUPLICATE_KEY,)))]
        rivals = [owner for one in takes if (owner := owners.get((one["name"], one["key"]))) is not None]
        for staged in {id for one in rivals if (id := ours_of(one).get("staged")) is not None}:
            await wait_for(ctx, staged)
        jobs = [ctx.job(one) for one in rivals]
        await change(ctx, [job.id for job in jobs if job.recurrence is None], Cancel())
        # A recurring job has got the key meanwhile, and keeps it: the new job runs without one.
        kept = {(job.name, one["uniqueKey"]) for job, one in zip(jobs, rivals, strict=True) if job.recurrence}
        takes = [one for one in takes if (one["name"], one["key"]) not in kept]
        if not takes:
            return
    raise StoreUnavailable(
        f"could not take a unique key after {MAX_ATTEMPTS} attempts, because other calls take it too; a worker will"
    )


async def abort(ctx: MongoContext, stage_id: ObjectId, parent: ObjectId | None = None, first: int = 0) -> None:
    """Delete what a call has staged that cannot commit any more."""
    staged = {"jobmill.staged": stage_id, "jobmill.outbox": True}
    ids = [one["_id"] async for one in ctx.here.jobs.find(staged, {"_id": 1})]
    for position in range(0, len(ids), CHUNK):
        await drop_edges(ctx, of_jobs(ids[position : position + CHUNK]))
    if parent is not None:
        await drop_edges(ctx, of_job(parent, first) | {"stage": stage_id})
    await ctx.here.jobs.delete_many(staged)
    await ctx.here.stages.delete_one({"_id": stage_id})


# ---------------------------------------------------------------------------------------------------- others


async def repair(ctx: MongoContext) -> None:
    """Finish or undo the calls of processes that have ended."""
    stages = await _late(ctx)
    for one in stages:
        await _end(ctx, one)
    if stages:
        ctx.claims.cursor.rewind()
        ctx.bell.ring()
    await _remove_orphans(ctx)


async def left_over(ctx: MongoContext) -> set[ObjectId]:
    """The ids of calls of processes that have ended."""
    return {one["_id"] for one in await _late(ctx)} | await _orphans(ctx)


async def _late(ctx: MongoContext) -> list[Document]:
    is_late = [{"at": {"$lte": date(ctx.now() - GRACE_MS)}}, {"_id": {"$in": list(ctx.flows.left_notes)}}]
    query = {"jobs": ctx.url.collection, "$or": is_late}
    return await ctx.here.stages.find(query).limit(_MAX_STAGES).to_list()


async def end_others(ctx: MongoContext, parent: ObjectId) -> None:
    """A job is about to wait for children: end earlier calls that did so, in processes that have lost it."""
    async for one in ctx.here.stages.find({"jobs": ctx.url.collection, "parent": parent}):
        await _end(ctx, one)


async def _end(ctx: MongoContext, late: Document) -> None:
    """Finish a call that has committed. Undo another one, after making sure that it cannot commit.

    What a note names goes back to the outbox.
    """
    id, parent = late["_id"], late.get("parent")
    if "ended" in late:
        await notes.return_to_outbox(ctx, late["ended"])
        await notes.end(ctx, id)
        ctx.flows.left_notes.discard(id)
    elif parent is not None:
        begun = {"_id": parent, "jobmill.suspending": id}
        await ctx.here.jobs.update_one(begun, {"$unset": {"jobmill.suspending": ""}}, hint=BY_ID)
        found = await ctx.here.jobs.find_one({"_id": parent}, {"jobmill.suspended": 1})
        if found is not None and ours_of(found).get("suspended") == id:
            await finish(ctx, late)
        else:
            await abort(ctx, id, parent, late["first"])
    elif late["state"] == "committed":
        await finish(ctx, late)
    else:
        await ctx.here.stages.update_one({"_id": id, "state": "staging"}, {"$set": {"state": "aborting"}})
        found = await ctx.here.stages.find_one({"_id": id})
        if found is not None and found["state"] == "committed":
            await finish(ctx, found)
        else:
            await abort(ctx, id)


async def _orphans(ctx: MongoContext) -> set[ObjectId]:
    """The ids of calls that were undone before an insert of theirs arrived, so that staged jobs are left.

    A call is noted before its jobs are inserted. So the jobs are read first.
    """
    staged = {"jobmill.outbox": True, "jobmill.staged": {"$type": "objectId"}}
    ids = {one["jobmill"]["staged"] for one in await ctx.find_by(schema.OUTBOX, staged, {"jobmill.staged": 1}, CHUNK)}
    if not ids:
        return set()
    return ids - {one["_id"] async for one in ctx.here.stages.find({"_id": {"$in": list(ids)}}, {"_id": 1})}


async def _remove_orphans(ctx: MongoContext) -> None:
    for id in await _orphans(ctx):
        await abort(ctx, id)


async def wait_for(ctx: MongoContext, stage_id: ObjectId) -> None:
    """Another call is enqueueing a job that this one meets: wait until it exists, or never will."""
    give_up = time.monotonic() + WAIT_SECONDS
    while (found := await ctx.here.stages.find_one({"_id": stage_id})) is not None:
        is_late = (ms_of(found["at"]) or 0) <= ctx.now() - GRACE_MS
        if found["state"] == "committed" or is_late:
            await _end(ctx, found)
            return
        if time.monotonic() > give_up:
            raise StoreUnavailable(f"another call has been enqueueing the same jobs for {WAIT_SECONDS:g} s; try again")
        await asyncio.sleep(_PAUSE_SECONDS)
    await _remove_orphans(ctx)
