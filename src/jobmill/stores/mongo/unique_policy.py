"""Jobs with a policy: what an enqueue does when their unique keys are taken.

All jobs are inserted at once, as if their keys were free. For those that the server refuses, `look` finds out why, with
the same queries for all. What the core then decides is written under a guard, again with one write for all. If another
process was faster, the rest looks again.

What is left if a process ends in between:
replace       one write, so nothing
pass          the running job has lost its key, which was needed for the new job only: the key is free
cancel        see stages.py
for a time    see taken_keys.py
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Literal, TypeAlias

from bson import ObjectId
from msgspec import Struct, structs
from pymongo import UpdateOne
from pymongo.errors import BulkWriteError

from jobmill.core.changes import Patch
from jobmill.core.events import enqueued_events
from jobmill.core.job import Job
from jobmill.core.queue_limits import QueueLimits
from jobmill.core.unique_policy import Owner, Replace, when_taken
from jobmill.core.values import NewJob, Receipt
from jobmill.errors import StoreUnavailable
from jobmill.stores.mongo import stages
from jobmill.stores.mongo.codec import (
    LIVE,
    WITHOUT_PAYLOAD,
    Document,
    data_of,
    id_of,
    job_of,
    ours_of,
    stored_key,
    update_of,
)
from jobmill.stores.mongo.connection import BY_ID, TOO_LARGE, BoundCollection, refused_writes
from jobmill.stores.mongo.context import MongoContext, live_with, with_ids
from jobmill.stores.mongo.feed import publish
from jobmill.stores.mongo.ids import new_object_id
from jobmill.stores.mongo.insert import EncodedJob, encoded, insert, resolve_all, too_large
from jobmill.stores.mongo.leases import marked
from jobmill.stores.mongo.patches import Decided, patch_fields
from jobmill.stores.mongo.taken_keys import Key, confirm, holders, release, reserve
from jobmill.stores.mongo.url import MongoUrl

#: A call whose jobs meet those of other calls gives up after this time without progress.
GIVE_UP_SECONDS = 10.0
_PAUSE_SECONDS = 0.01


class Owned(Struct, frozen=True):
    """The live job that has the unique key of a new one, and what becomes of both."""

    document: Document
    job: Job
    taken: Replace | Literal["cancel", "pass"]

    @property
    def unchanged(self) -> Document:
        """A filter: the job still has the key, and has neither been claimed, held nor released since it was read."""
        same = {name: self.document.get(name) for name in ("_id", "status", "uniqueKey")}
        return same | {f"jobmill.{name}": ours_of(self.document).get(name) for name in ("claims", "held")}

    def replacing(self, ctx: MongoContext, new: NewJob, now_ms: int) -> Document:
        """The update that lets the job take over a payload, and what the core decided."""
        fields = self.taken.fields if isinstance(self.taken, Replace) else {}
        update = update_of(patch_fields(ctx, Decided(self.document, self.job, Patch(fields=fields)), now_ms))
        # The payload may be null, which is a value here.
        return update | {"$set": {"data": data_of(new.payload_json), **update["$set"]}}


#: The update that takes its unique key from a job.
WITHOUT_KEY: Document = {"$unset": {"uniqueKey": "", "jobmill.key": ""}}
#: What stands in the way of a new job. An ObjectId: another call that has staged a job with its id or key. "wait":
#: another call that is about to insert a job with its key.
Obstacle: TypeAlias = Receipt | ObjectId | Owned | Literal["wait"] | None


async def look(
    jobs: BoundCollection, keys: BoundCollection, url: MongoUrl, wanted: Sequence[EncodedJob], now_ms: int
) -> list[Obstacle]:
    """What stands in the way of each of these jobs."""
    ids, pairs = {one.new.id for one in wanted}, {one.name_and_key for one in wanted}
    found = await jobs.find({"$or": [*with_ids(ids)["$or"], live_with(pairs)]}, WITHOUT_PAYLOAD)
    there = {id: one for one in found if (id := id_of(one)) in ids}
    owners = {(one.get("name"), one.get("uniqueKey")): one for one in found if one.get("status") in LIVE}
    timed = {(one.name_and_key, one.new.id) for one in wanted if one.for_ms is not None}
    taken = await holders(keys, jobs, url, timed, now_ms) if timed else {}
    return [_obstacle(one, there.get(one.new.id), owners.get(one.name_and_key), taken, url, now_ms) for one in wanted]


def _obstacle(
    one: EncodedJob,
    itself: Document | None,
    owner: Document | None,
    taken: Mapping[Key, str | None],
    url: MongoUrl,
    now_ms: int,
) -> Obstacle:
    for document in (itself, owner):
        if document is not None and (staged := ours_of(document).get("staged")) is not None:
            return ObjectId(staged)
    if itself is not None:
        return Receipt(one.new.id, "exists")
    if owner is not None:
        job = job_of(owner, url)
        decided = when_taken(one.new.policy, one.new.due, Owner.of(job), now_ms)
        return Receipt(job.id, "duplicate") if decided == "duplicate" else Owned(owner, job, decided)
    if one.for_ms is None or one.name_and_key not in taken:
        return None
    holder = taken[one.name_and_key]
    return "wait" if holder is None else Receipt(holder, "duplicate")


def encoded_by_policy(new: NewJob, now_ms: int, url: MongoUrl, ours: Document | None = None) -> EncodedJob:
    """A new job that may have a policy. Its document has more fields of ours, and says that it takes its key."""
    more = dict(ours or {})
    if new.policy is not None and new.policy.for_ms is not None and new.unique_key is not None:
        more["taken"] = stored_key(new.queue, new.unique_key, url.queue)
    return encoded(new, now_ms, url, (lambda document: document["jobmill"].update(more)) if more else None)


async def insert_by_policy(
    ctx: MongoContext, jobs: Sequence[EncodedJob], limits: Mapping[str, QueueLimits], now_ms: int
) -> list[Receipt]:
    """Insert jobs, some of which have a policy; a receipt for each. What was created is published."""
    call = _Enqueueing(ctx, jobs, limits, now_ms)
    refused = await call.insert(range(len(jobs)))
    left = [index for index in refused if jobs[index].new.policy is not None]
    give_up = time.monotonic() + GIVE_UP_SECONDS
    while left:
        rest = await call.resolve(left)
        if len(rest) < len(left):
            give_up = time.monotonic() + GIVE_UP_SECONDS
        elif time.monotonic() > give_up:
            raise StoreUnavailable(
                f"could not enqueue the job {jobs[rest[0]].new.id} within {GIVE_UP_SECONDS:g} s: "
                "other calls kept taking its unique key; try again"
            )
        left = rest
    if others := [index for index in refused if jobs[index].new.policy is None]:
        await call.note(await resolve_all(ctx, jobs, others, now_ms))
    return [call.receipts[index] for index in range(len(jobs))]


class _Enqueueing(Struct):
    """What a call has done so far; jobs are known by their index."""

    ctx: MongoContext
    jobs: Sequence[EncodedJob]
    limits: Mapping[str, QueueLimits]
    now_ms: int
    receipts: dict[int, Receipt] = {}
    #: The jobs for which the call has taken a key that is uncertain.
    reserved: set[int] = set()

    async def note(self, receipts: Mapping[int, Receipt]) -> None:
        """The receipts of some jobs: publish what was created, and decide about keys that were taken for them."""
        self.receipts.update(receipts)
        done = self.reserved.intersection(receipts)
        for is_kept, decide in ((True, confirm), (False, release)):
            # Whether the job is there, also from an earlier attempt of the same call.
            some = [self.jobs[index] for index in done if (receipts[index].status in ("created", "exists")) == is_kept]
            await decide(self.ctx, {one.new.id: one.name_and_key for one in some})
        self.reserved -= done
        events = enqueued_events([self.jobs[index].new for index in receipts], [*receipts.values()], self.now_ms)
        await publish(self.ctx, events, self.limits)

    async def insert(self, indexes: Sequence[int]) -> list[int]:
        """Insert jobs; the indexes of those that were refused, because their id or key is taken."""
        timed = {index: for_ms for index in indexes if (for_ms := self.jobs[index].for_ms) is not None}
        both = [(self.jobs[index], self.now_ms + for_ms) for index, for_ms in timed.items()]
        wanted = [(one.name_and_key, one.new.id, until_ms) for one, until_ms in both]
        taken = await reserve(self.ctx, wanted, self.now_ms) if wanted else set()
        refused = {index for position, index in enumerate(timed) if position in taken}
        self.reserved |= timed.keys() - refused
        rest = [index for index in indexes if index not in refused]
        positions = await insert(self.ctx, [self.jobs[index] for index in rest]) if rest else []
        refused.update(rest[position] for position in positions)
        await self.note({i: Receipt(self.jobs[i].new.id, "created") for i in rest if i not in refused})
        return sorted(refused)

    async def resolve(self, left: Sequence[int]) -> list[int]:
        """Do what the policies of refused jobs say; the indexes of those that must look again."""
        jobs, keys = BoundCollection(self.ctx.here.jobs), BoundCollection(self.ctx.here.taken_keys)
        self.now_ms = self.ctx.now()
        obstacles = await look(jobs, keys, self.ctx.url, [self.jobs[index] for index in left], self.now_ms)
        steps = _Steps()
        for index, obstacle in zip(left, obstacles, strict=True):
            steps.add(index, self.jobs[index].name_and_key, obstacle)
        await self.note(steps.receipts)
        again = [*steps.again, *await self._update(steps)]
        if steps.cancels:
            again += await self._take_over(steps.cancels)
        if steps.inserts:
            again += await self.insert(sorted(steps.inserts))
        for staged in steps.calls:
            await stages.wait_for(self.ctx, staged)
        if steps.waits:
            await asyncio.sleep(_PAUSE_SECONDS)
        return sorted(again)

    async def _update(self, steps: _Steps) -> list[int]:
        """Replace payloads, and take keys from running jobs; the indexes of those that were not done.

        The new jobs that get a key from a running job are among `steps.inserts` afterwards.
        """
        owned = [*steps.replaces.values(), *steps.passes.values()]
        if not owned:
            return []
        mark = new_object_id()
        writes = [self._write(one, indexes[-1], mark) for one, indexes in owned]
        failed: Mapping[int, str] = {}
        try:
            matched = (await self.ctx.here.jobs.bulk_write(writes, ordered=False)).matched_count
        except BulkWriteError as error:
            matched, failed = -1, refused_writes(error, TOO_LARGE)
        for position in failed:
            raise too_large(self.jobs[owned[position][1][-1]].new)
        ids: Collection[ObjectId] = [one.document["_id"] for one, _ in owned]
        done = ids if matched == len(writes) else await marked(self.ctx, list(ids), mark)
        receipts: dict[int, Receipt] = {}
        late: list[int] = []
        for one, indexes in owned:
            if one.document["_id"] not in done:
                late += indexes
            elif one.taken == "pass":
                steps.inserts += indexes
            else:
                self.ctx.lanes.touch(one.job.queue, one.job.lane)
                receipts |= dict.fromkeys(indexes, Receipt(one.job.id, "updated"))
        self.ctx.claims.cursor.rewind()  # a job may be due earlier now
        await self.note(receipts)
        return late

    def _write(self, one: Owned, index: int, mark: ObjectId) -> UpdateOne:
        is_pass = one.taken == "pass"
        update = WITHOUT_KEY if is_pass else one.replacing(self.ctx, self.jobs[index].new, self.now_ms)
        marking = {"$set": {**update.get("$set", {}), "jobmill.mark": mark}}
        return UpdateOne(one.unchanged, update | marking, hint=BY_ID)

    async def _take_over(self, indexes: Sequence[int]) -> list[int]:
        """Insert jobs that take the place of live ones; the indexes of those whose ids are taken."""
        ctx, stage_id = self.ctx, new_object_id()
        edit = partial(_stage_without_key, stage_id, self.now_ms)
        hidden = [encoded(self.jobs[index].new, self.now_ms, ctx.url, edit) for index in indexes]
        await stages.begin(ctx, stage_id)
        refused = set(await insert(ctx, hidden))
        staged = [(index, one) for n, (index, one) in enumerate(zip(indexes, hidden, strict=True)) if n not in refused]
        takes = [{"job": one.id, "name": one.new.name, "key": one.key} for _, one in staged]
        new_jobs = [one.new for _, one in staged]
        await stages.finish(ctx, await stages.commit(ctx, stage_id, [], [], takes=takes, new_jobs=new_jobs))
        await self.note({index: Receipt(one.new.id, "created") for index, one in staged})
        return [indexes[position] for position in refused]


def _stage_without_key(stage_id: ObjectId, now_ms: int, document: Document) -> None:
    del document["uniqueKey"]
    stages.stage(stage_id, is_awaited=False, now_ms=now_ms, document=document)


class _Steps(Struct):
    """What a call does next for jobs that were refused. Of jobs with one key, those come first that are first."""

    receipts: dict[int, Receipt] = {}
    #: By the _id of a live job. If several new jobs replace its payload, one write does what all of them decide.
    replaces: dict[ObjectId, tuple[Owned, list[int]]] = {}
    passes: dict[ObjectId, tuple[Owned, list[int]]] = {}
    cancels: list[int] = []
    inserts: list[int] = []
    again: list[int] = []
    #: Other calls that have staged jobs.
    calls: set[ObjectId] = set()
    waits: bool = False
    #: The keys whose owner will be another one after this step.
    moved: set[Key] = set()

    def add(self, index: int, key: Key, obstacle: Obstacle) -> None:
        """What to do for the next job."""
        if isinstance(obstacle, Receipt) and (key not in self.moved or obstacle.status == "exists"):
            self.receipts[index] = obstacle
            return
        if key in self.moved:
            self.again.append(index)
            return
        if isinstance(obstacle, Owned) and isinstance(obstacle.taken, Replace):
            self._replace(index, obstacle, obstacle.taken)
            return
        self.moved.add(key)
        match obstacle:
            case Owned(taken="cancel"):
                self.cancels.append(index)
            case Owned():
                self.passes[obstacle.document["_id"]] = (obstacle, [index])
            case None:
                self.inserts.append(index)
            case ObjectId():
                self.calls.add(obstacle)
                self.again.append(index)
            case _:
                self.waits = True
                self.again.append(index)

    def _replace(self, index: int, owned: Owned, taken: Replace) -> None:
        before, indexes = self.replaces.get(owned.document["_id"], (owned, []))
        fields = before.taken.fields | taken.fields if isinstance(before.taken, Replace) else taken.fields
        merged = structs.replace(owned, taken=Replace(fields=fields))
        self.replaces[owned.document["_id"]] = (merged, [*indexes, index])
