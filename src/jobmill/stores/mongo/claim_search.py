"""The search of a claim: finds the first waiting jobs, either from the start or from the positions of the claim cursor.

A busy worker continues where its last claim ended (`stores.common.claim_cursor`). MongoDB keeps the index entries of
claimed jobs for five minutes, and a scan from the start reads all of them. Without the cursor, a worker that runs
150,000 waiting jobs slows down from 5,000 jobs per second to 800. A query for an empty index range is just as
expensive, because the server scans to the next entry of an existing job. So only ranges in which jobs were found are
queried again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from bson import ObjectId
from msgspec import Struct

from jobmill.stores.common.claim_cursor import Start
from jobmill.stores.mongo import schema
from jobmill.stores.mongo.claim_memory import order_of
from jobmill.stores.mongo.codec import Document, date, ms_of
from jobmill.stores.mongo.connection import QUEUES
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.ids import NO_ID
from jobmill.stores.mongo.leases import IN_ORDER, WRITABLE
from jobmill.stores.mongo.queues import QueueDocument, queue_state

ORDER = {"priority": -1, "nextRunAt": 1, "_id": 1}
_FIRST_DATE = date(-(2**62))
NOTHING: Mapping[str, Any] = {}


class ClaimSearch(Struct):
    """The searches of one claim in one queue."""

    ctx: MongoContext
    queue: str
    now_ms: int
    #: The next query also reads the states of these queues.
    states_of: Collection[str] = ()
    states: dict[str, QueueDocument] = {}
    #: Whether to read whole documents.
    whole: bool = False
    #: Whether a query returned as many jobs as its limit, so that there may be more.
    is_cut: bool = False
    # When a scan from the start is due. It may find jobs that this search has not found.
    _again_ms: int | None = None
    # Jobs that the queries left out because another claim was about to lease them.
    _others: dict[Any, Document] = {}
    _searches: list[tuple[Start, list[Document], int]] = []

    async def waiting(self, rooms: Mapping[str, int], wanted: int, spare: int) -> list[Document]:
        """Find due jobs: more than `wanted` if there are more, and `spare` further jobs.

        The claim may have to leave out up to `spare` of the jobs, because the same call has settled or leased them.
        Each name with room for fewer than `wanted` jobs gets its own query, so that its jobs do not hide other jobs.
        """
        self.is_cut, self._others, self._searches = False, {}, []
        plenty = tuple(name for name, room in rooms.items() if room >= wanted)
        scarce = [name for name, room in rooms.items() if 0 < room < wanted]
        searches = [self._search((name,), rooms[name] + spare + 1) for name in scarce]
        if plenty:
            searches.append(self._search(plenty, wanted + 1 + spare))
        return [document for found in await asyncio.gather(*searches) for document in found]

    def taken(self, documents: Sequence[Document]) -> None:
        """The claim is about to lease these jobs. Give the cursor the positions at which the next search begins."""
        ids = {document["_id"] for document in documents}
        for start, found, limit in self._searches:
            self.ctx.claims.learn(self.queue, start, found, limit, ids, self._others)

    async def _search(self, names: tuple[str, ...], limit: int) -> list[Document]:
        """The first waiting jobs of these names: from the positions of the cursor on, or from the start."""
        everything = [self._due(names)]
        if not self.ctx.claims.is_busy:
            return await self._query(everything, limit)
        start = self.ctx.claims.cursor.start([self.queue], names)
        found = await self._continue(start, limit) if start.is_known else None
        if found is None:
            found = await self._query(everything, limit)
            if len(found) == limit:
                await self._find_stop(names, found)
        self._searches.append((start, found, limit))
        return found

    async def _continue(self, start: Start, limit: int) -> list[Document] | None:
        """The next jobs of the ranges that have a position. None if the search must begin at the start again."""
        cursor = self.ctx.claims.cursor
        found: list[Document] = []
        for ranges in self._ranges(start):
            found = await self._query(ranges, limit)
            if len(found) == limit:
                stop = cursor.stop(self.queue)
                return found if stop is None or order_of(found[-1]) < stop else None
        cursor.learn(start, (), full=False)
        again_ms = cursor.look_again_ms(start)
        if not again_ms or cursor.stop(self.queue) is not None:
            return None
        self._again_ms = self.now_ms + again_ms
        return found

    def _ranges(self, start: Start) -> Iterator[list[Document]]:
        """Filters for the ranges that have a position. If many jobs have one due time, it gets the first filter."""
        known = [(name, *one) for (_, name), positions in start.positions.items() for one in positions.items()]
        if len(known) == 1 and known[0][2][1] != NO_ID:
            name, rank, (due_ms, id) = known[0]
            yield [self._due([name], {"priority": _priority(rank), "nextRunAt": date(due_ms), "_id": {"$gte": id}})]
        if known:
            until = date(self.now_ms)
            yield [
                self._due([name], {"priority": _priority(rank), "nextRunAt": {"$gte": date(due_ms), "$lte": until}})
                for name, rank, (due_ms, _) in known
            ]

    async def _find_stop(self, names: Sequence[str], found: list[Document]) -> None:
        """Give the cursor the first point in claim order where a job may wait in a range without a position."""
        last = order_of(found[-1])[0]
        self.ctx.claims.cursor.stop_at(self.queue, (last, float("inf")))  # a later priority
        seen = {one["name"] for one in (*found, *self._others.values()) if order_of(one)[0] == last}
        unseen = [name for name in names if name not in seen]
        if unseen:
            others = {"_id": {"$nin": [one["_id"] for one in found]}}
            for first in await self._query([self._due(unseen, others)], 1, whole=False):
                self.ctx.claims.cursor.stop_at(self.queue, order_of(first))

    def _due(self, names: Sequence[str], more: Mapping[str, Any] = NOTHING) -> Document:
        """A filter for waiting jobs that are due."""
        # Jobs of the home queue do not have this field. For a query for null, the server would merge two index
        # ranges. Measured: that takes 1.5 times as long.
        queue = self.ctx.queue_field(self.queue)
        name = names[0] if len(names) == 1 else {"$in": list(names)}
        due = {"nextRunAt": {"$lte": date(self.now_ms)}}
        is_queue = {"$exists": False} if queue is None else queue
        return {"jobmill.queue": is_queue, "status": "pending", "name": name, **due, **more}

    async def _query(self, ranges: Sequence[Document], limit: int, *, whole: bool | None = None) -> list[Document]:
        """The first jobs in these ranges, in claim order."""
        ctx, memory = self.ctx, self.ctx.claims
        # The query excludes these jobs. They may be large, and reading them would be useless.
        self._others |= memory.in_flight
        excluded = [*memory.in_flight, *memory.refused]
        states_of, self.states_of = self.states_of, ()
        stages: list[Document] = [{"$match": _match(ranges, excluded)}, {"$sort": ORDER}, {"$limit": limit}]
        if not (self.whole if whole is None else whole):
            stages.append({"$project": IN_ORDER})
        if states_of:
            # Both in one round trip: this costs pymongo half as much as two round trips.
            states = [{"$match": {"_id": {"$in": list(states_of)}}}, {"$project": {"lock": 0}}]
            stages.append({"$unionWith": {"coll": QUEUES, "pipeline": states}})

        async def query(hint: dict[str, Any]) -> list[Document]:
            size = limit + len(states_of) + 1
            return await (await ctx.here.jobs.aggregate(stages, batchSize=size, **hint)).to_list()

        rows = await ctx.hinted(schema.CLAIM, query)
        self.states |= {one["_id"]: queue_state(one) for one in rows if "status" not in one}
        found = [one for one in rows if "status" in one]
        self.is_cut |= len(found) == limit
        return found

    async def next_due(self, names: Sequence[str], *, later: bool = False) -> int | None:
        """The earliest due time of the waiting jobs of these names. `later`: only of jobs that are not due yet."""
        if not names:
            return None
        # The bound also excludes values that are not dates: another program wrote them, and they are never due.
        bound = {"$gt": date(self.now_ms) if later else _FIRST_DATE}
        query, shown = self._due(names, {"nextRunAt": bound}), {"_id": 0, "nextRunAt": 1}
        jobs = self.ctx.here.jobs
        first = await self.ctx.hinted(
            schema.DUE, lambda hint: jobs.find(query, shown, limit=1, **hint).sort("nextRunAt", 1).to_list()
        )
        dues = (self._again_ms, *(ms_of(one["nextRunAt"]) for one in first))
        return min((due_ms for due_ms in dues if due_ms is not None), default=None)


def _match(ranges: Sequence[Document], excluded: list[ObjectId]) -> Document:
    """A filter for jobs of these ranges to which a claim can be written."""
    # Not nested if possible: for a nested filter the server takes 1.5 times as long.
    first: Document = ranges[0] if len(ranges) == 1 else {"$or": list(ranges)}
    bounds: Document = first.get("_id", {})
    left_out = [*excluded, *bounds.get("$nin", ())]
    ids = {**bounds, **WRITABLE["_id"], **({"$nin": left_out} if left_out else {})}
    return {**first, **WRITABLE, "_id": ids}


def _priority(rank: float) -> float | None:
    return None if rank == float("inf") else -rank
