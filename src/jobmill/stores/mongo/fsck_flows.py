"""The part of fsck about jobs that wait for jobs. What it repairs, `flush_outbox` would repair as well, but later."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial

from bson import ObjectId
from msgspec import Struct

from jobmill.core.findings import IDS_SHOWN, Finding
from jobmill.core.flows import BY_JOBS
from jobmill.stores.mongo import stages
from jobmill.stores.mongo.codec import FINAL, ID_SHOWN, Document, date, id_of
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.edges import CHUNK, look, unpin
from jobmill.stores.mongo.flows import release, resolve_ended
from jobmill.stores.mongo.outbox import drop_orphans, invalid, orphans, resolve_invalid

#: Jobs that ended this long ago have nothing in the outbox any more, where a worker lives.
OUTBOX_MS = 60_000
_REMEDY = "repair them: `jobmill fsck --repair`; workers do so from time to time"


class _Damage(Struct, frozen=True):
    """Part of the damage that a check has found: ids, and how much of it. `repair` returns how much it repaired."""

    ids: Sequence[str]
    count: int
    repair: Callable[[], Awaitable[int]]


async def check_flows(ctx: MongoContext, repair: bool) -> list[Finding]:
    """One finding for each check."""
    texts: dict[str, tuple[str, Callable[[MongoContext], AsyncIterator[_Damage]]]] = {
        "lost_release": ("jobs are held by jobs, all of which have ended", _lost_releases),
        "outbox": ("jobs ended more than a minute ago, and jobs that wait for them do not know", _outbox),
        "orphan_edge": ("edges belong to jobs that do not exist", _orphan_edges),
        "edge_to_ended": ("edges are pending, but the jobs that they lead to are gone or have ended", _invalid_edges),
        "staged_orphan": ("calls that enqueue or settle jobs have not ended, and their processes have", _staged),
        "pinned": ("final jobs are kept for jobs that do not exist", _pinned),
    }
    return [await _run(ctx, name, text, find, repair) for name, (text, find) in texts.items()]


async def _run(
    ctx: MongoContext, name: str, text: str, find: Callable[[MongoContext], AsyncIterator[_Damage]], repair: bool
) -> Finding:
    count = repaired = 0
    ids: list[str] = []
    async for one in find(ctx):
        count += one.count
        ids += one.ids[: IDS_SHOWN - len(ids)]
        repaired += await one.repair() if repair else 0
    is_bad = count > repaired
    return Finding(
        check=name,
        level="error" if is_bad else "ok",
        text=f"{count or 'no'} {text}",
        evidence={"ids": ids} if ids else {},
        remedy=_REMEDY if is_bad else None,
        count=count,
        can_repair=True,
        repaired=min(count, repaired),
    )


async def _jobs(ctx: MongoContext, query: Document) -> AsyncIterator[dict[ObjectId, str]]:
    """The ids of jobs that match, by their _ids, some at a time."""
    some: dict[ObjectId, str] = {}
    async for document in ctx.here.jobs.find(query, ID_SHOWN):
        some[document["_id"]] = id_of(document)
        if len(some) == CHUNK:
            yield some
            some = {}
    if some:
        yield some


async def _edges(ctx: MongoContext) -> AsyncIterator[list[Document]]:
    some: list[Document] = []
    async for document in ctx.here.edges.find({"jobs": ctx.url.collection}).sort("_id", 1):
        some.append(document)
        if len(some) == CHUNK:
            yield some
            some = []
    if some:
        yield some


def _found(ids: Sequence[str], repair: Callable[[], Awaitable[object]], count: int | None = None) -> _Damage:
    """Damage that is repaired as a whole, if it is."""
    number = len(ids) if count is None else count

    async def run() -> int:
        await repair()
        return number

    return _Damage(ids, number, run)


async def _lost_releases(ctx: MongoContext) -> AsyncIterator[_Damage]:
    async for jobs in _jobs(ctx, {"status": "pending", "jobmill.held.by": BY_JOBS, "jobmill.staged": None}):
        verdicts = await look(ctx, jobs)
        lost = [id for id, looked in verdicts.items() if looked != "hold"]
        if lost:
            yield _found([jobs[id] for id in lost], partial(release, ctx, lost))


async def _outbox(ctx: MongoContext) -> AsyncIterator[_Damage]:
    long_ago = {"$lte": date(ctx.now() - OUTBOX_MS)}
    query = {"jobmill.outbox": True, "jobmill.staged": None, "status": {"$in": FINAL}, "updatedAt": long_ago}
    async for jobs in _jobs(ctx, query):
        yield _found(list(jobs.values()), partial(_resolve_all, ctx, jobs))


async def _resolve_all(ctx: MongoContext, ids: Collection[ObjectId]) -> None:
    while (await resolve_ended(ctx, ids)).has_more:
        pass


async def _orphan_edges(ctx: MongoContext) -> AsyncIterator[_Damage]:
    async for edges in _edges(ctx):
        if gone := await orphans(ctx, edges):
            found = [one for one in edges if one["_id"]["job"] in gone]
            yield _found(sorted(map(str, gone)), partial(drop_orphans, ctx, found), len(found))


async def _invalid_edges(ctx: MongoContext) -> AsyncIterator[_Damage]:
    async for edges in _edges(ctx):
        gone, ended = await invalid(ctx, edges)
        found = [one for one in edges if one.get("open") and one["on"] in gone | ended]
        if found:
            ids = sorted({one["id"] for one in found})
            yield _found(ids, partial(resolve_invalid, ctx, found), len(found))


async def _staged(ctx: MongoContext) -> AsyncIterator[_Damage]:
    found = await stages.left_over(ctx)
    if found:
        yield _found(sorted(map(str, found)), partial(stages.repair, ctx))


async def _pinned(ctx: MongoContext) -> AsyncIterator[_Damage]:
    async for jobs in _jobs(ctx, {"jobmill.hasDependents": {"$exists": True}, "status": {"$in": FINAL}}):
        needed = set(await ctx.here.edges.distinct("on", {"on": {"$in": list(jobs)}}))
        free = [id for id in jobs if id not in needed]
        if free:
            yield _found([jobs[id] for id in free], partial(unpin, ctx, free))
