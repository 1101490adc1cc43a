"""Looking for jobs that wait: in claim order, where there may be some, and in as few questions as can be."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from bson import ObjectId

from jobmill.core.values import NewJob
from jobmill.stores.mongo import schema
from jobmill.stores.mongo.feed import Known, known_of
from jobmill.stores.mongo.floors import Floor, Floors
from jobmill.stores.mongo.connection import QUEUES, Document
from jobmill.stores.mongo.settle import Settles
from jobmill.stores.mongo.values import date

log = logging.getLogger("jobmill")

Ask: TypeAlias = Callable[[Document, int], Awaitable[list[Document]]]

ORDER = [("priority", -1), ("nextRunAt", 1), ("_id", 1)]
PLACE = {"_id": 1, "name": 1, "priority": 1, "nextRunAt": 1, "status": 1, "jobmill.id": 1}
#: A claim could not be written into a `jobmill` of another program's that is one of these; and what has a document as
#: its _id is nobody's job.
_NO_OBJECTS = ["null", "string", "number", "bool", "array", "date", "objectId", "binData"]
WRITABLE: Document = {"jobmill": {"$not": {"$type": _NO_OBJECTS}}, "_id": {"$not": {"$type": "object"}}}
MOST_REFUSED = 1_000
MOST_REPORTED = 1_000

#: What gave no sign for the lock timeout is looked for this often: as a rule, and at most, where that timeout is short.
STALE_EVERY_MS = 15_000
_STALE_AT_MOST_EVERY_MS = 250


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
        self._in_hand: dict[ObjectId, Document] = {}
        # What the server refuses to write a claim into.
        self._refused: set[ObjectId] = set()
        # Whether another process was quicker than the last claim.
        self._are_others_quicker = False

    def _put_behind(self) -> None:
        """A job waits that was due before others that were claimed already."""
        self._floors.forget()

    def _came_in(self, new_jobs: Sequence[NewJob]) -> None:
        """These wait, or will."""
        for new in new_jobs:
            self._floors.came_in(new.queue, new.name, -new.priority)

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
    def _taking(self, some: Sequence[Document]) -> Iterator[None]:
        """Other claims leave these alone meanwhile."""
        self._in_hand |= {document["_id"]: document for document in some}
        try:
            yield
        finally:
            self._let_go(some)

    def _let_go(self, some: Sequence[Document]) -> None:
        for document in some:
            self._in_hand.pop(document["_id"], None)


class Waiting:
    """What a claim in one queue asks of jobs that wait."""

    def __init__(self, store: Searched, queue: str, now_ms: int) -> None:
        self._store = store
        self._queue = queue
        self._now_ms = now_ms
        # When there may be jobs that were not looked for.
        self._look_again_ms: int | None = None
        # Whether whole documents are asked for.
        self._is_whole = False
        # Whether there was more than was asked for.
        self._is_cut = False
        # What the looks left out because it was in hand: some of it may be let go by now, and wait again.
        self._held: dict[ObjectId, Document] = {}
        # For which queues the first look is to learn what is set, and what it learnt.
        self._ask_known: Collection[str] = ()
        self.known: dict[str, Known] | None = None

    async def _from_floors(self, names: tuple[str, ...], limit: int, ask: Ask) -> list[Document]:
        """Ask for jobs where there may be some; see `floors`."""
        at = time.monotonic()
        floors = self._store._floors.of(self._queue, names, at)
        found: list[Document] = []
        if not all(floor.is_dry for floor in floors.values()) or any(floor.is_dear for floor in floors.values()):
            known = {name: floor for name, floor in floors.items() if floor.is_known(at)}
            # Those that were dry for themselves: beside others nobody would see that they still are.
            for is_dry in (True, False):
                some = {name: it for name, it in floors.items() if name not in known and it.is_dry == is_dry}
                found += await self._at_all(some, limit, ask) if some else []
            found += await self._at_floors(known, limit, ask)
            if len(found) >= limit:
                return found
            if any(floor.is_dear for floor in floors.values()):
                all_at = min(floor.all_at for floor in floors.values())
                self._look_again_ms = self._now_ms + max(0, round((all_at - at) * 1000))
                return found
        return await self._at_all(floors, limit, ask) if floors else await self._some(names, limit, ask)

    async def _some(self, names: Sequence[str], limit: int, ask: Ask) -> list[Document]:
        """The first of these names."""
        found = await ask(self._due([(names, {"nextRunAt": {"$lte": date(self._now_ms)}})]), limit)
        self._is_cut |= len(found) == limit
        return found

    async def _at_all(self, floors: dict[str, Floor], limit: int, ask: Ask) -> list[Document]:
        """The first of these names, and what that says of them."""
        began = time.monotonic()
        found = await self._some(list(floors), limit, ask)
        ended = time.monotonic()
        for name, floor in floors.items():
            floor.looked_at_all(began, ended)
            if len(found) < limit:
                floor.found_all(_of(name, found), self._held_of(name), self._now_ms)
            else:
                floor.found_first(_of(name, found), self._held_of(name), self._now_ms, found[-1])
        return found

    async def _at_floors(self, floors: dict[str, Floor], limit: int, ask: Ask) -> list[Document]:
        """What waits of names that are known."""
        now_ms = self._now_ms
        found = await self._news(floors, limit)
        busy = {name: floor for name, floor in floors.items() if floor.fronts}
        if not busy:
            return found
        more, last = await self._at_fronts(busy, limit, ask)
        self._is_cut |= last is not None
        found += more
        # Of these all was seen that has a front: then what comes behind may be before that of others.
        ended = {name: floor for name, floor in busy.items() if floor.is_seen(last)}
        for name, floor in busy.items():
            if last is not None and name not in ended:
                floor.passed(_of(name, more), self._held_of(name), now_ms, last)
        return found + await self._behind(ended, found, limit, ask)

    async def _at_fronts(
        self, floors: dict[str, Floor], limit: int, ask: Ask
    ) -> tuple[list[Document], Document | None]:
        """The first of those of which more waits, and the last of these where there may be others behind it."""
        while True:
            ranges = [([name], one) for name, floor in floors.items() for one in floor.ranges(self._now_ms)]
            found = await ask(self._due(ranges), limit)
            last = found[-1] if len(found) == limit else None
            widened = [floor.widened(last) for floor in floors.values()]
            if not any(widened):
                return found, last

    async def _behind(
        self, floors: dict[str, Floor], before: Sequence[Document], limit: int, ask: Ask
    ) -> list[Document]:
        """What comes behind all that has a front, and was found."""
        below = [([name], one) for name, floor in floors.items() for one in floor.below(self._now_ms)]
        found = await ask(self._due(below), limit) if below else []
        is_cut = len(found) == limit
        self._is_cut |= is_cut
        for name, floor in floors.items():
            if is_cut:
                floor.forget()
            else:
                floor.found_all(_of(name, (*before, *found)), self._held_of(name), self._now_ms)
        return found

    async def _news(self, floors: dict[str, Floor], limit: int) -> list[Document]:
        """What came in besides that of which more is known to wait; where that is not known of any, at every look."""
        at, now_ms = time.monotonic(), self._now_ms
        is_busy = any(floor.fronts for floor in floors.values())
        if not floors or (is_busy and all(at < floor.new_at for floor in floors.values())):
            return []
        news = self._due([([name], floor.news(now_ms)) for name, floor in floors.items()])
        found = await self._waiting_of(news, limit, schema.DUE)
        is_cut = len(found) == limit
        self._is_cut |= is_cut
        for name, floor in floors.items():
            if not is_cut:
                floor.found_new(_of(name, found), self._held_of(name), now_ms, at)
            elif name == found[-1]["name"]:
                floor.found_many_new(_of(name, found), self._held_of(name), now_ms)
        return found

    async def _waiting_of(self, query: Document, limit: int, index: str = schema.CLAIM) -> list[Document]:
        store, jobs = self._store, self._store._here.jobs
        shown = None if self._is_whole else PLACE
        return await store._hinted(
            index, lambda hint: jobs.find(query, shown, **at_once(limit), **hint).sort(ORDER).to_list()
        )

    async def _waiting_and_known(self, query: Document, limit: int) -> list[Document]:
        """The same, and what is set for queues, in one round trip: for pymongo half of the work of two."""
        store = self._store
        known = [{"$match": {"_id": {"$in": list(self._ask_known)}}}, {"$project": {"lock": 0}}]
        stages: list[Document] = [
            {"$match": query},
            {"$sort": dict(ORDER)},
            {"$limit": limit},
            *(() if self._is_whole else ({"$project": PLACE},)),
            {"$unionWith": {"coll": QUEUES, "pipeline": known}},
        ]

        async def ask(hint: dict[str, Any]) -> list[Document]:
            size = limit + len(self._ask_known) + 1
            return await (await store._here.jobs.aggregate(stages, batchSize=size, **hint)).to_list()

        both = await store._hinted(schema.CLAIM, ask)
        self.known = {one["_id"]: known_of(one) for one in both if "status" not in one}
        return [one for one in both if "status" in one]

    def _due(self, ranges: Sequence[tuple[Sequence[str], Document]]) -> Document:
        """Jobs that wait, of these names and there."""
        # Left out by the server: what is in hand may be large, and would be read in vain.
        self._held |= self._store._in_hand
        others = [*self._store._in_hand, *self._store._refused]
        id = {**WRITABLE["_id"], "$nin": others} if others else WRITABLE["_id"]
        fit = {**WRITABLE, "_id": id}
        alike: dict[str, tuple[list[str], Document]] = {}
        for names, one in ranges:
            alike.setdefault(repr(one), ([], one))[0].extend(names)
        waits = [{**self._waits(names), **one} for names, one in alike.values()]
        # With what they have in common inside: outside, measured, the server needs half as long again.
        if len(waits) > 1:
            return {**fit, "$or": waits}
        return {**waits[0], **fit, "_id": {**waits[0].get("_id", {}), **id}}

    def _held_of(self, name: str) -> list[Document]:
        return _of(name, self._held.values())

    def _waits(self, names: Sequence[str]) -> Document:
        # In the home queue the field is missing. To ask for null would be two ranges of the index, which the server
        # has to merge: measured, half as dear again.
        queue = self._store._queue_is(self._queue)
        name = names[0] if len(names) == 1 else {"$in": list(names)}
        return {"jobmill.queue": {"$exists": False} if queue is None else queue, "status": "pending", "name": name}


def _of(name: str, some: Iterable[Document]) -> list[Document]:
    return [document for document in some if document["name"] == name]


def at_once(limit: int) -> dict[str, Any]:
    """So many, in one answer: as a rule the first has no more than a hundred."""
    return {"limit": limit, "batch_size": limit + 1}
