"""Enqueueing: one insert for all jobs, and a second step for those that the unique indexes refused."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from msgspec import Struct, structs
from pymongo.errors import BulkWriteError

from jobmill.core.events import Event, bare_job, job_event
from jobmill.core.values import NewJob, Receipt
from jobmill.errors import StoreUnavailable
from jobmill.stores.mongo.codec import (
    LIVE,
    WITHOUT_PAYLOAD,
    Document,
    data_of,
    date,
    due_fields,
    id_of,
    job_of,
    new_document,
    ours_of,
    packed,
    rule_fields,
    stored_key,
    update_of,
)
from jobmill.stores.mongo.connection import DUPLICATE_KEY, Collection, refused_writes
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.ids import new_object_id, object_id
from jobmill.stores.mongo.queues import has_feed, queue_states
from jobmill.stores.mongo.wake import notify

MAX_ATTEMPTS = 50

_OWNER = {"name": 1, "status": 1, "uniqueKey": 1, "jobmill.id": 1}


class JobsCollection(Protocol):
    """The collection of jobs, in a transaction or outside."""

    async def find(self, query: Document, projection: Document) -> list[Document]:
        """All that match."""

    async def insert(self, documents: Sequence[RawBSONDocument]) -> set[int]:
        """Insert all that can be inserted; the indexes of those that a unique index refused."""

    async def update(self, query: Document, update: Document) -> bool:
        """Change one; whether one matched."""


class DirectCollection:
    """The collection of jobs outside any transaction."""

    def __init__(self, jobs: Collection) -> None:
        self._jobs = jobs

    async def find(self, query: Document, projection: Document) -> list[Document]:
        """All that match."""
        return await self._jobs.find(query, projection).to_list()

    async def insert(self, documents: Sequence[RawBSONDocument]) -> set[int]:
        """Insert all that can be inserted; the indexes of those that a unique index refused."""
        try:
            await self._jobs.insert_many(documents, ordered=False)
        except BulkWriteError as error:
            return set(refused_writes(error, (DUPLICATE_KEY,)))
        return set()

    async def update(self, query: Document, update: Document) -> bool:
        """Change one; whether one matched."""
        return (await self._jobs.update_one(query, update)).matched_count > 0


class EncodedJob(Struct, frozen=True):
    """A new job and its document."""

    new: NewJob
    id: ObjectId
    packed: RawBSONDocument
    #: Its unique key as Monque's index has it.
    key: str | None

    @property
    def owner(self) -> Document | None:
        """A filter for the live job that has its unique key."""
        return None if self.key is None else {"name": self.new.name, "uniqueKey": self.key, "status": {"$in": LIVE}}


def encoded(new: NewJob, now_ms: int, home: str) -> EncodedJob:
    """InvalidValue where MongoDB cannot hold the job."""
    given = object_id(new.id)
    id = new_object_id() if given is None else given
    document = new_document(new, id, new.id if given is None else None, now_ms, home)
    key = None if new.unique_key is None else stored_key(new.queue, new.unique_key, home)
    return EncodedJob(new, id, packed(document), key)


async def enqueue(ctx: MongoContext, new_jobs: Sequence[NewJob]) -> list[Receipt]:
    """See the port."""
    if not new_jobs:
        return []
    now_ms, home = ctx.now(), ctx.url.queue
    jobs = [encoded(new, now_ms, home) for new in new_jobs]
    collection = DirectCollection(ctx.here.jobs)
    states, refused = await asyncio.gather(
        queue_states(ctx, {new.queue for new in new_jobs}), collection.insert([one.packed for one in jobs])
    )
    receipts = [Receipt(one.new.id, "created") for one in jobs]
    if refused:
        known = await _known_owners(ctx, [jobs[index] for index in refused]) if len(refused) > 1 else {}
        for index in sorted(refused):
            one = jobs[index]
            receipts[index] = known.get(one.id) or await _resolve(collection, one, now_ms, home)
    if has_feed(states):
        await publish(ctx, enqueued_events(new_jobs, receipts, now_ms), states)
    _announce(ctx, [new for new, receipt in zip(new_jobs, receipts, strict=True) if receipt.status != "exists"], now_ms)
    return receipts


def _announce(ctx: MongoContext, new_jobs: Sequence[NewJob], now_ms: int) -> None:
    """Let the claims of this process know about jobs that wait now."""
    first_due: dict[str, int] = {}
    for new in new_jobs:
        due_ms = new.due.resolve(now_ms)
        first_due[new.queue] = min(due_ms, first_due.get(new.queue, due_ms))
        if due_ms <= now_ms:
            ctx.claims.cursor.added(new.queue, new.name, new.priority, due_ms)
    for queue, due_ms in first_due.items():
        notify(ctx, queue, due_ms)


async def _known_owners(ctx: MongoContext, refused: Sequence[EncodedJob]) -> dict[ObjectId, Receipt]:
    """For jobs that were refused, what is easily found to be the reason, with two queries for all."""
    receipts: dict[ObjectId, Receipt] = {}
    there = await ctx.by_ids([one.new.id for one in refused], _OWNER)
    keyed = [one for one in refused if one.key is not None and one.new.recurrence is None]
    owners: dict[tuple[str, str], str] = {}
    if keyed:
        names, keys = {one.new.name for one in keyed}, {one.key for one in keyed}
        live = {"name": {"$in": [*names]}, "uniqueKey": {"$in": [*keys]}, "status": {"$in": LIVE}}
        async for owner in ctx.here.jobs.find(live, _OWNER):
            owners[owner["name"], owner["uniqueKey"]] = id_of(owner)
    for one in refused:
        if one.new.id in there:
            receipts[one.id] = Receipt(one.new.id, "exists")
        elif one.new.recurrence is None and one.key is not None and (one.new.name, one.key) in owners:
            receipts[one.id] = Receipt(owners[one.new.name, one.key], "duplicate")
    return receipts


async def _resolve(collection: JobsCollection, one: EncodedJob, now_ms: int, home: str) -> Receipt:
    """Find out why a job was refused; where the reason has disappeared, insert it."""
    for _ in range(MAX_ATTEMPTS):
        receipt = await conflict(collection, one, now_ms, home)
        if receipt is not None:
            return receipt
        if not await collection.insert([one.packed]):
            return Receipt(one.new.id, "created")
    raise StoreUnavailable(
        f"could not enqueue the job {one.new.id} after {MAX_ATTEMPTS} attempts: "
        "the jobs that it conflicted with kept disappearing"
    )


async def conflict(collection: JobsCollection, one: EncodedJob, now_ms: int, home: str) -> Receipt | None:
    """The receipt of a job whose id or live unique key is taken; None where both are free."""
    own = {"_id": one.id} if object_id(one.new.id) is not None else {"jobmill.id": one.new.id}
    if await collection.find(own, {"_id": 1}):
        return Receipt(one.new.id, "exists")
    while one.owner is not None and (found := await collection.find(one.owner, WITHOUT_PAYLOAD)):
        document = found[0]
        id = id_of(document)
        update = _recurrence_update(one.new, document, now_ms, home)
        if update is None:
            return Receipt(id, "duplicate")
        # Only if nobody has changed the recurrence since it was read.
        revision = ours_of(document).get("revision")
        unchanged = {"_id": document["_id"], "status": {"$in": LIVE}, "jobmill.revision": revision}
        if await collection.update(unchanged, update):
            return Receipt(id, "updated")
    return None


def _recurrence_update(new: NewJob, document: Document, now_ms: int, home: str) -> Document | None:
    """What a live recurring job takes over from a new one with its key; None where one of both is not recurring."""
    old = job_of(document, home).recurrence
    if new.recurrence is None or old is None:
        return None
    # The payload may be null, which is a value here.
    payload = {"data": data_of(new.payload_json), "updatedAt": date(now_ms)}
    if new.keeps_due and new.recurrence.same_rule(old):
        return {"$set": payload}
    theirs, rule = rule_fields(structs.replace(new.recurrence, revision=0))
    ours = {"jobmill.rule": rule, "jobmill.revision": old.revision + 1, "jobmill.armed": True}
    update = update_of(theirs | ours | due_fields(new.due.resolve(now_ms)))
    return update | {"$set": {**payload, **update["$set"]}}


def enqueued_events(new_jobs: Sequence[NewJob], receipts: Sequence[Receipt], now_ms: int) -> list[Event]:
    """The events of the jobs that were created."""
    created = (new for new, receipt in zip(new_jobs, receipts, strict=True) if receipt.created)
    return [job_event(bare_job(new.id, new.name, new.queue, "waiting", 0), "enqueued", now_ms) for new in created]
