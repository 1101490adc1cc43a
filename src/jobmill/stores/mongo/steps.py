"""Durable runs: suspensions that enqueue children, and the verbs record_step, recorded and signal.

The collection jobmill_steps has a document for each step: job, name, result (JSON), error. A step counts when the job
names it in `jobmill.steps`, which is written under the guard of the lease. Signals are in the job itself, so that one
write stores a signal and ends the wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pymongo import ReturnDocument
from pymongo.errors import WriteError

from jobmill.core.changes import Patch, Reschedule, Subject, decide, new_hold
from jobmill.core.flows import Recorded, Signal, Signalled, Step
from jobmill.core.values import NOW, Lease, Refused, Settled, at
from jobmill.errors import InvalidValue, StoreUnavailable
from jobmill.stores.mongo import stages
from jobmill.stores.mongo.codec import (
    DOCUMENT_BYTES,
    FINAL,
    WITHOUT_PAYLOAD,
    Document,
    due_of,
    id_of,
    int_of,
    ours_of,
    update_of,
)
from jobmill.stores.mongo.connection import BY_ID, TOO_LARGE
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.enqueue import Parent, finish, stage_jobs
from jobmill.stores.mongo.flows import Ended
from jobmill.stores.mongo.ids import new_object_id
from jobmill.stores.mongo.lane_settings import note_lanes
from jobmill.stores.mongo.lanes import fill
from jobmill.stores.mongo.leases import MongoLocator, guard, located
from jobmill.stores.mongo.patches import Decided, patch_fields
from jobmill.stores.mongo.settle import Leasing, settle, update_for, with_occurrence
from jobmill.stores.mongo.wake import notify

if TYPE_CHECKING:
    from jobmill.core.values import Settlement

#: How often a signal is written anew because the job has changed meanwhile.
MAX_ATTEMPTS = 20


# ---------------------------------------------------------------------------------------------------- children


async def settle_suspended(
    ctx: MongoContext, settlements: Sequence[tuple[Settlement, MongoLocator | None]], now_ms: int, leasing: Leasing
) -> tuple[list[Settled], list[Ended]]:
    """The same as `settle`, where some runs wait for children."""
    suspended: dict[int, Settled] = {}
    for index, (one, locator) in enumerate(settlements):
        if one.children:
            suspended[index] = "lost" if locator is None else await _suspend(ctx, one, locator, now_ms)
    others = [one for index, one in enumerate(settlements) if index not in suspended]
    settled, ended = await settle(ctx, others, now_ms, leasing)
    for index, response in suspended.items():
        settled.insert(index, response)
    return settled, ended


async def _suspend(ctx: MongoContext, one: Settlement, locator: MongoLocator, now_ms: int) -> Settled:
    """Enqueue the children of a job and hold it until they have ended. Its own settlement commits both."""
    stage_id, jobs = new_object_id(), ctx.here.jobs
    if any(child.lane for child in one.children):
        await note_lanes(ctx, one.children)
    mine = {"_id": locator.id, **guard(one.lease.token, locator.claimed_by, now_ms)}
    await stages.end_others(ctx, locator.id)
    document = await jobs.find_one_and_update(
        mine, {"$set": {"jobmill.suspending": stage_id}}, WITHOUT_PAYLOAD, return_document=ReturnDocument.AFTER
    )
    if document is None:
        return "lost"
    first = int_of(ours_of(document).get("dependencies"))
    try:
        staged = await stage_jobs(ctx, one.children, stage_id, now_ms, Parent(locator.id, one.lease.id, first))
    except InvalidValue as error:
        return Refused(str(error))
    committed = await stages.commit(
        ctx, stage_id, staged.dependents, staged.dependencies, locator.id, new_jobs=one.children
    )
    held = new_hold(at(due_of(document) if one.due is None else one.due.resolve(now_ms)), now_ms)
    update = update_for(one, locator, new_object_id(), now_ms, held)
    update["$set"] |= {"jobmill.dependencies": first + len(one.children), "jobmill.suspended": stage_id}
    update["$unset"]["jobmill.suspending"] = ""
    pipeline = with_occurrence(update, one, locator)
    done = await jobs.update_one({**mine, "jobmill.suspending": stage_id}, pipeline, hint=BY_ID)
    if not done.matched_count:
        await stages.end_others(ctx, locator.id)
        return "lost"
    await finish(ctx, staged, committed, now_ms)
    return "done"


# ---------------------------------------------------------------------------------------------------- steps


async def record_step(ctx: MongoContext, lease: Lease, step: Step) -> bool:
    """Store a step, if the lease still owns the job."""
    (locator,) = await located(ctx, [lease])
    if locator is None:
        return False
    mine = {"_id": locator.id, **guard(lease.token, locator.claimed_by, ctx.now())}
    id = new_object_id()
    content = {"name": step.name, "result": step.result_json.decode(), "error": step.error}
    await ctx.here.steps.insert_one({"_id": id, "job": locator.id, **content})
    entry = {"$push": {"jobmill.steps": {"n": step.number, "step": id}}}
    unrecorded = {**mine, "jobmill.steps.n": {"$ne": step.number}}
    if (await ctx.here.jobs.update_one(unrecorded, entry, hint=BY_ID)).matched_count:
        return True
    # The response may have been lost, and the write sent again. Or the step was recorded before.
    document = await ctx.here.jobs.find_one(mine, {"jobmill.steps": 1})
    steps = [] if document is None else ours_of(document).get("steps", [])
    if id not in (one["step"] for one in steps):
        await ctx.here.steps.delete_one({"_id": id})
    return any(one["n"] == step.number for one in steps)


async def recorded(ctx: MongoContext, id: str) -> Recorded:
    """The steps and signals of a job."""
    found = await ctx.by_ids([id], WITHOUT_PAYLOAD)
    if id not in found:
        return Recorded()
    ours = ours_of(found[id])
    numbers = {one["step"]: one["n"] for one in ours.get("steps", ())}
    found_steps = await ctx.here.steps.find({"_id": {"$in": list(numbers)}}).to_list() if numbers else []
    steps = [_step(numbers[one["_id"]], one) for one in found_steps]
    signals = [Signal(name=one["name"], value_json=one["value"].encode()) for one in ours.get("signals", ())]
    return Recorded(sorted(steps, key=lambda step: step.number), signals)


def _step(number: int, document: Document) -> Step:
    result = document["result"].encode()
    return Step(number=number, name=document["name"], result_json=result, error=document["error"])


# ---------------------------------------------------------------------------------------------------- signals


async def signal(ctx: MongoContext, id: str, signal: Signal) -> Signalled:
    """Store a signal; the job is due if it waits for it."""
    for _ in range(MAX_ATTEMPTS):
        document = (await ctx.by_ids([id], WITHOUT_PAYLOAD)).get(id)
        if document is None:
            return "unknown"
        if document["status"] in FINAL:
            return "final"
        ours = ours_of(document)
        if any(one["name"] == signal.name for one in ours.get("signals", ())):
            return "exists"
        same = {name: document.get(name) for name in ("_id", "status")}
        same |= {f"jobmill.{name}": ours.get(name) for name in ("waitsFor", "held")}
        same["jobmill.signals.name"] = {"$ne": signal.name}
        if await _write_signal(ctx, document, same, signal):
            return "stored"
    raise StoreUnavailable(f"could not store a signal of job {id} after {MAX_ATTEMPTS} attempts: it kept changing")


async def _write_signal(ctx: MongoContext, document: Document, same: Document, signal: Signal) -> bool:
    """Store a signal if the job is still as it was read."""
    now_ms, job = ctx.now(), ctx.job(document)
    waits = job.state == "waiting" and job.waits_for == signal.name
    patch = decide(Reschedule(NOW), Subject.of(job), now_ms) if waits else None
    fields = patch_fields(ctx, Decided(document, job, patch), now_ms) if isinstance(patch, Patch) else {}
    update = update_of(fields)
    update["$push"] = {"jobmill.signals": {"name": signal.name, "value": signal.value_json.decode()}}
    try:
        done = await ctx.here.jobs.update_one(same, update, hint=BY_ID)
    except WriteError as error:
        if error.code not in TOO_LARGE:
            raise
        fits = f"one that fits into the job {id_of(document)}, in {DOCUMENT_BYTES:,} bytes of BSON on MongoDB"
        raise InvalidValue("value", fits, len(signal.value_json)) from error
    if done.matched_count and fields:
        ctx.lanes.touch(job.queue, job.lane)
        await fill(ctx)
        ctx.claims.cursor.rewind()
        notify(ctx, job.queue, now_ms)
    return bool(done.matched_count)
