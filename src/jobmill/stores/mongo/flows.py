"""Jobs that wait for jobs: setting edges, releasing dependents, and the verbs that read flows.

Without transactions, the order of writes is what makes this correct. A job becomes final first, and keeps its mark
`outbox`, or a note names it (notes.py). Then its edges are set, then its dependents are released, and the mark goes
last. Where a process ends in between, `flush_outbox` finds the mark and does the rest again. Everybody sets edges first
and looks at all edges of a dependent afterwards, and reads without a snapshot: of two that set its last edges, one sees
both. Without a note, an edge stays `open` until its dependent was released: one that was set by a process which has
ended is found by that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Any

from bson import ObjectId
from msgspec import Struct, structs
from pymongo import UpdateMany

from jobmill.core.changes import Subject, held_again, reopens, resolved
from jobmill.core.due import NEVER_MS
from jobmill.core.events import Event
from jobmill.core.flows import (
    BY_JOBS,
    MAX_RELEASED,
    Dependency,
    Dependent,
    EdgeState,
    edge_state,
    first_line,
    is_bad,
)
from jobmill.core.job import Job, State
from jobmill.core.values import FLOW_COUNT_LIMIT, Filter, FlowCount
from jobmill.stores.mongo.codec import (
    FINAL,
    ID_SHOWN,
    STATE,
    STATUS,
    WITHOUT_PAYLOAD,
    Document,
    id_of,
    int_of,
    ours_of,
    update_of,
)
from jobmill.stores.mongo.connection import BY_ID, EDGES, ONE
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.edges import (
    CHUNK,
    MARKED,
    bad_edges_of,
    chunks,
    dependency_of,
    edges_of,
    look,
    of_jobs,
    open_edges_to,
    pin,
    verdicts_of,
    with_pending,
)
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.filters import query_of
from jobmill.stores.mongo.ids import new_object_id
from jobmill.stores.mongo.leases import marked
from jobmill.stores.mongo.patches import Decided, patch_fields
from jobmill.stores.mongo.read import aggregate
from jobmill.stores.mongo.schema import FLOW
from jobmill.stores.mongo.wake import notify

#: How often a release is decided anew because another process holds or releases the same jobs.
MAX_ATTEMPTS = 20
_WITHOUT_LARGE = {**WITHOUT_PAYLOAD, "jobmill.signals": 0}
_RESULT_SHOWN = {name: 0 for name in _WITHOUT_LARGE if name != "jobmill.result"}
#: The fields of a held job that releasing it needs.
_HELD = dict.fromkeys(("name", "status", "priority", "nextRunAt", "failCount"), 1)
_HELD |= dict.fromkeys((f"jobmill.{name}" for name in ("v", "id", "queue", "held", "deferredError", "lane")), 1)
#: A job that recurs keeps its occurrence.
_HELD |= dict.fromkeys(("repeatInterval", *(f"jobmill.{name}" for name in ("rule", "due", "slot", "slotDue"))), 1)
#: How many jobs of flows are read to find the ids of flows, for each id.
JOBS_PER_FLOW = 20
_BY_FLOW = {"jobmill.flow": -1}
_IN_OUTBOX = {"jobmill.outbox": True, "status": {"$in": FINAL}}


class Resolved(Struct, frozen=True):
    """How many edges were set, and whether more are left."""

    edges: int = 0
    has_more: bool = False


# ---------------------------------------------------------------------------------------------------- ends


class Ended(Struct, frozen=True):
    """A job that is final, and that edges lead to."""

    id: ObjectId
    state: State
    error: str | None
    #: As they were when the job was read, or claimed: others may have changed them since.
    updated: Any
    pin: ObjectId | None
    round: int = 0
    #: Whether it has kept its mark `outbox`; otherwise a note names it (notes.py).
    in_outbox: bool = True

    @property
    def edge(self) -> tuple[EdgeState, str | None]:
        """The state of the edges that lead to it, and their error."""
        state = edge_state(self.state)
        return state, first_line(self.error) if state == "failed" else None


def ended_of(ctx: MongoContext, document: Document) -> Ended:
    """A job as it was read."""
    job, ours = ctx.job(document), ours_of(document)
    marks = (document.get("updatedAt"), ours.get("hasDependents"), int_of(ours.get("round")))
    return Ended(document["_id"], job.state, job.error, *marks)


async def resolve_ended(ctx: MongoContext, ids: Collection[ObjectId], limit: int = MAX_RELEASED) -> Resolved:
    """Set the edges that lead to those of these jobs that are final, and release dependents."""
    done = Resolved()
    for some in chunks(ids):
        query = {"_id": {"$in": some}, **_IN_OUTBOX}
        ended = [ended_of(ctx, one) async for one in ctx.here.jobs.find(query, _WITHOUT_LARGE, hint=BY_ID)]
        part = await set_edges(ctx, ended, limit - done.edges)
        done = Resolved(done.edges + part.edges, done.has_more or part.has_more)
    return done


async def set_edges(ctx: MongoContext, ended: Sequence[Ended], limit: int = MAX_RELEASED) -> Resolved:
    """The same for jobs that are known to be final."""
    if not ended:
        return Resolved()
    edges, has_more = await open_edges(ctx, ended, limit)
    has_bad = await mark_edges(ctx, edges, ended)
    if await release(ctx, {one["_id"]["job"] for one in edges}, has_bad=has_bad):
        return Resolved(has_more=True)
    await asyncio.gather(close_edges(ctx, edges), *(() if has_more else [_clear_outbox(ctx, ended)]))
    return Resolved(len(edges), has_more)


async def open_edges(ctx: MongoContext, ended: Sequence[Ended], limit: int) -> tuple[list[Document], bool]:
    """The edges that the ends of these jobs set, and whether there are more than the limit."""
    query = open_edges_to([one.id for one in ended])
    found = await ctx.here.edges.find(query, MARKED, limit=limit + 1, batch_size=limit + 2).to_list()
    return of_round(found[:limit], ended), len(found) > limit


def of_round(edges: Sequence[Document], ended: Sequence[Ended]) -> list[Document]:
    """Those of these edges that lead to these jobs, and that their ends set."""
    rounds = {one.id: one.round for one in ended}
    return [one for one in edges if one["on"] in rounds and one["round"] <= rounds[one["on"]]]


async def mark_edges(
    ctx: MongoContext, edges: Sequence[Document], ended: Sequence[Ended], *, closes: bool = False
) -> bool:
    """Set edges that are still pending, and of the same round; whether a job has ended without success.

    Written to one member: what is left to do is still noted, or in the outbox, where this is lost.
    """
    ends = {one.id: one.edge for one in ended}
    groups: dict[tuple[Any, ...], list[Document]] = {}
    for one in edges:
        if one["state"] == "pending":
            groups.setdefault((*ends[one["on"]], one["round"]), []).append(one["_id"])
    writes = []
    for (state, error, round), some in groups.items():
        fields = {"state": state} | ({} if error is None else {"error": error}) | ({"open": None} if closes else {})
        still = {"_id": {"$in": some}, "state": "pending", "round": round}
        writes.append(UpdateMany(still, update_of(fields), hint=BY_ID))
    if writes:
        await ctx.here.edges.with_options(write_concern=ONE).bulk_write(writes, ordered=False)
    return any(is_bad(state) for state, _ in ends.values())


async def close_edges(ctx: MongoContext, edges: Sequence[Document]) -> None:
    """The dependents of these edges were released, or need not be; unless an edge is pending again."""
    rounds: dict[int, list[Document]] = {}
    for one in edges:
        rounds.setdefault(one["round"], []).append(one["_id"])
    writes = [
        UpdateMany(
            {"_id": {"$in": ids}, "round": round, "state": {"$ne": "pending"}}, {"$unset": {"open": ""}}, hint=BY_ID
        )
        for round, ids in rounds.items()
    ]
    if writes:
        await ctx.here.edges.with_options(write_concern=ONE).bulk_write(writes, ordered=False)


async def _clear_outbox(ctx: MongoContext, ended: Sequence[Ended]) -> None:
    """All edges that lead to these jobs are set, unless others were added, or the job was requeued, meanwhile."""
    groups: dict[tuple[Any, ...], list[ObjectId]] = {}
    for one in ended:
        groups.setdefault((STATUS[one.state], one.updated, one.pin), []).append(one.id)
    writes = []
    for (status, updated, pinned), ids in groups.items():
        same = {"_id": {"$in": ids}, "status": status, "updatedAt": updated, "jobmill.hasDependents": pinned}
        writes.append(UpdateMany(same, {"$unset": {"jobmill.outbox": ""}}, hint=BY_ID))
    await ctx.here.heartbeats.bulk_write(writes, ordered=False)  # if it is lost, the edges are set once more


# ---------------------------------------------------------------------------------------------------- dependents


async def release(ctx: MongoContext, ids: Collection[ObjectId], *, has_bad: bool = True) -> bool:
    """Look at all edges of these jobs, and release those that need not wait any more.

    Return whether some are left, because other processes change them all the time.
    """
    left = list(ids)
    for _ in range(MAX_ATTEMPTS):
        if not left:
            break
        again: list[ObjectId] = []
        for some in chunks(left):
            pending = await with_pending(ctx, some)
            if unknown := some if has_bad else [id for id in some if id not in pending]:
                again += await _release_ready(ctx, unknown, pending)
        left = again
    return bool(left)


async def _release_ready(ctx: MongoContext, ids: Sequence[ObjectId], pending: set[ObjectId]) -> list[ObjectId]:
    """Release those of these jobs that need not wait. Return those that were changed meanwhile.

    Those that are held are read together with their edges to jobs that have not succeeded. CPU of client and server for
    25 jobs: 490 us, in two round trips 760.
    """
    now_ms = ctx.now()
    held = {"_id": {"$in": ids}, "status": "pending", "jobmill.held.by": BY_JOBS, "jobmill.staged": None}
    edges = {"coll": EDGES, "pipeline": [{"$match": bad_edges_of(ids)}]}
    stages: list[Document] = [{"$match": held}, {"$project": _HELD}, {"$unionWith": edges}]
    rows = await (await ctx.here.jobs.aggregate(stages, hint=BY_ID, batchSize=2 * len(ids) + 1)).to_list()
    verdicts = verdicts_of(ids, pending, [one for one in rows if "on" in one])
    decided: list[Decided] = []
    for document in (one for one in rows if "on" not in one):
        job, looked = ctx.job(document), verdicts[document["_id"]]
        patch = resolved(Subject.of(job), looked, now_ms) if looked != "hold" else None
        if patch is not None:
            decided.append(Decided(document, job, patch))
    return await _write_alike(ctx, decided, now_ms)


async def _write_alike(ctx: MongoContext, decided: Sequence[Decided], now_ms: int) -> list[ObjectId]:
    """Write patches of waiting jobs, equal ones at once, and let others know; which jobs were changed meanwhile."""
    mark, groups = new_object_id(), dict[tuple[Any, ...], list[Decided]]()
    for one in decided:
        held = str(ours_of(one.document).get("held"))
        alike_of = (held, one.job.deferred_error, one.job.lane, one.job.occurrence_ms, *one.patch.fields.values())
        groups.setdefault(alike_of, []).append(one)
    writes = []
    for alike in groups.values():
        ids = {"_id": {"$in": [one.document["_id"] for one in alike]}, "status": "pending"}
        update = update_of({"jobmill.mark": mark, **patch_fields(ctx, alike[0], now_ms)})
        writes.append(UpdateMany(alike[0].unchanged | ids, update, hint=BY_ID))
    if not writes:
        return []
    done = {one.document["_id"] for one in decided}
    if (await ctx.here.jobs.bulk_write(writes, ordered=False)).matched_count < len(done):
        done = await marked(ctx, list(done), mark)
    await _published(ctx, [one for one in decided if one.document["_id"] in done], now_ms)
    return [one.document["_id"] for one in decided if one.document["_id"] not in done]


async def _published(ctx: MongoContext, changed: Sequence[Decided], now_ms: int) -> None:
    """Let others know about jobs that wait and were changed."""
    events: list[Event] = []
    for one in changed:
        events += one.patch.events
        ctx.lanes.touch(one.job.queue, one.job.lane)
        _announce(ctx, one.job, one.patch.fields.get("due_ms"), now_ms)
    await publish(ctx, events)


def _announce(ctx: MongoContext, job: Job, due_ms: int | None, now_ms: int) -> None:
    """Let the claims of this process know about a job that nothing holds any more."""
    if due_ms is None or due_ms == NEVER_MS:
        return
    if due_ms <= now_ms and ctx.claims.is_busy:
        ctx.claims.cursor.added(job.queue, job.name, job.priority, due_ms)
    notify(ctx, job.queue, due_ms)


# ---------------------------------------------------------------------------------------------------- requeues


async def reopen_edges(ctx: MongoContext, requeued: Sequence[Document]) -> None:
    """Jobs were requeued: those that still wait for them wait for their new ends.

    `requeued` are the documents before. One of these jobs may have ended again: so the last step sets its edges.
    """
    for document in requeued:
        id, round = document["_id"], int_of(ours_of(document).get("round")) + 1
        for some in chunks(await ctx.here.edges.find({"on": id}).to_list()):
            await _reopen(ctx, some, round)
    ids = [one["_id"] for one in requeued]
    await pin(ctx, ids)
    await resolve_ended(ctx, ids)


async def _reopen(ctx: MongoContext, edges: Sequence[Document], round: int) -> None:
    now_ms = ctx.now()
    jobs = await _jobs_of(ctx, edges)
    again = [
        edge["_id"]
        for edge in edges
        if edge["state"] == "pending"
        or ((found := jobs.get(edge["_id"]["job"])) and reopens(Subject.of(found[1]), dependency_of(edge)))
    ]
    if not again:
        return
    pending = {"$set": {"state": "pending", "open": True, "round": round}, "$unset": {"error": ""}}
    await ctx.here.edges.update_many({"_id": {"$in": again}, "round": {"$lt": round}}, pending, hint=BY_ID)
    verdicts = await look(ctx, {one["job"] for one in again})
    decided = []
    for id, looked in verdicts.items():
        if (found := jobs.get(id)) and (patch := held_again(Subject.of(found[1]), looked, now_ms)) is not None:
            decided.append(Decided(*found, patch))
    await _write_alike(ctx, decided, now_ms)  # a job that was claimed meanwhile runs, or fails


async def _jobs_of(ctx: MongoContext, edges: Sequence[Document]) -> dict[ObjectId, tuple[Document, Job]]:
    """The dependents that wait."""
    query = {"_id": {"$in": list({one["_id"]["job"] for one in edges})}, "status": "pending"}
    found = ctx.here.jobs.find(query, _WITHOUT_LARGE, hint=BY_ID)
    return {document["_id"]: (document, ctx.job(document)) async for document in found}


async def present_edges(ctx: MongoContext, ids: Collection[ObjectId]) -> dict[ObjectId, list[Document]]:
    """The edges of jobs, each in the present state of its dependency. An edge to a removed job keeps its state."""
    edges: dict[ObjectId, list[Document]] = {}
    for some in chunks(ids):
        async for one in ctx.here.edges.find(of_jobs(some)):
            edges.setdefault(one["_id"]["job"], []).append(one)
    ends: dict[ObjectId, tuple[EdgeState, str | None, int]] = {}
    for on in chunks({one["on"] for some in edges.values() for one in some}):
        async for document in ctx.here.jobs.find({"_id": {"$in": on}}, _WITHOUT_LARGE, hint=BY_ID):
            if document.get("status") in STATE:
                now = ended_of(ctx, document)
                ends[document["_id"]] = (*now.edge, now.round)
    for own in edges.values():
        own.sort(key=lambda edge: edge["_id"]["n"])
        for one in own:
            if one["on"] in ends:
                one["was"] = (one["state"], one["round"])
                one["state"], one["error"], one["round"] = ends[one["on"]]
    return edges


async def write_present_edges(ctx: MongoContext, edges: Sequence[Document]) -> None:
    """Write edges as `present_edges` returned them. Those that are pending again are set by the next end."""
    changed = [one for one in edges if one.get("was") not in (None, (one["state"], one["round"]))]
    for one in changed:
        state, round = one["was"]
        fields = {"state": one["state"], "round": one["round"], "error": one["error"], "open": True}
        await ctx.here.edges.update_one({"_id": one["_id"], "state": state, "round": round}, {"$set": fields})
    await pin(ctx, {one["on"] for one in changed if one["state"] == "pending"})


async def look_again(ctx: MongoContext, edges: Sequence[Document], ids: Collection[ObjectId]) -> None:
    """Jobs were requeued whose edges are these: their dependencies may have ended since these were read."""
    await resolve_ended(ctx, {one["on"] for one in edges if one["state"] == "pending"})
    await release(ctx, ids)


# ---------------------------------------------------------------------------------------------------- reading


async def dependencies(ctx: MongoContext, id: str, first: int = 0, limit: int = 1_000) -> list[Dependency]:
    """The edges of a job, with the results of its dependencies."""
    found = await ctx.by_ids([id], ID_SHOWN)
    if id not in found or limit <= 0:
        return []
    edges = await edges_of(ctx, found[id]["_id"], first, limit)
    succeeded = [one["on"] for one in edges if one["state"] == "succeeded"]
    results: dict[ObjectId, Any] = {}
    for some in chunks(succeeded, CHUNK):
        query = {"_id": {"$in": some}, "status": "completed"}
        async for document in ctx.here.jobs.find(query, _RESULT_SHOWN, hint=BY_ID):
            results[document["_id"]] = ctx.job(document).result_json
    return [
        structs.replace(dependency_of(one), result_json=results.get(one["on"]) if one["state"] == "succeeded" else None)
        for one in edges
    ]


async def dependents(ctx: MongoContext, id: str, limit: int = 100) -> list[Dependent]:
    """The jobs that wait for a job, or have waited for it."""
    found = await ctx.by_ids([id], ID_SHOWN)
    if id not in found or limit <= 0:
        return []
    edges = await ctx.here.edges.find({"on": found[id]["_id"]}).limit(limit).to_list()
    query = {"_id": {"$in": [one["_id"]["job"] for one in edges]}, "jobmill.staged": None}
    ids = {one["_id"]: id_of(one) async for one in ctx.here.jobs.find(query, ID_SHOWN)}
    return [
        Dependent(id=ids[one["_id"]["job"]], if_failed=one["ifFailed"], state=one["state"])
        for one in edges
        if one["_id"]["job"] in ids
    ]


async def flows(ctx: MongoContext, before: str | None = None, limit: int = 50) -> list[str]:
    """The ids of flows, in descending order. A flow with very many jobs is passed over by a query of its own."""
    ids: list[str] = []
    while len(ids) < limit:
        bound = {"$exists": True} if before is None else {"$lt": before}
        size = JOBS_PER_FLOW * (limit - len(ids))
        found = await ctx.find_by(FLOW, {"jobmill.flow": bound}, {"_id": 0, "jobmill.flow": 1}, size, sort=_BY_FLOW)
        ids += dict.fromkeys(one["jobmill"]["flow"] for one in found)
        if len(found) < size:
            break
        before = ids[-1]
    return ids[:limit]


async def flow_counts(ctx: MongoContext, ids: Sequence[str], limit: int = FLOW_COUNT_LIMIT) -> dict[str, FlowCount]:
    """How many jobs of these flows are in each state."""

    async def count(id: str) -> FlowCount:
        group = {"_id": "$status", "count": {"$sum": 1}}
        stages: list[Document] = [{"$match": query_of(ctx, Filter(flow=id))}, {"$limit": limit}, {"$group": group}]
        return FlowCount.of({STATE[one["_id"]]: one["count"] for one in await aggregate(ctx, stages, FLOW)}, limit)

    return dict(zip(ids, await asyncio.gather(*map(count, ids)), strict=True))


async def edges(ctx: MongoContext, ids: Sequence[str]) -> set[tuple[str, str]]:
    """Which of these jobs wait for others of them, or have waited."""
    found = {document["_id"]: id for id, document in (await ctx.by_ids(ids, ID_SHOWN)).items()}
    pairs: set[tuple[str, str]] = set()
    for some in chunks(found):
        async for one in ctx.here.edges.find(of_jobs(some), {"on": 1}):
            if one["on"] in found:
                pairs.add((found[one["_id"]["job"]], found[one["on"]]))
    return pairs
