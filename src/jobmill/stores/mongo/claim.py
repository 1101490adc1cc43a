"""Claims: find jobs in claim order, update them all where they are still due, and read what got our token, where that
may not be what was found.

Measured elsewhere at a thirtieth of what one find-and-modify for each job costs the server. Where one job was found it
is a find-and-modify: one round trip instead of two.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from bson import ObjectId
from pymongo import ReturnDocument, UpdateMany
from pymongo.errors import OperationFailure, PyMongoError

from jobmill.core.events import Event, claim_events
from jobmill.core.values import Broken, Claimed, Lease
from jobmill.stores.mongo import codec
from jobmill.stores.mongo.context import ended, stale
from jobmill.stores.mongo.codec import OURS, Unreadable
from jobmill.stores.mongo.feed import Known
from jobmill.stores.mongo.finding import Found, Search
from jobmill.stores.mongo.connection import BY_ID, Document, is_away
from jobmill.stores.mongo.queues import Locked
from jobmill.stores.mongo.settle import Also, locator_of
from jobmill.stores.mongo.values import claim_id, date

#: How often a claim looks again when others were quicker.
TURNS = 20
#: How often one whose answer was lost is sent.
SENT = 3
#: That a job is as fresh as when it was found: nobody has claimed it since, nor failed to run it and counted no claim.
_FRESH = {"jobmill.claims": {"$exists": False}, "failCount": 0}


class Turn(Search):
    """The claim of one queue."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.claimed: list[Claimed | Broken] = []
        #: Whether the queue's feed is on.
        self.is_told = False
        #: Whether the same call settles jobs that are due again at once: they are not for this claim.
        self.is_put_back = False
        self.told: list[Event] = []
        # Whether this claim has opened, or gone on with, a window of the rate limit.
        self._has_counted = False

    async def limited(self) -> int | None:
        """Under the queue's lock, as far as its limits allow; when there may be more."""
        store, queue, now_ms = self._store, self._queue, self._now_ms
        async with store._locked(queue) as locked:
            if locked is None:
                return now_ms
            known = locked.known
            if known.settings.paused:
                return None
            left, running = known.left(now_ms), known.settings.running_limit
            room = left
            if running is not None:
                free = max(0, running - await self._running())
                room = free if room is None else min(room, free)
            due_ms = await self.free(locked, room)
            if running is not None and room is not None and await self._running() >= running:
                return None
        if due_ms is None or left is None or left > len(self.claimed):
            return due_ms
        ends_ms = known.window_ends_ms if now_ms < known.window_ends_ms else now_ms + _per_ms(known)
        return max(due_ms, ends_ms)

    async def look(self, queues: Collection[str]) -> tuple[Found, dict[str, Known]]:
        """What may be claimed, for a bulk that settles as well: then `free` goes on from there. And what is set for
        these queues.
        """
        self._ask_known = queues
        found = await self._find(self._n)
        self._ask_known = ()
        return found, self.known if self.known is not None else await self._store._known(queues)

    def settled(self, done: set[str]) -> None:
        """Only these were settled meanwhile: whatever was not may be claimed, if there is room for it."""
        self._is_cut |= done != self._not_these
        self._not_these = done

    def writes(self, found: Found, locked: Locked | None = None) -> list[UpdateMany]:
        """What takes all that was found, as far as it is still to be had then."""
        return [
            UpdateMany(
                {
                    "_id": {"$in": _ids(some)},
                    **self._still(is_lost),
                    **(_FRESH if found.are_fresh else {}),
                    **(locked.holds if locked else {}),
                },
                self._leased(is_lost, are_fresh=found.are_fresh),
                hint=BY_ID,
            )
            for some, is_lost in ((found.lost, True), (found.waiting, False))
            if some
        ]

    async def free(
        self, locked: Locked | None, room: int | None, first: Found | None = None, written: Also | None = None
    ) -> int | None:
        """Claim up to the room there is; when there may be more. What was found first is not looked for again, and
        what was written already not written.
        """
        store = self._store
        most = self._n if room is None else min(self._n, room)
        for _ in range(TURNS):
            wanted = most - len(self.claimed)
            if wanted <= 0 or not any(self._rooms.values()):
                break
            found = await self._find(wanted) if first is None else first
            first = None
            if written is not None and written.writes:
                taken = self._hand_out(found, await self._got(found, has_matched=written.has_matched))
                written = None
                # What the server refused, and what came behind it, is to be had again.
                store._let_go(found.all)
            else:
                taken = await self._take_all(found, locked)
            if len(found):
                store._are_others_quicker = taken < len(found)
            if taken == len(found) and (taken == wanted or not self._is_cut):
                self.claimed.sort(key=lambda one: self._order[one.lease.id])
                if found.next_due_ms is not None:
                    return found.next_due_ms
                # Not filled: whatever is due was found, but for names without room and what this call has put back.
                is_all = taken < wanted and all(self._rooms.get(name, 0) > 0 for name in self._names)
                return await self._next_due(later=is_all and not self.is_put_back)
            # Others were quicker, or were just about to be: there may be more behind.
        return await self._next_due()

    async def _take_all(self, found: Found, locked: Locked | None) -> int:
        """Take what was found, as far as it is still to be had; how many that were."""
        store = self._store
        if locked is not None:
            await store._count_claims(self._queue, locked, len(found), self._now_ms, opens=not self._has_counted)
            self._has_counted |= len(found) > 0
        with store._taking(found.all):
            taken = self._hand_out(found, await self._take(found, locked) if len(found) else [])
        if locked is not None:
            await store._count_claims(self._queue, locked, taken - len(found), self._now_ms, opens=False)
        return taken

    async def _take(self, found: Found, locked: Locked | None) -> list[Document]:
        """Those of these jobs that are still to be had, now under our token; as they are then."""
        if len(found) > 1 and (matched := await self._take_many(found, locked)) is not None:
            return await self._got(found, has_matched=matched == len(found))
        for some, is_lost in ((found.lost, True), (found.waiting, False)):
            for document in some:
                one = await self._take_one(document, is_lost, locked)
                if one is not None and len(found) == 1:
                    return [one]
        return await self._got(found) if len(found) > 1 else []

    async def _take_many(self, found: Found, locked: Locked | None) -> int | None:
        """Take them all; how many were to be had, or None where the server refuses one of them and so whatever comes
        behind it.

        Where the answer was lost it is sent again: what it has done already it does not do twice.
        """
        for turn in range(SENT):
            try:
                result = await self._store._here.jobs.bulk_write(self.writes(found, locked), ordered=False)
                return int(result.matched_count)
            except PyMongoError as error:
                if not is_away(error):
                    return None
                if turn == SENT - 1:
                    raise
        return None

    async def _take_one(self, document: Document, is_lost: bool, locked: Locked | None) -> Document | None:
        """The job under our token. Where the server refuses to write that, nobody here tries again."""
        query = {"_id": document["_id"], **self._still(is_lost), **(locked.holds if locked else {})}
        jobs = self._store._here.jobs
        for turn in range(SENT):
            try:
                one = await jobs.find_one_and_update(
                    query, self._leased(is_lost), return_document=ReturnDocument.AFTER, hint=BY_ID
                )
            except PyMongoError as error:
                if is_away(error) and turn < SENT - 1:
                    continue
                if is_away(error) or not isinstance(error, OperationFailure):
                    raise
                self._store._refuse(document, str((error.details or {}).get("errmsg", error)))
                return None
            # Sent again it finds what it has done already only by our token.
            return one if one or not turn else await jobs.find_one({"_id": document["_id"], **self._mine()})
        return None

    async def _got(self, found: Found, *, has_matched: bool = False) -> list[Document]:
        """Those of these jobs that have our token. Where all were taken just as they had been found, nobody needs to
        read them again: with the looks that take turns, measured, a quarter of what a job costs here.
        """
        if not len(found):
            return []
        if has_matched and found.are_fresh:
            update = self._leased(is_lost=False)["$set"]
            return [_claimed(document, update) for document in found.waiting]
        ids = _ids(found.all)
        jobs, query = self._store._here.jobs, {"_id": {"$in": ids}, **self._mine()}
        return await jobs.find(query, hint=BY_ID, batch_size=len(ids) + 1).to_list()

    def _still(self, is_lost: bool) -> Document:
        """The filter by which they were found, repeated: another may have been quicker."""
        if not is_lost:
            return {"status": "pending", "nextRunAt": {"$lte": date(self._now_ms)}}
        foreign = stale(self._now_ms, self._store._place.lock_timeout_ms)
        return {"$or": [ended(self._now_ms), foreign]}

    def _mine(self) -> Document:
        return {"status": "processing", "claimedBy": self._claimed_by, "claimId": claim_id(self._claim.token)}

    @property
    def _claimed_by(self) -> str:
        return f"{OURS}{self._claim.worker}"

    def _leased(self, is_lost: bool, *, are_fresh: bool = False) -> Document:
        claim = self._claim
        return leased(claim.worker, claim.token, claim.lease_ms, self._now_ms, is_lost=is_lost, is_fresh=are_fresh)

    def _hand_out(self, found: Found, got: Sequence[Document]) -> int:
        """Give those to the caller; how many they are."""
        lost = set(_ids(found.lost))
        self._store._floors.claimed(len(got), time.monotonic())
        for document in got:
            self._hand_out_one(document, document["_id"] in lost)
        return len(got)

    def _hand_out_one(self, document: Document, is_lost: bool) -> None:
        store = self._store
        until_ms = self._now_ms + self._claim.lease_ms
        why = ""
        try:
            job = codec.job_of(document, store._place.queue, strict=True)
        except Unreadable as error:
            why = str(error)
            job = store._job(document)
        lease = Lease(job.id, self._claim.token, self._queue, job.name, until_ms, locator_of(document, job))
        self.claimed.append(Broken(lease, why) if why else Claimed(job, lease))
        self._handed.add(job.id)
        self._rooms[lease.name] -= 1
        if self.is_told:
            self.told += claim_events(job, self._now_ms, lease_lost=is_lost)


def _ids(some: Sequence[Document]) -> list[ObjectId]:
    return [document["_id"] for document in some]


def _claimed(document: Document, told: Document) -> Document:
    """A document as the first claim has left it."""
    ours: Document = {**codec.ours_of(document), "claims": 1}
    for field, value in told.items():
        where, _, name = field.rpartition(".")
        (ours if where else document)[name] = value
    document["jobmill"] = ours
    return document


def leased(worker: str, token: str, lease_ms: int, now_ms: int, *, is_lost: bool, is_fresh: bool = False) -> Document:
    """What a claim writes; of jobs that are known to be fresh no more than needs be."""
    counts = {"jobmill.claims": 1} | ({"jobmill.crashes": 1} if is_lost else {})
    mended: Document = {
        # A lease that a Monque of ours took over must not be taken for one of its own.
        "$unset": {"leaseExpiresAt": ""},
        # A Node worker that takes over a job without a number here, or with less than none, would never give up.
        "$max": {"failCount": 0},
    }
    return {
        "$set": {
            "status": "processing",
            "lockedAt": date(now_ms),
            "claimedBy": f"{OURS}{worker}",
            "claimId": claim_id(token),
            "lastHeartbeat": date(now_ms),
            "heartbeatInterval": min(max(1, lease_ms // 3), 2**31 - 1),
            "updatedAt": date(now_ms),
            "jobmill.leaseUntil": date(now_ms + lease_ms),
            "jobmill.startedAt": date(now_ms),
            "jobmill.worker": worker,
        },
        "$inc": counts,
        **({} if is_fresh else mended),
    }


def _per_ms(known: Known) -> int:
    rate = known.settings.rate_limit
    return 0 if rate is None else rate.per_ms
