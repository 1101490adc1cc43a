"""Settlements: guarded updates, sent in one bulk write.

Settlements that write the same values to jobs of one claim share one update. The response to a bulk write contains how
many jobs matched, but not which ones. So each call marks the jobs that it changes. If the number of matched jobs is not
the expected one, the call reads which jobs have its mark. If the response was lost, it finds out in the same way which
jobs the bulk write has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from bson import ObjectId
from msgspec import Struct
from pymongo import UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError, PyMongoError

from jobmill.core.job import TRACEBACKS_KEPT
from jobmill.core.values import Refused, Settled
from jobmill.stores.mongo.codec import (
    MAX_BYTES,
    NO_CLAIM,
    Document,
    date,
    due_fields,
    job_fields,
    keep_fields,
    update_of,
)
from jobmill.stores.mongo.connection import BY_ID, is_unavailable, refused_writes
from jobmill.stores.mongo.context import MongoContext
from jobmill.stores.mongo.ids import new_object_id
from jobmill.stores.mongo.leases import LocatedLease, guard, marked, remove_marked

if TYPE_CHECKING:
    from jobmill.core.values import Runs, Settlement

#: The maximum number of times that a bulk write is sent, if its response is lost each time.
MAX_SENDS = 3

Write: TypeAlias = UpdateOne | UpdateMany


class _Given(Struct, frozen=True):
    """A settlement, its index in the call, and its lease."""

    index: int
    settlement: Settlement
    held: LocatedLease

    @property
    def leaves(self) -> bool:
        """Whether the job is deleted as soon as it is final."""
        keep = self.settlement.keep
        return keep is not None and keep.at_once and self.held.locator.is_ours


async def settle(
    ctx: MongoContext,
    settlements: Sequence[Settlement],
    held: Sequence[LocatedLease | None],
    now_ms: int,
    claim_writes: Sequence[Write],
    expected: int,
) -> tuple[list[Settled], bool]:
    """Write settlements in one bulk with the updates of a claim, which lease the `expected` number of jobs.

    Return one response per settlement, and whether the claim is known to have leased all its jobs.
    """
    settled: list[Settled] = ["lost"] * len(settlements)
    seen: set[str] = set()
    first: list[_Given] = []
    repeated: list[_Given] = []
    for index, (settlement, one) in enumerate(zip(settlements, held, strict=True)):
        if len(settlement.result_json) > MAX_BYTES:
            # The server would refuse the whole bulk.
            settled[index] = Refused(f"a result of at most {MAX_BYTES} bytes fits into a document")
        elif one is not None:
            # A second settlement of a job goes into a separate bulk: it must not be mistaken for the first one.
            (repeated if settlement.lease.id in seen else first).append(_Given(index, settlement, one))
            seen.add(settlement.lease.id)
    has_leased = await _settle_once(ctx, first, settled, now_ms, claim_writes, expected)
    for given in repeated:
        await _settle_once(ctx, [given], settled, now_ms)
    if any(puts_back(one, now_ms) for one in settlements):
        ctx.claims.cursor.rewind()
    return settled, has_leased


def puts_back(settlement: Settlement, now_ms: int) -> bool:
    """Whether the job waits again after this settlement, and is due at once."""
    due = settlement.due
    return settlement.state == "waiting" and (due is None or due.resolve(now_ms) <= now_ms)


async def _settle_once(
    ctx: MongoContext,
    given: Sequence[_Given],
    settled: list[Settled],
    now_ms: int,
    claim_writes: Sequence[Write] = (),
    expected: int = 0,
) -> bool:
    """Write settlements and the responses to them. Return whether all jobs matched, also those of the claim."""
    mark = new_object_id()
    groups, indexes = _grouped(given, mark, now_ms)
    writes = [*(group.write(now_ms) for group in groups), *claim_writes]
    errors = await send(ctx, writes, len(given) + expected, len(groups)) if writes else None
    ids = [one.held.locator.id for one in given]
    done = set(ids) if errors is None or not given else await marked(ctx, ids, mark)
    for one, own in zip(given, indexes, strict=True):
        why = [errors[index] for index in own if index in errors] if errors else []
        if one.held.locator.id in done:
            settled[one.index] = "done"
        elif why:
            settled[one.index] = Refused(why[0])
    left = [one.held.locator.id for one in given if settled[one.index] == "done" and one.leaves]
    if left:
        await remove_marked(ctx, left, mark)
    return errors is None


async def send(ctx: MongoContext, writes: Sequence[Write], expected: int, checked: int = 0) -> dict[int, str] | None:
    """Send a bulk write, and send it again if its response was lost.

    Return None if the expected number of jobs matched. Otherwise return why the server refused writes, by their index.
    Raise if the server refused one of the first `checked` writes for a reason that does not concern its job alone.
    """
    for send in range(MAX_SENDS):
        try:
            result = await ctx.here.jobs.bulk_write(writes, ordered=False)
        except BulkWriteError as error:
            ctx.claims.cursor.rewind()
            if not is_unavailable(error) or send == MAX_SENDS - 1:
                return refused_writes(error, checked=checked)
        except PyMongoError as error:
            if not is_unavailable(error) or send == MAX_SENDS - 1:
                raise
        else:
            return None if send == 0 and result.matched_count == expected else {}
    return {}


# ---------------------------------------------------------------------------------------------------- updates


class _Group(Struct):
    """Jobs of one claim to which the same values are written."""

    held: LocatedLease
    update: Document
    more: Document
    ids: list[ObjectId] = []

    def write(self, now_ms: int) -> Write:
        query = {**guard(self.held.lease.token, self.held.locator.claimed_by, now_ms), **self.more}
        if len(self.ids) == 1:
            return UpdateOne({"_id": self.ids[0], **query}, self.update, hint=BY_ID)
        return UpdateMany({"_id": {"$in": self.ids}, **query}, self.update, hint=BY_ID)


def _grouped(given: Sequence[_Given], mark: ObjectId, now_ms: int) -> tuple[list[_Group], list[list[int]]]:
    """The updates, and for each settlement the indexes of its updates."""
    groups: dict[object, _Group] = {}
    numbers: dict[object, int] = {}
    indexes: list[list[int]] = []
    for one in given:
        own: list[int] = []
        for settlement, more in [(one.settlement, {})] if one.settlement.runs is None else _recurring(one.settlement):
            key = (*_values(settlement, one.held), repr(more) if more else "")
            if key not in groups:
                numbers[key] = len(groups)
                groups[key] = _Group(one.held, _update(settlement, one.held, mark, now_ms), more)
            groups[key].ids.append(one.held.locator.id)
            own.append(numbers[key])
        indexes.append(own)
    return list(groups.values()), indexes


def _recurring(settlement: Settlement) -> list[tuple[Settlement, Document]]:
    """Two settlements, each with its filter: one if the recurrence is unchanged, one if it was updated since."""
    revision = settlement.runs.revision if settlement.runs else 0
    same = {"jobmill.revision": {"$in": [0, None]} if revision == 0 else revision}
    other = {"jobmill.revision": {"$nin": [0, None]} if revision == 0 else {"$ne": revision}}
    return [(settlement, same), (settlement.overtaken(), other)]


def _values(one: Settlement, held: LocatedLease) -> tuple[object, ...]:
    """The values that decide which update is written under which guard."""
    locator = held.locator
    occurrence_ms = None if one.due is None else locator.occurrence_ms
    written = (one.state, one.errors, one.crashes, one.due, one.error, one.tracebacks, one.result_json, one.keep)
    return (held.lease.token, locator.claimed_by, locator.is_ours, occurrence_ms, *written, one.runs, one.rearm)


def _update(one: Settlement, held: LocatedLease, mark: ObjectId, now_ms: int) -> Document:
    values = {"state": one.state, "errors": one.errors, "crashes": one.crashes, "error": one.error}
    fields = {
        **NO_CLAIM,
        **job_fields({**values, "updated_ms": now_ms, "result_json": one.result_json}),
        "jobmill.mark": mark,
        ("jobmill.progress" if one.state == "waiting" else "jobmill.armed"): None,
    }
    if one.tracebacks is not None:
        fields["jobmill.tracebacks"] = list(one.tracebacks[-TRACEBACKS_KEPT:])
    if one.due is not None:
        occurrence_ms = held.locator.occurrence_ms if one.rearm is None else one.rearm.occurrence_ms
        fields |= due_fields(one.due.resolve(now_ms), occurrence_ms)
    if one.runs is not None:
        fields |= _run_fields(one.runs, now_ms)
    if one.keep is not None and held.locator.is_ours:
        fields |= keep_fields(one.keep, now_ms)
    return update_of(fields)


def _run_fields(runs: Runs, now_ms: int) -> Document:
    return {
        "jobmill.runs": runs.runs,
        "jobmill.failedRuns": runs.failed_runs,
        "jobmill.lastFinishedAt": date(now_ms),
        "jobmill.lastError": runs.last_error,
    }
