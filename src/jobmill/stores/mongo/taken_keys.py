"""Unique keys that stay taken for a time (the collection jobmill_taken_keys).

_id           .jobs: the collection of the jobs; .name; .key: the unique key, as the field uniqueKey has it
id            the id of the job that took the key
until         when the key is free again
uncertain     since when a call is about to insert that job, or to cancel or remove it

A call takes a key before it inserts the job. In the other order the job could end in between, and another call would
find the key free. If a process ended in between, a key without a job would block all others until its time is over. So
the key is uncertain until the job is there, and again while a call cancels or removes the job. An uncertain key counts
only if its job is in the store and is not cancelled. If the job is not there, the key is free after `GRACE_MS`: until
then its call may still be at work. A call that is slower than that may insert its job beside another one, but never
while a job with the key is live: the unique index refuses that. A key that is certain needs no job, because the
retention of the job may have removed it.

The job has the key in `jobmill.taken`, because it can lose its uniqueKey to another job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from jobmill.stores.mongo.codec import Document, date, id_of, ms_of, ours_of
from jobmill.stores.mongo.connection import DUPLICATE_KEY, BoundCollection, refused_writes
from jobmill.stores.mongo.context import MongoContext, with_ids
from jobmill.stores.mongo.url import MongoUrl

#: After this time, a process that has left a key uncertain is taken for dead.
GRACE_MS = 5_000
_UNCERTAIN = {"uncertain": {"$exists": True}}
_STATUS_SHOWN = {"status": 1, "jobmill.id": 1}

#: The name of a job, and its unique key as the field uniqueKey has it.
Key: TypeAlias = tuple[str, str]


async def reserve(ctx: MongoContext, wanted: Sequence[tuple[Key, str, int]], now_ms: int) -> set[int]:
    """Take keys for jobs that are about to be inserted: key, id and until when. The indexes of keys that are taken."""
    writes = []
    for key, id, until_ms in wanted:
        # A repeated call finds its own key.
        free = {"$or": [{"until": {"$lte": date(now_ms)}}, {"id": id, **_UNCERTAIN}]}
        fields = {"id": id, "until": date(until_ms), "uncertain": date(now_ms)}
        writes.append(UpdateOne({"_id": _id(ctx.url, key), **free}, {"$set": fields}, upsert=True))
    try:
        await ctx.here.taken_keys.bulk_write(writes, ordered=False)
    except BulkWriteError as error:
        return set(refused_writes(error, (DUPLICATE_KEY,)))
    return set()


async def take(keys: BoundCollection, url: MongoUrl, key: Key, id: str, until_ms: int) -> None:
    """Take a free key in the transaction that inserts the job."""
    update = {"$set": {"id": id, "until": date(until_ms)}, "$unset": {"uncertain": ""}}
    await keys.update({"_id": _id(url, key)}, update, upsert=True)


async def confirm(ctx: MongoContext, taken: Mapping[str, Key]) -> None:
    """The jobs with these ids are in the store: their keys are certain."""
    if taken:
        await ctx.here.taken_keys.update_many(_of(ctx.url, taken) | _UNCERTAIN, {"$unset": {"uncertain": ""}})


async def release(ctx: MongoContext, taken: Mapping[str, Key]) -> None:
    """The jobs with these ids were not inserted after all."""
    if taken:
        await ctx.here.taken_keys.delete_many(_of(ctx.url, taken) | _UNCERTAIN)


def taken_by(documents: Iterable[Document]) -> dict[str, Key]:
    """By id: the keys that these jobs have taken for a time."""
    return {id_of(one): (one["name"], ours_of(one)["taken"]) for one in documents if "taken" in ours_of(one)}


async def doubt(ctx: MongoContext, taken: Mapping[str, Key], now_ms: int) -> None:
    """The jobs with these ids are about to be cancelled or removed."""
    if taken:
        await ctx.here.taken_keys.update_many(_of(ctx.url, taken), {"$set": {"uncertain": date(now_ms)}})


async def free(keys: BoundCollection, url: MongoUrl, taken: Mapping[str, Key]) -> None:
    """The jobs with these ids were cancelled or removed."""
    if taken:
        await keys.delete(_of(url, taken))


async def holders(
    keys: BoundCollection, jobs: BoundCollection, url: MongoUrl, wanted: Collection[tuple[Key, str]], now_ms: int
) -> dict[Key, str | None]:
    """The keys that are taken, with the ids of the jobs that took them. `wanted`: keys and ids of new jobs.

    None: a call is about to insert that job. What a process has left uncertain that has ended is decided here.
    """
    query = {"_id": {"$in": [_id(url, key) for key in {key for key, _ in wanted}]}, "until": {"$gt": date(now_ms)}}
    found = await keys.find(query)
    uncertain = [one["id"] for one in found if "uncertain" in one]
    there = await jobs.find(with_ids(uncertain), _STATUS_SHOWN) if uncertain else []
    status = {id_of(one): one["status"] for one in there}
    taken: dict[Key, str | None] = {}
    for one in found:
        key, id = (one["_id"]["name"], one["_id"]["key"]), one["id"]
        since_ms = ms_of(one.get("uncertain"))
        is_late = since_ms is not None and since_ms <= now_ms - GRACE_MS
        if since_ms is None or status.get(id, "cancelled") != "cancelled":
            taken[key] = id
            if is_late:
                await keys.update(_same(one), {"$unset": {"uncertain": ""}})
        elif is_late or id in status:
            await keys.delete(_same(one))
        elif (key, id) not in wanted:
            taken[key] = None
    return taken


async def purge_taken_keys(ctx: MongoContext, now_ms: int) -> None:
    """Forget keys whose time is over."""
    await ctx.here.taken_keys.delete_many({"until": {"$lte": date(now_ms)}, "_id.jobs": ctx.url.collection})


def _id(url: MongoUrl, key: Key) -> Document:
    return {"jobs": url.collection, "name": key[0], "key": key[1]}


def _of(url: MongoUrl, taken: Mapping[str, Key]) -> Document:
    """A filter for keys that still belong to these jobs."""
    return {"_id": {"$in": [_id(url, key) for key in taken.values()]}, "id": {"$in": list(taken)}}


def _same(one: Document) -> Document:
    return {name: one[name] for name in ("_id", "id", "uncertain")}
