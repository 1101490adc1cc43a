"""Lanes on Redis: what other programs do to jobs with slots, what stays in the keys, and clusters."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec import structs
from redis.asyncio import Redis

from jobmill.core.changes import Cancel, Hold, Pin, Release, Reprioritize, Requeue
from jobmill.core.flows import After
from jobmill.core.lifecycle import Succeeded
from jobmill.core.queue_settings import LaneChange, Pause, RateLimit
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import LANE_LIMIT, NewJob, QueueChange, Settlement, after
from jobmill.errors import StoreError
from jobmill.stores.redis import RedisStore
from jobmill.stores.redis.scripts import CONFIGURE_LANE
from jobmill.stores.redis.url import RedisUrl
from jobmill.testing import ManualClock
from jobmill.testing.contract.lanes import held_by, laned, rule, run
from jobmill.testing.contract.steps import suspend
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    end,
    fail,
    new,
    next_due,
    put,
    put_one,
    readable,
    retry,
    settle,
    succeed,
    wish,
)

pytestmark = pytest.mark.stores("redis")

AT_ONCE = 10_000
#: Longer than any script may keep the server busy, even on a busy machine.
LONG_CALL_US = 300_000


class Other:
    """Another program, such as Node, which knows nothing of lanes."""

    def __init__(self, raw: Redis, prefix: str) -> None:
        self.raw: Any = raw
        self.Q = f"{prefix}:{QUEUE}"

    async def ends(self, id: str, set: str = "completed", score: float = 0) -> None:
        """Take a job from its list or set, and move it to another set."""
        for list in ("wait", "active"):
            await self.raw.lrem(f"{self.Q}:{list}", 0, id)
        for other in ("completed", "failed", "delayed", "waiting-children", "prioritized"):
            await self.raw.zrem(f"{self.Q}:{other}", id)
        await self.raw.delete(f"{self.Q}:{id}:lock")
        if set in ("completed", "failed"):
            await self.raw.hset(f"{self.Q}:{id}", "finishedOn", 1)
        await self.raw.zadd(f"{self.Q}:{set}", {id: score})

    async def runs(self, id: str) -> None:
        await self.raw.lrem(f"{self.Q}:wait", 0, id)
        await self.raw.lpush(f"{self.Q}:active", id)
        await self.raw.set(f"{self.Q}:{id}:lock", "a token of Node")

    async def retries(self, id: str) -> None:
        await self.raw.zrem(f"{self.Q}:failed", id)
        await self.raw.lpush(f"{self.Q}:wait", id)

    async def removes(self, id: str) -> None:
        await self.ends(id)
        await self.raw.zrem(f"{self.Q}:completed", id)
        await self.raw.delete(f"{self.Q}:{id}")

    async def would_not_free(self, id: str) -> bool:
        """Whether Node leaves a job alone when the last one ends that it waits for."""
        return bool(await self.raw.sismember(f"{self.Q}:{id}:dependencies", f"{self.Q}:jobmill:hold"))

    async def scripts(self) -> int:
        """How many scripts the server has run."""
        found = (await self.raw.info("commandstats")).items()
        return sum(about["calls"] for name, about in found if name in ("cmdstat_evalsha", "cmdstat_eval"))

    async def keys(self) -> set[str]:
        """The keys of lanes."""
        found = {key async for key in self.raw.scan_iter(f"{self.Q}:jobmill:*")}
        names = {key.removeprefix(f"{self.Q}:jobmill:") for key in found}
        return {name for name in names if name.startswith(("lane", "in:"))}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(redis_url: str, clock: ManualClock) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis_url, clock=clock)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def other(redis_url: str) -> AsyncIterator[Other]:
    async with Redis.from_url(redis_url.partition("?")[0], decode_responses=True) as client:
        yield Other(client, RedisUrl.read(redis_url).prefix)


async def put_three(store: RedisStore) -> None:
    await rule(store, 1)
    await put(store, *[laned(id) for id in ("first", "second", "third")])


@pytest.mark.parametrize("how", ["completed", "failed", "removed"])
async def test_a_slot_that_node_has_ended(store: RedisStore, other: Other, clock: ManualClock, how: str) -> None:
    await put_three(store)
    await other.runs("first")
    clock.advance(0.2)
    assert await claim(store) == []
    assert await next_due(store) == store.now() + 500, "Node tells nobody when it ends a job"
    await (other.removes("first") if how == "removed" else other.ends("first", how))
    assert await claim(store) == [], "lanes are checked every 100 ms"
    clock.advance(0.2)
    assert await claim_ids(store) == ["second"]


async def test_the_marker_has_the_first_time_of_lanes_and_delayed_jobs(
    store: RedisStore, other: Other, clock: ManualClock
) -> None:
    now_ms = store.now()
    await put(store, laned("soon", due=after(1_000)), new("late", due=after(60_000)))
    assert await other.raw.zrange(f"{other.Q}:marker", 0, -1, withscores=True) == [("1", now_ms + 1_000)]
    await put(store, new("sooner", due=after(500)), laned("then", due=after(700)))
    assert await other.raw.zrange(f"{other.Q}:marker", 0, -1, withscores=True) == [("1", now_ms + 500)]


async def test_flush_outbox_finds_a_slot_that_node_has_ended(store: RedisStore, other: Other) -> None:
    await put_three(store)
    await other.ends("first")
    await store.flush_outbox()
    assert await held_by(store, "second", "third") == [(), ("lane",)]


async def test_a_job_that_gets_its_slot_while_bullmq_5_pauses(redis_url: str, other: Other) -> None:
    """Its resume puts the list of paused jobs in place of the list of waiting ones."""
    store = RedisStore(f"{redis_url}&layout=5")
    await store.open()
    await put_three(store)
    first = await claim_one(store)
    await store.configure(QUEUE, QueueChange(paused=True))
    assert await settle(store, succeed(first)) == ["done"]
    assert await other.raw.lrange(f"{other.Q}:paused", 0, -1) == ["second"]
    assert await other.raw.exists(f"{other.Q}:wait") == 0
    await store.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
    assert await other.raw.exists(f"{other.Q}:paused") == 0
    await store.configure_lane(QUEUE, "a", LaneChange(pause=None))
    await store.configure(QUEUE, QueueChange(paused=False))
    await run(store, "second")
    await store.close()


async def test_a_job_that_node_has_put_off(store: RedisStore, other: Other, clock: ManualClock) -> None:
    await put_three(store)
    due_ms = store.now() + 10_000
    await other.ends("first", "delayed", due_ms * 4096)
    clock.advance(0.2)
    await run(store, "second")
    assert await held_by(store, "first") == [("lane",)]
    await run(store, "third")
    assert await next_due(store) == due_ms
    clock.advance(10)
    await run(store, "first")


async def test_a_strict_lane_waits_for_what_node_has_put_off(
    store: RedisStore, other: Other, clock: ManualClock
) -> None:
    await rule(store, 1, strict=True)
    await put(store, laned("first"), laned("second"))
    await other.ends("first", "delayed", (store.now() + 10_000) * 4096)
    clock.advance(0.2)
    assert await claim(store) == []
    clock.advance(10)
    await run(store, "first")


async def test_a_lane_that_is_not_strict_any_more(store: RedisStore, clock: ManualClock) -> None:
    """What we have put off in a strict lane keeps its slot."""
    await rule(store, 1, strict=True)
    await put(store, laned("first"), laned("second"))
    assert await settle(store, retry(await claim_one(store), 10_000)) == ["done"]
    await rule(store, 1)
    clock.advance(0.2)
    assert await claim(store) == []
    clock.advance(10)
    await run(store, "first")
    await run(store, "second")


async def test_a_run_of_node_that_waits_for_its_children(store: RedisStore, other: Other, clock: ManualClock) -> None:
    await put_three(store)
    await other.raw.sadd(f"{other.Q}:first:dependencies", f"{other.Q}:child")
    await other.ends("first", "waiting-children", 1)
    clock.advance(0.2)
    await run(store, "second")
    assert await held_by(store, "first") == [("jobs", "lane")]
    assert await other.would_not_free("first")
    await run(store, "third")
    await other.raw.srem(f"{other.Q}:first:dependencies", f"{other.Q}:child")
    clock.advance(1)
    await run(store, "first")


@pytest.mark.parametrize("how", ["failed", "cancelled"])
async def test_node_retries_a_job_of_a_full_lane(store: RedisStore, other: Other, clock: ManualClock, how: str) -> None:
    await put_three(store)
    if how == "failed":
        assert await settle(store, fail(await claim_one(store))) == ["done"]
    else:
        await store.change(["first"], Cancel())
    second = await claim_one(store)
    clock.advance(0.01)
    await other.retries("first")
    assert await claim(store) == []
    assert await held_by(store, "first") == [("lane",)]
    assert await settle(store, succeed(second)) == ["done"]
    await run(store, "third")
    await run(store, "first")


async def test_node_retries_a_job_that_it_has_run(store: RedisStore, other: Other, clock: ManualClock) -> None:
    """It has its slot until a look takes it."""
    await put_three(store)
    await other.ends("first")
    await other.raw.zrem(f"{other.Q}:completed", "first")
    await other.retries("first")
    assert await claim_ids(store) == ["first"]
    assert await held_by(store, "second") == [("lane",)]


async def test_node_retries_a_job_whose_slot_was_found(store: RedisStore, other: Other, clock: ManualClock) -> None:
    await put_three(store)
    await other.ends("first")
    clock.advance(0.2)
    second = await claim_one(store)
    await other.raw.zrem(f"{other.Q}:completed", "first")
    await other.retries("first")
    assert await claim(store) == []
    assert await held_by(store, "first") == [("lane",)]
    assert await settle(store, succeed(second)) == ["done"]
    await run(store, "third")
    await run(store, "first")


async def test_a_job_that_has_lost_its_slot_before_node_frees_it(store: RedisStore, other: Other) -> None:
    """A more urgent job takes its slot. Then Node frees it, because a child that it has added to the job has ended."""
    await rule(store, 1)
    await put(store, laned("first", priority=5))
    await put(store, laned("urgent", priority=1))
    assert await held_by(store, "first", "urgent") == [("lane",), ()]
    await other.raw.zrem(f"{other.Q}:waiting-children", "first")
    await other.raw.lpush(f"{other.Q}:wait", "first")
    assert await claim_ids(store) == ["urgent"]
    assert await held_by(store, "first") == [("lane",)]


async def test_a_lane_with_more_slots_than_its_limit_hands_none_over(store: RedisStore, clock: ManualClock) -> None:
    """The limit was lowered while jobs ran: their slots end with them."""
    await rule(store, 3)
    await put(store, *[laned(f"job-{number}") for number in range(8)], *[laned(f"b-{n}", "b") for n in range(5)])
    claimed = await claim(store, 6)
    await rule(store, 1)
    mine = [one for one in claimed if one.job.lane == "a"]
    theirs = [one for one in claimed if one.job.lane == "b"]
    assert await settle(store, succeed(mine[0]), succeed(theirs[0])) == ["done"] * 2
    assert await claim(store) == []
    assert await settle(store, succeed(mine[1]), *map(succeed, theirs[1:])) == ["done"] * 3
    assert await claim_ids(store) == ["b-3"]
    assert await settle(store, succeed(mine[2])) == ["done"]
    assert await claim_ids(store) == ["job-3"]


async def test_a_job_that_is_not_ready_gets_no_slot(store: RedisStore, clock: ManualClock) -> None:
    """It stands in the same sorted set as those that are ready."""
    await rule(store, 2)
    await put(store, laned("first"), laned("second"), laned("third"), laned("late", due=after(60_000)))
    claimed = await claim(store)
    assert await settle(store, *map(succeed, claimed)) == ["done"] * 2
    assert await held_by(store, "third", "late") == [(), ("lane",)]
    await run(store, "third")
    (lane,) = await store.lanes(QUEUE)
    assert (lane.admitted, lane.ready, lane.later) == (0, 0, 1)
    clock.advance(60)
    await run(store, "late")
    assert await store.lanes(QUEUE) == []


async def test_slots_of_lanes_whose_names_begin_alike(store: RedisStore) -> None:
    await rule(store, 1)
    names = ["a", "a0", "a00", "ab", "a b", "a:"]
    await put(store, *[laned(f"{n}-{k}", lane) for n in range(3) for k, lane in enumerate(names)])
    for n in range(3):
        claimed = await claim(store)
        assert {one.job.id for one in claimed} == {f"{n}-{k}" for k in range(len(names))}
        assert {lane.running for lane in await store.lanes(QUEUE)} == {1}
        assert await settle(store, *map(succeed, claimed)) == ["done"] * len(names)
    assert await store.lanes(QUEUE) == []


async def test_node_retries_a_job_of_a_lane_with_room(store: RedisStore, other: Other) -> None:
    await rule(store, 1)
    await put_one(store, laned("first"))
    assert await settle(store, fail(await claim_one(store))) == ["done"]
    await other.retries("first")
    await run(store, "first")
    assert await store.lanes(QUEUE) == []


async def test_node_retries_a_job_as_if_it_had_never_run(store: RedisStore, other: Other, clock: ManualClock) -> None:
    """`retry("completed", {resetAttemptsMade: true, resetAttemptsStarted: true})`."""
    await put_three(store)
    await run(store, "first")
    second = await claim_one(store)
    clock.advance(0.01)
    await other.raw.zrem(f"{other.Q}:completed", "first")
    await other.raw.hdel(f"{other.Q}:first", "finishedOn", "processedOn", "returnvalue", "atm", "ats")
    await other.raw.lpush(f"{other.Q}:wait", "first")
    assert await claim(store) == []
    assert await held_by(store, "first") == [("lane",)]
    assert await settle(store, succeed(second)) == ["done"]
    await run(store, "third")
    await run(store, "first")


async def test_node_frees_a_held_job(store: RedisStore, other: Other) -> None:
    """It does so when the last child ends that it has added to the job."""
    await put_three(store)
    first = await claim_one(store)
    await other.raw.zrem(f"{other.Q}:waiting-children", "second")
    await other.raw.rpush(f"{other.Q}:wait", "second")
    assert await claim(store) == []
    assert await held_by(store, "second") == [("lane",)]
    assert await settle(store, succeed(first)) == ["done"]
    await run(store, "second")
    await run(store, "third")
    assert await store.lanes(QUEUE) == []


async def test_node_gives_a_job_of_a_paused_lane_back(store: RedisStore, other: Other) -> None:
    await put_three(store)
    await other.runs("first")
    await store.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
    await other.raw.delete(f"{other.Q}:first:lock")
    await other.raw.lrem(f"{other.Q}:active", 0, "first")
    await other.raw.lpush(f"{other.Q}:wait", "first")
    assert await claim(store) == []
    await store.configure_lane(QUEUE, "a", LaneChange(pause=None))
    assert len(await claim(store)) == 1


@pytest.mark.parametrize("priority", [-5, 2_097_152, 123_456_789])
async def test_a_priority_that_only_node_takes(store: RedisStore, other: Other, priority: int) -> None:
    await put_three(store)
    first = await claim_one(store)
    await other.raw.hset(f"{other.Q}:first", "priority", priority)
    assert await settle(store, retry(first, 0)) == ["done"]
    for _ in range(3):
        assert await settle(store, succeed(await claim_one(store))) == ["done"]
    assert await store.lanes(QUEUE) == []


async def test_a_job_that_node_has_put_off_for_ever(store: RedisStore, other: Other, clock: ManualClock) -> None:
    await put_three(store)
    await other.ends("first", "delayed", (2**53 - 1) * 4096)
    clock.advance(0.2)
    await run(store, "second")
    await run(store, "third")
    (lane,) = await store.lanes(QUEUE)
    assert (lane.admitted, lane.later) == (0, 1)
    (job,) = await store.get(["first"])
    assert job is not None
    assert job.due_at is not None
    assert job.due_at.year == 9999
    assert (await store.change(["first"], Cancel())).ids == ["first"]
    assert await store.lanes(QUEUE) == []


async def test_a_held_job_that_node_has_removed(store: RedisStore, other: Other) -> None:
    await put_three(store)
    await other.removes("second")
    await run(store, "first")
    await run(store, "third")
    assert await store.lanes(QUEUE) == []


async def test_a_job_that_node_has_begun_without_a_slot(store: RedisStore, other: Other, clock: ManualClock) -> None:
    """When its lease is lost, it has a slot, even if the lane is full."""
    await put_three(store)
    assert await settle(store, fail(await claim_one(store))) == ["done"]
    second = await claim_one(store)
    await other.retries("first")
    await other.runs("first")
    await other.raw.delete(f"{other.Q}:first:lock")
    clock.advance(5)
    first = await claim_one(store)
    assert first.job.id == "first"
    assert await settle(store, succeed(second)) == ["done"]
    assert await claim(store) == []
    assert await settle(store, succeed(first)) == ["done"]
    assert await claim_ids(store) == ["third"]


async def test_node_ends_the_last_dependency(store: RedisStore, other: Other, clock: ManualClock) -> None:
    await rule(store, 1)
    await put(store, new("first"), structs.replace(laned("then"), after=(After("first"),)))
    assert await other.raw.scard(f"{other.Q}:then:dependencies") == 2, "Node must not free it"
    await other.ends("first")
    await other.raw.srem(f"{other.Q}:then:dependencies", f"{other.Q}:first")
    clock.advance(1)
    await run(store, "then")
    assert await other.raw.exists(f"{other.Q}:then:dependencies") == 0


async def test_node_ends_the_last_child_of_a_suspended_job(store: RedisStore, other: Other, clock: ManualClock) -> None:
    await rule(store, 1)
    await put_one(store, laned("parent"))
    assert await settle(store, suspend(await claim_one(store), new("child"))) == ["done"]
    assert await other.would_not_free("parent")
    await other.ends("child")
    await other.raw.srem(f"{other.Q}:parent:dependencies", f"{other.Q}:child")
    await other.raw.hset(f"{other.Q}:parent:processed", f"{other.Q}:child", "null")
    clock.advance(1)
    await run(store, "parent")


async def test_a_job_that_runs_although_others_have_not_ended(store: RedisStore, other: Other) -> None:
    """While its lane holds it, Node must not free it; when it has a slot, Node must be able to end it."""
    await rule(store, 1)
    then = structs.replace(laned("then"), after=(After("bad", "now"), After("slow", "run")))
    await put(store, new("bad", name="bad"), new("slow", name="slow"), laned("busy"), then)
    busy = await claim_one(store)
    assert await settle(store, fail(await claim_one(store, names=("bad",)))) == ["done"]
    assert await held_by(store, "then") == [("lane",)]
    assert await other.would_not_free("then")
    assert await settle(store, succeed(busy)) == ["done"]
    assert await held_by(store, "then") == [()]
    assert not await other.would_not_free("then")
    assert await claim_ids(store) == ["then"]


async def test_a_marker_wakes_a_worker_for_a_job_that_gets_a_slot(store: RedisStore, other: Other) -> None:
    marker = f"{other.Q}:marker"
    await rule(store, 1)
    await put_one(store, laned("first"))
    assert await other.raw.zpopmin(marker) == [("0", 0)]
    first = await claim_one(store)
    await put_one(store, laned("second"))
    assert await other.raw.zrange(marker, 0, -1) == []
    assert await settle(store, succeed(first)) == ["done"]
    assert await other.raw.zpopmin(marker) == [("0", 0)]
    await store.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
    await store.configure_lane(QUEUE, "a", LaneChange(pause=None))
    assert await other.raw.zpopmin(marker) == [("0", 0)]
    await store.configure(QUEUE, QueueChange(paused=True))
    await put_one(store, laned("other", "b"))
    assert await other.raw.zrange(marker, 0, -1) == [], "a paused queue wakes nobody"


async def test_a_slot_that_is_lost_is_found_by_the_next_look(
    store: RedisStore, other: Other, clock: ManualClock
) -> None:
    await put_three(store)
    await run(store, "first")
    await other.removes("second")
    await other.raw.delete(f"{other.Q}:jobmill:lanes:slots")
    clock.advance(0.2)
    await run(store, "third")


async def test_a_run_that_node_adds_has_the_lane_of_its_scheduler(store: RedisStore, other: Other) -> None:
    await rule(store, 1)
    await put_one(store, laned("running"))
    running = await claim_one(store)
    await put_one(store, laned(key="k", recurrence=Recurrence(key="k", every_ms=60_000)))
    ((sid, slot),) = await other.raw.zrange(f"{other.Q}:repeat", 0, -1, withscores=True)
    id = f"repeat:{sid}:{slot:.0f}"
    # As if Node had added it: only the record of the scheduler knows the lane.
    await other.raw.hdel(f"{other.Q}:{id}", "jm", "jmz", "jmj", "jmr")
    await other.raw.delete(f"{other.Q}:jobmill:lane:a")
    await other.raw.zrem(f"{other.Q}:waiting-children", id)
    await other.raw.lpush(f"{other.Q}:wait", id)
    assert await claim(store) == []
    assert await settle(store, succeed(running)) == ["done"]
    claimed = await claim_one(store)
    assert (claimed.job.lane, claimed.job.unique_key) == ("a", "k")


async def test_a_run_that_node_cannot_add_has_the_lane_of_its_scheduler(
    store: RedisStore, other: Other, clock: ManualClock
) -> None:
    """Node has no words for this rule: it ends the run, and we add the next one."""
    first_mondays = Recurrence(key="k", cron="0 0 * * 1#1,1#3", timezone="UTC")
    await put_one(store, laned(key="k", recurrence=first_mondays))
    ((sid, slot),) = await other.raw.zrange(f"{other.Q}:repeat", 0, -1, withscores=True)
    assert await other.raw.sismember(f"{other.Q}:jobmill:rearm", sid), "the test needs a rule that Node cannot express"
    await other.ends(f"repeat:{sid}:{slot:.0f}")
    clock.advance(5)
    assert await claim(store) == []
    ((_, later),) = await other.raw.zrange(f"{other.Q}:repeat", 0, -1, withscores=True)
    assert later > slot
    (lane,) = await store.lanes(QUEUE)
    assert (lane.ready, lane.later) == (0, 1)


async def test_a_recurring_job_that_is_requeued_has_its_lane(store: RedisStore, other: Other) -> None:
    id = await put_one(store, laned(key="k", recurrence=Recurrence(key="k", every_ms=60_000)))
    ((sid, _),) = await other.raw.zrange(f"{other.Q}:repeat", 0, -1, withscores=True)
    assert (await store.change([id], Cancel())).ids == [id]
    assert (await store.change([id], Requeue())).ids == [id]
    assert await other.raw.hget(f"{other.Q}:repeat:{sid}", "jmz") == "a", "Node's next run has it from there"
    assert (await claim_one(store)).job.lane == "a"


async def test_a_recurring_job_keeps_its_lane(store: RedisStore) -> None:
    """A later statement of its rule with another lane does not change it, and neither does a person."""
    every = Recurrence(key="k", every_ms=60_000)
    id = await put_one(store, laned(key="k", recurrence=every, due=after(60_000)))
    assert (await store.get([id]))[0].lane == "a"  # type: ignore[union-attr]
    later = structs.replace(every, every_ms=30_000)
    await store.enqueue([laned(lane="b", key="k", recurrence=later, due=after(30_000))])
    assert (await store.get([id]))[0].lane == "a"  # type: ignore[union-attr]
    assert (await store.change([id], Pin(structs.replace(every, every_ms=20_000)))).ids == [id]
    assert (await store.get([id]))[0].lane == "a"  # type: ignore[union-attr]


# ---------------------------------------------------------------------------------------------------- keys


async def test_nothing_stays_of_lanes(store: RedisStore, other: Other) -> None:
    await put_three(store)
    await put(store, laned("late", due=after(60_000)), laned("held", "b"), laned("b", "b"))
    await store.change(["held"], Hold())
    await store.change(["late", "held"], Cancel())
    await store.change(["held"], Requeue())
    for _ in range(4):
        done: list[Settlement] = [succeed(one) for one in await claim(store)]
        await settle(store, *done)
    assert await store.lanes(QUEUE) == []
    assert await other.keys() == {"lanes:watch", "lanes:look"}
    assert await other.raw.zrange(f"{other.Q}:jobmill:lanes:watch", 0, -1) == [""]


async def test_no_window_of_a_rate_stays(store: RedisStore, other: Other, clock: ManualClock) -> None:
    await rule(store, rate=RateLimit(1, 1_000))
    await put(store, *[laned(lane=f"lane {number}") for number in range(500)])
    assert await settle(store, *map(succeed, await claim(store, 500))) == ["done"] * 500
    await store.purge()
    assert await other.raw.hlen(f"{other.Q}:jobmill:lanes:window") == 500, "they count until they end"
    clock.advance(1)
    while (await store.purge()).more:
        pass
    assert await other.raw.hlen(f"{other.Q}:jobmill:lanes:window") <= 100
    await store.purge()
    assert await other.keys() == {"lanes:watch", "lanes:look"}


async def test_a_plain_queue_has_no_keys_of_lanes(store: RedisStore, other: Other) -> None:
    await put(store, new("first"), new("late", due=after(1_000)), new("low", priority=3))
    await store.change(["first"], Hold())
    await store.change(["first"], Release())
    await run(store, "first", "low")
    await store.configure(QUEUE, QueueChange(running_limit=3))
    await store.configure(QUEUE, QueueChange(lanes=None))
    await store.flush_outbox()
    assert await store.lanes(QUEUE) == []
    assert await other.keys() == set()
    assert not await other.raw.hexists(f"{other.Q}:meta", "jmlanes")


async def test_names_of_lanes(store: RedisStore) -> None:
    names = ["a:b", "ä 🎉", "{x}", "lane:meta", "*", "0", "a", "next", "watch", "'\"\\"]
    await rule(store, 1)
    await put(store, *[laned(f"{number}-{n}", lane) for n, lane in enumerate(names) for number in range(2)])
    assert [lane.name for lane in await store.lanes(QUEUE)] == sorted(names)
    assert sorted(await claim_ids(store)) == sorted(f"0-{n}" for n in range(len(names)))
    assert all((lane.running, lane.ready) == (1, 1) for lane in await store.lanes(QUEUE))


async def test_a_rule_for_more_lanes_than_one_call_changes(store: RedisStore) -> None:
    await rule(store, 2)
    lanes = [f"lane {number:04}" for number in range(1_200)]
    await put(store, *[laned(lane=lane) for lane in lanes for _ in range(3)])
    await rule(store, 1)
    found = {lane.name: lane.admitted for lane in await store.lanes(QUEUE, limit=2_000)}
    assert list(found.values()) == [1] * 1_000 + [2] * 200
    await store.flush_outbox()
    assert {lane.admitted for lane in await store.lanes(QUEUE, limit=2_000)} == {1}


async def test_workers_follow_a_rule_for_many_lanes(store: RedisStore, clock: ManualClock) -> None:
    await rule(store, 1)
    await put(store, *[laned(lane=f"lane {number:04}") for number in range(1_100) for _ in range(2)])
    await rule(store, 2)
    for _ in range(3):
        clock.advance(1)
        await store.exchange([], wish(1, names=("nobody",)))
    assert {lane.admitted for lane in await store.lanes(QUEUE, limit=2_000)} == {2}


@pytest.mark.parametrize("strict", [False, True])
async def test_more_jobs_than_one_call_admits(store: RedisStore, strict: bool) -> None:
    await rule(store, 1)
    await put(store, *[laned() for _ in range(1_500)])
    await rule(store, None, strict=strict)
    (lane,) = await store.lanes(QUEUE)
    assert (lane.admitted, lane.ready) == (1_000, 500 - 1)
    assert len(await claim(store, 2_000)) == 1_500


async def test_a_pause_takes_back_more_slots_than_one_call_may(store: RedisStore, other: Other) -> None:
    for _ in range(5):
        await put(store, *[laned() for _ in range(500)])
    await put(store, laned("other", "b"))
    for done in (1_000, 2_000):  # each call keeps the server busy for a short time
        change = {"lane": "a", "set": {"pause": "{}"}, "clear": []}
        _, more = await store.context.run(CONFIGURE_LANE, QUEUE, store.now(), **change)
        assert (await other.raw.zcard(f"{other.Q}:jobmill:lane:a"), more) == (done, 1)
    await store.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
    assert await other.raw.lrange(f"{other.Q}:wait", 0, -1) == ["other"]
    (lane, _) = await store.lanes(QUEUE)
    assert (lane.admitted, lane.ready) == (0, 1_000), "it counts up to 1,000"
    assert await other.raw.zcard(f"{other.Q}:jobmill:lane:a") == 2_500


async def test_a_rule_takes_back_more_slots_than_one_call_may(store: RedisStore, other: Other) -> None:
    await put(store, *[laned(lane=lane) for lane in ("a", "b") for _ in range(1_500)])
    await rule(store, 2)
    assert await other.raw.llen(f"{other.Q}:wait") == 4


async def test_a_rule_keeps_the_server_busy_in_short_calls(store: RedisStore, other: Other) -> None:
    """Each call gives or takes back about 1,000 slots."""
    await rule(store, 1)
    await put(store, *[laned(lane=f"lane {number:03}") for number in range(100) for _ in range(60)])
    before = await other.scripts()
    await store.configure(QUEUE, QueueChange(lanes=None))
    assert await other.raw.llen(f"{other.Q}:wait") == 6_000
    assert await other.scripts() - before >= 4
    before = await other.scripts()
    await rule(store, 1)
    assert await other.raw.llen(f"{other.Q}:wait") == 100
    assert await other.scripts() - before >= 4


async def test_more_urgent_jobs_than_one_call_gives_slots(store: RedisStore, other: Other) -> None:
    """They may take the slots of others when a lane is not strict any more."""
    await rule(store, 1_200, strict=True)
    for priority in (5, 1):
        for _ in range(2):
            await put(store, *[laned(priority=priority) for _ in range(600)])
    before = await other.scripts()
    await rule(store, 1_200)
    assert await other.scripts() - before >= 2
    claimed = await claim(store, 2_000)
    assert {one.job.priority for one in claimed} == {1}
    assert len(claimed) == 1_200


async def test_a_claim_that_takes_all_knows_when_the_next_job_is_due(store: RedisStore) -> None:
    await put(store, laned("now"), laned("late", due=after(5_000)))
    exchanged = await store.exchange([], wish(1))
    assert len(exchanged.claimed) == 1
    assert exchanged.next_due_ms == store.now() + 5_000


async def test_what_was_claimed_for_nothing_keeps_its_slot(store: RedisStore, other: Other, clock: ManualClock) -> None:
    """The settlement in another queue fails, so the caller does not hear of the claim."""
    broken = f"{other.Q.rpartition(':')[0]}:broken"
    await put_one(store, new(queue="broken"))
    running = await claim_one(store, queues=("broken",))
    await other.raw.set(f"{broken}:wait", "no list")
    await rule(store, 1)
    await put(store, laned("first"), laned("second"))
    clock.advance(0.01)
    with pytest.raises(StoreError, match="WRONGTYPE"):
        await store.exchange([succeed(running)], wish(queues=(QUEUE, "broken")))
    assert await held_by(store, "first", "second") == [(), ("lane",)]
    await other.raw.delete(f"{broken}:wait")


async def test_many_lanes_that_are_due_at_once(store: RedisStore, clock: ManualClock) -> None:
    """A call gives at most 1,000 jobs slots; the next ones continue."""
    await put(store, *[laned(lane=lane, due=after(1_000)) for lane in "abc" for _ in range(500)])
    clock.advance(1)
    assert len(await claim(store, 1)) == 1
    assert sum(lane.admitted + lane.running for lane in await store.lanes(QUEUE)) == 1_000
    assert len(await claim(store, 1)) == 1
    assert sum(lane.admitted + lane.running for lane in await store.lanes(QUEUE)) == 1_500


async def test_a_queue_that_node_has_obliterated(store: RedisStore, other: Other) -> None:
    await put_three(store)
    await store.configure_lane(QUEUE, "b", LaneChange(pause=Pause(), rate=RateLimit(1, 1_000)))
    await other.removes("first")
    for name in ("id", "meta", "wait", "active", "delayed", "completed", "failed"):
        await other.raw.delete(f"{other.Q}:{name}")
    purged = await store.purge(1)
    assert (purged.removed, purged.more) == (1, True)
    purged = await store.purge(100)
    assert (purged.removed, purged.more) == (1, False)
    assert await other.keys() == set()
    assert await store.get(["second", "third"]) == [None, None], "Node leaves what is in waiting-children"
    assert await other.raw.exists(f"{other.Q}:waiting-children") == 0


async def test_an_older_version_holds_a_job_with_a_slot(store: RedisStore, other: Other, clock: ManualClock) -> None:
    await put_three(store)
    held = {"by": ["person"], "due": {"at_ms": store.now(), "after_ms": 0}, "who": "ada"}
    await other.raw.hset(f"{other.Q}:first", "jmh", json.dumps(held, separators=(",", ":")))
    await other.raw.sadd(f"{other.Q}:first:dependencies", f"{other.Q}:jobmill:hold")
    await other.ends("first", "waiting-children", 1)
    clock.advance(0.2)
    await run(store, "second")
    (job,) = await store.get(["first"])
    assert job is not None
    assert job.held is not None
    assert (job.held.by, job.held.who) == (("lane", "person"), "ada")
    await run(store, "third")
    clock.advance(1)
    assert await claim(store) == []
    assert (await store.change(["first"], Release())).ids == ["first"]
    await run(store, "first")


async def test_jobs_of_an_older_version(store: RedisStore, other: Other) -> None:
    """They have no lane, in a queue whose other jobs have one."""
    await put_one(store, new("old"))
    await put_three(store)
    assert (await store.get(["old"]))[0] is not None
    await run(store, "old", "first")


@pytest.mark.extended
@pytest.mark.slow
async def test_a_million_jobs(store: RedisStore, other: Other) -> None:
    """Half of them in one lane: no call keeps the server busy for long."""
    await rule(store, 2)
    for _ in range(0, 1_000_000, AT_ONCE):
        lanes = (f"lane-{n // 2 % 1_000:03}" if n % 2 else "hot" for n in range(AT_ONCE))
        await put(store, *[laned(lane=lane) for lane in lanes])
    await other.raw.config_set("slowlog-log-slower-than", LONG_CALL_US)
    await other.raw.slowlog_reset()
    done: list[Settlement] = []
    for _ in range(20):
        done = [succeed(one) for one in readable((await store.exchange(done, wish(50))).claimed)]
        assert len(done) == 50
    assert await settle(store, *done) == ["done"] * 50
    (hot, *others) = await store.lanes(QUEUE, limit=100)
    assert (hot.name, hot.admitted, hot.ready, len(others)) == ("hot", 2, LANE_LIMIT, 99)
    await rule(store, 3)
    await store.configure_lane(QUEUE, "hot", LaneChange(pause=Pause()))
    await store.configure_lane(QUEUE, "hot", LaneChange(pause=None, running=5))
    await put_one(store, laned(lane="hot", priority=1))
    for call in (store.flush_outbox, store.purge, store.depths):
        await call()
    assert await other.raw.slowlog_get() == []


# ---------------------------------------------------------------------------------------------------- clusters


async def test_lanes_on_a_cluster(redis_cluster_url: str) -> None:
    store = RedisStore(redis_cluster_url)
    await store.open()
    for queue in ("{one}", "two{x}y"):
        await rule(store, 1, queue=queue)
        await put(store, *[laned(f"{queue}-{n}", "{other} tag", queue=queue) for n in range(3)])
        for number in range(3):
            claimed = await claim_one(store, queues=(queue,))
            assert claimed.job.id == f"{queue}-{number}"
            assert await settle(store, succeed(claimed)) == ["done"]
        await store.configure_lane(queue, "{other} tag", LaneChange(running=4))
        assert [lane.settings.running for lane in await store.lanes(queue)] == [4]
    await store.flush_outbox()
    await store.close()


@pytest.fixture
async def clustered(redis_cluster_url: str, clock: ManualClock) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis_cluster_url, clock=clock)
    await store.open()
    yield store
    await store.close()


ON_CLUSTER = "{one}"


def on_cluster(id: str, lane: str = "a", **about: Any) -> NewJob:
    return laned(id, lane, queue=ON_CLUSTER, **about)


async def run_on_cluster(store: RedisStore, *expected: str) -> None:
    claimed = await claim(store, queues=(ON_CLUSTER,))
    assert [one.job.id for one in claimed] == list(expected)
    assert await settle(store, *map(succeed, claimed)) == ["done"] * len(expected)


async def test_priorities_of_lanes_on_a_cluster(clustered: RedisStore) -> None:
    """Of waiting jobs, those without a priority come first; within a lane, the order is that of the lane."""
    store = clustered
    await rule(store, 1, queue=ON_CLUSTER)
    await put(store, on_cluster("low", priority=7), on_cluster("also", priority=7), on_cluster("b", "b"))
    await put(store, on_cluster("urgent", priority=2))
    assert await held_by(store, "low", "also", "urgent") == [("lane",), ("lane",), ()]
    await run_on_cluster(store, "b", "urgent")
    assert (await store.change(["also"], Reprioritize(1))).ids == ["also"]
    assert await held_by(store, "low", "also") == [("lane",), ()]
    await run_on_cluster(store, "also")
    await run_on_cluster(store, "low")
    assert await store.lanes(ON_CLUSTER) == []


async def test_times_and_rates_of_lanes_on_a_cluster(clustered: RedisStore, clock: ManualClock) -> None:
    store = clustered
    await rule(store, 2, queue=ON_CLUSTER, rate=RateLimit(2, 10_000))
    await put(store, on_cluster("late", priority=1, due=after(3_000)))
    await put(store, *[on_cluster(f"job-{number}", priority=3) for number in range(3)])
    await run_on_cluster(store, "job-0", "job-1")
    assert await next_due(store, queues=(ON_CLUSTER,)) == store.now() + 3_000
    clock.advance(10)
    await run_on_cluster(store, "late", "job-2")


async def test_flows_and_pauses_of_lanes_on_a_cluster(clustered: RedisStore, clock: ManualClock) -> None:
    store = clustered
    await rule(store, 1, queue=ON_CLUSTER)
    then = structs.replace(on_cluster("then", priority=4), after=(After("first"),))
    await put(store, new("first", queue=ON_CLUSTER), then, on_cluster("other", priority=5))
    await store.configure_lane(ON_CLUSTER, "a", LaneChange(pause=Pause()))
    await run_on_cluster(store, "first")
    assert await held_by(store, "then", "other") == [("lane",), ("lane",)]
    await store.configure_lane(ON_CLUSTER, "a", LaneChange(pause=None))
    await run_on_cluster(store, "then")
    await run_on_cluster(store, "other")
    assert [one for one in await store.fsck() if one.level != "ok"] == []


async def test_recurring_jobs_of_lanes_on_a_cluster(clustered: RedisStore, clock: ManualClock) -> None:
    store = clustered
    await rule(store, 1, queue=ON_CLUSTER)
    every = Recurrence(key="k", every_ms=60_000)
    await put(store, on_cluster("again", key="k", recurrence=every, priority=3), on_cluster("other"))
    for _ in range(2):
        claimed = await claim(store, queues=(ON_CLUSTER,))
        while claimed:
            for one in claimed:
                await end(store, one, Succeeded())
            claimed = await claim(store, queues=(ON_CLUSTER,))
        (lane,) = await store.lanes(ON_CLUSTER)
        assert (lane.ready, lane.later) == (0, 1)
        clock.advance(60)
