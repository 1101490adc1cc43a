"""The verb enqueue: one insert for all jobs; jobs with edges are staged first, see stages.py."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from bson import ObjectId
from msgspec import Struct, structs

from jobmill.core.events import enqueued_events
from jobmill.core.flows import After, circular_dependency, recurring_dependency, unknown_dependency
from jobmill.core.queue_limits import QueueLimits
from jobmill.core.values import NewJob, Receipt
from jobmill.errors import InvalidValue
from jobmill.stores.mongo import stages
from jobmill.stores.mongo.codec import WITHOUT_PAYLOAD, Document, int_of, ours_of
from jobmill.stores.mongo.connection import BY_ID
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.edges import chunks, new_edge, pin
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.ids import new_object_id
from jobmill.stores.mongo.insert import EncodedJob, encoded, insert, resolve_all
from jobmill.stores.mongo.lane_settings import note_lanes
from jobmill.stores.mongo.lanes import fill
from jobmill.stores.mongo.queues import has_feed, limits_of
from jobmill.stores.mongo.unique_policy import encoded_by_policy, insert_by_policy
from jobmill.stores.mongo.wake import notify


async def enqueue(ctx: MongoContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """See the port."""
    if not new_jobs:
        return []
    if any(new.after or new.policy or new.lane for new in new_jobs):
        return await _enqueue_apart(ctx, new_jobs)
    return await _enqueue_alone(ctx, new_jobs)


async def _enqueue_alone(ctx: MongoContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    now_ms = ctx.now()
    jobs = [encoded(new, now_ms, ctx.url) for new in new_jobs]
    limits, refused = await asyncio.gather(limits_of(ctx, {new.queue for new in new_jobs}), insert(ctx, jobs))
    receipts = [Receipt(one.new.id, "created") for one in jobs]
    for index, receipt in (await resolve_all(ctx, jobs, refused, now_ms)).items() if refused else ():
        receipts[index] = receipt
    if has_feed(limits):
        await publish(ctx, enqueued_events(new_jobs, receipts, now_ms), limits)
    announce(ctx, [new for new, receipt in zip(new_jobs, receipts, strict=True) if receipt.status != "exists"], now_ms)
    return receipts


async def _enqueue_apart(ctx: MongoContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """A call with jobs that have a lane, wait for others, or have a policy. The latter are enqueued first.

    They can be awaited, but belong to no flow. If the process ends in between, they are there without the flow, which a
    repeated call adds.
    """
    if any(new.lane for new in new_jobs):
        await note_lanes(ctx, new_jobs)
    receipts = await _enqueue_in_steps(ctx, new_jobs)
    for new in new_jobs:
        if not new.after:
            ctx.lanes.touch(new.queue, new.lane, new.priority)
    await fill(ctx)
    return receipts


async def _enqueue_in_steps(ctx: MongoContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    if not any(new.policy or new.after for new in new_jobs):
        return await _enqueue_alone(ctx, new_jobs)
    if not any(new.policy for new in new_jobs):
        return await _enqueue_flow(ctx, new_jobs)
    if not any(new.after for new in new_jobs):
        return await _enqueue_by_policy(ctx, new_jobs)
    await _check_flow(ctx, new_jobs, {after.id for new in new_jobs for after in new.after})
    first = [new for new in new_jobs if new.policy is not None]
    became = {new.id: one for new, one in zip(first, await _enqueue_by_policy(ctx, first), strict=True)}
    rest = [_waiting_for(new, became) for new in new_jobs if new.policy is None]
    receipts = iter(await _enqueue_flow(ctx, rest))
    return [next(receipts) if new.policy is None else became[new.id] for new in new_jobs]


def _waiting_for(new: NewJob, became: Mapping[str, Receipt]) -> NewJob:
    """A job that waits for the jobs that others became."""
    ids = {after.id: became[after.id].id if after.id in became else after.id for after in new.after}
    return structs.replace(new, after=tuple(structs.replace(after, id=ids[after.id]) for after in new.after))


async def _enqueue_by_policy(ctx: MongoContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    now_ms = ctx.now()
    jobs = [encoded_by_policy(new, now_ms, ctx.url) for new in new_jobs]
    limits = await limits_of(ctx, {new.queue for new in new_jobs})
    receipts = await insert_by_policy(ctx, jobs, limits, now_ms)
    announce(ctx, [new for new, receipt in zip(new_jobs, receipts, strict=True) if receipt.status != "exists"], now_ms)
    return receipts


def announce(ctx: MongoContext, new_jobs: Sequence[NewJob], now_ms: int) -> None:
    """Let the claims of this process know about jobs that wait now."""
    first_due: dict[str, int] = {}
    for new in new_jobs:
        due_ms = new.due.resolve(now_ms)
        first_due[new.queue] = min(due_ms, first_due.get(new.queue, due_ms))
        if due_ms <= now_ms and ctx.claims.is_busy:
            ctx.claims.cursor.added(new.queue, new.name, new.priority, due_ms)
    for queue, due_ms in first_due.items():
        notify(ctx, queue, due_ms)


# ---------------------------------------------------------------------------------------------------- flows


class Parent(Struct, frozen=True):
    """A job that waits for all new jobs of a call, its id, and the number of its first new edge."""

    id: ObjectId
    job_id: str
    first: int


class Staged(Struct, frozen=True):
    """New jobs with their edges, which do not exist before `stages.commit`."""

    new_jobs: Sequence[NewJob]
    receipts: list[Receipt]
    limits: Mapping[str, QueueLimits]
    #: The new jobs that wait, and the old jobs that they wait for.
    dependents: list[ObjectId]
    dependencies: list[ObjectId]


async def _enqueue_flow(ctx: MongoContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    now_ms, stage_id = ctx.now(), new_object_id()
    staged = await stage_jobs(ctx, new_jobs, stage_id, now_ms)
    committed = await stages.commit(ctx, stage_id, staged.dependents, staged.dependencies, new_jobs=new_jobs)
    await finish(ctx, staged, committed, now_ms)
    return staged.receipts


async def finish(ctx: MongoContext, staged: Staged, committed: Document, now_ms: int) -> None:
    """The call has committed: make its jobs visible."""
    if has_feed(staged.limits):
        await publish(ctx, enqueued_events(staged.new_jobs, staged.receipts, now_ms), staged.limits)
    await stages.finish(ctx, committed)
    both = zip(staged.new_jobs, staged.receipts, strict=True)
    announce(ctx, [new for new, receipt in both if receipt.status != "exists" and not new.after], now_ms)


async def stage_jobs(
    ctx: MongoContext, new_jobs: Sequence[NewJob], stage_id: ObjectId, now_ms: int, parent: Parent | None = None
) -> Staged:
    """Insert hidden jobs, and edges. InvalidValue, after which nothing is left, where a dependency cannot be one."""
    awaited = {after.id for new in new_jobs for after in new.after}
    awaited |= {new.id for new in new_jobs} if parent is not None else set()
    outside = await _check_flow(ctx, new_jobs, awaited)
    jobs = [
        encoded(new, now_ms, ctx.url, partial(stages.stage, stage_id, new.id in awaited, now_ms)) for new in new_jobs
    ]
    await stages.begin(ctx, stage_id, *(() if parent is None else (parent.id, parent.first)))
    try:
        limits, refused = await asyncio.gather(limits_of(ctx, {new.queue for new in new_jobs}), insert(ctx, jobs))
        receipts = [Receipt(one.new.id, "created") for one in jobs]
        for index, receipt in (await resolve_all(ctx, jobs, refused, now_ms, stage_id)).items() if refused else ():
            receipts[index] = receipt
        edges = await _connect(ctx, jobs, receipts, outside, stage_id, parent)
        # The jobs that this call created have their pin already.
        pinned = {one.id for one in jobs if one.new.id in awaited}
        dependencies = await _pin_old(ctx, [edge for edge in edges if edge["on"] not in pinned])
    except InvalidValue:
        await stages.abort(ctx, stage_id, *(() if parent is None else (parent.id, parent.first)))
        raise
    dependents = [one.id for one, receipt in zip(jobs, receipts, strict=True) if one.new.after and receipt.created]
    return Staged(new_jobs, receipts, limits, dependents, dependencies)


async def _check_flow(ctx: MongoContext, new_jobs: Sequence[NewJob], awaited: Collection[str]) -> dict[str, Document]:
    """InvalidValue where a dependency cannot be one; else those that are not in the call."""
    unknown = check_recurring(new_jobs, awaited)
    return check_found(ctx, unknown, await ctx.by_ids(list(unknown), WITHOUT_PAYLOAD) if unknown else {})


def check_recurring(new_jobs: Sequence[NewJob], awaited: Collection[str]) -> dict[str, str]:
    """InvalidValue where a job waits that recurs, or is awaited; else the ids of those that are not in the call.

    A dictionary, from each id to what the caller gave.
    """
    for new in new_jobs:
        if new.recurrence is not None and (new.after or new.id in awaited):
            raise recurring_dependency(new.id)
    in_call = {new.id for new in new_jobs}
    return {id: id for id in awaited if id not in in_call}


def check_found(ctx: MongoContext, ids: Mapping[str, str], found: dict[str, Document]) -> dict[str, Document]:
    """The documents of dependencies, all of which must exist and not recur."""
    for id, given in ids.items():
        if id not in found:
            raise unknown_dependency(given)
        if ctx.job(found[id]).recurrence is not None:
            raise recurring_dependency(given)
    return found


class WantedEdges(Struct, frozen=True):
    """The edges of the jobs that a call has created: _id and number, and the dependency."""

    wanted: list[tuple[ObjectId, int, After]]
    #: The jobs that the call has created.
    created: dict[str, ObjectId]

    @staticmethod
    def of(jobs: Sequence[EncodedJob], receipts: Sequence[Receipt]) -> WantedEdges:
        """To the jobs that the others became. Jobs that were not created get no edges."""
        both = list(zip(jobs, receipts, strict=True))
        became = {one.new.id: receipt.id for one, receipt in both}
        wanted = [
            (one.id, number, structs.replace(after, id=became.get(after.id, after.id)))
            for one, receipt in both
            if receipt.created
            for number, after in enumerate(one.new.after)
        ]
        return WantedEdges(wanted, {one.new.id: one.id for one, receipt in both if receipt.created})

    def old(self, known: Collection[str]) -> dict[str, str]:
        """The ids of dependencies that are neither new nor known."""
        ids = dict.fromkeys(after.id for *_, after in self.wanted)
        return {id: id for id in ids if id not in self.created and id not in known}


async def _connect(
    ctx: MongoContext,
    jobs: Sequence[EncodedJob],
    receipts: Sequence[Receipt],
    outside: dict[str, Document],
    stage_id: ObjectId,
    parent: Parent | None,
) -> list[Document]:
    """Insert the edges of the jobs that were created, to the jobs that the others became."""
    new = WantedEdges.of(jobs, receipts)
    if parent is not None:
        numbered = enumerate(receipts, parent.first)
        new.wanted.extend((parent.id, number, After(receipt.id, "run")) for number, receipt in numbered)
    created, unknown = new.created, new.old(outside)
    old = outside | check_found(ctx, unknown, await ctx.by_ids(list(unknown), WITHOUT_PAYLOAD) if unknown else {})
    edges = [
        new_edge(ctx, job, number, after, created[after.id], 0)
        if after.id in created
        else new_edge(ctx, job, number, after, old[after.id]["_id"], _round(old[after.id]))
        for job, number, after in new.wanted
    ]
    for edge in edges if parent is not None else ():
        edge["stage"] = stage_id
    if parent is not None:
        await _check_circle(ctx, parent, {document["_id"] for document in old.values()})
    if edges:
        await ctx.here.edges.insert_many(edges, ordered=False)
    return edges


async def _check_circle(ctx: MongoContext, parent: Parent, left: set[ObjectId]) -> None:
    """InvalidValue where one of these jobs waits for the parent, or is the parent."""
    seen: set[ObjectId] = set()
    while left:
        if parent.id in left:
            raise circular_dependency(parent.job_id)
        seen |= left
        found: set[ObjectId] = set()
        for some in chunks(left):
            found.update(await ctx.here.edges.distinct("on", {"state": "pending", "_id.job": {"$in": some}}))
        left = found - seen


def _round(document: Document) -> int:
    return int_of(ours_of(document).get("round"))


async def _pin_old(ctx: MongoContext, edges: Sequence[Document]) -> list[ObjectId]:
    """Keep jobs that existed before: they may end, be removed or be requeued at any moment. Their _ids."""
    by_on: dict[ObjectId, list[Document]] = {}
    for edge in edges:
        by_on.setdefault(edge["on"], []).append(edge)
    if not by_on:
        return []
    await pin(ctx, by_on)
    rounds: dict[ObjectId, int] = {}
    for some in chunks(by_on):
        query = {"_id": {"$in": some}}
        rounds |= {one["_id"]: _round(one) async for one in ctx.here.jobs.find(query, {"jobmill.round": 1}, hint=BY_ID)}
    for on, own in by_on.items():
        if on not in rounds:
            raise unknown_dependency(own[0]["id"])
        if rounds[on] != own[0]["round"]:
            # It was requeued meanwhile, and an end of the earlier round may have set the edges.
            again = {"$set": {"state": "pending", "open": True, "round": rounds[on]}, "$unset": {"error": ""}}
            await ctx.here.edges.update_many({"_id": {"$in": [edge["_id"] for edge in own]}}, again)
    return list(by_on)
