"""Settlements: guarded updates, sent in one bulk write.

Settlements that write the same values to jobs of one claim share one update. The response to a bulk write contains how
many jobs matched, but not which ones. So each call marks the jobs that it changes. If the number of matched jobs is not
the expected one, the call reads which jobs have its mark. If the response was lost, it finds out in the same way which
jobs the bulk write has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bson import ObjectId
from msgspec import Struct, structs
from pymongo import UpdateMany
from pymongo.errors import BulkWriteError, PyMongoError

from jobmill.core.changes import new_hold
from jobmill.core.due import BY_LANE, NEVER_MS, Held, lane_fields
from jobmill.core.lanes import keeps_slot
from jobmill.core.values import NOW, Refused, Settled, at
from jobmill.stores.mongo.codec import (
    DOCUMENT_BYTES,
    FAR_MS,
    MAX_BYTES,
    NO_CLAIM,
    READY,
    WITHOUT_PAYLOAD,
    Document,
    attempt_fields,
    date,
    due_fields,
    due_of,
    job_fields,
    keep_fields,
    lane_mark_fields,
    update_of,
)
from jobmill.stores.mongo.connection import BY_ID, is_unavailable, refused_writes
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.edges import look
from jobmill.stores.mongo.flows import Ended, release
from jobmill.stores.mongo.ids import new_object_id
from jobmill.stores.mongo.leases import MongoLocator, guard, marked, with_dependents
from jobmill.stores.mongo.remove import remove_marked

if TYPE_CHECKING:
    from jobmill.core.values import Runs, Settlement

#: The maximum number of times that a bulk write is sent, if its response is lost each time.
MAX_SENDS = 3
#: A filter: no edges lead to the job. They may be younger than its lease.
_NO_EDGES: Document = {"jobmill.hasDependents": {"$exists": False}}


class Leasing(Struct):
    """The updates that lease what a claim has found. They are part of the bulk write of settlements."""

    writes: Sequence[UpdateMany] = ()
    #: The number of jobs that they match, unless another process claims one of these jobs first.
    expected: int = 0
    #: After the bulk write: whether they are known to have matched all expected jobs.
    has_matched: bool = False


class _Given(Struct, frozen=True):
    """A settlement, its index in the call, and the locator of its job."""

    index: int
    settlement: Settlement
    locator: MongoLocator
    #: Whether edges lead to the job: then it stays, and its end sets them.
    is_pinned: bool
    #: Whether a note names the job (notes.py): then its end removes its mark `outbox`.
    is_noted: bool
    #: What holds the job, where it waits for jobs again.
    held: Held | None = None

    @property
    def is_final(self) -> bool:
        return self.settlement.state != "waiting"

    @property
    def leaves(self) -> bool:
        """Whether the job is deleted as soon as it is final."""
        keep = self.settlement.keep
        return keep is not None and keep.at_once and self.locator.is_ours and not self.is_pinned

    def ended(self, now_ms: int) -> Ended:
        """The job, which is final now. If it was pinned after its claim, it stays in the outbox for a while."""
        one, locator = self.settlement, self.locator
        in_outbox = not self.is_noted
        return Ended(locator.id, one.state, one.error, date(now_ms), locator.pin, locator.round, in_outbox)

    @property
    def is_special(self) -> bool:
        """Whether more is to be done after the job was settled."""
        return self.is_pinned or self.held is not None or self.leaves


async def settle(
    ctx: MongoContext, settlements: Sequence[tuple[Settlement, MongoLocator | None]], now_ms: int, leasing: Leasing
) -> tuple[list[Settled], list[Ended]]:
    """Write settlements, together with the leases of a claim.

    Return one response per settlement, in their order, and the jobs that are final now and that edges lead to. Each
    settlement has the locator of its job; None: the job does not exist. A note names the jobs that it ends and that
    edges led to when they were claimed.
    """
    call = _Call(ctx, now_ms, ["lost"] * len(settlements))
    first: dict[ObjectId, _Given] = {}
    repeated: list[_Given] = []
    for index, (one, locator) in enumerate(settlements):
        if len(one.result_json) > MAX_BYTES:
            # The server would refuse the whole bulk.
            too_large = f"at most {MAX_BYTES:,} bytes fit into a document of MongoDB"
            call.settled[index] = Refused(too_large, of_result=True)
        elif locator is not None:
            held = await _held_again(ctx, one, locator, now_ms) if locator.has_dependencies else None
            is_pinned = locator.pin is not None
            given = _Given(index, one, locator, is_pinned, is_pinned and ends(one), held)
            if first.setdefault(locator.id, given) is not given:
                # A second settlement of a job goes into a separate bulk: it must not be mistaken for the first one.
                repeated.append(given)
    await call.write(list(first.values()), leasing)
    for given in repeated:
        await call.write([given], Leasing())
    if any(puts_back(one, now_ms) for one, _ in settlements):
        ctx.claims.cursor.rewind()
    return call.settled, call.ended


def ends(settlement: Settlement) -> bool:
    """Whether this settlement ends a job, so that a note must name it where edges lead to it."""
    return settlement.state != "waiting" and settlement.runs is None


def puts_back(settlement: Settlement, now_ms: int) -> bool:
    """Whether the job waits again after this settlement, and is due at once."""
    due = settlement.due
    is_due = due is None or due.resolve(now_ms) <= now_ms or settlement.waits_for is not None
    return settlement.state == "waiting" and is_due


async def _held_again(ctx: MongoContext, one: Settlement, locator: MongoLocator, now_ms: int) -> Held | None:
    """What holds a job that waits again: it was seized if jobs that it waits for have not ended."""
    if one.state != "waiting" or (await look(ctx, [locator.id]))[locator.id] != "hold":
        return None
    document = await ctx.here.jobs.find_one({"_id": locator.id}, WITHOUT_PAYLOAD)
    due = one.due or (None if document is None else at(due_of(document)))
    return new_hold(NOW if due is None else at(due.resolve(now_ms)), now_ms)


class _Call(Struct):
    """What a call has settled."""

    ctx: MongoContext
    now_ms: int
    #: One response per settlement.
    settled: list[Settled]
    #: The jobs that are final now and that edges lead to.
    ended: list[Ended] = []

    async def write(self, given: list[_Given], leasing: Leasing) -> None:
        """Write settlements in one bulk, and the responses to them."""
        mark = new_object_id()
        groups = _grouped(given, mark, self.now_ms)
        writes = [*(group.write(self.now_ms) for group in groups), *leasing.writes]
        errors = await send(self.ctx, writes, len(given) + leasing.expected, len(groups)) if writes else None
        leasing.has_matched = errors is None
        if errors is not None:
            await self._read_responses(groups, mark, errors)
        else:
            for one in given:
                self.settled[one.index] = "done"
        if special := [one for one in given if one.is_special and self.settled[one.index] == "done"]:
            await self._follow(special, mark)

    async def _follow(self, done: list[_Given], mark: ObjectId) -> None:
        """What is to be done for some jobs after they were settled."""
        self.ended += [one.ended(self.now_ms) for one in done if one.is_pinned and one.is_final]
        if left := [one.locator.id for one in done if one.leaves]:
            await remove_marked(self.ctx, left, mark)
        if held := [one.locator.id for one in done if one.held is not None]:
            await release(self.ctx, held)  # the jobs that hold it may have ended before

    async def _read_responses(self, groups: list[_Group], mark: ObjectId, errors: dict[int, str]) -> None:
        """Find out which jobs were settled by a bulk that did not match all of its jobs."""
        ids = [one.locator.id for group in groups for one in group.given]
        done = await marked(self.ctx, ids, mark) if ids else set()
        left = [id for id in ids if id not in done]
        pinned = await with_dependents(self.ctx, left) if left else set()
        for index, group in enumerate(groups):
            for one in group.given:
                if one.locator.id in done:
                    self.settled[one.index] = "done"
                elif one.is_noted or (one.is_final and not one.is_pinned and one.locator.id in pinned):
                    # Edges were added or removed after the claim. Or the note was taken for one of a process that has
                    # ended. Or the lease is lost.
                    again = structs.replace(one, is_pinned=one.locator.id in pinned, is_noted=False)
                    await self.write([again], Leasing())
                elif index in errors and len(group.given) > 1:
                    # The server has stopped at the first job that it refused.
                    await self.write([one], Leasing())
                elif index in errors:
                    self.settled[one.index] = await _refused(self.ctx, one, errors[index])


async def _refused(ctx: MongoContext, one: _Given, why: str) -> Refused:
    """Why the server refused a settlement; with the sizes, where the result does not fit beside the payload."""
    size = {"$subtract": [{"$bsonSize": "$$ROOT"}, {"$strLenBytes": {"$ifNull": ["$jobmill.result", ""]}}]}
    found = await (
        await ctx.here.jobs.aggregate([{"$match": {"_id": one.locator.id}}, {"$project": {"size": size}}])
    ).to_list()
    taken, result = (found[0]["size"] if found else 0), len(one.settlement.result_json)
    if one.settlement.outcome != "succeeded" or taken + result <= MAX_BYTES:
        return Refused(why)
    both = f"it has {result:,} bytes, and the job has {taken:,} without it"
    return Refused(f"{both}; a document of MongoDB has at most {DOCUMENT_BYTES:,} bytes", of_result=True)


async def send(
    ctx: MongoContext, writes: Sequence[UpdateMany], expected: int, checked: int = 0
) -> dict[int, str] | None:
    """Send a bulk write, and send it again if its response was lost.

    Return None if the expected number of jobs matched. Otherwise return why the server refused writes, by their index.
    Raise if the server refused one of the first `checked` writes for a reason that does not concern its job alone.
    """
    sent = 0
    while True:
        sent += 1
        try:
            result = await ctx.here.jobs.bulk_write(writes, ordered=False)
            return None if sent == 1 and result.matched_count == expected else {}
        except PyMongoError as error:
            ctx.claims.cursor.rewind()
            if is_unavailable(error) and sent < MAX_SENDS:
                continue
            if not isinstance(error, BulkWriteError):
                raise
            return refused_writes(error, checked=checked)


# ---------------------------------------------------------------------------------------------------- updates


class _Group(Struct):
    """Jobs of one claim to which the same values are written, and more conditions of the guard."""

    update: Document | list[Document]
    more: Document
    given: list[_Given] = []

    def write(self, now_ms: int) -> UpdateMany:
        first, ids = self.given[0], [one.locator.id for one in self.given]
        held = guard(first.settlement.lease.token, first.locator.claimed_by, now_ms)
        return UpdateMany({"_id": {"$in": ids}, **held, **self.more}, self.update, hint=BY_ID)


def _grouped(given: Sequence[_Given], mark: ObjectId, now_ms: int) -> list[_Group]:
    groups: dict[object, _Group] = {}
    for one in given:
        for settlement, more in _versions(one):
            condition = one.locator.pin if one.is_noted else "" if more is _NO_EDGES else repr(more)
            key = (*_values(settlement, one.locator), one.held, condition)
            if key not in groups:
                update = update_for(settlement, one.locator, mark, now_ms, one.held, one.is_noted)
                is_overtaken = settlement.runs is not None and settlement.state == "waiting" and settlement.due is None
                lane = settlement.lease.lane if is_overtaken else None
                written = with_occurrence(update, settlement, one.locator)
                groups[key] = _Group(written if lane is None else _in_lane(update, lane, now_ms), more)
            groups[key].given.append(one)
    return list(groups.values())


def _versions(one: _Given) -> list[tuple[Settlement, Document]]:
    """What to write under which conditions. Whether edges lead to a job is known when it becomes final, not before."""
    settlement = one.settlement
    if settlement.runs is None and settlement.waits_for is None:
        if one.is_noted:
            return [(settlement, {"jobmill.hasDependents": one.locator.pin})]
        return [(settlement, {} if one.is_pinned or settlement.state == "waiting" else _NO_EDGES)]
    return _recurring(settlement) if settlement.runs is not None else _signalled(settlement)


def _signalled(settlement: Settlement) -> list[tuple[Settlement, Document]]:
    """Two settlements, each with its filter: one that waits for a signal, one if the job has got it already."""
    name = "jobmill.signals.name"
    at_once = structs.replace(settlement, due=NOW)
    return [(settlement, {name: {"$ne": settlement.waits_for}}), (at_once, {name: settlement.waits_for})]


def _recurring(settlement: Settlement) -> list[tuple[Settlement, Document]]:
    """Two settlements, each with its filter: one if the recurrence is unchanged, one if it was updated since."""
    revision = settlement.runs.revision if settlement.runs else 0
    same = {"jobmill.revision": {"$in": [0, None]} if revision == 0 else revision}
    other = {"jobmill.revision": {"$nin": [0, None]} if revision == 0 else {"$ne": revision}}
    return [(settlement, same), (settlement.overtaken(), other)]


def _values(one: Settlement, locator: MongoLocator) -> tuple[object, ...]:
    """The values that decide which update is written under which guard."""
    written = (one.state, one.errors, one.crashes, one.due, one.error, one.attempts, one.result_json, one.keep)
    lane = (one.lease.lane if one.state == "waiting" else one.lease.lane is None, locator.is_strict)
    more = (one.runs, one.rearm, one.waits_for, *lane)
    return (one.lease.token, locator.claimed_by, locator.is_ours, locator.recurs, *written, *more)


def update_for(
    one: Settlement, locator: MongoLocator, mark: ObjectId, now_ms: int, held: Held | None, is_noted: bool = False
) -> Document:
    """The update that settles a job; `held`: what holds it afterwards, except its lane. See also `with_occurrence`."""
    values = {"state": one.state, "errors": one.errors, "crashes": one.crashes, "error": one.error}
    fields = {
        **NO_CLAIM,
        **job_fields({**values, "updated_ms": now_ms, "result_json": one.result_json}),
        "jobmill.mark": mark,
        ("jobmill.progress" if one.state == "waiting" else "jobmill.armed"): None,
    }
    if is_noted:
        fields["jobmill.outbox"] = None
    if one.attempts is not None:
        fields |= attempt_fields(one.attempts, one.error)
    occurrence_ms = None if one.rearm is None else one.rearm.occurrence_ms
    if one.due is not None:
        fields |= due_fields(one.due.resolve(now_ms), now_ms, occurrence_ms)
    if one.state == "waiting":
        fields |= _waiting_fields(one, held, now_ms, occurrence_ms)
    if one.lease.lane is not None:
        fields |= _lane_fields(one, one.lease.lane, locator, now_ms, held)
    if one.runs is not None:
        fields |= _run_fields(one.runs, now_ms)
    if one.keep is not None and locator.is_ours:
        fields |= keep_fields(one.keep, now_ms)
    return update_of(fields)


# When a job is due, and its occurrence, as `due_of` and `job_of` read them.
_DUE = {"$cond": [{"$eq": ["$jobmill.dueOf", "$nextRunAt"]}, "$jobmill.due", "$nextRunAt"]}
_OCCURRENCE = {"$cond": [{"$eq": ["$jobmill.slotDue", _DUE]}, "$jobmill.slot", _DUE]}


def _in_lane(update: Document, lane: str, now_ms: int) -> list[Document]:
    """The update of a recurring job whose rule was changed while it ran: it stands in its lane, due as the change says.

    In one write, because a process that ends between two would leave a slot to a job that is due much later.
    """
    now, near = date(now_ms), date(now_ms + FAR_MS)
    due, joined = _DUE, {"$max": [_DUE, now]}
    fields = {
        "nextRunAt": near,
        "jobmill.due": date(NEVER_MS),
        "jobmill.dueOf": near,
        "jobmill.slot": _OCCURRENCE,
        "jobmill.slotDue": date(NEVER_MS),
        "jobmill.held": {"by": [BY_LANE], "due": {"at_ms": {"$toLong": joined}}},
        "jobmill.turn": {"lane": {"$literal": lane}, "after": {"$cond": [{"$gt": [due, now]}, due, READY]}},
        "jobmill.joined": joined,
    }
    given = {name: {"$literal": value} for name, value in update["$set"].items()}
    return [{"$set": given}, {"$set": fields}, {"$unset": [*update["$unset"], "jobmill.laneSlot"]}]


def with_occurrence(update: Document, one: Settlement, locator: MongoLocator) -> Document | list[Document]:
    """The update that settles a recurring job in the middle of its run.

    The job keeps its occurrence, which is that of the new rule if the rule was changed while it ran.
    """
    written: Document = update["$set"]
    if not locator.recurs or one.rearm is not None or "nextRunAt" not in written:
        return update
    fields = {"jobmill.slot": _OCCURRENCE, "jobmill.slotDue": written.get("jobmill.due", written["nextRunAt"])}
    given = {name: {"$literal": value} for name, value in written.items() if name not in fields}
    return [{"$set": {**given, **fields}}, {"$unset": [name for name in update["$unset"] if name not in fields]}]


def _waiting_fields(one: Settlement, held: Held | None, now_ms: int, occurrence_ms: int | None) -> Document:
    """What a job waits for."""
    holds = {} if held is None else {**due_fields(NEVER_MS, now_ms, occurrence_ms), **job_fields({"held": held})}
    return {**holds, "jobmill.waitsFor": one.waits_for}


def _lane_fields(one: Settlement, lane: str, locator: MongoLocator, now_ms: int, held: Held | None) -> Document:
    """What becomes of the slot of a job."""
    if one.state != "waiting":
        return lane_mark_fields(lane, None, now_ms)
    due = one.due if held is None else held.due
    # A job that waits for others keeps no slot: those may be in the same lane.
    if due is None or (held is None and keeps_slot(one, strict=locator.is_strict)):
        return {}  # without a due time, `_in_lane` decides
    fields = lane_fields(held, due, now_ms)
    occurrence_ms = None if one.rearm is None else one.rearm.occurrence_ms
    return {
        **due_fields(NEVER_MS, now_ms, occurrence_ms),
        **job_fields(fields),
        **lane_mark_fields(lane, fields["held"], now_ms),
    }


def _run_fields(runs: Runs, now_ms: int) -> Document:
    return {
        "jobmill.runs": runs.runs,
        "jobmill.failedRuns": runs.failed_runs,
        "jobmill.lastFinishedAt": date(now_ms),
        "jobmill.lastError": runs.last_error,
    }
