"""Finding what may be claimed: jobs that are due, in claim order, and running ones that nobody holds any more."""

from __future__ import annotations

import asyncio
import time

from bson import ObjectId
from msgspec import Struct

from jobmill.core.values import Claim
from jobmill.stores.mongo import codec, schema
from jobmill.stores.mongo.context import ended, stale
from jobmill.stores.mongo.connection import Document
from jobmill.stores.mongo.values import date, ms_of
from jobmill.stores.mongo.waiting import PLACE, WRITABLE, Searched, Waiting, at_once

_FIRST = date(-(2**62))
#: While every claim is filled by jobs that wait, ended leases are looked for this often.
ENDED_EVERY_S = 0.5


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

    @property
    def all(self) -> list[Document]:
        """Both, in no order."""
        return [*self.lost, *self.waiting]


NOTHING = Found(waiting=[], lost=[], next_due_ms=None)


class Search(Waiting):
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
        super().__init__(store, queue, now_ms)
        self._claim = claim
        self._rooms = {name: room for name, room in rooms.items() if room > 0}
        self._names = [name for name, room in claim.names.items() if room > 0]
        self._n = n
        self._not_these = not_these
        self._order: dict[str, int] = {}
        # What an earlier look of this claim has got.
        self._handed: set[str] = set()

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
            self._order.setdefault(codec.id_of(document), len(self._order))
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
        key, id = document["_id"], codec.id_of(document)
        is_left_alone = key in self._store._in_hand or key in self._store._refused
        return is_left_alone or id in self._not_these or id in self._handed

    async def _waiting(self, limit: int, spare: int) -> list[Document]:
        """Due jobs. Names with little room are asked for one by one, so that none hides another."""
        self._held = {}
        plenty = [name for name, room in self._rooms.items() if room >= limit - 1]
        scarce = [name for name, room in self._rooms.items() if 0 < room < limit - 1]
        asked: list[tuple[tuple[str, ...], int]] = [((name,), self._rooms[name] + spare + 1) for name in scarce]
        if plenty:
            asked.append((tuple(plenty), limit + spare))
        if self._ask_known and len(asked) == 1:
            return await self._from_floors(*asked[0], self._waiting_and_known)
        found = await asyncio.gather(*(self._from_floors(names, most, self._waiting_of) for names, most in asked))
        return [document for some in found for document in some]

    async def _lost(self, limit: int) -> list[Document]:
        """Running jobs that nobody holds any more."""
        store, now_ms = self._store, self._now_ms
        store._looked_for_ended[self._queue] = time.monotonic()
        names = [name for name, room in self._rooms.items() if room > 0]
        mine = {"jobmill.queue": store._queue_is(self._queue), "name": {"$in": names}, **WRITABLE}
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
        began = time.monotonic()
        floor = self._store._floors.of_leases(self._queue, mine["name"]["$in"], began)
        from_ms = None if floor is None else floor.start(began)
        found = await self._held_by_nobody({**ended(self._now_ms, from_ms), **mine}, limit)
        if floor is not None:
            if from_ms is None:
                floor.looked_at_all(began, time.monotonic())
            if not found:
                floor.found_none(self._now_ms)
        return found

    async def _held_by_nobody(self, query: Document, limit: int) -> list[Document]:
        jobs = self._store._here.jobs
        return await self._store._hinted(
            schema.LEASE, lambda hint: jobs.find(query, PLACE, **at_once(limit), **hint).to_list()
        )

    async def _running(self) -> int:
        """How many jobs of the queue somebody holds."""
        store, jobs = self._store, self._store._here.jobs
        mine = {"jobmill.queue": store._queue_is(self._queue)}
        all_of_them: Document = {**mine, "status": "processing"}
        running = await store._hinted(schema.LEASE, lambda hint: jobs.count_documents(all_of_them, **hint))
        nobodys: Document = {**ended(self._now_ms), **mine}
        lost = await store._hinted(schema.LEASE, lambda hint: jobs.count_documents(nobodys, **hint))
        return running - lost

    async def _next_due(self, *, later: bool = False) -> int | None:
        """The earliest due time of what waits; where all that is due was taken, only of what is due later."""
        if not self._names:
            return None
        store, jobs = self._store, self._store._here.jobs
        # By type: what another program wrote there that is no date is never due.
        bound = {"$gt": date(self._now_ms) if later else _FIRST}
        query, shown = {**self._waits(self._names), "nextRunAt": bound}, {"_id": 0, "nextRunAt": 1}
        first = await store._hinted(
            schema.DUE, lambda hint: jobs.find(query, shown, limit=1, **hint).sort("nextRunAt", 1).to_list()
        )
        dues = (self._look_again_ms, *(ms_of(one["nextRunAt"]) for one in first))
        return min((due_ms for due_ms in dues if due_ms is not None), default=None)


def _is_fresh(document: Document) -> bool:
    """Whether a job that waits was never claimed and comes only once, so that what is known of it stays so."""
    ours, errors = codec.ours_of(document), document.get("failCount")
    is_new = isinstance(errors, int | float) and not isinstance(errors, bool) and errors == 0 and "claims" not in ours
    comes_again = document.get("repeatInterval") or "rule" in ours
    return document["status"] == "pending" and is_new and not comes_again and "leaseExpiresAt" not in document


def _in_order(document: Document) -> tuple[float, int, bytes]:
    """Claim order, as the server sorts it: a job without a priority comes behind all that have one."""
    priority = document.get("priority")
    number = -float(priority) if isinstance(priority, int | float) else float("inf")
    id = document["_id"]
    return (number, ms_of(document.get("nextRunAt")) or 0, id.binary if isinstance(id, ObjectId) else b"")
