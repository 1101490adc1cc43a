"""Lanes beside Node: its workers take jobs that have slots, and end, put off, retry and remove them without a word."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from msgspec import structs
from redis.asyncio import Redis

from jobmill.core.flows import After
from jobmill.core.job import JobOptions
from jobmill.core.lifecycle import Succeeded
from jobmill.core.queue_settings import LaneChange, Pause
from jobmill.core.recurrence import Recurrence
from jobmill.core.retry import Backoff
from jobmill.core.values import Claimed, Filter, NewJob, Settlement
from jobmill.store import Store
from jobmill.testing.contract.lanes import held_by, laned, rule
from jobmill.testing.contract.support import (
    claim,
    claim_ids,
    claim_one,
    end,
    fail,
    new,
    put,
    put_one,
    retry,
    settle,
    state_of,
    succeed,
    wish,
)
from tests.helpers import until
from tests.interop.scene import QUEUE, Scene, node_place, versions

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis"), versions]

OPTIONS = JobOptions(max_attempts=5, backoff=Backoff(type="fixed", delay_ms=60))


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url.partition("?")[0], decode_responses=True) as client:
        yield client


def counted(key: str, lane: str, number: int) -> NewJob:
    """A job that counts how many of its lane run at once; every sixth fails at first."""
    payload = {"key": key, "lane": lane, "ms": number % 5, "failures": int(number % 6 == 0)}
    return laned(f"job-{number}", lane, name="counted", payload=payload, options=OPTIONS, priority=number % 3)


class Python:
    """Our side: it claims, runs and settles until it is stopped."""

    def __init__(self, store: Store, raw: Redis) -> None:
        self.store = store
        self.raw = raw
        self.runs = 0

    async def run(self, claimed: Claimed) -> Settlement:
        about = claimed.job.payload
        key = f"{about['key']}:{about['lane']}"
        await self.raw.zadd(f"{about['key']}:most", {about["lane"]: await self.raw.incr(key)}, gt=True)
        await asyncio.sleep(about["ms"] / 1000)
        await self.raw.decr(key)
        self.runs += 1
        return retry(claimed, 60) if claimed.job.errors < about["failures"] else succeed(claimed, "Python")

    async def work(self) -> None:
        done: list[Settlement] = []
        while True:
            exchanged = await self.store.exchange(done, wish(3, names=("counted",)))
            claimed = [one for one in exchanged.claimed if isinstance(one, Claimed)]
            done = list(await asyncio.gather(*map(self.run, claimed)))
            if not done:
                next_ms = exchanged.next_due_ms or self.store.now() + 500
                await self.store.wait_for_work((QUEUE,), min(next_ms, self.store.now() + 500))

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self.work())
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def test_a_limit_is_never_exceeded(scene: Scene, raw: Redis) -> None:
    store, key = scene.jobs.store, f"{node_place(scene.url)[1]}:count"
    await rule(store, 2)
    lanes = [f"lane {number}" for number in range(5)]
    jobs = [counted(key, lanes[number % 5], number) for number in range(400)]
    await put(store, *jobs[:200])
    await scene.node.ask("work", queue=QUEUE, opts={"concurrency": 8})
    ours = Python(store, raw)

    async def completed() -> int:
        return (await scene.counts()).get("completed", 0)

    async def running(lane: str) -> int:
        return int(await raw.get(f"{key}:{lane}") or 0)

    async with ours.working():
        await until(lambda: at_least(completed, 40), 30)
        await store.configure_lane(QUEUE, lanes[0], LaneChange(pause=Pause(who="ada")))
        await store.configure_lane(QUEUE, lanes[1], LaneChange(running=4))
        await put(store, *jobs[200:])

        async def has_stopped() -> bool:
            (lane,) = await store.lanes(QUEUE, [lanes[0]])
            return lane.running == lane.admitted == 0 and await running(lanes[0]) == 0

        await until(has_stopped, 30)
        before = await completed()
        left = (await store.lanes(QUEUE, [lanes[0]]))[0]
        await until(lambda: at_least(completed, before + 60), 60)
        assert (await store.lanes(QUEUE, [lanes[0]]))[0].admitted == 0
        assert (await store.lanes(QUEUE, [lanes[0]]))[0].ready >= left.ready
        await store.configure_lane(QUEUE, lanes[1], LaneChange(running=None))
        await store.configure_lane(QUEUE, lanes[0], LaneChange(pause=None))
        await until(lambda: at_least(completed, 400), 120)
    most = {lane: float(await raw.zscore(f"{key}:most", lane) or 0) for lane in lanes}
    assert {lane: most[lane] for lane in lanes if lane != lanes[1]} == dict.fromkeys(set(lanes) - {lanes[1]}, 2)
    assert 2 < most[lanes[1]] <= 4
    theirs = Counter(event["job"] for event in scene.node.events if event["event"] == "run")
    assert theirs, "Node ran nothing"
    assert ours.runs, "we ran nothing"
    assert await scene.counts() == {"completed": 400}
    await until(lambda: has_no_lanes(store), 20)


async def at_least(count: Callable[[], Awaitable[int]], number: int) -> bool:
    return await count() >= number


async def has_no_lanes(store: Store) -> bool:
    """Slots of jobs that Node has ended last are found by looks at random."""
    await store.exchange([], wish())
    await store.flush_outbox()
    return await store.lanes(QUEUE) == []


async def test_node_removes_a_held_job(scene: Scene) -> None:
    store = scene.jobs.store
    await rule(store, 1)
    await put(store, *[laned(id) for id in ("first", "second", "third")])
    claimed = await claim_one(store)
    await scene.node.ask("remove", queue=QUEUE, job="second")
    assert await settle(store, succeed(claimed)) == ["done"]
    assert await claim_ids(store) == ["third"]
    assert (await store.lanes(QUEUE))[0].ready == 0


async def test_node_retries_a_job_of_a_full_lane(scene: Scene) -> None:
    store = scene.jobs.store
    await rule(store, 1)
    await put(store, laned("first"), laned("second"))
    assert await settle(store, fail(await claim_one(store))) == ["done"]
    second = await claim_one(store)
    await scene.node.ask("retry", queue=QUEUE, job="first", state="failed")
    assert (await scene.get("first"))["state"] == "waiting"
    assert await claim(store) == []
    assert await held_by(store, "first") == [("lane",)]
    assert await settle(store, succeed(second)) == ["done"]
    assert await claim_ids(store) == ["first"]


@pytest.mark.parametrize("is_found", [False, True])
async def test_node_retries_a_job_that_it_has_run(scene: Scene, is_found: bool) -> None:
    """It has its slot until one of our calls finds that the job has ended."""
    store = scene.jobs.store
    await rule(store, 1)
    await put(store, laned("first"), laned("second"))
    await scene.node.ask("work", queue=QUEUE, opts={"concurrency": 1})

    async def has_ended() -> bool:
        return await state_of(store, "first") == "succeeded"

    await until(has_ended, 20)
    await scene.node.ask("rest")
    claimed: list[Claimed] = []

    async def gives_the_slot() -> bool:
        claimed.extend(await claim(store))
        return bool(claimed)

    if is_found:
        await until(gives_the_slot, 20)
    await scene.node.ask("retry", queue=QUEUE, job="first", state="completed")
    assert (await scene.get("first"))["state"] == "waiting"
    claimed += await claim(store)
    assert [one.job.id for one in claimed] == ["second" if is_found else "first"]
    assert await held_by(store, "first" if is_found else "second") == [("lane",)]
    assert await settle(store, succeed(claimed[0])) == ["done"]
    assert await claim_ids(store) == ["first" if is_found else "second"]


async def test_node_retries_a_job_as_if_it_had_never_run(scene: Scene) -> None:
    store = scene.jobs.store
    await rule(store, 1)
    await put(store, laned("first"), laned("second"))
    assert await settle(store, succeed(await claim_one(store))) == ["done"]
    second = await claim_one(store)
    resets = {"resetAttemptsMade": True, "resetAttemptsStarted": True}
    await scene.node.ask("job", queue=QUEUE, job="first", method="retry", args=["completed", resets])
    assert await claim(store) == []
    assert await held_by(store, "first") == [("lane",)]
    assert await settle(store, succeed(second)) == ["done"]
    assert await claim_ids(store) == ["first"]


async def test_node_adds_a_child_to_a_held_job(scene: Scene) -> None:
    store = scene.jobs.store
    await rule(store, 1)
    await put(store, laned("first"), laned("second"))
    first = await claim_one(store)
    parent = {"id": "second", "queue": f"{node_place(scene.url)[1]}:{QUEUE}"}
    await scene.node.ask("add", queue="other", name="send", data={}, opts={"parent": parent})
    await scene.node.ask("work", queue="other", opts={"concurrency": 1})

    async def is_freed() -> bool:
        return bool((await scene.get("second"))["state"] == "waiting")

    await until(is_freed, 20)
    assert await claim(store) == []
    assert await settle(store, succeed(first)) == ["done"]
    assert await claim_ids(store) == ["second"]


async def test_node_gives_a_priority_that_is_too_large(scene: Scene) -> None:
    store = scene.jobs.store
    await rule(store, 1)
    await put(store, laned("first"), laned("second"))
    first = await claim_one(store)
    await scene.node.ask("job", queue=QUEUE, job="first", method="changePriority", args=[{"priority": 123_456_789}])
    assert await settle(store, retry(first, 0)) == ["done"]
    for id in ("second", "first"):
        claimed = await claim_one(store)
        assert claimed.job.id == id
        assert await settle(store, succeed(claimed)) == ["done"]
    assert await store.lanes(QUEUE) == []


async def test_node_obliterates_a_queue_with_lanes(scene: Scene, raw: Redis) -> None:
    """It leaves the jobs that lanes hold, and all keys of ours; a purge removes them."""
    store = scene.jobs.store
    await rule(store, 1)
    await put(store, *[laned(f"job-{number}") for number in range(5)], laned("b", "b"))
    await scene.node.ask("pause", queue=QUEUE)
    await scene.node.ask("queue", queue=QUEUE, method="obliterate", args=[{"force": True}])
    assert (await store.purge()).removed == 4
    assert [key async for key in raw.scan_iter(f"{node_place(scene.url)[1]}:{QUEUE}:*")] == []


async def test_node_takes_no_key_of_a_lane_for_a_job(scene: Scene, raw: Redis) -> None:
    store = scene.jobs.store
    await rule(store, 1)
    names = ("lock", "logs", "failed", "dependencies", "a:lock", "x:logs", "processed:a:b", "unsuccessful", "meta")
    await put(store, *[laned(f"{lane.replace(':', '-')}-{n}", lane) for n in range(2) for lane in names])
    keys = f"{node_place(scene.url)[1]}:*"
    before = {key async for key in raw.scan_iter(keys)}
    await scene.node.ask("orphans", queue=QUEUE)
    assert {key async for key in raw.scan_iter(keys)} == before


async def test_the_runs_of_a_recurring_job_in_node(scene: Scene) -> None:
    """Node adds the next run, which has the lane of its scheduler as soon as we see it."""
    store = scene.jobs.store
    await rule(store, 1)
    await put(store, laned(name="counted", payload={"key": "k", "lane": "a", "ms": 0, "failures": 0}, key="k"))
    busy = await claim_one(store, names=("counted",))
    every = Recurrence(key="r", every_ms=1_000)
    await put_one(store, laned(name="other", key="r", recurrence=every))
    assert await claim(store, names=("other",)) == []
    assert await settle(store, succeed(busy)) == ["done"]
    await scene.node.ask("work", queue=QUEUE)
    await until(lambda: len([event for event in scene.node.events if event["event"] == "ran"]) >= 2, 20)
    await scene.node.ask("rest")

    async def is_ours() -> bool:
        claimed = await claim(store, names=("other",))
        assert [one.job.lane for one in claimed] in ([], ["a"])
        return bool(claimed)

    await until(is_ours, 20)


async def test_node_ends_what_a_job_with_a_lane_waits_for(scene: Scene) -> None:
    store = scene.jobs.store
    await rule(store, 1)
    await put_one(store, laned("other", name="theirs"))
    await put(store, new("first"), structs.replace(laned("then", name="ours"), after=(After("first"),)))
    running = await claim_one(store, names=("theirs",))
    await scene.node.ask("work", queue=QUEUE, opts={"concurrency": 1})

    async def has_ended() -> bool:
        return await state_of(store, "first") == "succeeded"

    await until(has_ended, 20)
    await scene.node.ask("rest")
    assert await held_by(store, "then") == [("lane",)]
    assert (await scene.get("then"))["state"] == "waiting-children", "Node has not freed it"

    async def has_joined() -> bool:
        assert await claim(store, names=("ours",)) == []
        return (await store.lanes(QUEUE))[0].ready == 1

    await until(has_joined, 20)
    assert await settle(store, succeed(running)) == ["done"]
    assert await claim_ids(store, names=("ours",)) == ["then"]


async def test_node_drains_a_queue(scene: Scene) -> None:
    """It removes what waits for a worker, and leaves what a lane holds."""
    store = scene.jobs.store
    await rule(store, 1)
    await put(store, *[laned(id) for id in ("first", "second", "third")], new(id="no-lane"))
    await scene.node.ask("queue", queue=QUEUE, method="drain", args=[True])
    assert [job.id for job in (await store.find(Filter(queue=QUEUE))).jobs] == ["second", "third"]

    async def gets_the_slot() -> bool:
        return await claim_ids(store) == ["second"]

    await until(gets_the_slot, 20)


async def test_node_gives_a_held_job_another_priority(scene: Scene) -> None:
    store = scene.jobs.store
    await rule(store, 1)
    await put(store, *[laned(id, priority=5) for id in ("first", "second", "third")])
    first = await claim_one(store)
    await scene.node.ask("job", queue=QUEUE, job="third", method="changePriority", args=[{"priority": 1}])
    assert await settle(store, succeed(first)) == ["done"]
    assert await claim_ids(store) == ["second"]


async def test_node_adds_jobs_without_lanes(scene: Scene) -> None:
    store = scene.jobs.store
    await rule(store, 1)
    await put(store, laned("first"))
    await scene.node.ask("add", queue=QUEUE, name="send", data={}, opts={"lane": "a"})
    await scene.node.ask("flow", tree={"name": "send", "queueName": QUEUE, "opts": {"lane": "a"}})
    claimed = await claim(store)
    assert [one.job.lane for one in claimed if one.job.id != "first"] == [None, None]
    assert len(claimed) == 3


async def test_a_recurring_job_whose_scheduler_node_removes_runs_once_more(scene: Scene) -> None:
    store = scene.jobs.store
    await rule(store, 1)
    await put(store, laned("first"))
    first = await claim_one(store)
    await put_one(store, laned(name="report", key="r", recurrence=Recurrence(key="r", every_ms=1_000)))
    assert await scene.node.ask("queue", queue=QUEUE, method="removeJobScheduler", args=["report r"])
    assert await settle(store, succeed(first)) == ["done"]
    await end(store, await claim_one(store, names=("report",)), Succeeded())
    assert await store.lanes(QUEUE) == []
    assert {job.state for job in (await store.find(Filter(queue=QUEUE))).jobs} == {"succeeded"}
