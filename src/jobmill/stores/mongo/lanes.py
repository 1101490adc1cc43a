"""Lanes: which jobs get a slot, and which lose theirs.

Without transactions, the order of reads and writes is what makes this correct. A call that ends a slot, or adds a job
to a lane, writes that first and then looks at the lane (`fill`): of two calls at once, one sees both. The number of a
slot is its lock: a unique index refuses the second job that gets it (schema.SLOTS). The slots of a lane are counted
before numbers are given, so that nothing starts while jobs run whose numbers are beyond a limit that was lowered.
After slots were given, the limits are read again: they may have changed at the same time. Where a process ends too
soon, `heal` finds lanes with ready jobs and free slots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from bson import ObjectId
from msgspec import Struct
from pymongo import UpdateMany, UpdateOne
from pymongo.errors import BulkWriteError

from jobmill.core.changes import Patch
from jobmill.core.flows import MAX_RELEASED
from jobmill.core.lanes import LaneLimits, LanePosition, LaneWindow, Moves, moves, pushed_back_fields, room
from jobmill.stores.mongo import lane_settings
from jobmill.stores.mongo.codec import READY, WITHOUT_PAYLOAD, Document, date, int_of, ms_of, ours_of, update_of
from jobmill.stores.mongo.connection import BY_ID, DUPLICATE_KEY, refused_writes
from jobmill.stores.mongo.context import NO_PRIORITY, MongoContext
from jobmill.stores.mongo.edges import chunks
from jobmill.stores.mongo.lane_queries import HELD_BY_LANE, heads, in_turn, slots
from jobmill.stores.mongo.lane_settings import NO_STATE, LaneKey, LaneLimitsRead, read_limits
from jobmill.stores.mongo.patches import Decided, patch_fields
from jobmill.stores.mongo.queues import MongoLimits
from jobmill.stores.mongo.schema import TURNS
from jobmill.stores.mongo.wake import notify

#: How often the slots of a lane are given anew because other processes give them too.
MAX_ATTEMPTS = 20
#: How many jobs of lanes are found in one step that have become due.
PROMOTED = 1_000
#: How many jobs of a lane take the slots of less urgent ones in one step.
MAX_DISPLACED = 100
#: How many lanes one query names.
LANES_PER_QUERY = 1_000
#: How many jobs of all lanes together get slots in one step: a call has a time limit.
MAX_GIVEN = 10_000
#: Different numbers of slots that are written by an update each; more of them are written by one update.
MAX_NUMBERS = 3
_FIRST = date(0)
_IN_LANE = {"status": "pending", "jobmill.turn.after": READY, **HELD_BY_LANE}
_UNSET = ("jobmill.turn", "jobmill.held", "jobmill.due", "jobmill.dueOf")


class LaneSlots(Struct):
    """The jobs of a lane with a slot, and the first ready ones."""

    running: int = 0
    admitted: list[Document] = []
    #: The numbers of slots that are taken.
    numbers: set[int] = set()
    ready: list[Document] = []
    #: Whether more jobs may be ready for slots than one step gives.
    is_cut: bool = False

    def moves(self, limits: LaneLimits, window: LaneWindow, now_ms: int) -> Moves:
        """What the core decides about the slots of the lane."""
        ready, admitted = [_position(one) for one in self.ready], [_position(one) for one in self.admitted]
        return moves(limits, ready, len(admitted), self.running, lambda n: admitted[::-1][:n], window, now_ms)


class Filled(Struct):
    """What a call has given: how many slots, and in which queues."""

    count: int = 0
    queues: set[str] = set()


async def fill(ctx: MongoContext, known: Mapping[str, MongoLimits] | None = None) -> Filled:
    """Give the free slots of all lanes that have changed to their next jobs. `known`: the limits of their queues."""
    filled = Filled()
    if not ctx.lanes.changed:
        return filled
    async with ctx.here.filling:
        for _ in range(MAX_ATTEMPTS):
            lanes, ctx.lanes.changed = ctx.lanes.changed, {}
            if not lanes:
                break
            try:
                again = await _Round(ctx, filled, lanes, await read_limits(ctx, lanes, known)).fill()
            except BaseException:
                again = lanes.keys()
                raise
            finally:
                for key in again:
                    ctx.lanes.touch(*key)
            known = None
    for queue in filled.queues:
        notify(ctx, queue, ctx.now())
    return filled


class _Round(Struct):
    """One look at some lanes."""

    ctx: MongoContext
    filled: Filled
    #: With the smallest priority of jobs that have joined each lane.
    lanes: Mapping[LaneKey, float]
    limits: LaneLimitsRead

    async def fill(self) -> Collection[LaneKey]:
        """Give and take slots. Return the lanes that must be examined again."""
        again: set[LaneKey] = set()
        given: set[LaneKey] = set()
        by_queue: dict[str, list[str]] = {}
        for queue, lane in sorted(self.lanes):
            by_queue.setdefault(queue, []).append(lane)
        for queue, names in by_queue.items():
            for start in range(0, len(names), LANES_PER_QUERY):
                some = names[start : start + LANES_PER_QUERY]
                changed, late = await self._fill_some(queue, some)
                given |= {(queue, lane) for lane in changed}
                again |= {(queue, lane) for lane in late}
        if given:
            # The limits may have been changed at the same time, by a call that has not seen these slots.
            now = await read_limits(self.ctx, given)
            again |= {key for key in given if now.of(key) != self.limits.of(key)}
        return again

    async def _fill_some(self, queue: str, lanes: Sequence[str]) -> tuple[set[str], set[str]]:
        """The lanes that have got slots, and those that must be examined again."""
        ctx, now_ms = self.ctx, self.ctx.now()
        limits = {lane: self.limits.of((queue, lane)) for lane in lanes}
        jobs = await self.read(queue, limits)
        decided: dict[str, Moves] = {}
        again: set[str] = set()
        for lane, found in jobs.items():
            state = self.limits.states.get((queue, lane), NO_STATE)
            one = found.moves(limits[lane], state.window, now_ms)
            # A window counts jobs before they get their slots: a process that ends in between exceeds no rate. A change
            # of settings stays noted until no job must lose its slot, which nobody else would find.
            stays = one.push_back and state.again == 0 and one.window == state.window
            if stays or await lane_settings.write_state(ctx, (queue, lane), state, one.window, one.again_ms):
                decided[lane] = one
            else:
                again.add(lane)
        for lane, one in decided.items():
            if one.push_back or (one.admit and jobs[lane].is_cut):
                again.add(lane)  # there may be more
        if not await self._push_back(jobs, decided, now_ms):
            # Jobs were claimed meanwhile: the lanes are decided anew.
            decided = {lane: one for lane, one in decided.items() if not one.push_back}
        refused = await self._admit(queue, limits, jobs, decided, now_ms)
        for lane, left in refused.items():
            if limits[lane].rate is not None:
                await lane_settings.give_back(ctx, (queue, lane), decided[lane].window, left)
        again |= refused.keys()
        return {lane for lane, one in decided.items() if one.admit}, again

    # ------------------------------------------------------------------------------------------------ read

    async def read(self, queue: str, limits: Mapping[str, LaneLimits]) -> dict[str, LaneSlots]:
        """The jobs of lanes that decide about their slots."""
        jobs = {lane: LaneSlots() for lane in limits}
        counted = [lane for lane, one in limits.items() if one.paused or one.running is not None or one.rate]
        for one in await slots(self.ctx, queue, counted) if counted else ():
            lane = jobs[one["jobmill"]["lane"]]
            if isinstance(number := one["jobmill"]["laneSlot"], int):
                lane.numbers.add(number)
            if one["status"] == "pending":
                lane.admitted.append(one)
            else:
                lane.running += 1
        wanted: dict[str, int] = {}
        most = max(1, min(MAX_GIVEN // len(limits), MAX_RELEASED))
        for name, lane in jobs.items():
            lane.admitted.sort(key=_position)
            free = room(limits[name], len(lane.admitted), lane.running)
            if limits[name].paused or (free is not None and free < 0):
                continue
            # Some more, which may be more urgent than admitted jobs; or one, which may have to wait for the rate.
            may_displace = lane.admitted and self.lanes[queue, name] < _position(lane.admitted[-1])[0]
            more = min(len(lane.admitted), MAX_DISPLACED) if may_displace else limits[name].rate is not None
            lane.is_cut = free is None or free + more > most
            if count := most if free is None else min(free + more, most):
                wanted[name] = count
        for name, ready in (await heads(self.ctx, queue, wanted)).items():
            jobs[name].ready, jobs[name].is_cut = ready, jobs[name].is_cut and len(ready) == most
        return jobs

    # ------------------------------------------------------------------------------------------------ write

    async def _push_back(self, jobs: Mapping[str, LaneSlots], decided: Mapping[str, Moves], now_ms: int) -> bool:
        """Take slots from admitted jobs; False if some of these have been claimed meanwhile."""
        joined = {ObjectId(position[-1]): position[1] for one in decided.values() for position in one.push_back}
        if not joined:
            return True
        # In parts: a call has a time limit, and a lane without limits may have very many admitted jobs.
        done = sum([await self._push_back_some({id: joined[id] for id in some}, now_ms) for some in chunks(joined)])
        for lane, one in decided.items():
            back = {ObjectId(position[-1]) for position in one.push_back}
            jobs[lane].numbers -= {job["jobmill"]["laneSlot"] for job in jobs[lane].admitted if job["_id"] in back}
        return done == len(joined)

    async def _push_back_some(self, joined: Mapping[ObjectId, int], now_ms: int) -> int:
        """Take the slots from these jobs. Return how many have lost theirs. `joined`: when they joined their lanes."""
        ctx = self.ctx
        found = ctx.here.jobs.find({"_id": {"$in": list(joined)}, "status": "pending"}, WITHOUT_PAYLOAD, hint=BY_ID)
        writes = []
        async for document in found:
            if "laneSlot" not in (ours := ours_of(document)) or "held" in ours:
                continue
            patch = Patch(fields=pushed_back_fields(joined[document["_id"]], now_ms))
            update = update_of(patch_fields(ctx, Decided(document, ctx.job(document), patch), now_ms))
            same = {"_id": document["_id"], "status": "pending", "jobmill.laneSlot": ours["laneSlot"]}
            writes.append(UpdateOne(same, update, hint=BY_ID))
        return (await ctx.here.jobs.bulk_write(writes, ordered=False)).matched_count if writes else 0

    async def _admit(
        self,
        queue: str,
        limits: Mapping[str, LaneLimits],
        jobs: Mapping[str, LaneSlots],
        decided: Mapping[str, Moves],
        now_ms: int,
    ) -> dict[str, int]:
        """Give slots. Return the lanes where that was refused; of a lane with a rate, how many jobs got no slot."""
        given: dict[str, list[tuple[Document, Any]]] = {}
        for lane, one in decided.items():
            ready = {str(job["_id"]): job for job in jobs[lane].ready}
            chosen = [ready[position[-1]] for position in one.admit]
            if not chosen:
                continue
            limit = limits[lane].running
            numbers = range(0) if limit is None else (n for n in range(limit) if n not in jobs[lane].numbers)
            both = zip(chosen, numbers, strict=False) if limit is not None else ((job, job["_id"]) for job in chosen)
            given[lane] = list(both)
        refused: dict[str, int] = {}
        plain = {lane: some for lane, some in given.items() if limits[lane].rate is None}
        # Of a lane with a rate it must be known how many jobs got a slot.
        for part in [plain, *({lane: some} for lane, some in given.items() if lane not in plain)]:
            pairs = [pair for some in part.values() for pair in some]
            if pairs and not await self._write(queue, pairs, now_ms):
                ids = [job["_id"] for job, _ in pairs]
                left = await self.ctx.here.jobs.count_documents({"_id": {"$in": ids}, **_IN_LANE}, hint=BY_ID)
                refused |= dict.fromkeys(part, left)
        return refused

    async def _write(self, queue: str, pairs: Sequence[tuple[Document, Any]], now_ms: int) -> bool:
        """Give slots to ready jobs; whether all of them have got theirs."""
        ctx = self.ctx
        try:
            result = await ctx.here.jobs.bulk_write(_admissions(pairs, now_ms), ordered=False)
            matched = result.matched_count
        except BulkWriteError as error:
            refused_writes(error, (DUPLICATE_KEY,))
            matched = 0  # some of the jobs may have got their slots
        self.filled.count += matched
        self.filled.queues.add(queue)
        for name, priority in {(job["name"], int_of(job.get("priority"))) for job, _ in pairs}:
            if ctx.claims.is_busy:
                ctx.claims.cursor.added(queue, name, -priority, now_ms)
        return bool(matched == len(pairs))


def _admissions(pairs: Sequence[tuple[Document, Any]], now_ms: int) -> list[UpdateMany | UpdateOne]:
    """The updates that give slots: a few for all jobs, and one for each recurring job."""
    now = dict.fromkeys(("nextRunAt", "updatedAt"), date(now_ms))
    writes: list[UpdateMany | UpdateOne] = []
    by_number: dict[Any, list[ObjectId]] = {}
    plain: list[tuple[ObjectId, Any]] = []
    for job, number in pairs:
        if "slot" in ours_of(job):
            fields = {**now, "jobmill.laneSlot": number, "jobmill.slotDue": date(now_ms)}
            update = {"$set": fields, "$unset": dict.fromkeys(_UNSET, "")}
            writes.append(UpdateOne({"_id": job["_id"], **_IN_LANE}, update, hint=BY_ID))
        else:
            plain.append((job["_id"], number))
            by_number.setdefault(number, []).append(job["_id"])
    if len(by_number) <= MAX_NUMBERS:
        for number, ids in by_number.items():
            update = {"$set": {**now, "jobmill.laneSlot": number}, "$unset": dict.fromkeys(_UNSET, "")}
            writes.append(UpdateMany({"_id": {"$in": ids}, **_IN_LANE}, update, hint=BY_ID))
        return writes
    ids = [id for id, _ in plain]
    # Not the number of the job in a list where it is its own _id.
    number = "$_id" if plain[0][1] == ids[0] else _nth([one for _, one in plain], ids)
    stages: list[Document] = [{"$set": {**now, "jobmill.laneSlot": number}}, {"$unset": list(_UNSET)}]
    writes.append(UpdateMany({"_id": {"$in": ids}, **_IN_LANE}, stages, hint=BY_ID))
    return writes


def _nth(numbers: Sequence[int], ids: Sequence[ObjectId]) -> Document:
    return {"$arrayElemAt": [numbers, {"$indexOfArray": [ids, "$_id"]}]}


def _position(document: Document) -> LanePosition:
    # A job that was seized before it joined the lane stands where it is due.
    joined_ms = ms_of(document["jobmill"].get("joined", document.get("nextRunAt"))) or 0
    return -int_of(document.get("priority")), joined_ms, 0, str(document["_id"])


async def free_slots(ctx: MongoContext, queue: str, lanes: Sequence[str], ready_ms: int) -> list[str]:
    """Those of these lanes that would give slots to jobs which have been ready since then. Nothing is written."""
    keys = dict.fromkeys(((queue, lane) for lane in lanes), NO_PRIORITY)
    look = _Round(ctx, Filled(), keys, await read_limits(ctx, keys))
    limits = {lane: look.limits.of((queue, lane)) for lane in lanes}
    free: list[str] = []
    for lane, jobs in (await look.read(queue, limits)).items():
        state = look.limits.states.get((queue, lane), NO_STATE)
        jobs.ready = [one for one in jobs.ready if _position(one)[1] <= ready_ms]
        if jobs.moves(limits[lane], state.window, ctx.now()).admit:
            free.append(lane)
    return free


# ---------------------------------------------------------------------------------------------------- time


async def advance(ctx: MongoContext, queues: Mapping[str, MongoLimits], now_ms: int) -> int | None:
    """Before a claim of these queues, which have lanes: touch lanes that may give slots because time has passed.

    Return when a job of their lanes becomes due next.
    """
    if any(limits.has_lane_documents for limits in queues.values()):
        await look_at_windows(ctx, list(queues), now_ms)
    times: list[int] = []
    for queue, limits in queues.items():
        due_ms = await _first_later(ctx, queue)
        while due_ms is not None and due_ms <= now_ms:
            await promote(ctx, queue, now_ms)
            due_ms = await _first_later(ctx, queue)
        times += [due_ms] if due_ms is not None and not limits.settings.at(now_ms).paused else []
    return min(times, default=None)


async def look_at_windows(ctx: MongoContext, queues: Collection[str], now_ms: int) -> None:
    """Touch lanes whose rates allow more now, or whose settings have changed."""
    for queue, lane in await lane_settings.lanes_to_look_at(ctx, queues, now_ms):
        ctx.lanes.touch(queue, lane)


async def promote(ctx: MongoContext, queue: str, now_ms: int) -> None:
    """Jobs of lanes that have become due stand in their lanes."""
    due = in_turn(ctx, queue, {"$gte": _FIRST, "$lte": date(now_ms)})
    found = await ctx.find_by(TURNS, due, {"jobmill.turn.lane": 1}, PROMOTED)
    if not found:
        return
    ids = [one["_id"] for one in found]
    still = {"_id": {"$in": ids}, "status": "pending", "jobmill.turn.after": {"$gte": _FIRST, "$lte": date(now_ms)}}
    await ctx.here.jobs.update_many(still, {"$set": {"jobmill.turn.after": READY}}, hint=BY_ID)
    for one in found:
        ctx.lanes.touch(queue, one["jobmill"]["turn"]["lane"])


async def _first_later(ctx: MongoContext, queue: str) -> int | None:
    query, shown = in_turn(ctx, queue, {"$gte": _FIRST}), {"_id": 0, "jobmill.turn.after": 1}
    first = await ctx.find_by(TURNS, query, shown, 1, sort={"jobmill.turn.after": 1})
    return int(first[0]["jobmill"]["turn"]["after"]) if first else None


async def next_window_ms(ctx: MongoContext, queues: Mapping[str, MongoLimits], now_ms: int) -> int | None:
    """When the rate of a lane of these queues allows more."""
    found = [queue for queue, one in queues.items() if one.has_lane_documents and not one.settings.at(now_ms).paused]
    times = [await lane_settings.next_window_ms(ctx, queue) for queue in found]
    return min((one for one in times if one is not None), default=None)
