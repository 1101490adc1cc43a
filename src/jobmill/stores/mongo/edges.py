"""Edges: which job waits for which one (the collection jobmill_edges).

_id           .job: the _id of the dependent; .n: the number of the edge in it
on, id        the _id of the dependency, and its id
jobs          the collection of both jobs
ifFailed, state, error
open          true, until the dependent was released, or need not be, because of this edge; or a note names `on`
round         `jobmill.round` of the dependency: an end of an earlier round does not set the edge

A job that edges lead to has `jobmill.hasDependents`, so that it stays and so that its end sets them. Every writer of
edges to a job writes the edges first and then a new `hasDependents` (`pin`). A process that removes the field has read
its value before it searched for edges, and removes only that value. So it never removes that of another writer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from bson import MaxKey, MinKey, ObjectId
from pymongo import UpdateMany

from jobmill.core.flows import EDGE_STATES, MAX_RELEASED, After, Dependency, Verdict, verdict
from jobmill.stores.mongo.codec import Document
from jobmill.stores.mongo.connection import BY_ID
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.ids import new_object_id

T = TypeVar("T")

#: The number of jobs or edges that one query names.
CHUNK = 1_000
BAD = ("failed", "cancelled")
#: The fields of an edge that setting it needs.
MARKED = {"on": 1, "state": 1, "round": 1}


def chunks(values: Iterable[T], size: int = CHUNK) -> Iterable[list[T]]:
    """Values in lists of this size."""
    rest = iter(values)
    while some := list(islice(rest, size)):
        yield some


def new_edge(ctx: MongoContext, job: ObjectId, number: int, after: After, on: ObjectId, round: int) -> Document:
    """An edge that is pending."""
    return {
        "_id": {"job": job, "n": number},
        "on": on,
        "id": after.id,
        "jobs": ctx.url.collection,
        "ifFailed": after.if_failed,
        "state": "pending",
        "open": True,
        "round": round,
    }


def dependency_of(edge: Document) -> Dependency:
    """An edge as the port has it, without a result."""
    return Dependency(
        id=edge["id"],
        number=edge["_id"]["n"],
        if_failed=edge["ifFailed"],
        state=edge["state"],
        error=edge.get("error"),
    )


def open_edges_to(ids: Collection[ObjectId]) -> Document:
    """A filter for the edges that the ends of these jobs set."""
    return {"on": {"$in": list(ids)}, "open": True}


def open_edge_stages(ids: Collection[ObjectId]) -> list[Document]:
    """The same as a pipeline, for one edge more than one call sets."""
    return [{"$match": open_edges_to(ids)}, {"$limit": MAX_RELEASED + 1}, {"$project": MARKED}]


def of_jobs(ids: Collection[ObjectId]) -> Document:
    """A filter for all edges of these jobs."""
    return {"state": {"$in": list(EDGE_STATES)}, "_id.job": {"$in": list(ids)}}


def of_job(id: ObjectId, first: int = 0) -> Document:
    """A filter for the edges of one job from this number on, in the order of their numbers."""
    return {"_id": {"$gte": {"job": id, "n": first}, "$lt": {"job": id, "n": MaxKey()}}}


async def edges_of(ctx: MongoContext, id: ObjectId, first: int = 0, limit: int = 0) -> list[Document]:
    """The edges of a job, in the order of their numbers."""
    return await ctx.here.edges.find(of_job(id, first)).sort("_id", 1).limit(limit).to_list()


async def look(ctx: MongoContext, ids: Collection[ObjectId], *, has_bad: bool = True) -> dict[ObjectId, Verdict]:
    """What the edges of jobs mean for them. Without `has_bad`, a job that has pending edges waits."""
    verdicts: dict[ObjectId, Verdict] = {}
    for some in chunks(ids):
        pending = await with_pending(ctx, some)
        unknown = some if has_bad else [id for id in some if id not in pending]
        bad = await ctx.here.edges.find(bad_edges_of(unknown)).to_list() if unknown else []
        verdicts |= verdicts_of(some, pending, bad)
    return verdicts


async def with_pending(ctx: MongoContext, ids: Sequence[ObjectId]) -> set[ObjectId]:
    """Which of these jobs have edges that are pending."""
    return set(await ctx.here.edges.distinct("_id.job", {"state": "pending", "_id.job": {"$in": ids}}))


def bad_edges_of(ids: Sequence[ObjectId]) -> Document:
    """A filter for the edges of these jobs to jobs that have not succeeded."""
    return {"state": {"$in": BAD}, "_id.job": {"$in": ids}}


def verdicts_of(
    ids: Sequence[ObjectId], pending: Collection[ObjectId], bad: Sequence[Document]
) -> dict[ObjectId, Verdict]:
    """What the edges of jobs mean for them: which jobs have pending ones, and all edges that are bad."""
    by_job: dict[ObjectId, list[Dependency]] = {}
    for edge in bad:
        by_job.setdefault(edge["_id"]["job"], []).append(dependency_of(edge))
    return {id: verdict(by_job.get(id, ()), others_wait=id in pending) for id in ids}


# ---------------------------------------------------------------------------------------------------- pins


async def pin(ctx: MongoContext, ids: Collection[ObjectId]) -> None:
    """Say that edges lead to these jobs, whatever their state."""
    update = {"$set": {"jobmill.hasDependents": new_object_id(), "jobmill.outbox": True}}
    for some in chunks(ids):
        await ctx.here.jobs.update_many({"_id": {"$in": some}}, update, hint=BY_ID)


async def drop_edges(ctx: MongoContext, which: Document) -> int:
    """Delete edges that match a filter. Jobs that no other edge leads to need not stay any more; how many edges."""
    edges = ctx.here.edges
    for some in chunks(await edges.distinct("on", which)):
        await unpin(ctx, some, which)
    return (await edges.delete_many(which)).deleted_count


async def unpin(ctx: MongoContext, ids: Sequence[ObjectId], except_edges: Document | None = None) -> int:
    """Let go the jobs that no edges lead to, except these; how many. Edges that are added meanwhile count."""
    jobs, by_pin = ctx.here.jobs, dict[Any, list[ObjectId]]()
    visible = {"_id": {"$in": ids}, "jobmill.staged": None}  # a staged job is found by its outbox
    async for one in jobs.find(visible, {"jobmill.hasDependents": 1}, hint=BY_ID):
        if (nonce := one.get("jobmill", {}).get("hasDependents")) is not None:
            by_pin.setdefault(nonce, []).append(one["_id"])
    to: Document = {"on": {"$in": [id for some in by_pin.values() for id in some]}}
    needed = set(await ctx.here.edges.distinct("on", to | ({"$nor": [except_edges]} if except_edges else {})))
    writes = []
    for nonce, pinned in by_pin.items():
        free = [id for id in pinned if id not in needed]
        unchanged = {"_id": {"$in": free}, "jobmill.hasDependents": nonce}
        gone = {"$unset": {"jobmill.hasDependents": "", "jobmill.outbox": ""}}
        writes += [UpdateMany(unchanged, gone, hint=BY_ID)] if free else []
    return (await jobs.bulk_write(writes, ordered=False)).modified_count if writes else 0


#: Before the _id of every edge.
FIRST_EDGE = {"job": MinKey(), "n": MinKey()}
