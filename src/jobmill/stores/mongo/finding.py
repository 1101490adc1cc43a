"""Finding what may be claimed: jobs that are due, in claim order, and running ones that nobody holds any more."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Iterator
from typing import Any

from bson import ObjectId
from msgspec import Struct

from jobmill.core.changes import Claim
from jobmill.stores.mongo import documents, indexes
from jobmill.stores.mongo.base import ended, stale
from jobmill.stores.mongo.feeds import Known, known_of
from jobmill.stores.mongo.link import QUEUES, Document
from jobmill.stores.mongo.settling import Settles
from jobmill.stores.mongo.values import date, ms_of

ORDER = [("priority", -1), ("nextRunAt", 1), ("_id", 1)]
_PLACE = {"_id": 1, "name": 1, "priority": 1, "nextRunAt": 1, "status": 1, "jobmill.id": 1}
_FIRST = date(-(2**62))
#: A claim could not be written into a `jobmill` of another program's that is one of these.
_NO_OBJECTS = ["null", "string", "number", "bool", "array", "date", "objectId", "binData"]

#: While every claim is filled by jobs that wait, ended leases are looked for this often.
ENDED_EVERY_S = 0.5
#: What gave no sign for the lock timeout is looked for this often: as a rule, and at most, where that timeout is short.
STALE_EVERY_MS = 15_000
_STALE_AT_MOST_EVERY_MS = 250


class Found(Struct, frozen=True):
    """Jobs that may be claimed, in claim order, and whether there is more behind them."""

    waiting: list[Document]
    lost: list[Document]
    #: When the next one that waits is due, where that is known: it is now or before.
    next_due_ms: int | None

    def __len__(self) -> int:
        return len(self.waiting) + len(self.lost)


NOTHING = Found(waiting=[], lost=[], next_due_ms=None)


class Searched(Settles):
    """What claims of this process know of each other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Which names somebody here works.
        self._names: set[str] = set()
        self._looked_for_ended = 0.0
        self._stale_from_ms = 0
        self._stale_every_ms = max(_STALE_AT_MOST_EVERY_MS, min(STALE_EVERY_MS, self._place.lock_timeout_ms // 2))
        # What another claim of this process is just taking: to look for it would be in vain. And how many jobs are
        # looked for right now: who looks at the same time finds the same ones.
        self._in_hand: set[ObjectId] = set()
        self._looked_for = 0

    @contextlib.contextmanager
    def _taking(self, found: Found) -> Iterator[None]:
        """Other claims leave these alone meanwhile."""
        ids = {document["_id"] for document in (*found.waiting, *found.lost)}
        self._in_hand |= ids
        try:
            yield
        finally:
            self._in_hand -= ids


class Search:
    """The search of one claim in one queue."""

    def __init__(
        self,
        store: Searched,
        queue: str,
        claim: Claim,
        rooms: dict[str, int],
        n: int,
        not_these: set[str],
        now_ms: int,
    ) -> None:
        self._store = store
        self._queue = queue
        self._claim = claim
        self._rooms = {name: room for name, room in rooms.items() if room > 0}
        self._names = [name for name, room in claim.names.items() if room > 0]
        self._n = n
        self._not_these = not_these
        self._now_ms = now_ms
        self._order: dict[str, int] = {}
        # What an earlier look of this claim has got.
        self._handed: set[str] = set()
        # Whether there was more than was asked for.
        self._is_cut = False
        # For which queues the first look is to learn what is set, and what it learnt.
        self._ask_known: Collection[str] = ()
        self.known: dict[str, Known] | None = None

    async def _find(self, most: int) -> Found:
        """What may be claimed, in claim order and within the room of each name."""
        store = self._store
        # What is yet to be settled is not found; what this call made wait again may be.
        settled = 0 if self._ask_known else len(self._not_these)
        spare = settled + len(store._in_hand) + len(self._handed) + store._looked_for
        self._is_cut = False
        store._looked_for += most
        try:
            waiting = [one for one in await self._waiting(most + 1, spare) if not self._is_another(one)]
            lost = [] if len(waiting) > most and self._is_busy() else await self._lost(most + spare)
        finally:
            store._looked_for -= most
        taken: list[Document] = []
        rooms = dict(self._rooms)
        left: Document | None = None
        # Two questions, one after the other: a job may have changed between them, and counts as it was seen last. Taken
        # twice it would run twice under one token.
        last_seen = {document["_id"]: document for document in (*waiting, *lost)}
        for document in sorted(last_seen.values(), key=_in_order):
            name = document["name"]
            if self._is_another(document):
                continue
            if rooms.get(name, 0) > 0 and len(taken) < most:
                rooms[name] -= 1
                taken.append(document)
            elif left is None and document["status"] == "pending":
                left = document
        for document in taken:
            self._order.setdefault(documents.id_of(document), len(self._order))
        return Found(
            waiting=[one for one in taken if one["status"] == "pending"],
            lost=[one for one in taken if one["status"] == "processing"],
            next_due_ms=None if left is None else min(self._now_ms, ms_of(left["nextRunAt"]) or 0),
        )

    def _is_busy(self) -> bool:
        """Whether ended leases were looked for a moment ago."""
        return time.monotonic() - self._store._looked_for_ended < ENDED_EVERY_S

    def _is_another(self, document: Document) -> bool:
        """Whether a job is for nobody now: this call settled it or has it already, or another claim is taking it."""
        id = documents.id_of(document)
        return document["_id"] in self._store._in_hand or id in self._not_these or id in self._handed

    async def _waiting(self, limit: int, spare: int) -> list[Document]:
        """Due jobs. Names with little room are asked for one by one, so that none hides another."""
        plenty = [name for name, room in self._rooms.items() if room >= limit - 1]
        scarce = [name for name, room in self._rooms.items() if 0 < room < limit - 1]
        asked: list[tuple[Any, int]] = [(name, self._rooms[name] + spare + 1) for name in scarce]
        if plenty:
            asked.append(({"$in": plenty} if len(plenty) > 1 else plenty[0], limit + spare))
        if self._ask_known and len(asked) == 1:
            return await self._waiting_and_known(*asked[0])
        found = await asyncio.gather(*(self._waiting_of(name, most) for name, most in asked))
        return [document for some in found for document in some]

    async def _waiting_of(self, name: Any, limit: int) -> list[Document]:
        store = self._store
        query = {**self._due(), "name": name}
        jobs = store._here.jobs
        found = await store._hinted(
            indexes.CLAIM, lambda hint: jobs.find(query, _PLACE, **_at_once(limit), **hint).sort(ORDER).to_list()
        )
        self._is_cut |= len(found) == limit
        return found

    async def _waiting_and_known(self, name: Any, limit: int) -> list[Document]:
        """The same, and what is set for queues, in one round trip: for pymongo half of the work of two."""
        store = self._store
        known = [{"$match": {"_id": {"$in": list(self._ask_known)}}}, {"$project": {"lock": 0}}]
        stages: list[Document] = [
            {"$match": {**self._due(), "name": name}},
            {"$sort": dict(ORDER)},
            {"$limit": limit},
            {"$project": _PLACE},
            {"$unionWith": {"coll": QUEUES, "pipeline": known}},
        ]

        async def ask(hint: dict[str, Any]) -> list[Document]:
            size = limit + len(self._ask_known) + 1
            return await (await store._here.jobs.aggregate(stages, batchSize=size, **hint)).to_list()

        both = await store._hinted(indexes.CLAIM, ask)
        found = [one for one in both if "status" in one]
        self.known = {one["_id"]: known_of(one) for one in both if "status" not in one}
        self._is_cut |= len(found) == limit
        return found

    def _due(self) -> Document:
        queue = self._store._queue_is(self._queue)
        due = {"status": "pending", "nextRunAt": {"$lte": date(self._now_ms)}}
        return {"jobmill.queue": queue, **due, "jobmill": {"$not": {"$type": _NO_OBJECTS}}}

    async def _lost(self, limit: int) -> list[Document]:
        """Running jobs that nobody holds any more."""
        store, now_ms = self._store, self._now_ms
        store._looked_for_ended = time.monotonic()
        mine = {
            "jobmill.queue": store._queue_is(self._queue),
            "name": {"$in": [name for name, room in self._rooms.items() if room > 0]},
        }
        query: Document = {**ended(now_ms), **mine}
        lost = await self._held_by_nobody(query, limit)
        if self._queue == store._place.queue and store._place.recover_foreign and now_ms >= store._stale_from_ms:
            query = {**stale(now_ms, store._place.lock_timeout_ms), **mine}
            foreign = await self._held_by_nobody(query, limit)
            # Where there is one there may be more.
            store._stale_from_ms = now_ms + (0 if foreign else store._stale_every_ms)
            lost += foreign
        return lost

    async def _held_by_nobody(self, query: Document, limit: int) -> list[Document]:
        jobs = self._store._here.jobs
        return await self._store._hinted(
            indexes.LEASE, lambda hint: jobs.find(query, _PLACE, **_at_once(limit), **hint).to_list()
        )

    async def _running(self) -> int:
        """How many jobs of the queue somebody holds."""
        store, jobs = self._store, self._store._here.jobs
        mine = {"jobmill.queue": store._queue_is(self._queue)}
        all_of_them: Document = {**mine, "status": "processing"}
        running = await store._hinted(indexes.LEASE, lambda hint: jobs.count_documents(all_of_them, **hint))
        nobodys: Document = {**ended(self._now_ms), **mine}
        lost = await store._hinted(indexes.LEASE, lambda hint: jobs.count_documents(nobodys, **hint))
        return running - lost

    async def _next_due(self) -> int | None:
        """The earliest due time of what waits."""
        store = self._store
        if not self._names:
            return None
        query: Document = {"jobmill.queue": store._queue_is(self._queue), "name": {"$in": self._names}}
        query["status"] = "pending"
        # By type: what another program wrote there that is no date is never due.
        query["nextRunAt"] = {"$gte": _FIRST}
        jobs, shown = store._here.jobs, {"_id": 0, "nextRunAt": 1}
        first = await store._hinted(
            indexes.DUE, lambda hint: jobs.find(query, shown, **hint).sort("nextRunAt", 1).limit(1).to_list()
        )
        return ms_of(first[0]["nextRunAt"]) if first else None


def _at_once(limit: int) -> dict[str, Any]:
    """So many, in one answer: as a rule the first has no more than a hundred."""
    return {"limit": limit, "batch_size": limit + 1}


def _in_order(document: Document) -> tuple[float, int, bytes]:
    """Claim order, as the server sorts it: a job without a priority comes behind all that have one."""
    priority = document.get("priority")
    number = -float(priority) if isinstance(priority, int | float) else float("inf")
    id = document["_id"]
    return (number, ms_of(document.get("nextRunAt")) or 0, id.binary if isinstance(id, ObjectId) else b"")
