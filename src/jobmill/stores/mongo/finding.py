"""Finding what may be claimed: jobs that are due, in claim order, and running ones that nobody holds any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from typing import Any, TypeAlias

from bson import ObjectId
from msgspec import Struct

from jobmill.core.changes import Claim
from jobmill.stores.mongo import documents, indexes
from jobmill.stores.mongo.base import ended, stale
from jobmill.stores.mongo.feeds import Known, known_of
from jobmill.stores.mongo.floors import Floors
from jobmill.stores.mongo.link import QUEUES, Document
from jobmill.stores.mongo.settling import Settles
from jobmill.stores.mongo.values import date, ms_of

log = logging.getLogger("jobmill")

Ask: TypeAlias = Callable[[Document, int], Awaitable[list[Document]]]

ORDER = [("priority", -1), ("nextRunAt", 1), ("_id", 1)]
_PLACE = {"_id": 1, "name": 1, "priority": 1, "nextRunAt": 1, "status": 1, "jobmill.id": 1}
#: No name of a job: it has a blank.
_LEASES = "ended leases"
_FIRST = date(-(2**62))
#: A claim could not be written into a `jobmill` of another program's that is one of these; and what has a document as
#: its _id is nobody's job.
_NO_OBJECTS = ["null", "string", "number", "bool", "array", "date", "objectId", "binData"]
_WRITABLE: Document = {"jobmill": {"$not": {"$type": _NO_OBJECTS}}, "_id": {"$not": {"$type": "object"}}}
MOST_REFUSED = 1_000
MOST_REPORTED = 1_000

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
    #: Whether all are whole documents in which nothing but their place in that order changes while they wait.
    are_fresh: bool = False

    def __len__(self) -> int:
        return len(self.waiting) + len(self.lost)


NOTHING = Found(waiting=[], lost=[], next_due_ms=None)


class Searched(Settles):
    """What claims of this process know of each other."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Which names somebody here works.
        self._names: set[str] = set()
        self._reported: set[ObjectId] = set()
        # When ended leases were looked for, by queue.
        self._looked_for_ended: dict[str, float] = {}
        self._stale_from_ms = 0
        self._stale_every_ms = max(_STALE_AT_MOST_EVERY_MS, min(STALE_EVERY_MS, self._place.lock_timeout_ms // 2))
        self._floors = Floors()
        # What another claim of this process is just taking: to look for it would be in vain.
        self._in_hand: set[ObjectId] = set()
        # What the server refuses to write a claim into.
        self._refused: set[ObjectId] = set()
        # Whether another process was quicker than the last claim.
        self._are_others_quicker = False

    def _put_behind(self) -> None:
        """A job may wait that was due before others that were claimed already."""
        self._floors.forget()

    def _refuse(self, document: Document, why: str) -> None:
        """Leave a job alone from now on."""
        if len(self._refused) < MOST_REFUSED:
            self._refused.add(document["_id"])
        self._report_once(document, f"it cannot be claimed: {why[:200]}")

    def _report_once(self, document: Document, why: str) -> None:
        """Say of a job, once, that it will never run."""
        if document["_id"] not in self._reported and len(self._reported) < MOST_REPORTED:
            self._reported.add(document["_id"])
            log.warning("the job %s in %s will never run: %s", document["_id"], self._place.shown, why)

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
        # When there may be jobs that were not looked for.
        self._look_again_ms: int | None = None
        # What an earlier look of this claim has got.
        self._handed: set[str] = set()
        # Whether whole documents are asked for.
        self._is_whole = False
        # Whether there was more than was asked for.
        self._is_cut = False
        # For which queues the first look is to learn what is set, and what it learnt.
        self._ask_known: Collection[str] = ()
        self.known: dict[str, Known] | None = None

    async def _find(self, most: int) -> Found:
        """What may be claimed, in claim order and within the room of each name."""
        store = self._store
        # What is yet to be settled is not found; what this call made wait again may be.
        spare = (0 if self._ask_known else len(self._not_these)) + len(self._handed)
        self._is_cut = False
        # A claim of one reads it by find-and-modify; and what others may take first is not worth its payload.
        self._is_whole = most > 1 and not store._are_others_quicker
        # Who looks at the same time would find the same ones.
        async with store._here.looking:
            waiting = [one for one in await self._waiting(most + 1, spare) if not self._is_another(one)]
            some = most + spare + len(store._in_hand) + len(store._refused)
            lost = [] if len(waiting) > most and self._is_busy() else await self._lost(some)
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
            are_fresh=self._is_whole and all(map(_is_fresh, taken)),
        )

    def _is_busy(self) -> bool:
        """Whether ended leases were looked for a moment ago."""
        return time.monotonic() - self._store._looked_for_ended.get(self._queue, 0.0) < ENDED_EVERY_S

    def _is_another(self, document: Document) -> bool:
        """Whether a job is for nobody now: this call settled it or has it, another is taking it, or it is refused."""
        key, id = document["_id"], documents.id_of(document)
        is_left_alone = key in self._store._in_hand or key in self._store._refused
        return is_left_alone or id in self._not_these or id in self._handed

    async def _waiting(self, limit: int, spare: int) -> list[Document]:
        """Due jobs. Names with little room are asked for one by one, so that none hides another."""
        plenty = [name for name, room in self._rooms.items() if room >= limit - 1]
        scarce = [name for name, room in self._rooms.items() if 0 < room < limit - 1]
        asked: list[tuple[tuple[str, ...], int]] = [((name,), self._rooms[name] + spare + 1) for name in scarce]
        if plenty:
            asked.append((tuple(plenty), limit + spare))
        if self._ask_known and len(asked) == 1:
            return await self._from_floor(*asked[0], self._waiting_and_known)
        found = await asyncio.gather(*(self._from_floor(names, most, self._waiting_of) for names, most in asked))
        return [document for some in found for document in some]

    async def _from_floor(self, names: tuple[str, ...], limit: int, ask: Ask) -> list[Document]:
        """Ask for jobs where there may be some; see `floors`."""
        floor = self._store._floors.of(self._queue, names)
        found: list[Document] = []
        began = time.monotonic()
        if floor is not None and floor.is_for(began):
            if began >= floor.raise_at:
                floor.raised(await self._oldest(names, floor.due_ms), self._now_ms, began)
            found = await ask(self._due(names, floor.due_ms), limit)
            is_all = len(found) < limit and not floor.is_enough
            if len(found) < limit and not is_all:
                self._look_again_ms = self._now_ms + max(0, round((floor.all_at - began) * 1000))
        else:
            is_all = True
        if is_all:
            began = time.monotonic()
            found = await ask(self._due(names, None), limit)
            if floor is not None:
                floor.looked_at_all(began, time.monotonic())
                if floor.due_ms is None or any((ms_of(one["nextRunAt"]) or 0) < floor.due_ms for one in found):
                    floor.raised(await self._oldest(names, None), self._now_ms, began)
        self._is_cut |= len(found) == limit
        return found

    async def _waiting_of(self, query: Document, limit: int) -> list[Document]:
        store, jobs = self._store, self._store._here.jobs
        shown = None if self._is_whole else _PLACE
        return await store._hinted(
            indexes.CLAIM, lambda hint: jobs.find(query, shown, **_at_once(limit), **hint).sort(ORDER).to_list()
        )

    async def _waiting_and_known(self, query: Document, limit: int) -> list[Document]:
        """The same, and what is set for queues, in one round trip: for pymongo half of the work of two."""
        store = self._store
        known = [{"$match": {"_id": {"$in": list(self._ask_known)}}}, {"$project": {"lock": 0}}]
        stages: list[Document] = [
            {"$match": query},
            {"$sort": dict(ORDER)},
            {"$limit": limit},
            *(() if self._is_whole else ({"$project": _PLACE},)),
            {"$unionWith": {"coll": QUEUES, "pipeline": known}},
        ]

        async def ask(hint: dict[str, Any]) -> list[Document]:
            size = limit + len(self._ask_known) + 1
            return await (await store._here.jobs.aggregate(stages, batchSize=size, **hint)).to_list()

        both = await store._hinted(indexes.CLAIM, ask)
        self.known = {one["_id"]: known_of(one) for one in both if "status" not in one}
        return [one for one in both if "status" in one]

    def _due(self, names: tuple[str, ...], from_ms: int | None) -> Document:
        """Jobs of these names that are due, and were not before then."""
        due = {"$lte": date(self._now_ms)} if from_ms is None else {"$gte": date(from_ms), "$lte": date(self._now_ms)}
        # Left out by the server: what is in hand may be large, and would be read in vain.
        others = [*self._store._in_hand, *self._store._refused]
        id = {**_WRITABLE["_id"], "$nin": others} if others else _WRITABLE["_id"]
        return {**self._waits(names), "nextRunAt": due, **_WRITABLE, "_id": id}

    def _waits(self, names: Sequence[str]) -> Document:
        # In the home queue the field is missing. To ask for null would be two ranges of the index, which the server
        # has to merge: measured, half as dear again.
        queue = self._store._queue_is(self._queue)
        name = names[0] if len(names) == 1 else {"$in": list(names)}
        return {"jobmill.queue": {"$exists": False} if queue is None else queue, "status": "pending", "name": name}

    async def _oldest(self, names: Sequence[str], from_ms: int | None, *, later: bool = False) -> int | None:
        """The earliest due time of what waits, from then on or later than that."""
        store, jobs = self._store, self._store._here.jobs
        # By type: what another program wrote there that is no date is never due.
        bound = {"$gt" if later else "$gte": _FIRST if from_ms is None else date(from_ms)}
        query, shown = {**self._waits(names), "nextRunAt": bound}, {"_id": 0, "nextRunAt": 1}
        first = await store._hinted(
            indexes.DUE, lambda hint: jobs.find(query, shown, limit=1, **hint).sort("nextRunAt", 1).to_list()
        )
        return ms_of(first[0]["nextRunAt"]) if first else None

    async def _lost(self, limit: int) -> list[Document]:
        """Running jobs that nobody holds any more."""
        store, now_ms = self._store, self._now_ms
        store._looked_for_ended[self._queue] = time.monotonic()
        names = [name for name, room in self._rooms.items() if room > 0]
        mine = {"jobmill.queue": store._queue_is(self._queue), "name": {"$in": names}, **_WRITABLE}
        lost = await self._ended(mine, limit)
        if self._queue == store._place.queue and store._place.recover_foreign and now_ms >= store._stale_from_ms:
            query: Document = {**stale(now_ms, store._place.lock_timeout_ms), **mine}
            foreign = await self._held_by_nobody(query, limit)
            # Where there is one there may be more.
            store._stale_from_ms = now_ms + (0 if foreign else store._stale_every_ms)
            lost += foreign
        return lost

    async def _ended(self, mine: Document, limit: int) -> list[Document]:
        """Those of ours; with a floor of their own, for what is settled leaves its entry in that index as well."""
        floor = self._store._floors.of(self._queue, (_LEASES, *mine["name"]["$in"]))
        began = time.monotonic()
        from_ms = floor.due_ms if floor is not None and floor.is_for(began) else None
        found = await self._held_by_nobody({**ended(self._now_ms, from_ms), **mine}, limit)
        if floor is not None:
            if from_ms is None:
                floor.looked_at_all(began, time.monotonic())
            if not found:
                floor.raised(None, self._now_ms, began)
        return found

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

    async def _next_due(self, *, later: bool = False) -> int | None:
        """The earliest due time of what waits; where all that is due was taken, only of what is due later."""
        if not self._names:
            return None
        due_ms = await self._oldest(self._names, self._now_ms if later else None, later=later)
        return min((one for one in (due_ms, self._look_again_ms) if one is not None), default=None)


def _is_fresh(document: Document) -> bool:
    """Whether a job that waits was never claimed and comes only once, so that what is known of it stays so."""
    ours, errors = documents.ours_of(document), document.get("failCount")
    is_new = isinstance(errors, int | float) and not isinstance(errors, bool) and errors == 0 and "claims" not in ours
    comes_again = document.get("repeatInterval") or "rule" in ours
    return document["status"] == "pending" and is_new and not comes_again and "leaseExpiresAt" not in document


def _at_once(limit: int) -> dict[str, Any]:
    """So many, in one answer: as a rule the first has no more than a hundred."""
    return {"limit": limit, "batch_size": limit + 1}


def _in_order(document: Document) -> tuple[float, int, bytes]:
    """Claim order, as the server sorts it: a job without a priority comes behind all that have one."""
    priority = document.get("priority")
    number = -float(priority) if isinstance(priority, int | float) else float("inf")
    id = document["_id"]
    return (number, ms_of(document.get("nextRunAt")) or 0, id.binary if isinstance(id, ObjectId) else b"")
