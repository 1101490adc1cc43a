"""The verb change: write what the core decides about jobs without a lease."""

from __future__ import annotations

from collections.abc import Sequence

from bson import ObjectId
from msgspec import structs

from jobmill.core.changes import (
    CHANGES_FROM,
    NO_SUCH_JOB,
    Cancel,
    Change,
    Changed,
    Patch,
    Remove,
    Requeue,
    Subject,
    decide,
    kept,
    not_from,
    states_for,
)
from jobmill.core.values import Filter
from jobmill.stores.mongo.codec import STATUS, WITHOUT_PAYLOAD, Document, ours_of
from jobmill.stores.mongo.connection import BoundCollection
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.edges import dependency_of, of_jobs
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.filters import query_of
from jobmill.stores.mongo.flows import (
    look_again,
    present_edges,
    reopen_edges,
    resolve_ended,
    write_present_edges,
)
from jobmill.stores.mongo.lanes import fill
from jobmill.stores.mongo.notes import noted, return_to_outbox
from jobmill.stores.mongo.patches import Decided, changed_meanwhile, subject_of, write_patches
from jobmill.stores.mongo.remove import forget_steps, remove
from jobmill.stores.mongo.taken_keys import confirm, doubt, free, taken_by

#: How often a change is decided anew because another process holds or releases its jobs at the same time.
MAX_ATTEMPTS = 5


async def change(ctx: MongoContext, which: Sequence[str] | Filter, change: Change, limit: int = 1_000) -> Changed:
    """Change jobs by id, or those that match a filter; at most `limit`."""
    done = await _change(ctx, which, change, limit)
    allowed = {not_from(state) for state in CHANGES_FROM[type(change)]}
    for _ in range(MAX_ATTEMPTS):
        late = [id for id, why in done.refused.items() if why in allowed]
        if not late:
            break
        # Another process has held or released them since they were read.
        again = await _change(ctx, late, change, limit)
        refused = {id: why for id, why in done.refused.items() if id not in late}
        done = Changed(ids=[*done.ids, *again.ids], refused=refused | again.refused, more=done.more)
    await fill(ctx)
    return done


async def _change(ctx: MongoContext, which: Sequence[str] | Filter, change: Change, limit: int) -> Changed:
    now_ms = ctx.now()
    refused: dict[str, str] = {}
    if isinstance(which, Filter):
        query = query_of(ctx, structs.replace(which, states=states_for(change, which))) | {"jobmill.staged": None}
        found = await ctx.here.jobs.find(query, WITHOUT_PAYLOAD).sort("_id", 1).limit(limit + 1).to_list()
        more, found = len(found) > limit, found[:limit]
    else:
        ids = list(dict.fromkeys(which))
        by_id = await ctx.by_ids(ids[:limit], WITHOUT_PAYLOAD)
        refused = {id: NO_SUCH_JOB for id in ids[:limit] if id not in by_id}
        more, found = len(ids) > limit, [by_id[id] for id in ids[:limit] if id in by_id]
    taken = taken_by(found) if isinstance(change, Cancel | Remove) else {}
    await doubt(ctx, taken, now_ms)
    changed: list[Decided] = []
    for batch in await _batches(ctx, found) if isinstance(change, Requeue) else [found]:
        done, why = await _change_batch(ctx, batch, change, len(changed), now_ms)
        changed += done
        refused |= why
    if taken:
        freed = taken_by(one.document for one in changed)
        await free(BoundCollection(ctx.here.taken_keys), ctx.url, freed)
        await confirm(ctx, {id: key for id, key in taken.items() if id not in freed})
    ctx.claims.cursor.rewind()
    for one in changed:
        ctx.lanes.touch(one.job.queue, one.job.lane)
    await publish(ctx, [event for one in changed for event in one.patch.events])
    return Changed(ids=[one.job.id for one in changed], refused=refused, more=more)


async def _change_batch(
    ctx: MongoContext, documents: Sequence[Document], change: Change, index: int, now_ms: int
) -> tuple[list[Decided], dict[str, str]]:
    """Change jobs; those that were changed, and why the others were not."""
    waits = [one["_id"] for one in documents if "dependencies" in ours_of(one)] if isinstance(change, Requeue) else ()
    edges = await present_edges(ctx, waits) if waits else {}
    refused: dict[str, str] = {}
    decided: list[Decided] = []
    for document in documents:
        job = ctx.job(document)
        own_edges = tuple(dependency_of(one) for one in edges.get(document["_id"], ()))
        subject = structs.replace(subject_of(document, job), edges=own_edges)
        patch = decide(change, subject, now_ms, index + len(decided))
        if not isinstance(patch, Patch):
            refused[job.id] = patch
            continue
        is_pinned = "hasDependents" in ours_of(document) and isinstance(change, Cancel)
        decided.append(Decided(document, job, kept(patch) if is_pinned else patch))
    if decided:
        refused |= await _write(ctx, decided, change, edges, now_ms)
    return [one for one in decided if one.job.id not in refused], refused


async def _batches(ctx: MongoContext, documents: list[Document]) -> list[list[Document]]:
    """Jobs that are requeued: each after those among them that it waits for."""
    waits = [one["_id"] for one in documents if "dependencies" in ours_of(one)]
    left = {one["_id"]: one for one in documents}
    if not waits or len(left) == 1:
        return [documents]
    on: dict[ObjectId, set[ObjectId]] = {}
    async for edge in ctx.here.edges.find(of_jobs(waits)):
        if edge["on"] in left:
            on.setdefault(edge["_id"]["job"], set()).add(edge["on"])
    batches: list[list[Document]] = []
    while left:
        # In a circle, which no call makes, all are next.
        batch = [one for id, one in left.items() if left.keys().isdisjoint(on.get(id, ()))] or list(left.values())
        batches.append(batch)
        left = {id: one for id, one in left.items() if one not in batch}
    return batches


async def _write(
    ctx: MongoContext,
    decided: Sequence[Decided],
    change: Change,
    edges: dict[ObjectId, list[Document]],
    now_ms: int,
) -> dict[str, str]:
    """Write patches, and what they mean for the edges of these jobs; why not, for the jobs that were not changed."""
    statuses = [STATUS[state] for state in CHANGES_FROM[type(change)]]
    if isinstance(change, Remove):
        return await _remove(ctx, decided, statuses, now_ms)
    flat = [edge for one in decided for edge in edges.get(one.document["_id"], ())]
    if flat:
        await write_present_edges(ctx, flat)
    refused = await write_patches(ctx, decided, statuses, now_ms)
    changed = [one.document for one in decided if one.job.id not in refused]
    pinned = [one for one in changed if "hasDependents" in ours_of(one)]
    if isinstance(change, Cancel) and pinned:
        await resolve_ended(ctx, [one["_id"] for one in pinned])
    if isinstance(change, Requeue):
        await forget_steps(
            ctx, [one.document for one in decided if one.patch.clears_steps and one.job.id not in refused]
        )
        if pinned:
            await reopen_edges(ctx, pinned)
        if flat:
            await look_again(ctx, flat, list(edges))
    return refused


async def _remove(
    ctx: MongoContext, decided: Sequence[Decided], statuses: Sequence[str], now_ms: int
) -> dict[str, str]:
    """Remove jobs. A live one that others wait for is cancelled first, and edges are set before their job goes."""
    pinned = [one for one in decided if "hasDependents" in ours_of(one.document)]
    cancels = []
    for one in pinned:
        patch = decide(Cancel(), Subject.of(one.job), now_ms)
        if isinstance(patch, Patch):
            cancels.append(structs.replace(one, patch=kept(patch)))
    claimed = await write_patches(ctx, cancels, ["pending"], now_ms) if cancels else {}
    ids = [one.document["_id"] for one in pinned]
    if pinned:
        await return_to_outbox(ctx, await noted(ctx, ids))
    while pinned and (await resolve_ended(ctx, ids)).has_more:
        pass  # no job will be left that could have them in its outbox
    gone = await remove(ctx, [one.document for one in decided if one.job.id not in claimed], statuses, pinned=True)
    return await changed_meanwhile(ctx, [one for one in decided if one.document["_id"] not in gone])
