"""Lanes on MongoDB: numbers of slots, calls beside each other, transactions of callers, and other programs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pymongo
import pytest
from msgspec import structs

from jobmill.core.changes import Cancel, Reprioritize
from jobmill.core.flows import After
from jobmill.core.lifecycle import Succeeded
from jobmill.core.queue_settings import LaneChange, Pause, RateLimit
from jobmill.core.recurrence import Recurrence
from jobmill.core.unique_policy import UniquePolicy
from jobmill.core.values import Claimed, after, at
from jobmill.errors import SchemaTooOld
from jobmill.stores.mongo import MongoStore, lane_walk, lanes
from jobmill.stores.mongo.codec import LIVE, date
from jobmill.stores.mongo.edges import chunks
from jobmill.stores.mongo.schema import SLOTS
from jobmill.stores.mongo.url import MongoUrl
from jobmill.testing.contract.lanes import held_by, laned, rule, run
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    end,
    look,
    new,
    next_due,
    put,
    put_one,
    readable,
    release,
    retry,
    seize,
    settle,
    succeed,
    turns,
    wish,
)
from tests.kit.mongo import MongoReplicaSet
from tests.stores.mongo_scene import Scene, examined, profiled

pytestmark = pytest.mark.stores("mongo")


@pytest.fixture
async def scene(mongo_url: str) -> AsyncIterator[Scene]:
    scene = Scene(mongo_url)
    await scene.open()
    yield scene
    await scene.store.close()


async def numbers(store: MongoStore) -> dict[str, Any]:
    """The slots of live jobs, by id."""
    query = {"jobmill.laneSlot": {"$exists": True}, "status": {"$in": LIVE}}
    found = await store.context.here.jobs.find(query).to_list()
    return {one["jobmill"]["id"]: one["jobmill"]["laneSlot"] for one in found}


async def complete_as_monque(store: MongoStore, id: str) -> None:
    """What a Node process writes when its job has ended; it knows no slot."""
    ended = {"status": "completed", "updatedAt": date(store.now())}
    claimed = dict.fromkeys(("lockedAt", "claimedBy", "claimId", "lastHeartbeat"), "")
    await store.context.here.jobs.update_one({"jobmill.id": id}, {"$set": ended, "$unset": claimed})


# ---------------------------------------------------------------------------------------------------- numbers


async def test_the_number_of_a_slot_is_its_lock(scene: Scene) -> None:
    store = scene.store
    await rule(store, 2)
    await put(store, laned("a0"), laned("a1"), laned("a2"))
    taken = await numbers(store)
    assert sorted(taken) == ["a0", "a1"]
    assert sorted(taken.values()) == [0, 1]
    with pytest.raises(pymongo.errors.DuplicateKeyError):
        await store.context.here.jobs.update_one({"jobmill.id": "a2"}, {"$set": {"jobmill.laneSlot": 0}})


async def test_a_job_that_monque_completes_frees_its_number_by_itself(scene: Scene) -> None:
    store = scene.store
    await rule(store, 1)
    await put(store, laned("first"), laned("second"))
    await claim_one(store)
    await complete_as_monque(store, "first")
    assert await claim_ids(store) == [], "nobody has looked so far"
    assert await store.flush_outbox() == 1
    assert await numbers(store) == {"second": 0}
    assert await claim_ids(store) == ["second"]


async def test_a_job_that_monque_ended_is_retried_by_hand_in_monque(scene: Scene) -> None:
    """The janitor has taken its number, which another job has by now."""
    store = scene.store
    await rule(store, 1)
    await put(store, laned("first"), laned("second"))
    await claim_one(store)
    await complete_as_monque(store, "first")
    await store.flush_outbox()
    assert await claim_ids(store) == ["second"]
    await store.purge()
    again = {"status": "pending", "failCount": 0, "nextRunAt": date(store.now())}
    await store.context.here.jobs.update_one({"jobmill.id": "first"}, {"$set": again})
    assert await claim_ids(store) == ["first"], "Monque retries it without asking for a slot"


async def test_the_stream_reports_that_monque_has_ended_a_job(scene: Scene) -> None:
    store = scene.store
    await rule(store, 1)
    await put(store, laned("first"), laned("second"))
    await claim_one(store)
    await complete_as_monque(store, "first")
    store.context.lanes.has_ended = True  # as the change stream writes it
    assert await claim_ids(store) == ["second"]


async def test_a_job_that_monque_retries_keeps_its_slot(scene: Scene) -> None:
    store = scene.store
    await rule(store, 1)
    await put(store, laned("first"), laned("second"))
    await claim_one(store)
    fields = {"status": "pending", "nextRunAt": date(store.now() + 1_000), "failCount": 1}
    await store.context.here.jobs.update_one({"jobmill.id": "first"}, {"$set": fields})
    await store.flush_outbox()
    assert await numbers(store) == {"first": 0}
    scene.clock.advance(1)
    await run(store, "first")
    await run(store, "second")


async def test_a_recurring_job_that_monque_ended_waits_in_its_lane(scene: Scene) -> None:
    store = scene.store
    await rule(store, 1)
    every = Recurrence(key="k", every_ms=60_000)
    await put_one(store, laned("again", key="k", recurrence=every))
    await put_one(store, laned("other"))
    await claim_one(store)
    await complete_as_monque(store, "again")
    store.context.claims.rearm_from_ms = 0
    assert await claim_ids(store, lease_ms=120_000) == ["other"]
    assert await held_by(store, "again") == [("lane",)]
    occurrence_ms = (await look(store, "again")).occurrence_ms
    scene.clock.advance(60)
    assert await claim(store) == []
    assert await numbers(store) == {"other": 0}
    assert (await look(store, "again")).occurrence_ms == occurrence_ms


async def test_nothing_starts_while_a_number_beyond_the_limit_runs(scene: Scene) -> None:
    store = scene.store
    await rule(store, 3)
    await put(store, *[laned(f"a{number}") for number in range(6)])
    claimed = {slot: one for one in await claim(store) for slot in [(await numbers(store))[one.job.id]]}
    await rule(store, 1)
    for number in (0, 1):
        assert await settle(store, succeed(claimed[number])) == ["done"]
        assert await claim(store) == [], "number 2 still runs"
    await put_one(store, laned("late"))
    await store.flush_outbox()
    assert await claim(store) == []
    assert await settle(store, succeed(claimed[2])) == ["done"]
    assert len(await claim(store)) == 1
    assert list((await numbers(store)).values()) == [0]


async def test_a_job_without_a_number_counts(scene: Scene) -> None:
    """It was admitted when the lane had no limit, or seized."""
    store = scene.store
    await put(store, laned("a0"), laned("a1"), laned("a2"))
    first = await claim_one(store)
    await rule(store, 2)
    taken = await numbers(store)
    assert (len(taken), taken[first.job.id]) == (2, first.lease.locator.id)
    (held,) = [job.id for job in await store.get(["a0", "a1", "a2"]) if job is not None and job.held is not None]
    seized = await seize(store, held)
    assert await claim(store) == [], "two run, and the third has lost its slot"
    await put_one(store, laned("a3"))
    assert await settle(store, succeed(first)) == ["done"]
    (second,) = await claim(store)
    assert second.job.id not in ("a3", held)
    assert await settle(store, succeed(seized)) == ["done"]
    await run(store, "a3")
    assert await settle(store, succeed(second)) == ["done"]
    assert await numbers(store) == {}


async def test_a_seized_job_that_is_given_back_has_a_slot_and_no_turn(scene: Scene) -> None:
    store = scene.store
    await rule(store, 2)
    await put(store, laned("first"), laned("second"), laned("third"))
    running = await claim(store)
    seized = await seize(store, "third")
    assert await settle(store, *map(succeed, running), release(seized)) == ["done"] * 3
    (lane,) = await store.lanes(QUEUE)
    assert (lane.admitted, lane.ready) == (1, 0)
    assert [one.check for one in await store.fsck() if one.count] == []
    await run(store, "third")


async def test_a_recurring_job_keeps_its_occurrence(scene: Scene) -> None:
    store = scene.store
    await rule(store, 1)
    await put_one(store, laned("first"))
    due_ms = store.now() + 5_000
    await put_one(store, laned("again", key="k", recurrence=Recurrence(key="k", every_ms=60_000), due=after(5_000)))
    assert (await look(store, "again")).occurrence_ms == due_ms
    scene.clock.advance(7)
    assert await claim_ids(store) == ["first"]
    assert (await store.change(["first"], Cancel())).ids == ["first"]
    claimed = await claim_one(store)
    assert (claimed.job.id, claimed.job.occurrence_ms, claimed.job.due_ms) == ("again", due_ms, store.now())
    await store.change(["again"], Cancel())


async def test_a_pushed_back_job_keeps_its_place_and_its_occurrence(scene: Scene) -> None:
    store = scene.store
    await rule(store, 1)
    await put_one(store, laned("again", key="k", recurrence=Recurrence(key="k", every_ms=60_000)))
    joined_ms = store.now()
    scene.clock.advance(1)
    await put_one(store, laned("second"))
    await store.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
    job = await look(store, "again")
    assert job.held is not None
    assert (job.held.due.at_ms, job.occurrence_ms) == (joined_ms, joined_ms)
    await store.configure_lane(QUEUE, "a", LaneChange(pause=None))
    assert await claim_ids(store) == ["again"]


# ---------------------------------------------------------------------------------------------------- races


class Gate:
    """A collection that waits before the first write, or the first query, that matches."""

    def __init__(self, collection: Any, stops: Callable[[str, Any], bool]) -> None:
        self._collection, self._stops = collection, stops
        self.reached, self.opened = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._collection, name)
        if name not in ("bulk_write", "update_one", "update_many", "insert_many", "find_one_and_update"):
            return real

        async def write(first: Any, *rest: Any, **options: Any) -> Any:
            if not self.reached.is_set() and self._stops(name, first):
                self.reached.set()
                await self.opened.wait()
            return await real(first, *rest, **options)

        return write


async def beside(
    store: MongoStore,
    stops: Callable[[str, Any], bool],
    call: Awaitable[Any],
    other: Callable[[], Awaitable[Any]],
    collection: str = "jobs",
) -> Any:
    """Let a call wait before one of its writes until another one has ended; the result of the first."""
    here = store.context.here
    gate = Gate(getattr(here, collection), stops)
    setattr(here, collection, gate)
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait_for(gate.reached.wait(), 10)
        await other()
        gate.opened.set()
        return await task
    finally:
        setattr(here, collection, gate._collection)


def admits(name: str, writes: Any) -> bool:
    """A write that gives slots."""
    return name == "bulk_write" and any("laneSlot" in repr(one) and "held.by" in repr(one) for one in writes)


def settles(name: str, writes: Any) -> bool:
    """A write that ends a job."""
    return name == "bulk_write" and any("'completed'" in repr(one) for one in writes)


def inserts(name: str, _: Any) -> bool:
    return name == "insert_many"


async def test_a_job_arrives_before_a_settlement_is_written(scene: Scene) -> None:
    """The arrival sees a full lane. So the settlement must see the arrival."""
    store = scene.store
    await rule(store, 1)
    await put_one(store, laned("first"))
    claimed = await claim_one(store)
    async with scene.another() as other:
        await beside(store, settles, settle(store, succeed(claimed)), lambda: put_one(other, laned("second")))
        assert await claim_ids(other) == ["second"]


async def test_a_settlement_is_written_before_a_job_arrives(scene: Scene) -> None:
    """The settlement sees nobody. So the arrival must see the free slot."""
    store = scene.store
    await rule(store, 1)
    await put_one(store, laned("first"))
    claimed = await claim_one(store)
    async with scene.another() as other:
        await beside(store, inserts, put_one(store, laned("second")), lambda: settle(other, succeed(claimed)))
        assert await claim_ids(other) == ["second"]


async def test_an_exchange_claims_the_jobs_that_get_the_slots_of_its_settlements(scene: Scene) -> None:
    """Although it had searched for jobs before these got their slots."""
    store = scene.store
    await rule(store, 1)
    await put(store, laned("first"), laned("second"), laned("b", "b"))
    first = await claim_one(store)
    exchanged = await store.exchange([succeed(first)], wish(10))
    assert sorted(one.job.id for one in readable(exchanged.claimed)) == ["b", "second"]


async def test_two_calls_give_the_same_number(scene: Scene) -> None:
    store = scene.store
    await rule(store, 1)
    async with scene.another() as other:
        await beside(store, admits, put_one(store, laned("first")), lambda: put_one(other, laned("second")))
        assert list((await numbers(store)).values()) == [0]
        assert len(await claim(store)) == 1


async def test_a_call_that_comes_second_looks_again(scene: Scene) -> None:
    """The first one has decided before the second one freed its slot. The first takes what the second wants to give."""
    store = scene.store
    await rule(store, 2)
    await put(store, *[laned(f"a{number}") for number in range(4)])
    taken = await numbers(store)
    claimed = sorted(await claim(store), key=lambda one: -taken[one.job.id])
    async with scene.another() as other:
        here = other.context.here
        gate = Gate(here.jobs, admits)
        here.jobs = gate  # type: ignore[assignment]
        first = asyncio.ensure_future(settle(other, succeed(claimed[0])))
        await asyncio.wait_for(gate.reached.wait(), 10)

        async def go_on() -> None:
            gate.opened.set()
            await first

        await beside(store, admits, settle(store, succeed(claimed[1])), go_on)
        assert sorted(await numbers(store)) == ["a2", "a3"]


async def test_a_job_of_a_call_that_has_not_committed_gets_no_slot(scene: Scene) -> None:
    store = scene.store
    await rule(store, 2)
    then = structs.replace(laned("then"), after=(After("staged"),))
    async with scene.another() as other:
        seen: list[str] = []

        async def arrive() -> None:
            await put_one(other, laned("other"))
            seen.extend(await numbers(other))

        def commits(name: str, _: Any) -> bool:
            return name == "update_one"

        await beside(store, commits, store.enqueue([laned("staged"), then]), arrive, "stages")
        assert seen == ["other"]
        assert sorted(await numbers(store)) == ["other", "staged"]


async def test_a_limit_is_lowered_while_slots_are_given(scene: Scene) -> None:
    """The change does not see the slots, so the call that gives them must see the change."""
    store = scene.store
    await rule(store, 3)
    async with scene.another() as other:
        arrive = put(store, *[laned(f"a{number}") for number in range(3)])
        await beside(store, admits, arrive, lambda: rule(other, 1))
        assert len(await numbers(store)) == 1
        assert len(await claim(other)) == 1


async def test_a_lane_is_paused_while_slots_are_given(scene: Scene) -> None:
    store = scene.store
    await rule(store, 3)
    async with scene.another() as other:
        pause = LaneChange(pause=Pause())
        await beside(store, admits, put_one(store, laned("a0")), lambda: other.configure_lane(QUEUE, "a", pause))
        assert await numbers(store) == {}
        assert await claim(other) == []


async def test_a_job_is_cancelled_while_it_gets_a_slot(scene: Scene) -> None:
    store = scene.store
    await rule(store, 1)
    await put(store, laned("first"), laned("second"), laned("third"))
    claimed = await claim_one(store)
    async with scene.another() as other:
        await beside(store, admits, settle(store, succeed(claimed)), lambda: other.change(["second"], Cancel()))
        assert await claim_ids(other) == ["third"]


@pytest.mark.parametrize("has_number", [True, False])
async def test_a_job_is_claimed_while_an_urgent_one_takes_its_slot(scene: Scene, has_number: bool) -> None:
    store = scene.store
    if has_number:
        await rule(store, 1)
    await put_one(store, laned("slow", priority=5))
    await rule(store, 1)
    slot = await numbers(store)
    assert (slot == {"slow": 0}) is has_number

    def pushes_back(name: str, writes: Any) -> bool:
        return name == "bulk_write" and "held" in repr(writes) and "laneSlot" in repr(writes)

    async with scene.another() as other:
        running: list[Claimed] = []

        async def take() -> None:
            running.extend(await claim(other))

        async with profiled(store) as done:
            await beside(store, pushes_back, put_one(store, laned("urgent", priority=1)), take)
        gave = [one for one in done if one["op"] == "update" and "laneSlot': 0" in repr(one["command"])]
        assert [one for one in gave if one["nModified"]] == [], "not even for a moment"
        assert [one.job.id for one in running] == ["slow"]
        assert await numbers(store) == slot
        assert await claim(store) == []
        assert await settle(other, succeed(running[0])) == ["done"]
        assert await claim_ids(store) == ["urgent"]


async def test_a_rate_counts_jobs_of_two_processes(scene: Scene) -> None:
    store = scene.store
    await rule(store, rate=RateLimit(3, 60_000))
    async with scene.another() as other:
        calls = [(store, other)[number % 2].enqueue([laned(f"a{number}")]) for number in range(10)]
        await asyncio.gather(*calls)
        claimed = await claim(store)
        assert len(claimed) == 3
        assert await settle(store, *map(succeed, claimed)) == ["done"] * 3
        scene.clock.advance(60)
        assert len(await claim(other)) == 3
        document = await store.context.here.lanes.find_one({})
        assert document is not None
        assert document["windowUsed"] == 3


@pytest.mark.parametrize("used", [0, 1])
async def test_two_calls_count_in_one_window(scene: Scene, used: int) -> None:
    """The first call that writes the window wins. The window may exist before."""
    store = scene.store
    await rule(store, rate=RateLimit(1 + used, 60_000))
    for number in range(used):
        await put_one(store, laned(f"used {number}"))

    def counts(name: str, _: Any) -> bool:
        return name == "update_one"

    async with scene.another() as other:
        slow, urgent = laned("slow", priority=5), laned("urgent", priority=4)
        await beside(store, counts, put_one(store, slow), lambda: put_one(other, urgent), "lanes")
    assert sorted(await numbers(store)) == ["urgent", "used 0"][: 1 + used]


async def test_a_window_does_not_count_a_slot_that_was_refused(scene: Scene) -> None:
    """A call counts a job, and finds its slot taken by a call that knows no rate."""
    store, rate = scene.store, RateLimit(1, 60_000)
    await rule(store, 1, rate=rate)

    async def take() -> None:
        await rule(other, 1)
        await put_one(other, laned("urgent", priority=4))

    async with scene.another() as other:
        await beside(store, admits, put_one(store, laned("slow", priority=5)), take)
    assert await numbers(store) == {"urgent": 0}
    await rule(store, 1, rate=rate)
    await run(store, "urgent")
    await run(store, "slow")


async def test_the_windows_of_rates_are_removed(scene: Scene) -> None:
    store = scene.store
    await rule(store, rate=RateLimit(1, 60_000))
    await put(store, laned("a0"), laned("a1"), laned("b0", "b"))
    await store.configure_lane(QUEUE, "c", LaneChange(running=1))
    await store.purge()
    assert await store.context.here.lanes.count_documents({}) == 3
    await rule(store, 5)
    assert [lane.limited_until_ms for lane in await store.lanes(QUEUE)] == [None] * 3
    scene.clock.advance(60)
    assert len(await claim(store)) == 3
    await store.purge()
    left = [one["_id"]["lane"] async for one in store.context.here.lanes.find()]
    assert left == ["c"]


async def test_many_urgent_jobs_arrive_at_once(scene: Scene) -> None:
    store = scene.store
    await rule(store, 40)
    await put(store, *[laned(f"slow {number}", priority=5) for number in range(50)])
    await put(store, *[laned(f"urgent {number}", priority=1) for number in range(45)])
    taken = await numbers(store)
    assert len([id for id in taken if id.startswith("urgent")]) == len(taken) == 40
    assert sorted(taken.values()) == list(range(40))


async def test_a_live_job_of_another_lane_takes_over(scene: Scene) -> None:
    """It keeps its own lane, where its slot is free then."""
    store = scene.store
    await rule(store, 1)
    every = Recurrence(key="k", every_ms=60_000)
    await put_one(store, laned("again", key="k", recurrence=every))
    await put_one(store, laned("waits"))
    changed = laned(lane="b", key="k", recurrence=structs.replace(every, every_ms=30_000), due=after(30_000))
    assert [one.status for one in await store.enqueue([changed])] == ["updated"]
    assert await claim_ids(store) == ["waits"]
    assert (await look(store, "again")).lane == "a"


async def test_a_rule_that_changes_while_a_recurring_job_runs(scene: Scene) -> None:
    """The job is due as the change says, and gives its slot up until then."""
    store = scene.store
    await rule(store, 1)
    every = Recurrence(key="k", every_ms=60_000)
    await put_one(store, laned("again", key="k", recurrence=every))
    claimed = await claim_one(store)
    await put_one(store, laned("other"))
    changed = laned(key="k", recurrence=structs.replace(every, every_ms=30_000), due=after(20_000))
    assert [one.status for one in await store.enqueue([changed])] == ["updated"]
    await end(store, claimed, Succeeded())
    await run(store, "other")
    assert await next_due(store) == store.now() + 20_000
    job = await look(store, "again")
    assert (job.held is not None, job.occurrence_ms) == (True, store.now() + 20_000)
    scene.clock.advance(20)
    assert await claim_ids(store) == ["again"]


# ---------------------------------------------------------------------------------------------------- walks


async def test_a_rule_for_more_lanes_than_one_step_takes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    store = scene.store
    monkeypatch.setattr(lane_walk, "WALKED", 5)
    await rule(store, 2)
    await put(store, *[laned(lane=f"lane {number:02}") for number in range(12) for _ in range(3)])
    await rule(store, 1)
    assert len(await numbers_by_lane(store)) == 12
    assert sum((await numbers_by_lane(store)).values()) == 5 + 2 * 7, "the first step"
    await store.flush_outbox()
    assert set((await numbers_by_lane(store)).values()) == {1}


async def test_more_jobs_of_many_lanes_than_one_step_takes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call has a time limit, and the size of a request has one."""
    store = scene.store
    monkeypatch.setattr(lanes, "MAX_GIVEN", 12)
    await rule(store, 1)
    await put(store, *[laned(lane=f"lane {number}") for number in range(6) for _ in range(50)])
    async with profiled(store) as done:
        await rule(store, None)
    assert len(await numbers(store)) == 6 + 2 * 6 * lanes.MAX_ATTEMPTS
    assert max(one["nModified"] for one in done if one["op"] == "update") == 12
    assert await store.flush_outbox() == 300 - 6 - 2 * 6 * lanes.MAX_ATTEMPTS


async def test_a_pause_takes_back_more_slots_than_one_step_takes(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    store = scene.store
    monkeypatch.setattr(lanes, "chunks", partial(chunks, size=5))
    await put(store, *[laned() for _ in range(12)])
    async with profiled(store) as done:
        await store.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
    assert await numbers(store) == {}
    queries = [one["command"].get("filter", {}).get("_id", {}) for one in done]
    assert [len(one["$in"]) for one in queries if "$in" in one] == [5, 5, 2]


async def numbers_by_lane(store: MongoStore) -> Counter[str]:
    query = {"jobmill.laneSlot": {"$exists": True}, "status": {"$in": LIVE}}
    return Counter([one["jobmill"]["lane"] async for one in store.context.here.jobs.find(query)])


async def test_all_lanes_are_healed_in_steps(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    store = scene.store
    monkeypatch.setattr(lane_walk, "WALKED", 4)
    await rule(store, 1)
    await rule(store, 1, queue="other")
    jobs = [laned(lane=f"lane {number:02}", queue=queue) for number in range(7) for queue in (QUEUE, "other")]
    await put(store, *jobs, *[structs.replace(one, id=store.new_id()) for one in jobs])
    taken = {"jobmill.laneSlot": {"$exists": True}}
    await store.context.here.jobs.delete_many(taken)  # as if Node had removed them
    await put(store, *[laned(lane=f"full {number}") for number in range(4) for _ in range(2)])
    given = [await store.flush_outbox() for _ in range(6)]
    assert sum(given) == 14
    assert max(given) <= 4


# ---------------------------------------------------------------------------------------------------- transactions


async def test_jobs_of_open_transactions_get_slots_after_the_commit(scene: Scene) -> None:
    store = scene.store
    await rule(store, 1)
    await put_one(store, laned("first"))
    url = MongoUrl.read(scene.url)
    async with pymongo.AsyncMongoClient[dict[str, Any]](url.driver_url) as client:
        sessions = [client.start_session() for _ in range(2)]
        for number, session in enumerate(sessions):
            await session.start_transaction()
            receipts = await store.enqueue_within(session, [laned(f"within {number}"), laned(f"late {number}")])
            assert [one.status for one in receipts] == ["created", "created"]
        await run(store, "first")  # nobody waits for the transactions
        assert await claim(store) == []
        await sessions[1].commit_transaction()
        async with scene.another() as other:
            assert await claim_ids(other) == ["within 1"]
        await sessions[0].abort_transaction()
        for session in sessions:
            await session.end_session()
    assert await store.get(["within 0"]) == [None]
    assert await held_by(store, "late 1") == [("lane",)]


async def test_the_first_job_of_a_queue_with_lanes_is_in_a_transaction(scene: Scene) -> None:
    store = scene.store
    client = pymongo.AsyncMongoClient[dict[str, Any]](MongoUrl.read(scene.url).driver_url)
    async with client, client.start_session() as session:
        await session.start_transaction()
        await store.enqueue_within(session, [laned("within"), laned("late", due=after(5_000))])
        await session.commit_transaction()
    assert await claim_ids(store) == ["within"]
    assert await next_due(store) is not None
    scene.clock.advance(5)
    assert await claim_ids(store) == ["late"]


@pytest.mark.parametrize("recurs", [False, True])
async def test_a_transaction_moves_a_live_job(scene: Scene, recurs: bool) -> None:
    """It has lost its slot when the caller commits. The next claim gives the slot to it again, and nobody heals."""
    store = scene.store
    await rule(store, 1)
    every = Recurrence(key="k", every_ms=60_000) if recurs else None
    await put_one(store, laned("first", key="k", recurrence=every))
    changed = laned(key="k", payload=2, recurrence=every and structs.replace(every, every_ms=30_000))
    if not recurs:
        changed = structs.replace(changed, policy=UniquePolicy(when_live="replace"), due=at(store.now()))
    client = pymongo.AsyncMongoClient[dict[str, Any]](MongoUrl.read(scene.url).driver_url)
    async with client, client.start_session() as session, scene.another() as other:
        await session.start_transaction()
        assert [one.status for one in await store.enqueue_within(session, [changed])] == ["updated"]
        await session.commit_transaction()
        claimed = await claim_one(other)
    assert (claimed.job.id, claimed.job.payload) == ("first", 2)


async def test_a_transaction_enqueues_what_need_not_wait(scene: Scene) -> None:
    """What the job waits for has ended. So it stands in its lane from the commit on."""
    store = scene.store
    await put_one(store, new("first"))
    await run(store, "first")
    then = structs.replace(laned("then"), after=(After("first"),))
    client = pymongo.AsyncMongoClient[dict[str, Any]](MongoUrl.read(scene.url).driver_url)
    async with client, client.start_session() as session, scene.another() as other:
        await session.start_transaction()
        await store.enqueue_within(session, [then])
        await session.commit_transaction()
        assert await claim_ids(other) == ["then"]


@pytest.mark.slow
async def test_a_commit_wakes_a_worker_that_sleeps(mongo_url: str) -> None:
    store, other = MongoStore(mongo_url), MongoStore(mongo_url)
    await store.migrate()
    for one in (store, other):
        await one.open()
    await rule(store, 1)
    assert await claim(store) == []
    await asyncio.wait_for(store.wait_for_work((QUEUE,), store.now() + 60_000), 20)  # the stream is open now
    assert await claim(store) == []
    sleeps = asyncio.ensure_future(store.wait_for_work((QUEUE,), store.now() + 60_000))
    client = pymongo.AsyncMongoClient[dict[str, Any]](MongoUrl.read(mongo_url).driver_url)
    async with client, client.start_session() as session:
        await session.start_transaction()
        await other.enqueue_within(session, [laned("within")])
        await session.commit_transaction()
    for _ in turns(200):
        await asyncio.wait_for(sleeps, 20)
        if await claim_ids(store) == ["within"]:
            break
        sleeps = asyncio.ensure_future(store.wait_for_work((QUEUE,), store.now() + 60_000))
    assert (await look(store, "within")).state == "running"
    for one in (store, other):
        await one.close()


# ---------------------------------------------------------------------------------------------------- costs, versions


async def test_a_queue_without_lanes_costs_nothing(scene: Scene) -> None:
    store = scene.store
    await rule(store, 1, queue="other")
    await put_one(store, laned(queue="other"))
    await put(store, new("first"), new("second"))
    async with profiled(store, "jobmill_lanes") as done:
        (first, second) = await claim(store)
        await store.exchange([succeed(first), succeed(second)], wish(1))
    assert [one for one in done if "lane" in repr(one["command"])] == []


async def test_a_full_lane_is_looked_at_without_its_backlog(scene: Scene) -> None:
    store = scene.store
    await rule(store, 2)
    await put(store, *[laned(f"a{number}") for number in range(300)])
    claimed = await claim(store)
    async with profiled(store) as done:
        await put_one(store, laned("late"))
    assert examined(done) < 20
    async with profiled(store) as done:
        await settle(store, succeed(claimed[0]))
    assert examined(done) < 30


async def test_lanes_need_their_index(mongo_url: str) -> None:
    store = MongoStore(mongo_url)
    await store.migrate()
    await store.context.here.jobs.drop_index(SLOTS)
    await store.close()
    store = MongoStore(mongo_url)
    await store.open()
    await put_one(store, new("plain"))
    with pytest.raises(SchemaTooOld, match="jobmill migrate"):
        await store.enqueue([laned()])
    with pytest.raises(SchemaTooOld, match="jobmill migrate"):
        await store.configure_lane(QUEUE, "a", LaneChange(running=1))
    assert SLOTS in await store.migrate()
    await put_one(store, laned("later"))
    assert sorted(await claim_ids(store)) == ["later", "plain"]
    await store.close()


async def test_an_older_version_beside_lanes(scene: Scene) -> None:
    """It does not reach held jobs. It leaves a slot when it settles, and heal gives the slot on."""
    store = scene.store
    await rule(store, 1)
    await put(store, laned("first"), laned("second"), laned("third"))
    jobs = store.context.here.jobs
    due = {"status": "pending", "nextRunAt": {"$lte": date(store.now())}}
    assert [one["jobmill"]["id"] async for one in jobs.find(due)] == ["first"]
    claimed = await claim_one(store)
    # A retry of an older version: it waits, and nothing is said about slots.
    later = {"status": "pending", "nextRunAt": date(store.now() + 1_000), "failCount": 1}
    await jobs.update_one({"jobmill.id": "first"}, {"$set": later, "$unset": {"claimId": "", "claimedBy": ""}})
    assert await settle(store, succeed(claimed)) == ["lost"]
    await store.flush_outbox()
    assert await claim(store) == []
    scene.clock.advance(1)
    assert await claim_ids(store) == ["first"]
    await jobs.update_one({"jobmill.id": "first"}, {"$set": {"status": "completed"}})
    # An older version holds a job by a person: the lane does not give it a slot, and is not blocked by it.
    await jobs.update_one({"jobmill.id": "second"}, {"$set": {"jobmill.held.by": ["lane", "person"]}})
    await store.flush_outbox()
    assert await claim_ids(store) == ["third"]


@pytest.mark.slow
async def test_a_primary_steps_down(mongo_replica_set: MongoReplicaSet) -> None:
    """Nothing is lost, and no limit is exceeded."""
    with mongo_replica_set.database() as url:
        store = MongoStore(url)
        await store.migrate()
        await store.open()
        await rule(store, 2)
        await put(store, *[laned(f"{lane}{number}", lane) for lane in "abc" for number in range(8)])
        ran: list[str] = []
        for number in turns(100):
            claimed = await claim(store, 4)
            assert max(Counter(one.job.lane for one in claimed).values(), default=0) <= 2
            if number in (2, 4):
                await asyncio.to_thread(mongo_replica_set.step_down)
            if claimed:
                assert await settle(store, *map(succeed, claimed)) == ["done"] * len(claimed)
            ran += [one.job.id for one in claimed]
            if len(ran) == 24:
                break
            if not claimed:
                await store.flush_outbox()
        assert len(set(ran)) == 24
        assert await numbers(store) == {}
        await store.close()


async def test_a_reprioritized_job_displaces_one_that_has_not_begun(scene: Scene) -> None:
    store = scene.store
    await rule(store, 2)
    await put(store, *[laned(f"a{number}", priority=5) for number in range(4)])
    assert (await store.change(["a2", "a3"], Reprioritize(1))).ids == ["a2", "a3"]
    assert sorted(await numbers(store)) == ["a2", "a3"]
    assert sorted((await numbers(store)).values()) == [0, 1]


async def test_a_strict_retry_keeps_its_number(scene: Scene) -> None:
    store = scene.store
    await rule(store, 1, strict=True)
    await put(store, laned("first"), laned("second"))
    assert await settle(store, retry(await claim_one(store), 5_000)) == ["done"]
    assert await numbers(store) == {"first": 0}
