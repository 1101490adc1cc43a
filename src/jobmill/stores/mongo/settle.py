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
from msgspec import Struct
from pymongo import UpdateMany
from pymongo.errors import BulkWriteError, PyMongoError

from jobmill.core.values import Refused, Settled
from jobmill.stores.mongo.codec import (
    DOCUMENT_BYTES,
    MAX_BYTES,
    NO_CLAIM,
    Document,
    attempt_fields,
    date,
    due_fields,
    job_fields,
    keep_fields,
    update_of,
)
from jobmill.stores.mongo.connection import BY_ID, is_unavailable, refused_writes
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.ids import new_object_id
from jobmill.stores.mongo.leases import MongoLocator, guard, marked, remove_marked

if TYPE_CHECKING:
    from jobmill.core.values import Runs, Settlement

#: The maximum number of times that a bulk write is sent, if its response is lost each time.
MAX_SENDS = 3


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

    @property
    def leaves(self) -> bool:
        """Whether the job is deleted as soon as it is final."""
        keep = self.settlement.keep
        return keep is not None and keep.at_once and self.locator.is_ours


async def settle(
    ctx: MongoContext, settlements: Sequence[tuple[Settlement, MongoLocator | None]], now_ms: int, leasing: Leasing
) -> list[Settled]:
    """Write settlements, together with the leases of a claim. Return one response per settlement, in their order.

    Each settlement has the locator of its job; None: the job does not exist.
    """
    settled: list[Settled] = ["lost"] * len(settlements)
    first: dict[ObjectId, _Given] = {}
    repeated: list[_Given] = []
    for index, (one, locator) in enumerate(settlements):
        if len(one.result_json) > MAX_BYTES:
            # The server would refuse the whole bulk.
            settled[index] = Refused(f"at most {MAX_BYTES:,} bytes fit into a document of MongoDB", of_result=True)
        elif locator is not None:
            given = _Given(index, one, locator)
            if first.setdefault(locator.id, given) is not given:
                # A second settlement of a job goes into a separate bulk: it must not be mistaken for the first one.
                repeated.append(given)
    await _write(ctx, list(first.values()), settled, now_ms, leasing)
    for given in repeated:
        await _write(ctx, [given], settled, now_ms, Leasing())
    if any(puts_back(one, now_ms) for one, _ in settlements):
        ctx.claims.cursor.rewind()
    return settled


def puts_back(settlement: Settlement, now_ms: int) -> bool:
    """Whether the job waits again after this settlement, and is due at once."""
    due = settlement.due
    return settlement.state == "waiting" and (due is None or due.resolve(now_ms) <= now_ms)


async def _write(ctx: MongoContext, given: list[_Given], settled: list[Settled], now_ms: int, leasing: Leasing) -> None:
    """Write settlements in one bulk, and the responses to them."""
    mark = new_object_id()
    groups = _grouped(given, mark, now_ms)
    writes = [*(group.write(now_ms) for group in groups), *leasing.writes]
    errors = await send(ctx, writes, len(given) + leasing.expected, len(groups)) if writes else None
    leasing.has_matched = errors is None
    if errors is not None:
        await _read_responses(ctx, groups, settled, mark, errors, now_ms)
    else:
        for one in given:
            settled[one.index] = "done"
    left = [one.locator.id for one in given if settled[one.index] == "done" and one.leaves]
    if left:
        await remove_marked(ctx, left, mark)


async def _read_responses(
    ctx: MongoContext, groups: list[_Group], settled: list[Settled], mark: ObjectId, errors: dict[int, str], now_ms: int
) -> None:
    """Find out which jobs were settled by a bulk that did not match all of its jobs."""
    ids = [one.locator.id for group in groups for one in group.given]
    done = await marked(ctx, ids, mark) if ids else set()
    for index, group in enumerate(groups):
        for one in group.given:
            if one.locator.id in done:
                settled[one.index] = "done"
            elif index in errors and len(group.given) > 1:
                # The server has stopped at the first job that it refused.
                await _write(ctx, [one], settled, now_ms, Leasing())
            elif index in errors:
                settled[one.index] = await _refused(ctx, one, errors[index])


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

    update: Document
    more: Document
    given: list[_Given] = []

    def write(self, now_ms: int) -> UpdateMany:
        first, ids = self.given[0], [one.locator.id for one in self.given]
        held = guard(first.settlement.lease.token, first.locator.claimed_by, now_ms)
        return UpdateMany({"_id": {"$in": ids}, **held, **self.more}, self.update, hint=BY_ID)


def _grouped(given: Sequence[_Given], mark: ObjectId, now_ms: int) -> list[_Group]:
    groups: dict[object, _Group] = {}
    for one in given:
        for settlement, more in [(one.settlement, {})] if one.settlement.runs is None else _recurring(one.settlement):
            key = (*_values(settlement, one.locator), repr(more) if more else "")
            if key not in groups:
                groups[key] = _Group(_update(settlement, one.locator, mark, now_ms), more)
            groups[key].given.append(one)
    return list(groups.values())


def _recurring(settlement: Settlement) -> list[tuple[Settlement, Document]]:
    """Two settlements, each with its filter: one if the recurrence is unchanged, one if it was updated since."""
    revision = settlement.runs.revision if settlement.runs else 0
    same = {"jobmill.revision": {"$in": [0, None]} if revision == 0 else revision}
    other = {"jobmill.revision": {"$nin": [0, None]} if revision == 0 else {"$ne": revision}}
    return [(settlement, same), (settlement.overtaken(), other)]


def _values(one: Settlement, locator: MongoLocator) -> tuple[object, ...]:
    """The values that decide which update is written under which guard."""
    occurrence_ms = None if one.due is None else locator.occurrence_ms
    written = (one.state, one.errors, one.crashes, one.due, one.error, one.attempts, one.result_json, one.keep)
    return (one.lease.token, locator.claimed_by, locator.is_ours, occurrence_ms, *written, one.runs, one.rearm)


def _update(one: Settlement, locator: MongoLocator, mark: ObjectId, now_ms: int) -> Document:
    values = {"state": one.state, "errors": one.errors, "crashes": one.crashes, "error": one.error}
    fields = {
        **NO_CLAIM,
        **job_fields({**values, "updated_ms": now_ms, "result_json": one.result_json}),
        "jobmill.mark": mark,
        ("jobmill.progress" if one.state == "waiting" else "jobmill.armed"): None,
    }
    if one.attempts is not None:
        fields |= attempt_fields(one.attempts, one.error)
    if one.due is not None:
        occurrence_ms = locator.occurrence_ms if one.rearm is None else one.rearm.occurrence_ms
        fields |= due_fields(one.due.resolve(now_ms), now_ms, occurrence_ms)
    if one.runs is not None:
        fields |= _run_fields(one.runs, now_ms)
    if one.keep is not None and locator.is_ours:
        fields |= keep_fields(one.keep, now_ms)
    return update_of(fields)


def _run_fields(runs: Runs, now_ms: int) -> Document:
    return {
        "jobmill.runs": runs.runs,
        "jobmill.failedRuns": runs.failed_runs,
        "jobmill.lastFinishedAt": date(now_ms),
        "jobmill.lastError": runs.last_error,
    }
