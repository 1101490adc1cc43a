"""What the tests of a review of the MongoDB store share: a store with its time, and what other programs write."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import bson
from bson import ObjectId

from jobmill.core.job import Keep
from jobmill.core.lifecycle import Policy
from jobmill.core.values import NewJob, RateLimit
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.codec import date
from jobmill.testing import ManualClock
from jobmill.testing.contract.support import new, put

Document = dict[str, Any]

HOME = ("default",)
LARGEST_DOCUMENT = 16 * 1024 * 1024
LOCK_TIMEOUT_S = 30 * 60
#: A job that is done leaves at once.
NOT_KEPT = Policy(keep_succeeded=Keep(last=0))
RATE = RateLimit(10, 60_000)

#: What a server adds to its answer when no majority has a write.
NOT_REPLICATED = {"code": 64, "codeName": "WriteConcernFailed", "errmsg": "waiting for replication timed out"}


class Scene:
    """A store of a clock that the test moves, and its collections as they are."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.url = url
        self.store = MongoStore(url, clock=self.clock)

    async def open(self) -> None:
        """With its indexes."""
        await self.store.migrate()
        await self.store.open()

    @contextlib.asynccontextmanager
    async def another(self) -> AsyncIterator[MongoStore]:
        """Another process's, of the same clock."""
        store = MongoStore(self.url, clock=self.clock)
        await store.open()
        yield store
        await store.close()

    async def put(self, *ids: str, **about: Any) -> None:
        """Enqueue jobs of ours, in the queue that is shared with Monque unless another is said."""
        await put(self.store, *(home(id, **about) for id in ids))

    async def insert(self, **about: Any) -> Any:
        """What another program wrote; its _id."""
        return (await self.store.context.here.jobs.insert_one(foreign(self.clock(), **about))).inserted_id

    async def insert_nearly_full(self, **about: Any) -> ObjectId:
        """The same, so large that next to nothing can be added to it."""
        document = foreign(self.clock(), **{"_id": ObjectId("f" * 24), **about, "data": ""})
        room = LARGEST_DOCUMENT - len(bson.encode(document)) - 20
        await self.store.context.here.jobs.insert_one(document | {"data": "x" * room})
        return ObjectId("f" * 24)


def home(id: str, **about: Any) -> NewJob:
    """A job of ours."""
    return new(id, **{"queue": "default", **about})


def foreign(t: int, **about: Any) -> Document:
    """A job that waits, as Monque would have written it."""
    times = {"nextRunAt": date(t), "createdAt": date(t), "updatedAt": date(t)}
    return {"name": "send", "data": {}, "status": "pending", "failCount": 0, "priority": 0, **times, **about}


def left(t: int) -> Document:
    """Of a claim that a Monque made then."""
    return {"status": "processing", "claimedBy": "node-1", "lockedAt": date(t), "lastHeartbeat": date(t)}


@contextlib.asynccontextmanager
async def profiled(store: MongoStore, *more: str) -> AsyncIterator[list[Document]]:
    """What the server did with the jobs, and with `more`, in the block, by its own account; told after the block."""
    database = store.context.here.database
    done: list[Document] = []
    await database.drop_collection("system.profile")
    await database.command("profile", 2)
    try:
        yield done
    finally:
        await database.command("profile", 0)
    names = [f"{database.name}.{name}" for name in (store.context.url.collection, *more)]
    done += await database["system.profile"].find({"ns": {"$in": names}}).to_list()
    await database.drop_collection("system.profile")  # nobody can empty it


def examined(done: list[Document]) -> int:
    """How many entries of indexes and documents the server looked at."""
    return sum(one.get("docsExamined", 0) + one.get("keysExamined", 0) for one in done)
