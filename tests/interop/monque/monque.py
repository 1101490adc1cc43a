"""Monque's queries and documents, of both generations, as the real package sends them; nothing here is Jobmill's.

G1 is its core up to 1.10, G2 from about 1.13: with priority, a fence (`claimId`), a zone, and leases where asked for.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

import bson
from cronsim import CronSim
from pymongo import ASCENDING, DESCENDING, IndexModel, InsertOne, ReturnDocument
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import DuplicateKeyError

Generation = Literal[1, 2]
Document = dict[str, Any]

LIVE = ["pending", "processing"]
STATUSES = {*LIVE, "completed", "failed", "cancelled"}

#: What a claim leaves, and each way out of it removes: in G1 only what G1 knows.
CLAIM_FIELDS: Mapping[Generation, Sequence[str]] = {
    1: ("lockedAt", "claimedBy", "lastHeartbeat"),
    2: ("lockedAt", "claimedBy", "claimId", "leaseExpiresAt", "lastHeartbeat"),
}
DATES = ("nextRunAt", "createdAt", "updatedAt", "lockedAt", "lastHeartbeat", "leaseExpiresAt")

#: As the driver names them: another name or another filter on the same keys makes `initialize` fail.
INDEXES: Mapping[Generation, Sequence[Sequence[tuple[str, int]]]] = {
    1: (
        [("status", ASCENDING), ("nextRunAt", ASCENDING)],
        [("name", ASCENDING), ("status", ASCENDING)],
        [("createdAt", DESCENDING), ("_id", DESCENDING)],
        [("updatedAt", DESCENDING), ("_id", DESCENDING)],
        [("nextRunAt", DESCENDING), ("_id", DESCENDING)],
        [("claimedBy", ASCENDING), ("status", ASCENDING)],
        [("lastHeartbeat", ASCENDING), ("status", ASCENDING)],
        [("name", ASCENDING), ("status", ASCENDING), ("nextRunAt", ASCENDING), ("claimedBy", ASCENDING)],
        [("status", ASCENDING), ("lockedAt", ASCENDING), ("lastHeartbeat", ASCENDING)],
    ),
    2: (
        [
            ("name", ASCENDING),
            ("status", ASCENDING),
            ("priority", DESCENDING),
            ("nextRunAt", ASCENDING),
            ("_id", ASCENDING),
        ],
        [("name", ASCENDING), ("createdAt", DESCENDING), ("_id", DESCENDING)],
        [("status", ASCENDING), ("createdAt", DESCENDING), ("_id", DESCENDING)],
    ),
}
UNIQUE = IndexModel(
    [("name", ASCENDING), ("uniqueKey", ASCENDING)],
    unique=True,
    partialFilterExpression={"uniqueKey": {"$exists": True}, "status": {"$in": LIVE}},
)

#: The longest timer of Node, and how long a longer one is.
LONGEST_TIMER_MS = 2**31 - 1
OVERFLOWN_MS = 1.0

#: The changes that wake a Monque process; a replaced document does not.
WAKING: list[Document] = [
    {
        "$match": {
            "$or": [
                {"operationType": "insert"},
                {"operationType": "update", "updateDescription.updatedFields.status": {"$exists": True}},
                {"operationType": "update", "updateDescription.updatedFields.nextRunAt": {"$exists": True}},
            ]
        }
    }
]


def now() -> datetime:
    """Whole milliseconds, as Date has them."""
    at = datetime.now(UTC)
    return at.replace(microsecond=at.microsecond // 1_000 * 1_000)


def next_occurrence(cron: str, zone: str | None) -> datetime:
    """The next time after now."""
    return next(CronSim(cron, datetime.now(ZoneInfo(zone or "UTC")))).astimezone(UTC)


class Monque:
    """One process's view of the collection: who it is, which generation, and its settings."""

    def __init__(self, collection: AsyncCollection[Document], generation: Generation, me: str) -> None:
        self.collection = collection
        self.generation = generation
        self.me = me
        self.lock_timeout = timedelta(minutes=30)
        self.heartbeat_ms = 30_000
        self.lease_ms: int | None = None
        self.max_retries = 10
        self.base_ms = 1_000
        self.cap_ms = 24 * 3_600_000

    # ------------------------------------------------------------------------------------------------ start

    async def create_indexes(self) -> list[str]:
        """Those that it expects; the names of those that were not there."""
        before = set(await self.collection.index_information())
        keys = [*INDEXES[1], *(INDEXES[2] if self.generation == 2 else ())]
        await self.collection.create_indexes([UNIQUE, *map(IndexModel, keys)])
        return sorted(set(await self.collection.index_information()) - before - {"_id_"})

    async def recover_stale(self) -> int:
        """At the start only: whatever the heartbeat says."""
        at = now()
        stale: Document = {"lockedAt": {"$lt": at - self.lock_timeout}}
        if self.generation == 2:
            ended = {"leaseExpiresAt": {"$exists": True}, "$expr": {"$lte": ["$leaseExpiresAt", "$$NOW"]}}
            stale = {"$or": [{**stale, "leaseExpiresAt": {"$exists": False}}, ended]}
        change = self._out({"status": "pending", "updatedAt": at})
        return (await self.collection.update_many({"status": "processing", **stale}, change)).modified_count

    # ------------------------------------------------------------------------------------------------ in

    def document(
        self,
        name: str,
        data: object = None,
        *,
        run_at: datetime | None = None,
        unique_key: str | None = None,
        priority: int = 0,
        cron: str | None = None,
        timezone: str | None = None,
    ) -> Document:
        """A job that is enqueued now."""
        at = now()
        first = next_occurrence(cron, timezone) if cron and run_at is None else run_at or at
        made: Document = {
            "name": name,
            "data": {} if data is None else data,
            "status": "pending",
            "nextRunAt": first,
            "failCount": 0,
        }
        if cron is not None:
            made["repeatInterval"] = cron
        if unique_key is not None:
            made["uniqueKey"] = unique_key
        if self.generation == 2:
            made["priority"] = priority
            if timezone is not None:
                made["timezone"] = timezone
        return made | {"createdAt": at, "updatedAt": at}

    async def enqueue(self, document: Document) -> str:
        """Its id, or that of the live job with its unique key."""
        if "uniqueKey" not in document:
            return str((await self.collection.insert_one(document)).inserted_id)
        which = {"name": document["name"], "uniqueKey": document["uniqueKey"], "status": {"$in": LIVE}}
        fields = {name: value for name, value in document.items() if name not in ("name", "uniqueKey", "_id")}
        # The fields of the filter that are no operators are set by the upsert itself.
        try:
            found = await self.collection.find_one_and_update(
                which, {"$setOnInsert": fields}, upsert=True, return_document=ReturnDocument.AFTER
            )
        except DuplicateKeyError:
            found = await self.collection.find_one(which)
        assert found is not None
        return str(found["_id"])

    async def enqueue_many(self, documents: Sequence[Document]) -> list[str]:
        """In one command."""
        made = [{"_id": bson.ObjectId(), **document} for document in documents]
        await self.collection.bulk_write([InsertOne(one) for one in made], ordered=False)
        return [str(one["_id"]) for one in made]

    # ------------------------------------------------------------------------------------------------ work

    async def claim(self, name: str) -> Document | None:
        """One due job."""
        at = now()
        which: Document = {"name": name, "status": "pending", "nextRunAt": {"$lte": at}}
        fields: Document = {"status": "processing", "claimedBy": self.me, "lockedAt": at, "lastHeartbeat": at}
        fields |= {"heartbeatInterval": self.heartbeat_ms, "updatedAt": at}
        if self.generation == 1:
            which["$or"] = [{"claimedBy": None}, {"claimedBy": {"$exists": False}}]
            order = [("nextRunAt", ASCENDING)]
        else:
            fields["claimId"] = str(uuid.uuid4())
            order = [("priority", DESCENDING), ("nextRunAt", ASCENDING), ("_id", ASCENDING)]
        change: Document | list[Document] = {"$set": fields}
        if self.lease_ms is not None:
            ends = {"$dateAdd": {"startDate": "$$NOW", "unit": "millisecond", "amount": self.lease_ms}}
            change = [{"$set": {**fields, "leaseExpiresAt": ends}}]
        return await self.collection.find_one_and_update(
            which, change, sort=order, return_document=ReturnDocument.AFTER
        )

    async def complete(self, job: Document) -> bool:
        """Whether it was still ours."""
        fields: Document = {"status": "completed"}
        if cron := job.get("repeatInterval"):
            zone = job.get("timezone") if self.generation == 2 else None
            fields = {"status": "pending", "nextRunAt": next_occurrence(cron, zone), "failCount": 0}
        return await self._settle(job, fields, "failReason")

    async def fail(self, job: Document, why: str) -> bool:
        """Once more after a while, or never; a recurring job as well."""
        count = job["failCount"] + 1
        fields: Document = {"status": "failed", "failCount": count, "failReason": why}
        if count < self.max_retries:
            fields |= {"status": "pending", "nextRunAt": now() + timedelta(milliseconds=self._backoff_ms(count))}
        return await self._settle(job, fields)

    async def release(self, job: Document) -> bool:
        """At a shutdown."""
        return await self._settle(job, {"status": "pending"})

    async def beat(self, jobs: Sequence[Document]) -> None:
        """Say that the process lives; not of `lockedAt`."""
        which: Document = {"claimedBy": self.me, "status": "processing"}
        if self.generation == 2:
            which["claimId"] = {"$in": [job["claimId"] for job in jobs]}
        at = now()
        fields: Document = {"lastHeartbeat": at, "updatedAt": at}
        change: Document | list[Document] = {"$set": fields}
        if self.lease_ms is not None:
            ends = {"$dateAdd": {"startDate": "$$NOW", "unit": "millisecond", "amount": self.lease_ms}}
            change = [{"$set": {**fields, "leaseExpiresAt": ends}}]
        await self.collection.update_many(which, change)

    # ------------------------------------------------------------------------------------------------ by hand

    async def cancel(self, id: bson.ObjectId) -> bool:
        """A job that waits."""
        return await self._update({"_id": id, "status": "pending"}, {"$set": {"status": "cancelled"}})

    async def retry(self, id: bson.ObjectId) -> bool:
        """A job that failed or was cancelled."""
        which = {"_id": id, "status": {"$in": ["failed", "cancelled"]}}
        return await self._update(
            which, self._out({"status": "pending", "failCount": 0, "nextRunAt": now()}, "failReason")
        )

    async def reschedule(self, id: bson.ObjectId, at: datetime) -> bool:
        """A job that waits."""
        return await self._update({"_id": id, "status": "pending"}, {"$set": {"nextRunAt": at}})

    async def delete(self, id: bson.ObjectId) -> bool:
        """A job in any status."""
        return bool((await self.collection.delete_one({"_id": id})).deleted_count)

    # ------------------------------------------------------------------------------------------------

    async def _settle(self, job: Document, fields: Document, *gone: str) -> bool:
        owned = {"_id": job["_id"], "status": "processing", "claimedBy": self.me}
        if self.generation == 2:
            owned["claimId"] = job["claimId"]
        return await self._update(owned, self._out(fields, *gone))

    async def _update(self, which: Document, change: Document) -> bool:
        fields = {**change["$set"], "updatedAt": now()}
        return bool((await self.collection.update_one(which, {**change, "$set": fields})).matched_count)

    def _out(self, fields: Document, *gone: str) -> Document:
        return {"$set": fields, "$unset": dict.fromkeys([*CLAIM_FIELDS[self.generation], *gone], "")}

    def _backoff_ms(self, count: int) -> float:
        plain = min(float(self.base_ms) * 2.0**count, float(self.cap_ms))
        return min(plain * random.uniform(0.75, 1.25), self.cap_ms)


def hazards(job: Document) -> list[str]:
    """What in a document makes a Node process hot-loop, hang or refuse, or is never there in a Monque of its own."""
    found = [f"{name} is {job[name]!r}" for name in DATES if name in job and not isinstance(job[name], datetime)]
    found += [f"no {name}" for name in ("name", "status", "nextRunAt", "createdAt", "updatedAt") if name not in job]
    if job.get("status") not in STATUSES:
        found.append(f"status is {job.get('status')!r}")
    if not isinstance(job.get("failCount"), int) or job["failCount"] < 0:
        found.append(f"failCount is {job.get('failCount')!r}")
    if "priority" in job and not isinstance(job["priority"], int):
        found.append(f"priority is {job['priority']!r}")
    found += [
        f"{name} is {job[name]!r}" for name in ("uniqueKey", "repeatInterval", "timezone") if not _is_text(job, name)
    ]
    claim = {"lockedAt", "claimedBy", "lastHeartbeat", "claimId", "leaseExpiresAt"} & job.keys()
    if claim and job.get("status") != "processing":
        found.append(f"{', '.join(sorted(claim))} of a job that is {job.get('status')}")
    if isinstance(cron := job.get("repeatInterval"), str) and len(cron.split()) != 5 and not cron.startswith("@"):
        found.append(f"repeatInterval is {cron!r}")
    return found


def timer_ms(job: Document) -> float:
    """The timer that a process sets for a job which is due later; Node makes those above 24.8 days this short."""
    at = job.get("nextRunAt")
    wait_ms = (at - now()) / timedelta(milliseconds=1) if isinstance(at, datetime) else 0
    return OVERFLOWN_MS if wait_ms > LONGEST_TIMER_MS else wait_ms


def _is_text(job: Document, name: str) -> bool:
    return name not in job or (isinstance(job[name], str) and bool(job[name].strip()))
