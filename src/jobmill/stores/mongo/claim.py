"""Claims: find jobs in claim order, lease those that still wait in one write, and return them.

For the server, one update of many jobs costs a thirtieth of one find-and-modify per job. A claim of a single job uses
find-and-modify, which needs one round trip instead of two.
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
from jobmill.stores.mongo.queues import NO_STATE, QueueDocument, QueueLock, locked, queue_states
from jobmill.stores.mongo.settle import ClaimWrites

#: The maximum number of searches of one claim, if other processes claim the jobs that it has found.
MAX_SEARCHES = 20
#: The maximum number of times that a claim is sent, if its response is lost each time.
MAX_SENDS = 3

#: A filter: no process has claimed the job since it was found, and no program has counted a failure of it.
_STILL_FRESH = {"jobmill.claims": {"$exists": False}, "failCount": 0}


class Found(Struct, frozen=True):
    """Jobs that may be claimed, in claim order."""

    waiting: list[Document] = []
    #: Running jobs whose lease has ended.
    lost: list[Document] = []
    #: When the next waiting job is due, where that is known.
    next_due_ms: int | None = None
    #: Whether these are whole documents of jobs that were never claimed. They do not change while they wait.
    are_fresh: bool = False

    @property
    def all(self) -> list[Document]:
        """Jobs whose lease has ended, and waiting jobs."""
        return [*self.lost, *self.waiting]


class QueueClaim(Struct):
    """The claim of jobs of one queue. `run` finds and leases jobs until the claim is full or no job is due."""

    ctx: MongoContext
    queue: str
    claim: Claim
    #: How many more jobs of each name may be claimed.
    rooms: dict[str, int]
    #: Jobs that the same call settles. This claim must not take them.
    settled: set[str]
    now_ms: int
    search: ClaimSearch
    #: The jobs that `find_first` has found, and the updates that lease them within the bulk write of settlements.
    found: Found | None = None
    sent: ClaimWrites | None = None
    #: Whether the same call puts jobs back that are due at once.
    puts_back: bool = False
    #: Whether the feed of the queue is on.
    has_feed: bool = False
    claimed: list[Claimed | Broken] = []
    events: list[Event] = []
    _order: dict[str, int] = {}

    async def run(self, n: int, lock: QueueLock | None = None) -> int | None:
        """Claim up to `n` jobs. Return when the next claim may find a job."""
        names = [name for name, room in self.claim.names.items() if room > 0]
        for _ in range(MAX_SEARCHES):
            wanted = n - len(self.claimed)
            if wanted <= 0 or not any(room > 0 for room in self.rooms.values()):
                break
            found = self.found or await self.find(wanted)
            leased = await self._lease(found, lock)
            self.found = None
            self._hand_out(found, leased)
            if found.all:
                self.ctx.claims.others_are_faster = len(leased) < len(found.all)
            if len(leased) == len(found.all) and (len(leased) == wanted or not self.search.is_cut):
                self.claimed.sort(key=lambda one: self._order[one.lease.id])
                if found.next_due_ms is not None:
                    return found.next_due_ms
                # All due jobs were found, except jobs of names without room and jobs that this call has put back.
                is_all = len(leased) < wanted and all(self.rooms[name] > 0 for name in names)
                return await self.search.next_due(names, later=is_all and not self.puts_back)
        return await self.search.next_due(names)

    def only_settled(self, done: set[str]) -> None:
        """Note which settlements were written after `find_first`. The other jobs may be claimed if there is room."""
        self.search.is_cut |= done != self.settled
        self.settled = done

    async def run_within_limits(self, n: int, state: QueueDocument) -> int | None:
        """`run`, unless the queue is paused, and within the limits of the queue."""
        self.has_feed = state.settings.feed
        if state.settings.paused:
            return None
        return await (self._run_locked(n) if state.limits.counts_claims else self.run(n))

    async def _run_locked(self, n: int) -> int | None:
        """`run` under the queue's lock, so that claims are counted one after the other."""
        now_ms = self.now_ms
        async with locked(self.ctx, self.queue) as lock:
            if lock is None:
                return now_ms
            if lock.limits.settings.paused:
                return None
            max_running = lock.limits.settings.running_limit
            running = 0 if max_running is None else await count_running(self.ctx, self.queue, now_ms)
            room = lock.limits.room(running, now_ms)
            due_ms = await self.run(n if room is None else min(n, room), lock)
            if max_running is not None and await count_running(self.ctx, self.queue, now_ms) >= max_running:
                return None
        if due_ms is None or lock.limits.claims_left(now_ms) != 0:
            return due_ms
        return max(due_ms, lock.limits.window_ends_ms)

    # ------------------------------------------------------------------------------------------------ find

    async def find_first(self, queues: Collection[str], *, settles: bool) -> dict[str, QueueDocument]:
        """Find jobs before the settlements are written. Return the states of these queues, from the same round trip."""
        self.search.states_of = queues
        found = await self.find(self.claim.n)
        states = await queue_states(self.ctx, queues) if self.search.states_of else self.search.states
        self.search.states_of = ()
        limits = states.get(self.queue, NO_STATE).limits
        if not limits.settings.paused and not limits.counts_claims:
            self.found = found
            self.sent = ClaimWrites(self._writes(found), len(found.all)) if settles and found.all else None
        return states

    async def find(self, wanted: int) -> Found:
        """Jobs that may be claimed, within the room of each name."""
        memory = self.ctx.claims
        # If other processes were faster last time, read payloads after the claim. A find-and-modify returns its job.
        self.search.whole = wanted > 1 and not memory.others_are_faster
        # Before the settlements are written, their jobs still run. Afterwards it may find jobs that they put back.
        spare = (0 if self.search.states_of else len(self.settled)) + len(self.claimed)
        async with self.ctx.here.searching:  # claims that search at the same time would find the same jobs
            waiting = await self.search.waiting(self.rooms, wanted, spare)
            waiting = [one for one in waiting if not self._is_excluded(one)]
            lost: list[Document] = []
            if memory.ended_is_due(self.queue, full=len(waiting) > wanted):
                names = [name for name, room in self.rooms.items() if room > 0]
                limit = wanted + spare + len(memory.in_flight) + len(memory.refused)
                lost = await find_lost(self.ctx, self.queue, names, limit, self.now_ms)
        return self._choose(waiting, lost, wanted)

    def _choose(self, waiting: list[Document], lost: list[Document], wanted: int) -> Found:
        """The first of these jobs that fit into the room of their names."""
        taken: list[Document] = []
        left: Document | None = None
        rooms = dict(self.rooms)
        # A job may change between the two queries: use the document that was read last, and lease each job only once.
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
        self.search.taken(taken)
        return Found(
            waiting=[one for one in taken if one["status"] == "pending"],
            lost=[one for one in taken if one["status"] == "processing"],
            next_due_ms=None if left is None else min(self.now_ms, ms_of(left["nextRunAt"]) or 0),
            are_fresh=self.search.whole and all(map(_is_fresh, taken)),
        )

    def _is_excluded(self, document: Document) -> bool:
        """Whether this claim must not take a job.

        This call settles the job or has leased it, another claim is about to lease it, or the server refuses to write
        to it.
        """
        memory, id, key = self.ctx.claims, id_of(document), document["_id"]
        is_ours = id in self.settled or any(one.lease.id == id for one in self.claimed)
        return is_ours or key in memory.in_flight or key in memory.refused

    # ------------------------------------------------------------------------------------------------ lease

    def _writes(self, found: Found, lock: QueueLock | None = None) -> list[UpdateMany]:
        """Updates that lease the jobs that were found, if they can still be claimed."""
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
        """Lease the jobs that were found, if they can still be claimed. Return the leased jobs."""
        sent, self.sent = self.sent, None
        if sent is not None:
            leased = await self._read_leased(found, has_matched=sent.has_matched)
            self.ctx.claims.let_go(found.all)  # what the server has refused may be claimed again
            return leased
        if not found.all:
            return []
        with self.ctx.claims.leasing(found.all):
            return await (self._lease_found(found) if lock is None else self._lease_counted(found, lock))

    async def _lease_counted(self, found: Found, lock: QueueLock) -> list[Document]:
        await lock.count_claims(self.ctx, len(found.all), self.now_ms)
        leased = await self._lease_found(found, lock)
        await lock.count_claims(self.ctx, len(leased) - len(found.all), self.now_ms)
        return leased

    async def _lease_found(self, found: Found, lock: QueueLock | None = None) -> list[Document]:
        documents = [*((one, True) for one in found.lost), *((one, False) for one in found.waiting)]
        if len(documents) == 1:
            one = await self._lease_one(*documents[0], lock)
            return [one] if one else []
        matched = await self._lease_many(found, lock)
        if matched is None:
            # The server refuses to write to one of these jobs, and has not updated the jobs after it.
            for document, is_lost in documents:
                await self._lease_one(document, is_lost, lock)
        return await self._read_leased(found, has_matched=matched == len(documents))

    async def _lease_many(self, found: Found, lock: QueueLock | None) -> int | None:
        """Lease all jobs. Return how many could still be claimed; None if the server refuses to write to one."""
        for send in range(MAX_SENDS):  # a job that is already leased does not match a second time
            try:
                result = await self.ctx.here.jobs.bulk_write(self._writes(found, lock), ordered=False)
                return int(result.matched_count)
            except PyMongoError as error:
                if not is_unavailable(error):
                    return None
                if send == MAX_SENDS - 1:
                    raise
        return None

    async def _lease_one(self, document: Document, is_lost: bool, lock: QueueLock | None) -> Document | None:
        """Lease one job. If the server refuses to write to it, this process does not try to claim it again."""
        query = {"_id": document["_id"], **self._still(is_lost), **(lock.holds if lock else {})}
        jobs = self.ctx.here.jobs
        for send in range(MAX_SENDS):
            try:
                one = await jobs.find_one_and_update(
                    query, self._update(is_lost), return_document=ReturnDocument.AFTER, hint=BY_ID
                )
            except PyMongoError as error:
                if is_unavailable(error) and send < MAX_SENDS - 1:
                    continue
                self._refuse(document, error)
                return None
            # After a lost response the job has our token already.
            return one if one or not send else await jobs.find_one({"_id": document["_id"], **self._mine()})
        return None

    def _refuse(self, document: Document, error: PyMongoError) -> None:
        if is_unavailable(error) or not isinstance(error, OperationFailure):
            raise error
        self.ctx.claims.refuse(document)
        why = str((error.details or {}).get("errmsg", error))
        self.ctx.report_once(document, f"it cannot be claimed: {why[:200]}")

    async def _read_leased(self, found: Found, *, has_matched: bool = False) -> list[Document]:
        """The jobs that have the token of this claim. If all jobs were fresh and leased, they are not read again."""
        if not found.all:
            return []
        if has_matched and found.are_fresh:
            written = self._update(is_lost=False)["$set"]
            return [_with_claim(document, written) for document in found.waiting]
        ids = _ids(found.all)
        query = {"_id": {"$in": ids}, **self._mine()}
        return await self.ctx.here.jobs.find(query, hint=BY_ID, batch_size=len(ids) + 1).to_list()

    def _still(self, is_lost: bool) -> Document:
        """A filter that matches while the job can still be claimed: another process may have claimed it since."""
        if not is_lost:
            return {"status": "pending", "nextRunAt": {"$lte": date(self.now_ms)}}
        return {"$or": [ended(self.now_ms), stale(self.now_ms, self.ctx.url.lock_timeout_ms)]}

    def _mine(self) -> Document:
        claimed_by = f"{OURS}{self.claim.worker}"
        return {"status": "processing", "claimedBy": claimed_by, "claimId": claim_id(self.claim.token)}

    def _update(self, is_lost: bool, *, is_fresh: bool = False) -> Document:
        claim = self.claim
        return lease_update(claim.worker, claim.token, claim.lease_ms, self.now_ms, is_lost=is_lost, is_fresh=is_fresh)

    # ------------------------------------------------------------------------------------------------ hand out

    def _hand_out(self, found: Found, leased: Sequence[Document]) -> None:
        lost = set(_ids(found.lost))
        self.ctx.claims.count(len(leased))
        for document in leased:
            why = ""
            try:
                job = job_of(document, self.ctx.url.queue, strict=True)
            except UnreadableJob as error:
                why, job = str(error), self.ctx.job(document)
            until_ms = self.now_ms + self.claim.lease_ms
            lease = Lease(job.id, self.claim.token, self.queue, job.name, until_ms, locator_of(document, job))
            self.claimed.append(Broken(lease, why) if why else Claimed(job, lease))
            self.rooms[lease.name] -= 1
            if self.has_feed:
                self.events += claim_events(job, self.now_ms, lease_lost=document["_id"] in lost)


def _is_fresh(document: Document) -> bool:
    """Whether a waiting job was never claimed and runs once, so that nothing in it changes while it waits."""
    ours, errors = ours_of(document), document.get("failCount")
    is_new = isinstance(errors, int | float) and not isinstance(errors, bool) and errors == 0 and "claims" not in ours
    recurs = document.get("repeatInterval") or "rule" in ours
    return document["status"] == "pending" and is_new and not recurs and "leaseExpiresAt" not in document


def _ids(documents: Sequence[Document]) -> list[ObjectId]:
    return [document["_id"] for document in documents]


def _with_claim(document: Document, written: Document) -> Document:
    """The document of a job after its first claim."""
    ours: Document = {**ours_of(document), "claims": 1}
    for field, value in written.items():
        parent, _, name = field.rpartition(".")
        (ours if parent else document)[name] = value
    document["jobmill"] = ours
    return document
