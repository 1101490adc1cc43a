"""The verbs announce, workers, order_stop and tallies (the collections jobmill_workers and jobmill_tallies).

jobmill_workers   _id: the id of the card; jobs: the collection of its jobs; seenAt, card (JSON), stop: true if ordered
jobmill_tallies   _id: jobs, step, start, queue, name, so that no other index is needed; t: the counts
                  (`stores.common.flat_tallies`); by: the last announcement of each worker that is contained
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import defaultdict
from collections.abc import Sequence

import msgspec
from msgspec import structs
from pymongo import ReturnDocument, UpdateOne
from pymongo.errors import BulkWriteError

from jobmill.core.announcing import ANNOUNCED_MS, CARD_KEPT_MS, Orders, WorkerCard
from jobmill.core.job import Job
from jobmill.core.tallies import TALLIES_KEPT_MS, Tally, first_kept_ms, series, stored_step
from jobmill.stores.common.flat_tallies import flat_counts, flat_texts, from_flat
from jobmill.stores.mongo import leases
from jobmill.stores.mongo.codec import OURS, Document, date
from jobmill.stores.mongo.connection import DUPLICATE_KEY, refused_writes
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.schema import LEASE

# The number of jobs of Monque that are read to find its processes.
_MAX_FOREIGN = 1_000


async def announce(ctx: MongoContext, card: WorkerCard, tallies: Sequence[Tally], *, leaves: bool = False) -> Orders:
    """Write the card and, at the same time, the tallies. Each tally knows which announcements it contains."""
    text = msgspec.json.encode(card).decode()
    seen = {"jobs": ctx.url.collection, "seenAt": date(0 if leaves else ctx.now()), "card": text}
    update = ctx.here.workers.find_one_and_update(
        {"_id": card.id},
        {"$set": seen},
        {"stop": 1},
        upsert=True,
        return_document=ReturnDocument.AFTER,
    )
    written, _ = await asyncio.gather(update, _add(ctx, card, tallies))
    return Orders(stop=bool(written and written.get("stop")))


async def _add(ctx: MongoContext, card: WorkerCard, tallies: Sequence[Tally]) -> None:
    # A short name: each tally has it. Ids may contain what the name of a field must not.
    by = f"by.{hashlib.blake2b(card.id.encode(), digest_size=6).hexdigest()}"
    writes: list[tuple[Document, Document]] = []
    for part in (one for step_ms in TALLIES_KEPT_MS for one in series(tallies, step_ms)):
        fresh = {"_id": _id(ctx, part.step_ms, part.start_ms) | {"queue": part.queue, "name": part.name}}
        counts = {f"t.{field}": count for field, count in flat_counts(part).items()}
        texts = {f"t.{field}": text for field, text in flat_texts(part).items()}
        update = {"$set": {by: card.announcement, **texts}} | ({"$inc": counts} if counts else {})
        writes.append((fresh | {by: {"$not": {"$gte": card.announcement}}}, update))
    # The server refuses to insert a tally that another worker inserts at this moment, or that contains this
    # announcement. The second attempt only updates: it adds in the first case, and finds nothing in the second one.
    for upsert in (True, False):
        if not writes:
            return
        try:
            bulk = [UpdateOne(query, update, upsert=upsert) for query, update in writes]
            await ctx.here.tallies.bulk_write(bulk, ordered=False)
            return
        except BulkWriteError as error:
            writes = [writes[index] for index in refused_writes(error, (DUPLICATE_KEY,))]


def _id(ctx: MongoContext, step_ms: int, start_ms: int) -> Document:
    return {"jobs": ctx.url.collection, "step": step_ms, "start": date(start_ms)}


async def workers(ctx: MongoContext) -> list[WorkerCard]:
    """See the port. A process of Monque is known only while it runs jobs."""
    live = {"jobs": ctx.url.collection, "seenAt": {"$gt": date(ctx.now() - ANNOUNCED_MS)}}
    found, foreign = await asyncio.gather(ctx.here.workers.find(live).to_list(), _foreign(ctx))
    cards = [structs.replace(_card(one), seen_ms=int(one["seenAt"])) for one in found]
    return sorted([*cards, *foreign], key=lambda card: (card.started_ms, card.id))


async def _foreign(ctx: MongoContext) -> list[WorkerCard]:
    """The processes of Monque, by the jobs that they have claimed, as long as their heartbeats come."""
    shown = dict.fromkeys(("status", "claimedBy", "lockedAt", "lastHeartbeat", "leaseExpiresAt", "jobmill.queue"), 1)
    query = {"status": "processing", "claimedBy": {"$not": {"$regex": f"^{OURS}"}}}
    claims = await ctx.find_by(LEASE, query, shown | {"heartbeatInterval": 1}, _MAX_FOREIGN)
    now_ms, running = ctx.now(), defaultdict[str, list[Job]](list)
    for job in (ctx.job(claim) for claim in claims if leases.has_heartbeat(claim, now_ms)):
        running[job.worker or ""].append(job)
    return [
        WorkerCard(
            id=f"monque {name}",
            name=name,
            host="",
            pid=0,
            version="",
            python="",
            started_ms=min(job.started_ms or now_ms for job in jobs),
            queues=tuple(sorted({job.queue for job in jobs})),
            names=(),
            concurrency=0,
            running=len(jobs),
            seen_ms=now_ms,
            system="monque",
        )
        for name, jobs in running.items()
    ]


def _card(document: Document) -> WorkerCard:
    return msgspec.json.decode(document["card"], type=WorkerCard)


async def order_stop(ctx: MongoContext, ids: Sequence[str]) -> list[str]:
    """See the port."""
    there = {card.id for card in await workers(ctx)}
    found = [id for id in dict.fromkeys(ids) if id in there]
    await ctx.here.workers.update_many({"_id": {"$in": found}}, {"$set": {"stop": True}})
    return found


async def tallies(
    ctx: MongoContext, since_ms: int, until_ms: int, step_ms: int, queue: str | None = None, name: str | None = None
) -> list[Tally]:
    """See the port."""
    stored_ms = stored_step(step_ms)
    first_ms = first_kept_ms(stored_ms, since_ms, ctx.now())
    query: Document = {"_id": {"$gte": _id(ctx, stored_ms, first_ms), "$lt": _id(ctx, stored_ms, until_ms)}}
    query |= {f"_id.{field}": value for field, value in (("queue", queue), ("name", name)) if value is not None}
    found = await ctx.here.tallies.find(query, {"t": 1}).to_list()
    keys = [(one["_id"], one.get("t", {})) for one in found]
    return series([from_flat(int(id["start"]), stored_ms, id["queue"], id["name"], t) for id, t in keys], step_ms)


async def purge_announced(ctx: MongoContext, now_ms: int) -> None:
    """Delete cards and tallies past their time."""
    await ctx.here.workers.delete_many({"seenAt": {"$lte": date(now_ms - CARD_KEPT_MS)}})
    old = [
        {"_id": {"$gte": _id(ctx, step_ms, 0), "$lte": _id(ctx, step_ms, now_ms - kept_ms)}}
        for step_ms, kept_ms in TALLIES_KEPT_MS.items()
    ]
    await ctx.here.tallies.delete_many({"$or": old})
