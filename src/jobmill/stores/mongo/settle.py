"""Settlements: guarded updates, those that say the same as one, all in one bulk.

A bulk tells how many jobs matched, not which. Each call marks what it changes, and where the numbers differ it reads
back which jobs have its mark. So it also finds out what was done when the answer to a bulk was lost on the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from bson import ObjectId
from msgspec import Struct
from pymongo import UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError, PyMongoError

from jobmill.core.job import TRACEBACKS_KEPT, Job
from jobmill.core.values import Lease, Refused, Settled, Settlement
from jobmill.stores.mongo.codec import CLEAN, FINAL, OURS, STATUS, is_ours, keep_fields
from jobmill.stores.mongo.enqueue import Enqueues
from jobmill.stores.mongo.connection import BY_ID, DUPLICATE_KEY, TOO_LARGE, Document, is_away
from jobmill.stores.mongo.values import LARGEST, claim_id, date, new_object_id

#: How often a bulk whose answer was lost is sent again before the store is said to be away.
TURNS = 3

Write: TypeAlias = UpdateOne | UpdateMany


class Locator(Struct, frozen=True, gc=False):
    """Where a lease finds its document, who has claimed it, and whether our rules of retention are for it."""

    id: ObjectId
    claimed_by: str
    is_ours: bool
    #: Of a recurring job: the slot of this run, where that is to be kept although nextRunAt changes.
    slot_ms: int | None = None


def locator_of(document: Document, job: Job) -> Locator:
    """Where the document of a job is."""
    return Locator(document["_id"], str(document.get("claimedBy", OURS)), is_ours(document), job.slot_ms)


class Held(Struct):
    """A lease, and where its document is."""

    lease: Lease
    locator: Locator

    def guard(self, now_ms: int) -> Document:
        """The guard of this lease alone."""
        return {"_id": self.locator.id, **guard(self.lease.token, self.locator.claimed_by, now_ms)}


def guard(token: str, claimed_by: str, now_ms: int) -> Document:
    """What holds while a lease does; for all jobs of one claim."""
    return {
        "status": "processing",
        "claimedBy": claimed_by,
        "claimId": claim_id(token),
        "jobmill.leaseUntil": {"$gt": date(now_ms)},
    }


class Also(Struct):
    """What goes along in a bulk that settles, and may match so many; it must bear being written twice."""

    writes: Sequence[Write] = ()
    matching: int = 0
    #: Afterwards: whether it is known to have matched them all.
    has_matched: bool = False


class Settles(Enqueues):
    """The first half of an exchange."""

    async def _settle(self, settlements: Sequence[Settlement], now_ms: int, also: Also) -> list[Settled]:
        """Write what was decided; an answer for each in order."""
        if not settlements:
            return []
        held = await self._located([one.lease for one in settlements])
        first: dict[str, int] = {}
        meant: list[tuple[int, Settlement, Held]] = []
        answers: list[Settled] = ["lost"] * len(settlements)
        for n, (settlement, one) in enumerate(zip(settlements, held, strict=True)):
            if len(settlement.result_json) > LARGEST:
                # The server would refuse the whole bulk.
                answers[n] = Refused(f"a result of at most {LARGEST} bytes fits into a document")
                continue
            # A second settlement of one lease in one call is lost, and must not be taken for the first.
            if one is not None and first.setdefault(settlement.lease.id, n) == n:
                meant.append((n, settlement, one))
        # Whoever shows a wrong token first must not hide the one that holds: those go in a bulk of their own.
        rest = [
            (n, settlement, one)
            for n, (settlement, one) in enumerate(zip(settlements, held, strict=True))
            if one is not None and first.get(settlement.lease.id, n) != n
        ]
        for some, more in [(meant, also), *(([one], Also()) for one in rest)]:
            for n, answer in (await self._settle_each(some, now_ms, more)).items():
                answers[n] = answer
        if any(one.state == "waiting" and one.due is None for one in settlements):
            self._put_behind()
        return answers

    async def _located(self, leases: Sequence[Lease]) -> list[Held | None]:
        """Where the documents of leases are: the store's own know it, for others they are looked up."""
        unknown = [lease.id for lease in leases if not isinstance(lease.locator, Locator)]
        found = await self._by_ids(unknown, {"status": 1, "claimedBy": 1, "jobmill": 1, "nextRunAt": 1, "name": 1})
        held: list[Held | None] = []
        for lease in leases:
            if isinstance(lease.locator, Locator):
                held.append(Held(lease, lease.locator))
            elif (document := found.get(lease.id)) is not None:
                held.append(Held(lease, locator_of(document, self._job(document))))
            else:
                held.append(None)
        return held

    async def _settle_each(
        self, meant: list[tuple[int, Settlement, Held]], now_ms: int, also: Also
    ) -> dict[int, Settled]:
        mark = new_object_id()
        bulk = _Bulk()
        for n, settlement, held in meant:
            bulk.add(n, settlement, held, mark, now_ms)
        writes = [*bulk.writes(now_ms), *also.writes]
        if not writes:
            return {}
        ids = [held.locator.id for *_, held in meant]
        written = await self._write(writes, len(meant) + also.matching, mark, ids, len(writes) - len(also.writes))
        also.has_matched = written.done is None
        answers: dict[int, Settled] = {}
        for n, _, held in meant:
            why = next((written.errors[place] for place in bulk.places[n] if place in written.errors), None)
            is_done = written.done is None or held.locator.id in written.done
            answers[n] = "done" if is_done else "lost" if why is None else Refused(why)
        done = [(one, held.locator) for n, one, held in meant if answers[n] == "done"]
        gone = [where.id for one, where in done if one.keep and one.keep.at_once and where.is_ours]
        if gone:
            await self._forget(gone, mark)
        return answers

    async def _write(
        self, writes: list[Write], expected: int, mark: ObjectId, ids: list[ObjectId], ours: int
    ) -> _Written:
        """Send a bulk, again if its answer was lost, and find out what it did; of the first writes, which are ours."""
        errors: dict[int, str] = {}
        for turn in range(TURNS):
            try:
                result = await self._here.jobs.bulk_write(writes, ordered=False)
            except BulkWriteError as error:
                if is_away(error) and turn < TURNS - 1:
                    continue
                errors = why_not(error, ours)
                break
            except PyMongoError as error:
                if not is_away(error) or turn == TURNS - 1:
                    raise
            else:
                if turn == 0 and result.matched_count == expected:
                    return _Written(None, {})
                break
        return _Written(await self._marked(ids, mark), errors)

    async def _marked(self, ids: list[ObjectId], mark: ObjectId) -> set[ObjectId]:
        """Which of these jobs a call has changed."""
        found = self._here.jobs.find({"_id": {"$in": ids}, "jobmill.mark": mark}, {"_id": 1}, hint=BY_ID)
        return {document["_id"] async for document in found}

    async def _forget(self, ids: list[ObjectId], mark: ObjectId) -> None:
        """Remove jobs that are not kept, of those that this call has made final. The janitor does it if we cannot."""
        try:
            await self._here.jobs.delete_many({"_id": {"$in": ids}, "jobmill.mark": mark, "status": {"$in": FINAL}})
            await self._here.logs.delete_many({"_id": {"$in": ids}})
        except PyMongoError as error:
            if not is_away(error):
                raise


class _Written(Struct):
    """Which documents have the mark, where they had to be asked, and what could not be written, by its place."""

    done: set[ObjectId] | None
    errors: dict[int, str]


def why_not(error: BulkWriteError, first: int | None = None) -> dict[int, str]:
    """Why the server refused parts of a bulk, or the first so many, by their places; raised for anything but that."""
    details: Document = error.details or {}  # type: ignore[assignment]
    errors = [one for one in details.get("writeErrors", []) if first is None or one["index"] < first]
    if details.get("writeConcernErrors") or any(one["code"] not in (*TOO_LARGE, DUPLICATE_KEY) for one in errors):
        raise error
    return {one["index"]: str(one["errmsg"]) for one in errors}


class _Group(Struct):
    """Jobs of one claim of which the same is to be written."""

    place: int
    held: Held
    update: Document
    more: Document
    ids: list[ObjectId] = []


class _Bulk:
    """Settlements that say the same of jobs of one claim become one update."""

    def __init__(self) -> None:
        self._groups: dict[tuple[object, ...], _Group] = {}
        #: At which places in the bulk each settlement is.
        self.places: dict[int, list[int]] = {}

    def add(self, n: int, settlement: Settlement, held: Held, mark: ObjectId, now_ms: int) -> None:
        """A settlement, with what is to be written if its recurrence has been updated meanwhile."""
        if settlement.runs is None:
            self._put(n, settlement, held, mark, now_ms, {})
            return
        revision = settlement.runs.revision
        is_known = {"jobmill.revision": {"$in": [0, None]} if revision == 0 else revision}
        is_other = {"jobmill.revision": {"$nin": [0, None]} if revision == 0 else {"$ne": revision}}
        self._put(n, settlement, held, mark, now_ms, is_known)
        self._put(n, settlement.overtaken(), held, mark, now_ms, is_other)

    def _put(self, n: int, said: Settlement, held: Held, mark: ObjectId, now_ms: int, more: Document) -> None:
        key = (*_same(said, held), repr(more) if more else "")
        group = self._groups.get(key)
        if group is None:
            update = settled(said, held, mark, now_ms)
            group = self._groups[key] = _Group(len(self._groups), held, update, more)
        group.ids.append(held.locator.id)
        self.places.setdefault(n, []).append(group.place)

    def writes(self, now_ms: int) -> list[Write]:
        """The bulk."""
        made: list[Write] = []
        for group in self._groups.values():
            query = {**guard(group.held.lease.token, group.held.locator.claimed_by, now_ms), **group.more}
            if len(group.ids) == 1:
                made.append(UpdateOne({"_id": group.ids[0], **query}, group.update, hint=BY_ID))
            else:
                made.append(UpdateMany({"_id": {"$in": group.ids}, **query}, group.update, hint=BY_ID))
        return made


def _same(said: Settlement, held: Held) -> tuple[object, ...]:
    """What is the same in settlements that write the same, under the same guard."""
    where = held.locator
    slot_ms = None if said.due is None else where.slot_ms
    wrote = (said.state, said.errors, said.crashes, said.due, said.error, said.tracebacks, said.result_json, said.keep)
    return (held.lease.token, where.claimed_by, where.is_ours, slot_ms, *wrote, said.runs, said.rearm)


def settled(done: Settlement, held: Held, mark: ObjectId, now_ms: int) -> Document:
    """What a settlement writes."""
    told: Document = {
        "status": STATUS[done.state],
        "failCount": done.errors,
        "updatedAt": date(now_ms),
        "jobmill.mark": mark,
    }
    gone: dict[str, Any] = dict(CLEAN)
    _say(told, gone, "jobmill.crashes", done.crashes or None)
    _say(told, gone, "failReason", done.error)
    _say(told, gone, "jobmill.result", None if done.result_json == b"null" else bytes(done.result_json).decode())
    if done.state == "waiting":
        gone["jobmill.progress"] = ""
    else:
        gone["jobmill.armed"] = ""
    if done.tracebacks is not None:
        told["jobmill.tracebacks"] = list(done.tracebacks[-TRACEBACKS_KEPT:])
    _say_when(done, held, told, gone, now_ms)
    if done.runs is not None:
        told |= {"jobmill.runs": done.runs.runs, "jobmill.failedRuns": done.runs.failed_runs}
        told["jobmill.lastFinishedAt"] = date(now_ms)
        _say(told, gone, "jobmill.lastError", done.runs.last_error)
    if done.keep is not None and held.locator.is_ours:
        kept, not_kept = keep_fields(done.keep, now_ms)
        told |= kept
        gone |= not_kept
    return {"$set": told, "$unset": gone}


def _say_when(done: Settlement, held: Held, told: Document, gone: Document, now_ms: int) -> None:
    """When it is due again, and for which slot."""
    if done.due is None:
        return
    due_ms = done.due.resolve(now_ms)
    told["nextRunAt"] = date(due_ms)
    slot_ms = held.locator.slot_ms if done.rearm is None else done.rearm.slot_ms
    if slot_ms is None or slot_ms == due_ms:
        gone |= {"jobmill.slot": "", "jobmill.slotDue": ""}
    else:
        told |= {"jobmill.slot": date(slot_ms), "jobmill.slotDue": date(due_ms)}


def _say(told: Document, gone: Document, field: str, value: Any) -> None:
    if value is None:
        gone[field] = ""
    else:
        told[field] = value
