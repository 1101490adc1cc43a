"""What all verbs of the MongoDB store stand on: the link, the clock, and documents read as jobs."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from bson import ObjectId
from pymongo.errors import OperationFailure

from jobmill.core.job import Job
from jobmill.stores.mongo import codec
from jobmill.stores.mongo.codec import OURS
from jobmill.stores.mongo.connection import Connected, Document, Link
from jobmill.stores.mongo.url import Place
from jobmill.stores.mongo.values import CODEC, date, ms_of, object_id

T = TypeVar("T")
#: What a server says to a hint that names no index.
BAD_VALUE = 2


class Base:
    """A place, and the time there."""

    def __init__(self, url: str, clock: Callable[[], int] | None = None) -> None:
        self._place = Place.read(url)
        self._link = Link(self._place)
        self._clock = clock
        # From a clock that nobody sets: what changes this machine's must not end others' leases.
        self._offset_ms = (time.time() - time.monotonic()) * 1000
        # The indexes that there are, by the last look: a query that names one is never planned anew.
        self._hints: set[str] = set()

    def now(self) -> int:
        """The server's clock, by the offset that was last measured."""
        return self._clock() if self._clock else int(time.monotonic() * 1000 + self._offset_ms)

    @property
    def _here(self) -> Connected:
        return self._link.here()

    async def _learn_time(self) -> Document:
        """The server's clock is the store's: ours is corrected by what lies between the two. What the server says."""
        began = time.monotonic()
        said: Document = await self._here.database.command("hello", codec_options=CODEC)
        told = ms_of(said.get("localTime"))
        if told is not None and self._clock is None:
            # It looked at its clock somewhere between question and answer.
            least, most = told - time.monotonic() * 1000, told - began * 1000
            self._offset_ms = min(max(self._offset_ms, least), most)
        return said

    async def _hinted(self, name: str, ask: Callable[[dict[str, Any]], Awaitable[T]]) -> T:
        """Ask by an index, if it is there; where somebody has dropped it, without."""
        hint = {"hint": name} if name in self._hints else {}
        try:
            return await ask(hint)
        except OperationFailure as error:
            if not hint or error.code != BAD_VALUE:
                raise
            self._hints.discard(name)
            return await ask({})

    def _queue_is(self, queue: str) -> str | None:
        """What `jobmill.queue` is in the documents of a queue."""
        return None if queue == self._place.queue else queue

    def _job(self, document: Document) -> Job:
        return codec.job_of(document, self._place.queue)

    async def _by_ids(self, ids: Sequence[str], projection: Document | None = None) -> dict[str, Document]:
        """The documents of these ids, in no order."""
        theirs = [known for id in ids if (known := object_id(id)) is not None]
        own = [id for id in ids if object_id(id) is None]
        found: dict[str, Document] = {}
        for query in _queries(theirs, own):
            async for document in self._here.jobs.find(query, projection):
                if codec.is_known(document):
                    found[codec.id_of(document)] = document
        return found


def _queries(theirs: list[ObjectId], own: list[str]) -> Iterable[Document]:
    if theirs:
        yield {"_id": {"$in": theirs}}
    if own:
        yield {"jobmill.id": {"$in": own}}


def ended(now_ms: int, from_ms: int | None = None) -> Document:
    """Claims of ours whose lease has ended, not before then."""
    until = {"$lte": date(now_ms)} | ({} if from_ms is None else {"$gte": date(from_ms)})
    return {"status": "processing", "jobmill.leaseUntil": until, "claimedBy": {"$regex": f"^{OURS}"}}


def stale(now_ms: int, lock_timeout_ms: int) -> Document:
    """Claims of others who gave no sign for too long: neither by lockedAt nor by a heartbeat, nor hold a lease."""
    long_ago = date(now_ms - lock_timeout_ms)
    return {
        "status": "processing",
        "claimedBy": {"$not": {"$regex": f"^{OURS}"}},
        "lockedAt": {"$lt": long_ago},
        "$and": [
            {"$or": [{"lastHeartbeat": None}, {"lastHeartbeat": {"$lt": long_ago}}]},
            {"$or": [{"leaseExpiresAt": None}, {"leaseExpiresAt": {"$lte": date(now_ms)}}]},
        ],
    }
