"""Getting in: an insert for all, and a second look at those that the unique indexes refused."""

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
from jobmill.stores.mongo import codec
from jobmill.stores.mongo.codec import LIVE, slot_fields, stored_key
from jobmill.stores.mongo.connection import DUPLICATE_KEY, Collection, Document, told_apart
from jobmill.stores.mongo.queues import Queues
from jobmill.stores.mongo.values import data_of, date, new_object_id, object_id, packed

#: A job may be refused because of another that is gone when it is looked for; nobody is as unlucky as this.
TURNS = 50

_NAMED = {"name": 1, "status": 1, "uniqueKey": 1, "jobmill.id": 1}
_SEEN = {"data": 0, "jobmill.tracebacks": 0, "jobmill.result": 0}


class Collected(Protocol):
    """The collection of the jobs, as far as enqueueing needs it."""

    async def find(self, query: Document, projection: Document) -> list[Document]:
        """All that match."""

    async def insert(self, made: Sequence[RawBSONDocument]) -> set[int]:
        """Insert all that can be; the places of those that a unique index refused."""

    async def update(self, query: Document, update: Document) -> bool:
        """Change one; whether there was one."""


class Made(Struct, frozen=True):
    """A job on its way in, as a document."""

    new: NewJob
    id: ObjectId
    packed: RawBSONDocument

    def key(self, home: str) -> str | None:
        """Its unique key, as Monque's index has it."""
        return None if self.new.unique_key is None else stored_key(self.new.queue, self.new.unique_key, home)

    def owner(self, home: str) -> Document | None:
        """What finds the live job that has its unique key."""
        key = self.key(home)
        return None if key is None else {"name": self.new.name, "uniqueKey": key, "status": {"$in": LIVE}}


def made_of(new: NewJob, now_ms: int, home: str) -> Made:
    """InvalidValue when MongoDB could not hold it."""
    given = object_id(new.id)
    id = new_object_id() if given is None else given
    own_id = new.id if given is None else None
    return Made(new, id, packed(codec.new_document(new, id, own_id, now_ms, home)))


class Direct:
    """The collection itself, outside of any transaction."""

    def __init__(self, jobs: Collection) -> None:
        self._jobs = jobs

    async def find(self, query: Document, projection: Document) -> list[Document]:
        """All that match."""
        return await self._jobs.find(query, projection).to_list()

    async def insert(self, made: Sequence[RawBSONDocument]) -> set[int]:
        """Insert all that can be; the places of those that a unique index refused."""
        try:
            await self._jobs.insert_many(made, ordered=False)
        except BulkWriteError as error:
            return refused(error)
        return set()

    async def update(self, query: Document, update: Document) -> bool:
        """Change one; whether there was one."""
        return (await self._jobs.update_one(query, update)).matched_count > 0


def refused(error: BulkWriteError) -> set[int]:
    """Which of a bulk a unique index refused; raised again where something else went wrong."""
    details: Document = error.details or {}  # type: ignore[assignment]
    errors = details.get("writeErrors", [])
    if details.get("writeConcernErrors") or any(one["code"] != DUPLICATE_KEY for one in errors):
        raise error
    return {one["index"] for one in errors}


class Enqueues(Queues):
    """enqueue."""

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """See the port."""
        if not new_jobs:
            return []
        now_ms = self.now()
        made = [made_of(new, now_ms, self._place.queue) for new in new_jobs]
        with told_apart(self._place):
            jobs = Direct(self._here.jobs)
            known, refused = await asyncio.gather(
                self._known({new.queue for new in new_jobs}), jobs.insert([one.packed for one in made])
            )
            receipts = [None if n in refused else Receipt(one.new.id, "created") for n, one in enumerate(made)]
            receipts = await self._stand(jobs, made, receipts)
            for n, receipt in enumerate(receipts):
                if receipt is None:
                    receipts[n] = await place(jobs, made[n], now_ms, self._place.queue)
            done = [receipt for receipt in receipts if receipt is not None]
            await self._tell(enqueued(new_jobs, done, now_ms), known)
        if any(new.due.resolve(now_ms) < now_ms for new in new_jobs):
            self._put_behind()
        self._came_in(new_jobs)
        self._wake_here([new for new, receipt in zip(new_jobs, done, strict=True) if receipt.how != "exists"])
        return done

    async def _stand(self, jobs: Direct, made: list[Made], receipts: list[Receipt | None]) -> list[Receipt | None]:
        """For those that were refused, what plainly stands in their way, asked for all at once; the rest one by one."""
        refused = [one for one, receipt in zip(made, receipts, strict=True) if receipt is None]
        if len(refused) < 2:
            return receipts
        there = await self._by_ids([one.new.id for one in refused], _NAMED)
        keyed = [one for one in refused if one.new.unique_key is not None and one.new.recurrence is None]
        owners = {}
        if keyed:
            names, keys = {one.new.name for one in keyed}, {one.key(self._place.queue) for one in keyed}
            live = {"name": {"$in": [*names]}, "uniqueKey": {"$in": [*keys]}, "status": {"$in": LIVE}}
            found = await jobs.find(live, _NAMED)
            owners = {(one["name"], one["uniqueKey"]): codec.id_of(one) for one in found}
        stood = list(receipts)
        for n, one in enumerate(made):
            if receipts[n] is None and one.new.id in there:
                stood[n] = Receipt(one.new.id, "exists")
            elif receipts[n] is None and one.new.recurrence is None:
                owner = owners.get((one.new.name, one.key(self._place.queue)))
                stood[n] = None if owner is None else Receipt(owner, "duplicate")
        return stood

    def _put_behind(self) -> None:
        """A job waits that was due before others that were claimed already."""

    def _came_in(self, new_jobs: Sequence[NewJob]) -> None:
        """These wait, or will."""

    def _wake_here(self, new_jobs: Sequence[NewJob]) -> None:
        """Sleepers of this process need no stream to be told."""


async def place(jobs: Collected, made: Made, now_ms: int, home: str) -> Receipt:
    """Find out what stands in the way of a job that was refused; where nothing does any more, insert it."""
    for _ in range(TURNS):
        receipt = await standing(jobs, made, now_ms, home)
        if receipt is not None:
            return receipt
        if not await jobs.insert([made.packed]):
            return Receipt(made.new.id, "created")
    raise StoreUnavailable(f"the job {made.new.id} was refused again and again for others that were gone at once")


async def standing(jobs: Collected, made: Made, now_ms: int, home: str) -> Receipt | None:
    """What an id or a live key that is taken makes of a job; None when both are free."""
    own = {"_id": made.id} if object_id(made.new.id) is not None else {"jobmill.id": made.new.id}
    if await jobs.find(own, {"_id": 1}):
        return Receipt(made.new.id, "exists")
    owner = made.owner(home)
    while owner is not None and (found := await jobs.find(owner, _SEEN)):
        document = found[0]
        id = codec.id_of(document)
        old = codec.job_of(document, home)
        if made.new.recurrence is None or old.recurrence is None:
            return Receipt(id, "duplicate")
        if await jobs.update(_as_seen(document), _updated(made.new, document, now_ms)):
            return Receipt(id, "updated")
    return None


def _as_seen(document: Document) -> Document:
    """That nobody has changed a recurrence since it was read, and that it lives."""
    revision = codec.ours_of(document).get("revision")
    return {"_id": document["_id"], "status": {"$in": LIVE}, "jobmill.revision": revision}


def _updated(new: NewJob, document: Document, now_ms: int) -> Document:
    """What a recurring job takes over from one that has its key."""
    old = codec.job_of(document, "").recurrence
    told: Document = {"data": data_of(new.payload_json), "updatedAt": date(now_ms)}
    if new.recurrence is None or old is None or (new.keeps_due and new.recurrence.same_rule(old)):
        return {"$set": told}
    theirs, rule = codec.rule_fields(structs.replace(new.recurrence, revision=0))
    due_ms = new.due.resolve(now_ms)
    told |= theirs | {"nextRunAt": date(due_ms), "jobmill.revision": old.revision + 1, "jobmill.armed": True}
    _, gone = slot_fields(due_ms, due_ms)
    if rule:
        told["jobmill.rule"] = rule
        gone |= {"repeatInterval": "", "timezone": ""}
    else:
        gone["jobmill.rule"] = ""
    return {"$set": told, "$unset": gone}


def enqueued(new_jobs: Sequence[NewJob], receipts: Sequence[Receipt], now_ms: int) -> list[Event]:
    """What is told of jobs that were created."""
    told: list[Event] = []
    for new, receipt in zip(new_jobs, receipts, strict=True):
        if receipt.created:
            job = bare_job(receipt.id, new.name, new.queue, "waiting", 0)
            told.append(job_event(job, "enqueued", now_ms))
    return told
