"""Inserting jobs: one insert for all, and a second step for those that the unique indexes refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from bson import ObjectId
from bson.raw_bson import RawBSONDocument
from msgspec import Struct, structs
from pymongo.errors import BulkWriteError, WriteError

from jobmill.core.due import NEVER_MS
from jobmill.core.due import due_fields as core_due_fields
from jobmill.core.job import Job
from jobmill.core.values import NewJob, Receipt, at
from jobmill.errors import InvalidValue, StoreUnavailable
from jobmill.stores.mongo.codec import (
    DOCUMENT_BYTES,
    ID_SHOWN,
    LIVE,
    WITHOUT_PAYLOAD,
    Document,
    after_commit,
    data_of,
    date,
    due_fields,
    id_of,
    job_fields,
    job_of,
    lane_mark_fields,
    new_document,
    ours_of,
    packed,
    rule_fields,
    stated_field,
    stored_key,
    update_of,
)
from jobmill.stores.mongo.connection import DUPLICATE_KEY, TOO_LARGE, BoundCollection, refused_writes
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.ids import new_object_id, object_id
from jobmill.stores.mongo.lanes import fill
from jobmill.stores.mongo.stages import wait_for
from jobmill.stores.mongo.url import MongoUrl

MAX_ATTEMPTS = 50


class EncodedJob(Struct, frozen=True):
    """A new job and its document."""

    new: NewJob
    id: ObjectId
    packed: RawBSONDocument
    #: Its unique key as Monque's index has it.
    key: str | None

    @property
    def name_and_key(self) -> tuple[str, str]:
        """What the unique index compares, of a job with a unique key."""
        return self.new.name, self.key or ""

    @property
    def for_ms(self) -> int | None:
        """How long the job takes its unique key, even if it ends before."""
        return None if self.new.policy is None else self.new.policy.for_ms

    @property
    def owner(self) -> Document | None:
        """A filter for the live job that has its unique key."""
        return None if self.key is None else {"name": self.new.name, "uniqueKey": self.key, "status": {"$in": LIVE}}


def encoded(new: NewJob, now_ms: int, url: MongoUrl, edit: Callable[[Document], None] | None = None) -> EncodedJob:
    """InvalidValue where MongoDB cannot hold the job. `edit` may add to its document."""
    given = object_id(new.id)
    id = new_object_id() if given is None else given
    document = new_document(new, id, new.id if given is None else None, now_ms, url)
    if edit is not None:
        edit(document)
    key = None if new.unique_key is None else stored_key(new.queue, new.unique_key, url.queue)
    return EncodedJob(new, id, packed(document), key)


async def insert(ctx: MongoContext, jobs: Sequence[EncodedJob]) -> list[int]:
    """Insert all jobs that can be inserted. Return the indexes of those that a unique index refused."""
    try:
        await ctx.here.jobs.insert_many([one.packed for one in jobs], ordered=False)
    except BulkWriteError as error:
        return sorted(refused_writes(error, (DUPLICATE_KEY,)))
    return []


async def resolve_all(
    ctx: MongoContext,
    jobs: Sequence[EncodedJob],
    refused: Sequence[int],
    now_ms: int,
    stage_id: ObjectId | None = None,
) -> dict[int, Receipt]:
    """The receipts of refused jobs. With two queries for all, where the reason is easily found."""
    there: Collection[str] = ()
    owners: dict[tuple[str, str], str] = {}
    if len(refused) > 1:
        some = [jobs[index] for index in refused]
        there = await ctx.by_ids([one.new.id for one in some], ID_SHOWN)
        keyed = {(one.new.name, one.key) for one in some if one.key is not None and one.new.recurrence is None}
        owners = await ctx.live_owners(keyed)
    receipts: dict[int, Receipt] = {}
    for index in refused:
        one = jobs[index]
        if one.new.id in there:
            receipts[index] = Receipt(one.new.id, "exists")
        elif one.key is not None and one.new.recurrence is None and (one.new.name, one.key) in owners:
            receipts[index] = Receipt(owners[one.new.name, one.key], "duplicate")
        else:
            receipts[index] = await _resolve(ctx, one, now_ms, stage_id)
    return receipts


async def _resolve(ctx: MongoContext, one: EncodedJob, now_ms: int, stage_id: ObjectId | None) -> Receipt:
    """Find out why a job was refused; where the reason has disappeared, insert it."""
    collection = BoundCollection(ctx.here.jobs)
    for _ in range(MAX_ATTEMPTS):
        receipt = await conflict(ctx, collection, one, now_ms, stage_id)
        if isinstance(receipt, Receipt):
            await fill(ctx)  # the job that has its key may have given up its slot
            return receipt
        if receipt is not None:
            await wait_for(ctx, receipt)
        elif await collection.insert(one.packed):
            return Receipt(one.new.id, "created")
    raise StoreUnavailable(
        f"could not enqueue the job {one.new.id} after {MAX_ATTEMPTS} attempts: "
        "the jobs that it conflicted with kept disappearing"
    )


async def conflict(
    ctx: MongoContext, collection: BoundCollection, one: EncodedJob, now_ms: int, stage_id: ObjectId | None = None
) -> Receipt | ObjectId | None:
    """The receipt of a job whose id or live unique key is taken; None where both are free.

    The id of another call, if that call is enqueueing a job with this id or key, and may still be undone.
    """
    own = {"_id": one.id} if object_id(one.new.id) is not None else {"jobmill.id": one.new.id}
    for document in await collection.find(own, {"jobmill.staged": 1}):
        return _staged_by_other(document, stage_id) or Receipt(one.new.id, "exists")
    while one.owner is not None and (found := await collection.find(one.owner, WITHOUT_PAYLOAD)):
        document = found[0]
        if (other := _staged_by_other(document, stage_id)) is not None:
            return other
        id = id_of(document)
        update = _recurrence_update(one.new, document, now_ms, ctx.url)
        if update is None:
            return Receipt(id, "duplicate")
        # Only if nobody has changed the recurrence since it was read.
        revision = ours_of(document).get("revision")
        unchanged = {"_id": document["_id"], "status": {"$in": LIVE}, "jobmill.revision": revision}
        unchanged["jobmill.held"] = ours_of(document).get("held")
        if "lane" in ours_of(document):
            unchanged["status"] = document["status"]  # a job that runs keeps its slot
        if await replace_payload(collection, unchanged, update, one.new):
            ctx.lanes.touch(one.new.queue, ours_of(document).get("lane"))
            return Receipt(id, "pinned" if "pinned" in ours_of(document) else "updated")
    return None


async def replace_payload(collection: BoundCollection, unchanged: Document, update: Document, new: NewJob) -> bool:
    """Write the payload of a new job to a live one; whether that is still as it was read."""
    try:
        return await collection.update(unchanged, after_commit(update) if collection.is_in_session else update)
    except WriteError as error:
        if error.code not in TOO_LARGE:
            raise
        raise too_large(new) from error


def too_large(new: NewJob) -> InvalidValue:
    """A live job cannot take over the payload of a new one."""
    fits = f"one that fits beside the last result of the job, in {DOCUMENT_BYTES:,} bytes of BSON on MongoDB"
    return InvalidValue("payload", fits, len(new.payload_json))


def _new_due(job: Job, due_ms: int, now_ms: int) -> Document:
    """The fields of a recurring job that gets another due time, at which its next occurrence is."""
    lane = job.lane if job.state == "waiting" else None
    fields = core_due_fields(job.held, at(due_ms), now_ms, lane)
    marks = {} if lane is None else lane_mark_fields(lane, fields["held"], now_ms)
    return {**due_fields(NEVER_MS if "held" in fields else due_ms, now_ms, due_ms), **job_fields(fields), **marks}


def _staged_by_other(document: Document, stage_id: ObjectId | None) -> ObjectId | None:
    """The id of another call that is enqueueing a job."""
    staged = ours_of(document).get("staged")
    return None if staged == stage_id else staged


def _recurrence_update(new: NewJob, document: Document, now_ms: int, url: MongoUrl) -> Document | None:
    """What a live recurring job takes over from a new one with its key; None where one of both is not recurring."""
    job = job_of(document, url)
    old = job.recurrence
    if new.recurrence is None or old is None:
        return None
    # The payload may be null, which is a value here.
    payload = {"data": data_of(new.payload_json), "updatedAt": date(now_ms)}
    ours: Document = {"jobmill.declared": new.recurrence.declared or None}
    if old.pinned:
        ours["jobmill.stated"] = stated_field(old.restated(new.recurrence))
    elif not (new.keeps_due and new.recurrence.same_rule(old)):
        due_ms = new.due.resolve(now_ms)
        ours |= rule_fields(structs.replace(new.recurrence, revision=old.revision + 1), url)
        ours |= _new_due(job, due_ms, now_ms)
    update = update_of(ours)
    return update | {"$set": {**payload, **update.get("$set", {})}}
