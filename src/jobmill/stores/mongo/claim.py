"""Claims: find jobs in claim order, lease all of them in one write where they still wait, and hand them out.

One update of many jobs costs the server a thirtieth of one find-and-modify for each. A claim of a single job is a
find-and-modify: one round trip instead of two.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bson import ObjectId
from msgspec import Struct
from pymongo import ReturnDocument, UpdateMany
from pymongo.errors import OperationFailure, PyMongoError

from jobmill.core.events import Event, claim_events
from jobmill.core.values import Broken, Claim, Claimed, Lease
from jobmill.stores.common.unreadable import UnreadableJob
from jobmill.stores.mongo.claim_memory import order_of
from jobmill.stores.mongo.claim_search import ClaimSearch
from jobmill.stores.mongo.codec import OURS, Document, date, id_of, job_of, ms_of, ours_of
from jobmill.stores.mongo.connection import BY_ID, is_unavailable
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.ids import claim_id
from jobmill.stores.mongo.leases import count_running, ended, find_lost, lease_update, locator_of, stale
from jobmill.stores.mongo.queues import QueueLock, QueueState, locked, queue_states
from jobmill.stores.mongo.settle import ClaimWrites

#: How often a claim searches again when other processes took what it had found.
MAX_SEARCHES = 20
#: How often a claim is sent whose response was lost.
MAX_SENDS = 3

#: Nobody has claimed a job since it was found, nor failed it without counting a claim.
_STILL_FRESH = {"jobmill.claims": {"$exists": False}, "failCount": 0}


class Found(Struct, frozen=True):
    """Jobs that may be claimed, in claim order."""

    waiting: list[Document] = []
    #: Running jobs whose lease has ended.
    lost: list[Document] = []
    #: When the next waiting job is due, where that is known.
    next_due_ms: int | None = None
    #: Whether these are whole documents of jobs that were never claimed: nothing else in them changes while they wait.
    are_fresh: bool = False

    @property
    def all(self) -> list[Document]:
        """Both kinds."""
        return [*self.lost, *self.waiting]


class QueueClaim:
    """The claim of jobs of one queue: `run` finds, leases and hands out until the claim is full."""

    def __init__(
        self, ctx: MongoContext, queue: str, claim: Claim, rooms: dict[str, int], settled: set[str], now_ms: int
    ) -> None:
        self._ctx, self._queue, self._claim, self._now_ms = ctx, queue, claim, now_ms
        self._rooms = {name: room for name, room in rooms.items() if room > 0}
        self._names = [name for name, room in claim.names.items() if room > 0]
        #: Jobs that the same call settles: they are not for this claim.
        self._settled = settled
        self.claimed: list[Claimed | Broken] = []
        self.events: list[Event] = []
        #: Whether the feed of the queue is on.
        self.has_feed = False
        #: Whether the same call puts jobs back that are due at once.
        self.puts_back = False
        self._search = ClaimSearch(ctx, queue, now_ms)
        self._order: dict[str, int] = {}
        self._handed_out: set[str] = set()

    async def run(
        self, n: int, lock: QueueLock | None = None, found: Found | None = None, written: ClaimWrites | None = None
    ) -> int | None:
        """Claim up to `n` jobs; when there may be more.

        `found`: what an earlier `find` has found; `written`: a bulk has already leased it, as far as it still waited.
        """
        memory = self._ctx.claims
        for _ in range(MAX_SEARCHES):
            wanted = n - len(self.claimed)
            if wanted <= 0 or not any(self._rooms.values()):
                break
            if found is None:
                found = await self.find(wanted)
            if written is not None and written.writes:
                leased = await self._read_leased(found, has_matched=written.has_matched)
                memory.let_go(found.all)  # what the server has refused may be claimed again
            else:
                leased = await self._lease(found, lock)
            self._hand_out(found, leased)
            if found.all:
                memory.others_are_faster = len(leased) < len(found.all)
            if len(leased) == len(found.all) and (len(leased) == wanted or not self._search.is_cut):
                self.claimed.sort(key=lambda one: self._order[one.lease.id])
                if found.next_due_ms is not None:
                    return found.next_due_ms
                # Everything due was found, except for names without room and what this call has put back.
                is_all = len(leased) < wanted and all(self._rooms.get(name, 0) > 0 for name in self._names)
                return await self._search.next_due(self._names, later=is_all and not self.puts_back)
            found = written = None
        return await self._search.next_due(self._names)

    async def run_limited(self, n: int) -> int | None:
        """Claim under the queue's lock, as far as its limits allow; when there may be more."""
        now_ms = self._now_ms
        async with locked(self._ctx, self._queue) as lock:
            if lock is None:
                return now_ms
            limits = lock.limits
            if limits.settings.paused:
                return None
            max_running = limits.settings.running_limit
            running = 0 if max_running is None else await count_running(self._ctx, self._queue, now_ms)
            room = limits.room(running, now_ms)
            due_ms = await self.run(n if room is None else min(n, room), lock)
            if max_running is not None and await count_running(self._ctx, self._queue, now_ms) >= max_running:
                return None
        if due_ms is None or lock.limits.claims_left(now_ms) != 0:
            return due_ms
        return max(due_ms, lock.limits.window_ends_ms)

    # ------------------------------------------------------------------------------------------------ find

    async def find(self, wanted: int) -> Found:
        """Jobs that may be claimed, within the room of each name."""
        ctx, memory = self._ctx, self._ctx.claims
        # Where other processes are faster, payloads are read after the claim; a find-and-modify reads its job itself.
        self._search.whole = wanted > 1 and not memory.others_are_faster
        # Jobs that are yet to be settled still run; jobs that this call has put back may be found.
        spare = (0 if self._search.states_of else len(self._settled)) + len(self._handed_out)
        async with ctx.here.searching:  # claims that search at the same time would find the same jobs
            found = await self._search.waiting(self._rooms, wanted, spare)
            waiting = [one for one in found if not self._is_excluded(one)]
            lost: list[Document] = []
            if memory.ended_is_due(self._queue, full=len(waiting) > wanted):
                names = [name for name, room in self._rooms.items() if room > 0]
                limit = wanted + spare + len(memory.in_flight) + len(memory.refused)
                lost = await find_lost(ctx, self._queue, names, limit, self._now_ms)
        return self._choose(waiting, lost, wanted)

    async def find_first(self, wanted: int, queues: Collection[str]) -> tuple[Found, dict[str, QueueState]]:
        """`find` before anything is settled, and the states of these queues in the same round trip."""
        self._search.states_of = queues
        found = await self.find(wanted)
        states = self._search.states
        if self._search.states_of:  # no name has room, so nothing was asked
            states, self._search.states_of = await queue_states(self._ctx, queues), ()
        return found, states

    def _choose(self, waiting: list[Document], lost: list[Document], wanted: int) -> Found:
        """The first of these jobs that fit into the room of their names."""
        taken: list[Document] = []
        left: Document | None = None
        rooms = dict(self._rooms)
        # A job may have changed between the queries and counts as it was read last: leased twice it would run twice.
        last_read = {document["_id"]: document for document in (*waiting, *lost)}
        for document in sorted(last_read.values(), key=order_of):
            if self._is_excluded(document):
                continue
            if rooms.get(document["name"], 0) > 0 and len(taken) < wanted:
                rooms[document["name"]] -= 1
                taken.append(document)
                self._order.setdefault(id_of(document), len(self._order))
            elif left is None and document["status"] == "pending":
                left = document
        self._search.taken(taken)
        return Found(
            waiting=[one for one in taken if one["status"] == "pending"],
            lost=[one for one in taken if one["status"] == "processing"],
            next_due_ms=None if left is None else min(self._now_ms, ms_of(left["nextRunAt"]) or 0),
            are_fresh=self._search.whole and all(map(_is_fresh, taken)),
        )

    def _is_excluded(self, document: Document) -> bool:
        """Whether a job is not for this claim: settled or leased by this call, in another claim, or refused."""
        memory, id, key = self._ctx.claims, id_of(document), document["_id"]
        is_ours = id in self._settled or id in self._handed_out
        return is_ours or key in memory.in_flight or key in memory.refused

    def settled(self, done: set[str]) -> None:
        """Only these jobs were settled since `find`; the others may be claimed, where there is room."""
        self._search.is_cut |= done != self._settled
        self._settled = done

    # ------------------------------------------------------------------------------------------------ lease

    def writes(self, found: Found, lock: QueueLock | None = None) -> list[UpdateMany]:
        """Updates that lease what was found, as far as it still waits."""
        more = {**(_STILL_FRESH if found.are_fresh else {}), **(lock.holds if lock else {})}
        return [
            UpdateMany(
                {"_id": {"$in": _ids(some)}, **self._still(is_lost), **more},
                self._update(is_lost, is_fresh=found.are_fresh),
                hint=BY_ID,
            )
            for some, is_lost in ((found.lost, True), (found.waiting, False))
            if some
        ]

    async def _lease(self, found: Found, lock: QueueLock | None) -> list[Document]:
        """Lease what was found, as far as it still waits; the leased jobs."""
        count = len(found.all)
        if not count:
            return []
        with self._ctx.claims.leasing(found.all):
            if lock is not None:
                await lock.count_claims(self._ctx, count, self._now_ms)
            matched = await self._lease_many(found, lock) if count > 1 else None
            if matched is not None:
                leased = await self._read_leased(found, has_matched=matched == count)
            else:
                # A single job, or one that the server refuses to write to: its bulk leaves out the jobs after it.
                each = [
                    (one, is_lost) for some, is_lost in ((found.lost, True), (found.waiting, False)) for one in some
                ]
                one_by_one = [await self._lease_one(document, is_lost, lock) for document, is_lost in each]
                leased = [one for one in one_by_one if one] if count == 1 else await self._read_leased(found)
            if lock is not None:
                await lock.count_claims(self._ctx, len(leased) - count, self._now_ms)
        return leased

    async def _lease_many(self, found: Found, lock: QueueLock | None) -> int | None:
        """Lease all; how many still waited, or None where the server refuses to write to one of them."""
        for send in range(MAX_SENDS):  # what a lost response has done already, the next one does not do again
            try:
                result = await self._ctx.here.jobs.bulk_write(self.writes(found, lock), ordered=False)
                return int(result.matched_count)
            except PyMongoError as error:
                if not is_unavailable(error):
                    return None
                if send == MAX_SENDS - 1:
                    raise
        return None

    async def _lease_one(self, document: Document, is_lost: bool, lock: QueueLock | None) -> Document | None:
        """Lease one job. Where the server refuses to write to it, this process leaves it alone from now on."""
        query = {"_id": document["_id"], **self._still(is_lost), **(lock.holds if lock else {})}
        jobs = self._ctx.here.jobs
        for send in range(MAX_SENDS):
            try:
                one = await jobs.find_one_and_update(
                    query, self._update(is_lost), return_document=ReturnDocument.AFTER, hint=BY_ID
                )
            except PyMongoError as error:
                if is_unavailable(error) and send < MAX_SENDS - 1:
                    continue
                if is_unavailable(error) or not isinstance(error, OperationFailure):
                    raise
                self._ctx.claims.refuse(document)
                why = str((error.details or {}).get("errmsg", error))
                self._ctx.report_once(document, f"it cannot be claimed: {why[:200]}")
                return None
            # After a lost response the job has our token already.
            return one if one or not send else await jobs.find_one({"_id": document["_id"], **self._mine()})
        return None

    async def _read_leased(self, found: Found, *, has_matched: bool = False) -> list[Document]:
        """Those of these jobs that have our token. Fresh jobs that were all leased need not be read again."""
        if not found.all:
            return []
        if has_matched and found.are_fresh:
            written = self._update(is_lost=False)["$set"]
            return [_with_claim(document, written) for document in found.waiting]
        ids = _ids(found.all)
        query = {"_id": {"$in": ids}, **self._mine()}
        return await self._ctx.here.jobs.find(query, hint=BY_ID, batch_size=len(ids) + 1).to_list()

    def _still(self, is_lost: bool) -> Document:
        """The filter by which a job was found: another process may have been faster."""
        if not is_lost:
            return {"status": "pending", "nextRunAt": {"$lte": date(self._now_ms)}}
        return {"$or": [ended(self._now_ms), stale(self._now_ms, self._ctx.url.lock_timeout_ms)]}

    def _mine(self) -> Document:
        claimed_by = f"{OURS}{self._claim.worker}"
        return {"status": "processing", "claimedBy": claimed_by, "claimId": claim_id(self._claim.token)}

    def _update(self, is_lost: bool, *, is_fresh: bool = False) -> Document:
        claim = self._claim
        return lease_update(claim.worker, claim.token, claim.lease_ms, self._now_ms, is_lost=is_lost, is_fresh=is_fresh)

    # ------------------------------------------------------------------------------------------------ hand out

    def _hand_out(self, found: Found, leased: Sequence[Document]) -> None:
        lost = set(_ids(found.lost))
        self._ctx.claims.count(len(leased))
        for document in leased:
            why = ""
            try:
                job = job_of(document, self._ctx.url.queue, strict=True)
            except UnreadableJob as error:
                why, job = str(error), self._ctx.job(document)
            until_ms = self._now_ms + self._claim.lease_ms
            lease = Lease(job.id, self._claim.token, self._queue, job.name, until_ms, locator_of(document, job))
            self.claimed.append(Broken(lease, why) if why else Claimed(job, lease))
            self._handed_out.add(job.id)
            self._rooms[lease.name] -= 1
            if self.has_feed:
                self.events += claim_events(job, self._now_ms, lease_lost=document["_id"] in lost)


def _is_fresh(document: Document) -> bool:
    """Whether a waiting job was never claimed and runs once, so that nothing in it changes while it waits."""
    ours, errors = ours_of(document), document.get("failCount")
    is_new = isinstance(errors, int | float) and not isinstance(errors, bool) and errors == 0 and "claims" not in ours
    recurs = document.get("repeatInterval") or "rule" in ours
    return document["status"] == "pending" and is_new and not recurs and "leaseExpiresAt" not in document


def _ids(documents: Sequence[Document]) -> list[ObjectId]:
    return [document["_id"] for document in documents]


def _with_claim(document: Document, written: Document) -> Document:
    """A document as the first claim has left it."""
    ours: Document = {**ours_of(document), "claims": 1}
    for field, value in written.items():
        parent, _, name = field.rpartition(".")
        (ours if parent else document)[name] = value
    document["jobmill"] = ours
    return document
