"""Claims: find due jobs in claim order, lease those that still wait in one write, and hand them out.

For the server, one update of many jobs costs a thirtieth of one find-and-modify per job.

A busy process continues where its last claim ended (`stores.common.claim_cursor`). MongoDB keeps the index entries of
claimed jobs for five minutes, and a scan from the start reads all of them. Without the cursor, a worker that runs
150,000 waiting jobs slows down from 5,000 jobs per second to 800. A query for an empty index range is just as
expensive, because the server scans to the next entry of an existing job. So a claim that continues stays within one
priority, and queries only for names of which it has found jobs there.

Claims of several processes find the same first jobs, and each process gets only some of them. So a process that has
lost half of the jobs that it found jumps: it skips a random number of jobs of the same priority, and continues from
there until it loses again, or until the cursor returns to the start. The process that got the jobs continues with those
that the other one skipped. A process that claims alone loses none, and keeps the order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bson import ObjectId
from msgspec import Struct, field, structs
from pymongo import UpdateMany

from jobmill.core.due import NEVER_MS
from jobmill.core.events import Event, claim_events
from jobmill.core.flows import MAX_RELEASED
from jobmill.core.values import Broken, Claim, Claimed, Lease
from jobmill.stores.common.claim_cursor import Order, Position, Start
from jobmill.stores.common.unreadable import UnreadableJob
from jobmill.stores.mongo import leases, schema
from jobmill.stores.mongo.codec import (
    ODD_PRIORITY,
    OURS,
    UNRANKED,
    Document,
    date,
    due_of,
    is_held,
    left_to_monque,
    order_of,
    ours_of,
)
from jobmill.stores.mongo.connection import BY_ID, EDGES, QUEUES
from jobmill.stores.mongo.context import SCAN_SHARE, MongoContext
from jobmill.stores.mongo.edges import open_edge_stages
from jobmill.stores.mongo.ids import NO_ID, claim_id
from jobmill.stores.mongo.purge import postpone
from jobmill.stores.mongo.queues import NO_LIMITS, MongoLimits, QueueLock, limits_of, locked, queue_limits
from jobmill.stores.mongo.settle import Leasing, send

#: The maximum number of searches of one claim, if other processes claim the jobs that it has found.
MAX_SEARCHES = 20
MAX_REFUSED = 1_000
#: Where the first job is held, due much later or has a name of other workers: the number of jobs that are read to find
#: when another one is due.
MAX_AHEAD = 1_000
#: The number of jobs without a priority that get one in one write.
RANKED = 1_000
#: How long claims do not search for such jobs after a search that found none; a busy process waits longer.
RANK_SECONDS = 0.05

#: One response has what a query reads beside jobs: at most this number of edges and limits of queues.
MAX_BESIDE = MAX_RELEASED + 1_000

ORDER = {"priority": -1, "nextRunAt": 1, "_id": 1}
#: The same within one priority, or without one. If the order named the priority, the server would read and sort all
#: jobs of several names, and not merge their index ranges. Measured: 20 of 14,000 jobs of seven names in 4 ms, not 22.
_WITHIN_PRIORITY = {"nextRunAt": 1, "_id": 1}
_FIRST_MS = -(2**62)
#: Jobs with these fields were claimed, or fail because of other jobs.
_NOT_FRESH = frozenset(("claims", "deferredError"))
#: A filter: no process has claimed the job since it was found, and no program has counted a failure of it. Where it
#: has waited for other jobs, none of these has failed since.
_STILL_FRESH = {"jobmill.claims": {"$exists": False}, "jobmill.deferredError": {"$exists": False}, "failCount": 0}


class Found(Struct, frozen=True):
    """Jobs that may be claimed, in claim order: waiting jobs, and running jobs whose lease has ended."""

    jobs: list[Document]
    #: Whether more jobs may be claimed at once.
    has_more: bool
    #: Whether these are whole documents of jobs that were never claimed. They do not change while they wait.
    are_fresh: bool


class QueueClaim(Struct):
    """The claim of jobs of one queue. `run` finds, leases and hands out jobs until it is full or no job is due."""

    ctx: MongoContext
    queue: str
    claim: Claim
    #: How many more jobs of each name may be claimed.
    rooms: dict[str, int]
    #: The _ids of jobs that the same call puts back. They are due, but this claim must not take them.
    put_back: set[ObjectId]
    now_ms: int
    #: What `find_first` has found, and the updates that lease it: the bulk write of settlements contains them.
    found: Found | None = None
    leasing: Leasing = field(default_factory=Leasing)
    #: Whether the feed of the queue is on.
    has_feed: bool = False
    #: Whether more jobs can be claimed since `find_first`, because lanes have given slots.
    is_outdated: bool = False
    claimed: list[Claimed | Broken] = []
    events: list[Event] = []
    # A filter for jobs that this claim may take.
    _free: Document = {}
    # By _id: order and name of the jobs that this claim is about to lease.
    _chosen: dict[Any, tuple[Order, str]] = {}
    # What the next query reads as well, as stages, and what it has read: limits of queues, and edges. CPU of client and
    # server for 25 edges: 680 us, in a round trip of their own 1,070.
    _beside: list[Document] = []
    _others: list[Document] = []
    # Searches with the cursor: where they began, what they found, and whether there may be more.
    _searches: list[tuple[Start, list[Document], bool]] = []
    # Whether a search has found a job that is held or due much later.
    _has_far: bool = False
    # When a scan from the start, or for ended leases, is due. It may find jobs that this claim has not found.
    _again_ms: int | None = None

    async def run_within(self, limits: MongoLimits, n: int) -> int | None:
        """`run`, unless the queue is paused, and within the limits of the queue."""
        self.has_feed = limits.settings.feed
        if limits.settings.paused:
            return await self._run_paused(limits, n)
        return await (self._run_locked(n) if limits.counts_claims else self.run(n))

    async def _run_paused(self, limits: MongoLimits, n: int) -> int | None:
        """`run_within` if the pause is over. Return when a job may be claimed after it."""
        settings = limits.settings.at(self.now_ms)
        if not settings.paused:
            return await self.run_within(structs.replace(limits, settings=settings), n)
        resumes_ms = settings.pause and settings.pause.until_ms
        due_ms = await self._next_due() if resumes_ms else None
        return None if due_ms is None else max(due_ms, resumes_ms or 0)

    async def _run_locked(self, n: int) -> int | None:
        """`run` under the queue's lock, so that claims are counted one after the other."""
        now_ms = self.now_ms
        async with locked(self.ctx, self.queue) as lock:
            if lock is None:
                return now_ms
            if lock.limits.settings.at(now_ms).paused:
                return None
            max_running = lock.limits.settings.running_limit
            running = 0 if max_running is None else await leases.count_running(self.ctx, self.queue, now_ms)
            room = lock.limits.room(running, now_ms)
            due_ms = await self.run(n if room is None else min(n, room), lock)
            if max_running is not None and await leases.count_running(self.ctx, self.queue, now_ms) >= max_running:
                due_ms = await self._first_lease_end()
        return None if due_ms is None else max(due_ms, lock.limits.limited_until_ms(now_ms) or 0)

    async def run(self, n: int, lock: QueueLock | None = None) -> int | None:
        """Claim up to `n` jobs. Return when the next claim may find a job."""
        for _ in range(MAX_SEARCHES):
            wanted = n - len(self.claimed)
            if wanted <= 0 or not any(room > 0 for room in self.rooms.values()):
                break
            is_last = self.found is None or not self.is_outdated
            found = self.found or await self._find(wanted)
            leased = await self._lease(found, lock) if found.jobs else []
            self.found = None
            self._hand_out(found, leased)
            if len(leased) == len(found.jobs) and is_last:
                return self.now_ms if found.has_more or self.put_back else await self._next_due(self.now_ms)
        return await self._next_due()

    # ------------------------------------------------------------------------------------------------ find

    async def find_first(
        self, queues: Collection[str], ending: Collection[ObjectId]
    ) -> tuple[dict[str, MongoLimits], list[Document] | None]:
        """Find jobs before the settlements are written.

        Return, from the same round trip, the limits of these queues, and the open edges that lead to jobs which are
        about to end (None: they were not read). Without room for a job there is no query: the limits are read alone.
        """
        pipeline = [{"$match": {"_id": {"$in": list(queues)}}}, {"$project": {"lock": 0}}]
        self._beside = [{"$unionWith": {"coll": QUEUES, "pipeline": pipeline}}]
        if ending:
            self._beside.append({"$unionWith": {"coll": EDGES, "pipeline": open_edge_stages(ending)}})
        found, others = await self._find(self.claim.n), self._others
        is_read, self._beside = not self._beside, []
        edges = [one for one in others if "on" in one] if is_read and ending else None
        read = {one["_id"]: queue_limits(one) for one in others if "on" not in one}
        limits = read if is_read else await limits_of(self.ctx, queues)
        mine = limits.get(self.queue, NO_LIMITS)
        if mine.settings.paused or mine.counts_claims or mine.has_lane_documents:
            # A window of the rate of a lane begins before jobs are claimed: it counts those that have not begun.
            self.let_go(leased=False)
        else:
            self.found, self.leasing = found, Leasing(self._writes(found), len(found.jobs))
        return limits, edges

    async def _find(self, wanted: int) -> Found:
        """Jobs that may be claimed, within the room of each name. Other claims leave them alone until `let_go`."""
        memory, names = self.ctx.claims, [name for name, room in self.rooms.items() if room > 0]
        # Each name with room for fewer than `wanted` jobs gets its own query, so that its jobs do not hide other jobs.
        queries = [([name], self.rooms[name] + 1) for name in names if self.rooms[name] < wanted]
        plenty = [name for name in names if self.rooms[name] >= wanted]
        queries += [(plenty, wanted + 1)] if plenty else []
        async with self.ctx.here.searching:  # claims that search at the same time would find the same jobs
            # Jobs that this claim must not take may be large, and reading them would be useless.
            claimed = [one.lease.locator.id for one in self.claimed]
            self._free = leases.writable([*self.put_back, *claimed, *memory.in_flight, *memory.refused])
            found = await asyncio.gather(*(self._search(some, limit) for some, limit in queries))
            waiting = [document for some in found for document in some]
            mine = {"jobmill.queue": self.ctx.queue_field(self.queue), "name": {"$in": names}, **self._free}
            lost = await leases.find_lost(self.ctx, mine, wanted + 1, self.now_ms, is_full=len(waiting) > wanted)
            if lost is None and not waiting:
                self._again_ms = self.now_ms + round(1000 * leases.ENDED_SECONDS)
            # A job may change between the queries: use the document that was read last, and lease each job only once.
            chosen = self._choose({document["_id"]: document for document in (*waiting, *(lost or ()))}, wanted)
            return await self._postpone(chosen) if self._has_far else chosen

    async def _postpone(self, found: Found) -> Found:
        """Some jobs are held or due much later, and for ten days no process has moved their nextRunAt on."""
        self._has_far = False
        await postpone(self.ctx, self.now_ms)
        return found

    def _choose(self, documents: Mapping[Any, Document], wanted: int) -> Found:
        """The first jobs that fit into the room of their names."""
        orders = {id: order_of(document) for id, document in documents.items()}
        may_run = [one for one in documents.values() if not _may_stay(one) or self._may_run(one)]
        rooms, jobs = dict(self.rooms), list[Document]()
        for job in sorted(may_run, key=lambda one: _as_zero(orders[one["_id"]])):
            if len(jobs) < wanted and rooms[job["name"]] > 0:
                rooms[job["name"]] -= 1
                jobs.append(job)
        self._chosen = {job["_id"]: (orders[job["_id"]], job["name"]) for job in jobs}
        while self._searches:
            self._learn(*self._searches.pop(0), orders)
        self.ctx.claims.in_flight |= self._chosen
        has_left = len(may_run) < len(documents) and len(self.ctx.claims.refused) < MAX_REFUSED
        return Found(jobs, has_more=has_left or len(jobs) < len(may_run), are_fresh=all(map(_is_fresh, jobs)))

    def _may_run(self, document: Document) -> bool:
        """Whether a job is due and not left to Monque. Later claims do not read again what is left.

        A run that another worker has lost is repeated, also where its rule has got a later due time meanwhile.
        """
        if document["status"] == "pending" and due_of(document) > self.now_ms:
            self._has_far = True
            return False
        why = left_to_monque(document)
        if why and len(self.ctx.claims.refused) < MAX_REFUSED:
            self.ctx.claims.refused.add(document["_id"])
            self.ctx.report_once(document, why, "is left to Monque")
        return not why

    async def _search(self, names: Sequence[str], limit: int) -> list[Document]:
        """The first waiting jobs of these names: from the position of the cursor on, or from the start."""
        memory, waiting = self.ctx.claims, self._waiting(names)
        uses_cursor = memory.is_busy or self.queue in memory.contested
        found = await (self._search_with_cursor(names, limit) if uses_cursor else self._query(waiting, limit))
        has_ranked = len(found) == limit and await self._rank(names, found)
        return await self._query(waiting, limit) if has_ranked else found

    async def _rank(self, names: Sequence[str], found: list[Document]) -> bool:
        """Write the priority 0 to the first due jobs that have none; whether there were some.

        Monque before 1.13 writes no priority. That means 0, but in the index these jobs are behind all others. If the
        jobs that were found fill the claim, they hide them. A search at every claim would be a third more queries.
        """
        memory, began = self.ctx.claims, time.monotonic()
        hides = self.queue == self.ctx.url.queue and any(0 <= order_of(one)[0] < UNRANKED for one in found)
        if not hides or began < memory.rank_at:
            return False
        query, in_order = {**self._waiting(names), "priority": None, **self._free}, {"nextRunAt": 1, "_id": 1}
        ids = await self.ctx.find_by(schema.CLAIM, query, {"_id": 1}, max(len(found), RANKED), sort=in_order)
        errors = None
        if ids:
            still = {"_id": {"$in": [one["_id"] for one in ids]}, "status": "pending", "priority": None}
            errors = await send(self.ctx, [UpdateMany(still, {"$set": {"priority": 0}}, hint=BY_ID)], len(ids))
            memory.cursor.rewind()
            self._searches.clear()
        if errors or not ids:
            now = time.monotonic()
            pause = leases.ENDED_SECONDS if memory.is_busy else RANK_SECONDS
            memory.rank_at = now + max(pause, SCAN_SHARE * (now - began))
        return bool(ids)

    async def _search_with_cursor(self, names: Sequence[str], limit: int) -> list[Document]:
        cursor = self.ctx.claims.cursor
        start, found = cursor.start([self.queue], names), None
        if start.is_known:
            start, found = await self._continue(start, limit)
        if found is None:
            start = cursor.start([self.queue], names, anew=True) if start.is_known else start
            found = await self._query(self._waiting(names), limit)
            if len(found) == limit:
                await self._find_stop(names, found)
            else:
                self.ctx.claims.contested.discard(self.queue)
        self._searches.append((start, found, len(found) == limit))
        return found

    async def _continue(self, start: Start, limit: int) -> tuple[Start, list[Document] | None]:
        """The next jobs, and where they begin: at the position, or where a jump ends. None: search from the start."""
        cursor, found = self.ctx.claims.cursor, list[Document]()
        ranges = [(rank, at, name) for (_, name), known in start.positions.items() for rank, at in known.items()]
        if len({rank for rank, *_ in ranges}) > 1:
            return start, None
        for skip, match in self._next(ranges, self.ctx.claims.jump(self.queue, limit)) if ranges else ():
            found = await self._query(match, limit, skip)
            if len(found) == limit:
                start = self._jumped(start, order_of(found[0])) if skip else start
                break
        stop = cursor.stop(self.queue)
        if len(found) == limit:
            return start, found if stop is None or order_of(found[-1]) < stop else None
        cursor.learn(start, (), full=False)
        again_ms = cursor.look_again_ms(start)
        if not again_ms or stop is not None:
            return start, None
        self._again_ms = self.now_ms + again_ms
        return start, found

    def _next(self, ranges: list[tuple[float, Position, str]], jump: int) -> list[tuple[int, Document]]:
        """Filters for the jobs from the position on, each with how many jobs to skip. The first full one counts."""
        rank, (due_ms, id), _ = min(ranges)
        due = self._waiting([name for *_, name in ranges]) | {"priority": None if rank == UNRANKED else -rank}
        matches = [{**due, "nextRunAt": {"$gte": date(due_ms), "$lte": date(self.now_ms)}}]
        if id != NO_ID:  # many jobs have this due time
            matches.insert(0, {**due, "nextRunAt": date(due_ms), "_id": {"$gte": id}})
        return [(skip, match) for skip in dict.fromkeys((jump, 0)) for match in matches]

    def _jumped(self, start: Start, first: Order) -> Start:
        """The start of a search that has jumped to this job. Nobody is expected to be faster there."""
        self.ctx.claims.others_are_faster = False
        return self.ctx.claims.cursor.jump(start, (first[1], first[2]))

    async def _find_stop(self, names: Sequence[str], found: list[Document]) -> None:
        """Give the cursor the first point in claim order where a job may wait in a range without a position."""
        rank, cursor = order_of(found[-1])[0], self.ctx.claims.cursor
        cursor.stop_at(self.queue, (rank, float("inf")))  # a later priority
        unseen = {*names}.difference(one["name"] for one in found if order_of(one)[0] == rank)
        for first in await self._query(self._waiting([*unseen]), 1) if unseen else ():
            cursor.stop_at(self.queue, order_of(first))

    def _learn(self, start: Start, found: list[Document], is_full: bool, orders: Mapping[Any, Order]) -> None:
        """Give the cursor the position at which the next search begins: the first job that may still wait then."""
        if not found and start.has_positions:
            return
        last = orders[found[-1]["_id"]] if found else (None, None)
        left = [one for one in found if orders[one["_id"]][0] == last[0] or one["_id"] not in self._chosen]
        may_wait = [one for one in self.ctx.claims.in_flight.values() if start.reaches(self.queue, *one)]
        may_wait += [(orders[one["_id"]], one["name"]) for one in left]
        first, positions = min(may_wait)[0] if may_wait else None, []
        if first is not None and first[0] != ODD_PRIORITY:
            rank, due_ms, id = first
            # Where thousands of jobs have the same due time, the id counts.
            position = (due_ms, id if is_full and last[1] == due_ms else NO_ID)
            seen = {name for order, name in may_wait if order[0] == rank}
            seen |= {name for (_, name), known in start.positions.items() if rank in known}
            positions = [(self.queue, name, rank, position) for name in seen]
        self.ctx.claims.cursor.learn(start, positions, full=is_full, replaces=True)

    async def _query(self, match: Document, limit: int, skip: int = 0) -> list[Document]:
        """The first jobs that match and may be claimed, in claim order; without the first `skip` of them.

        Where others claim faster, only the ids: payloads are read after the lease.
        """
        match = {**match, **self._free, "_id": {**match.get("_id", {}), **self._free["_id"]}}
        order = _WITHIN_PRIORITY if "priority" in match else ORDER
        ids = [{"$project": leases.IN_ORDER}] if self.ctx.claims.others_are_faster and not skip else []
        more, self._beside = self._beside, []
        stages: list[Document] = [{"$match": match}, {"$sort": order}, {"$skip": skip}, {"$limit": limit}, *ids, *more]
        jobs, size = self.ctx.here.jobs, limit + (MAX_BESIDE if more else 1)

        async def query(hint: Document) -> list[Document]:
            return await (await jobs.aggregate(stages, batchSize=size, **hint)).to_list()

        rows = await self.ctx.hinted(schema.CLAIM, query)
        self._others = [one for one in rows if "status" not in one] if more else self._others
        return rows[: len(rows) - len(self._others)] if more else rows

    def _waiting(self, names: Sequence[str], due: Document | None = None) -> Document:
        """A filter for waiting jobs of these names, or of all; without `due`, for those that are due."""
        # Jobs of the home queue do not have this field. For a query for null, the server would merge two index
        # ranges. Measured: that takes 1.5 times as long.
        is_queue = {"$exists": False} if self.queue == self.ctx.url.queue else self.queue
        name = names[0] if len(names) == 1 else {"$in": list(names)} if names else {"$exists": True}
        due = due or {"$lte": date(self.now_ms)}
        return {"jobmill.queue": is_queue, "status": "pending", "name": name, "nextRunAt": due}

    async def _next_due(self, after_ms: int = _FIRST_MS) -> int | None:
        """The earliest due time, later than `after_ms`, of the jobs that wait, or the first end of a lease."""
        names = {name for name, room in self.claim.names.items() if room > 0}
        if not names:
            return None
        if any(self.rooms[name] <= 0 for name in names):  # a name that has no more room may have more jobs
            after_ms = _FIRST_MS
        dues = await asyncio.gather(self._first_due(names, after_ms), self._first_lease_end())
        return min((due_ms for due_ms in (self._again_ms, *dues) if due_ms is not None), default=None)

    async def _first_due(self, names: set[str], after_ms: int) -> int | None:
        """The first due time after `after_ms`. If very many jobs of other names are due before, an earlier time."""
        # The bound also excludes values that are not dates: another program wrote them, and they are never due.
        query, last_ms = self._waiting((), {"$gt": date(after_ms)}), after_ms
        for limit in (1, MAX_AHEAD):
            first = await self.ctx.find_by(schema.DUE, query, leases.IN_ORDER, limit, sort={"nextRunAt": 1})
            # No job after the last one is due before it.
            last_ms = int(first[-1]["nextRunAt"]) if len(first) == limit else NEVER_MS
            mine = (due_of(one) for one in first if one["name"] in names and not is_held(one))
            if (due_ms := min(mine, default=NEVER_MS)) <= last_ms:
                return None if due_ms == NEVER_MS else due_ms
        return last_ms

    async def _first_lease_end(self) -> int | None:
        """The first end of a lease; not where this claim has found jobs, and its worker claims again at once."""
        return None if self.claimed else await leases.first_end(self.ctx, self.queue, [*self.claim.names], self.now_ms)

    # ------------------------------------------------------------------------------------------------ lease

    def _writes(self, found: Found, lock: QueueLock | None = None) -> list[UpdateMany]:
        """Updates that lease the jobs that were found, if they can still be claimed."""
        more = {**(_STILL_FRESH if found.are_fresh else {}), **(lock.holds if lock else {})}
        writes = []
        for counts in ("unstarted", "crashes", None):
            ids = [job["_id"] for job in found.jobs if _counts(job) == counts]
            if ids:
                still: Document = {"status": "pending", "nextRunAt": {"$lte": date(self.now_ms)}}
                if counts is not None:
                    stale = leases.stale(self.now_ms, self.ctx.url.lock_timeout_ms)
                    still = {"$or": [leases.ended(self.now_ms), stale]}
                update = leases.lease_update(self.claim, self.now_ms, counts=counts)
                writes.append(UpdateMany({"_id": {"$in": ids}, **still, **more}, update, hint=BY_ID))
        return writes

    def let_go(self, *, leased: bool) -> None:
        """Other claims may take the jobs again that this claim has chosen; unless they are leased, they still wait."""
        if self._chosen and not leased:
            self.ctx.claims.cursor.rewind()
        for id in self._chosen:
            self.ctx.claims.in_flight.pop(id, None)
        self._chosen = {}

    async def _lease(self, found: Found, lock: QueueLock | None) -> list[Document]:
        """Lease the jobs that were found, if they can still be claimed. Return the leased jobs, in claim order."""
        if lock is not None:
            leased = await self._lease_counted(found, lock)
        else:
            has_all = self.leasing.has_matched if found is self.found else await self._send(found)
            leased = await self._leased(found, has_all)
        self.let_go(leased=True)
        return leased

    async def _lease_counted(self, found: Found, lock: QueueLock) -> list[Document]:
        await lock.count_claims(self.ctx, len(found.jobs), self.now_ms)
        leased = await self._leased(found, await self._send(found, lock))
        await lock.count_claims(self.ctx, len(leased) - len(found.jobs), self.now_ms)
        return leased

    async def _send(self, found: Found, lock: QueueLock | None = None) -> bool:
        """Send the updates. Return whether all jobs are known to be leased."""
        errors = await send(self.ctx, self._writes(found, lock), len(found.jobs))
        if errors and len(found.jobs) > 1:
            # The server refuses to write to one of these jobs, and has not updated the jobs after it.
            for job in found.jobs:
                await self._send(structs.replace(found, jobs=[job]), lock)
        elif errors and len(self.ctx.claims.refused) < MAX_REFUSED:
            self.ctx.claims.refused.add(found.jobs[0]["_id"])
            self.ctx.report_once(found.jobs[0], f"it cannot be claimed: {errors[0][:200]}")
        return errors is None

    async def _leased(self, found: Found, has_all: bool) -> list[Document]:
        """The leased jobs. If all jobs were fresh and are leased, they are not read again."""
        if not has_all or not found.are_fresh:
            return await self._read_leased(found)
        written = leases.lease_update(self.claim, self.now_ms)["$set"]
        theirs = {field: value for field, value in written.items() if "." not in field}
        ours = {field.removeprefix("jobmill."): written[field] for field in written.keys() - theirs.keys()}
        return [{**job, **theirs, "jobmill": {**ours_of(job), **ours, "claims": 1}} for job in found.jobs]

    async def _read_leased(self, found: Found) -> list[Document]:
        """The jobs that have the token of this claim."""
        ids = [job["_id"] for job in found.jobs]
        claimed_by, token = f"{OURS}{self.claim.worker}", claim_id(self.claim.token)
        query = {"_id": {"$in": ids}, "status": "processing", "claimedBy": claimed_by, "claimId": token}
        read = await self.ctx.here.jobs.find(query, hint=BY_ID, batch_size=len(ids) + 1).to_list()
        by_id = {job["_id"]: job for job in read}
        self.ctx.claims.compete(self.queue, len(ids), len(by_id), has_more=found.has_more)
        return [by_id[id] for id in ids if id in by_id]

    # ------------------------------------------------------------------------------------------------ hand out

    def _hand_out(self, found: Found, leased: Sequence[Document]) -> None:
        until_ms = self.now_ms + self.claim.lease_ms
        self.ctx.claims.count(len(leased))
        lost = {job["_id"]: leases.worker_of(job) for job in found.jobs if job["status"] == "processing"}
        uncounted = {job["_id"] for job in found.jobs if lost and leases.is_uncounted(job)}
        for document in leased:
            why = ""
            try:
                job = self.ctx.job(document, strict=True)
            except UnreadableJob as error:
                why, job = str(error), self.ctx.job(document)
            locator = leases.locator_of(document, job)
            lease = Lease(job.id, self.claim.token, self.queue, job.name, until_ms, locator, job.lane)
            id = document["_id"]
            self.claimed.append(Broken(lease, why) if why else Claimed(job, lease, lost.get(id), id in uncounted))
            self.rooms[lease.name] -= 1
            if self.has_feed:
                self.events += claim_events(job, self.now_ms, lease_lost=document["_id"] in lost)


def _may_stay(document: Document) -> bool:
    """Whether a job that was found may have to stay: it recurs, or its nextRunAt may not be its due time."""
    return bool(document.get("repeatInterval")) or "due" in ours_of(document)


def _counts(document: Document) -> str | None:
    """What counts the end of the lease of a running job; None for a job that waits."""
    if document["status"] == "pending":
        return None
    return "unstarted" if leases.is_uncounted(document) else "crashes"


def _as_zero(order: Order) -> Order:
    """Where a job stands if a priority that is missing counts as 0."""
    return (0, *order[1:]) if order[0] == UNRANKED else order


def _is_fresh(document: Document) -> bool:
    """Whether a waiting job was never claimed and runs once, so that nothing in it changes while it waits."""
    ours, errors = ours_of(document), document.get("failCount")
    is_new = document["status"] == "pending" and errors == 0 and errors is not False and _NOT_FRESH.isdisjoint(ours)
    recurs = document.get("repeatInterval") or "rule" in ours
    return is_new and not recurs and "leaseExpiresAt" not in document
