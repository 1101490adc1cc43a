"""Lanes: jobs of one queue with the same key share limits."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from jobmill.core.changes import Hold
from jobmill.core.due import NEVER_MS, Held
from jobmill.core.durations import to_datetime
from jobmill.core.job import Keep
from jobmill.core.lifecycle import DEFAULT_POLICY, Policy, begin
from jobmill.core.queue_settings import LaneRule, RateLimit
from jobmill.core.values import Broken, Claimed, Depth, Filter, NewJob, QueueChange, Settlement, after, at
from jobmill.store import Store
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    enqueue_one,
    fail,
    find_all,
    look,
    new,
    next_due,
    put,
    put_one,
    release,
    retry,
    second,
    seize,
    settle,
    snooze,
    succeed,
    wish,
)


def laned(id: str | None = None, lane: str = "a", **about: Any) -> NewJob:
    """A job with a lane."""
    return structs.replace(new(id, **about), lane=lane)


async def rule(store: Store, running: int | None = None, queue: str = QUEUE, **about: Any) -> None:
    """Set the limits of all lanes of a queue."""
    await store.configure(queue, QueueChange(lanes=LaneRule(running=running, **about)))


async def run(store: Store, *expected: str) -> None:
    """Claim all that is claimable, which must be these jobs, and let them succeed."""
    claimed = await claim(store)
    assert sorted(one.job.id for one in claimed) == sorted(expected)
    assert await settle(store, *map(succeed, claimed)) == ["done"] * len(expected)


async def held_by(store: Store, *ids: str) -> list[tuple[str, ...]]:
    """What holds these jobs."""
    return [job.held.by if job and job.held else () for job in await store.get(ids)]


class LaneContract:
    """The slots of a lane: who gets one, and what ends it."""

    async def test_a_lane_has_at_most_its_limit_of_slots(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 2)
        await put(store, *[laned(f"a{number}") for number in range(4)], laned("b0", "b"), new("free"))
        held = await look(store, "a2")
        assert (held.state, held.lane, held.due_ms) == ("waiting", "a", NEVER_MS)
        assert held.held == Held(by=("lane",), due=at(store.now()))
        assert held.due_at == to_datetime(store.now())
        claimed = await claim(store)
        assert sorted(one.job.id for one in claimed) == ["a0", "a1", "b0", "free"]
        lanes = {one.job.id: (one.job.lane, one.lease.lane, one.job.held) for one in claimed}
        assert lanes["a0"] == ("a", "a", None)
        assert lanes["free"] == (None, None, None)
        async with second(harness) as other:
            assert await claim(other) == []
            assert await held_by(other, "a0", "a2", "a3") == [(), ("lane",), ("lane",)]

    @pytest.mark.parametrize("how", ["succeeded", "failed", "removed"])
    async def test_a_job_that_ends_gives_its_slot_on(self, harness: Harness, how: str) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first"), laned("second"), laned("third"))
        claimed = await claim_one(store)
        gone = Policy(keep_succeeded=Keep(last=0))
        ends = {"succeeded": succeed(claimed), "failed": fail(claimed), "removed": succeed(claimed, None, gone)}
        assert await settle(store, ends[how]) == ["done"]
        job = await look(store, "second")
        assert (job.held, job.due_ms) == (None, store.now())
        assert await claim_ids(store) == ["second"]
        assert await claim(store) == []

    async def test_one_exchange_settles_and_claims(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 2)
        await put(store, *[laned(f"a{number}") for number in range(7)])
        ran: list[str] = []
        claimed = await claim(store)
        for _ in range(20):
            ran += [one.job.id for one in claimed]
            assert len(claimed) <= 2
            exchanged = await store.exchange([succeed(one) for one in claimed], wish(10))
            assert set(exchanged.settled) <= {"done"}
            claimed = [one for one in exchanged.claimed if isinstance(one, Claimed)]
            if len(ran) == 7:
                break
        assert sorted(ran) == [f"a{number}" for number in range(7)]
        assert claimed == []

    async def test_a_retry_gives_the_slot_up(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first"), laned("second"))
        claimed = await claim_one(store)
        assert await settle(store, retry(claimed, 10_000)) == ["done"]
        waits = await look(store, "first")
        assert (waits.errors, waits.held) == (1, Held(by=("lane",), due=at(store.now() + 10_000)))
        other = await claim_one(store)
        assert other.job.id == "second"
        await harness.advance(10)
        assert await claim(store) == []
        assert await settle(store, succeed(other)) == ["done"]
        again = await claim_one(store)
        assert (again.job.id, again.job.attempt) == ("first", 2)

    async def test_a_retry_without_delay_goes_to_the_end(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first"), laned("second"))
        await harness.advance(1)
        claimed = await claim_one(store)
        assert await settle(store, retry(claimed, 0)) == ["done"]
        await run(store, "second")
        await run(store, "first")

    async def test_a_strict_lane_keeps_its_order(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1, strict=True)
        await put(store, laned("first"), laned("second"))
        claimed = await claim_one(store)
        assert await settle(store, retry(claimed, 10_000)) == ["done"]
        assert await claim(store) == []
        assert await next_due(store) == store.now() + 10_000
        assert await held_by(store, "first", "second") == [(), ("lane",)]
        await harness.advance(10)
        await run(store, "first")
        await run(store, "second")

    async def test_an_urgent_job_does_not_overtake_a_retry_of_a_strict_lane(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1, strict=True)
        await put(store, laned("first", priority=5), laned("second", priority=5))
        claimed = await claim_one(store)
        assert await settle(store, retry(claimed, 10_000)) == ["done"]
        await put_one(store, laned("urgent", priority=1))
        assert await claim(store) == []
        assert await held_by(store, "first", "urgent") == [(), ("lane",)]
        assert await next_due(store) == store.now() + 10_000
        await harness.advance(10)
        for id in ("first", "urgent", "second"):
            await run(store, id)

    async def test_a_job_that_is_given_back_keeps_its_slot(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first"), laned("second"))
        claimed = await claim_one(store)
        await harness.advance(1)
        assert await settle(store, release(claimed)) == ["done"]
        assert await held_by(store, "first", "second") == [(), ("lane",)]
        assert await claim_ids(store) == ["first"]

    async def test_an_urgent_job_takes_the_slot_of_one_that_is_given_back(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put_one(store, laned("first", priority=5))
        claimed = await claim_one(store)
        await put_one(store, laned("urgent", priority=1))
        assert await settle(store, release(claimed)) == ["done"]
        assert await held_by(store, "first", "urgent") == [("lane",), ()]

    @pytest.mark.parametrize("how", [snooze, release])
    async def test_a_job_that_waits_for_a_time_gives_its_slot_up(self, harness: Harness, how: Any) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first"), laned("second"))
        assert await settle(store, how(await claim_one(store), 5_000)) == ["done"]
        await run(store, "second")
        assert await claim(store) == []
        assert await next_due(store) == store.now() + 5_000
        await harness.advance(5)
        await run(store, "first")

    async def test_an_ended_lease_keeps_the_slot(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first"), laned("second"))
        lost = await claim_one(store, lease_ms=5_000)
        await harness.advance(6)
        claimed = await claim_one(store)
        assert (claimed.job.id, claimed.job.crashes, claimed.lease.lane) == ("first", 1, "a")
        assert await settle(store, succeed(lost)) == ["lost"]
        assert await claim(store) == []
        assert await settle(store, succeed(claimed)) == ["done"]
        assert await claim_ids(store) == ["second"]

    async def test_a_job_that_cannot_be_read_gives_its_slot_on(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("bad"), laned("good"))
        await harness.corrupt("bad")
        (broken,) = (await store.exchange([], wish())).claimed
        assert isinstance(broken, Broken)
        assert broken.lease.lane == "a"
        settlement = begin(broken, DEFAULT_POLICY, store.now())
        assert isinstance(settlement, Settlement)
        assert await settle(store, settlement) == ["done"]
        assert await claim_ids(store) == ["good"]

    # ------------------------------------------------------------------------------------------------ order

    async def test_the_order_of_a_lane(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put_one(store, laned("first"))
        claimed = await claim_one(store)
        for id, priority in ("late", 7), ("urgent", 1), ("also", 7), ("most", 0):
            await put_one(store, laned(id, priority=priority))
            await harness.advance(0.01)
        assert await settle(store, succeed(claimed)) == ["done"]
        for id in ("most", "urgent", "late", "also"):
            await run(store, id)

    async def test_an_urgent_job_takes_the_slot_of_one_that_has_not_begun(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 2)
        await put(store, laned("x", priority=5), laned("y", priority=5))
        await put_one(store, laned("urgent", priority=1))
        assert sorted(await held_by(store, "x", "y", "urgent")) == [(), (), ("lane",)]
        claimed = await claim(store)
        assert "urgent" in [one.job.id for one in claimed]
        assert len(claimed) == 2
        await put_one(store, laned("most", priority=0))
        assert await claim(store) == []
        assert await settle(store, succeed(claimed[0])) == ["done"]
        assert await claim_ids(store) == ["most"]

    async def test_a_job_is_due_when_it_gets_its_slot(self, harness: Harness) -> None:
        """Otherwise a lane with an old backlog would stand before all other jobs, again and again."""
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first"), laned("second"))
        await harness.advance(1)
        await put_one(store, new("free"))
        await harness.advance(1)
        claimed = await claim_one(store)
        assert claimed.job.id == "first"
        assert await settle(store, succeed(claimed)) == ["done"]
        assert await claim_ids(store, 1) == ["free"]
        assert await claim_ids(store, 1) == ["second"]

    async def test_a_flood_in_one_lane_does_not_delay_the_others(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 2)
        await put(store, *[laned(lane="hot") for _ in range(200)])
        await put(store, *[laned(f"b{number}", f"b{number}") for number in range(40)])
        others: set[str] = set()
        done: list[Settlement] = []
        claims = 0
        while len(others) < 40:
            exchanged = await store.exchange(done, wish(5))
            claims += 1
            assert claims <= 11, "ceil(41 / 5) + 2"
            await harness.advance(0.001)  # a job that gets its slot later is due later
            claimed = [one for one in exchanged.claimed if isinstance(one, Claimed)]
            others |= {one.job.id for one in claimed if one.job.lane != "hot"}
            done = [succeed(one) for one in claimed]

    async def test_lanes_of_other_queues_are_other_lanes(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await rule(store, 2, queue="other")
        await put(store, *[laned(queue=queue) for queue in (QUEUE, "other") for _ in range(3)])
        claimed = await claim(store, queues=(QUEUE, "other"))
        assert sorted(one.job.queue for one in claimed) == [QUEUE, "other", "other"]

    async def test_several_names_share_a_lane(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put_one(store, laned("first", name="send"))
        await put_one(store, laned("second", name="count"))
        assert await claim(store, names=("count",)) == []
        claimed = await claim_one(store, names=("send", "count"))
        assert claimed.job.id == "first"
        assert await settle(store, succeed(claimed)) == ["done"]
        assert await claim_ids(store, names=("count",)) == ["second"]

    async def test_a_lane_without_limits(self, harness: Harness) -> None:
        store = harness.store
        await put(store, *[laned() for _ in range(20)], laned("late", due=after(5_000)))
        assert len(await claim(store)) == 20
        await harness.advance(5)
        assert await claim_ids(store) == ["late"]

    # ------------------------------------------------------------------------------------------------ delays

    async def test_a_delayed_job_gets_a_slot_when_it_is_due(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("late", due=after(10_000)), laned("now"))
        late = await look(store, "late")
        assert (late.held, late.due_at) == (
            Held(by=("lane",), due=at(store.now() + 10_000)),
            to_datetime(store.now() + 10_000),
        )
        await run(store, "now")
        assert await claim(store) == []
        assert await next_due(store) == store.now() + 10_000
        await harness.advance(10)
        claimed = await claim_one(store)
        assert (claimed.job.id, claimed.job.due_ms) == ("late", store.now())

    async def test_delayed_jobs_join_their_lane_by_time(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("third", due=after(3_000)), laned("second", due=after(2_000)), laned("first"))
        claimed = await claim_one(store)
        await put_one(store, laned("then"))
        await harness.advance(5)
        assert await settle(store, succeed(claimed)) == ["done"]
        for id in ("then", "second", "third"):
            await run(store, id)

    # ------------------------------------------------------------------------------------------------ other verbs

    async def test_a_held_job_has_its_unique_key(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first", key="1"), laned("second", key="2"))
        receipt = await enqueue_one(store, laned(key="2"))
        assert (receipt.id, receipt.status) == ("second", "duplicate")

    async def test_jobs_are_found_and_counted_by_lane(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("a0"), laned("a1"), laned("b0", "b"), new("free"))
        await put_one(store, laned("else", queue="other"))
        await run(store, "a0", "b0", "free")
        assert sorted(await find_all(store, Filter(lane="a"))) == ["a0", "a1", "else"]
        assert sorted(await find_all(store, Filter(queue=QUEUE, lane="a"))) == ["a0", "a1"]
        assert await find_all(store, Filter(queue=QUEUE, lane="a", states=("succeeded",))) == ["a0"]
        assert await find_all(store, Filter(queue=QUEUE, lane="a", states=("waiting",))) == ["a1"]
        assert await find_all(store, Filter(lane="none")) == []
        assert sum(one.count for one in await store.count(Filter(lane="a"))) == 3

    async def test_held_jobs_of_lanes_are_counted_as_held(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned(), laned(), laned(due=after(60_000)))
        assert await store.depths([QUEUE]) == [Depth(queue=QUEUE, due=1, held=2, oldest_due_ms=store.now())]

    async def test_a_seized_job_has_a_slot(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, *[laned(id) for id in ("first", "second", "third")])
        first = await claim_one(store)
        seized = await seize(store, "second")
        assert await settle(store, succeed(seized)) == ["done"]
        assert await claim(store) == []
        assert await settle(store, succeed(first)) == ["done"]
        assert await claim_ids(store) == ["third"]

    async def test_a_seized_job_takes_the_slot_of_one_that_has_not_begun(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 2)
        await put(store, *[laned(id) for id in ("first", "second", "third")])
        seized = await seize(store, "third")
        assert await held_by(store, "first", "second", "third") == [(), ("lane",), ()]
        (lane,) = await store.lanes(QUEUE)
        assert (lane.running, lane.admitted, lane.ready) == (1, 1, 1)
        assert await settle(store, succeed(seized)) == ["done"]
        await run(store, "first", "second")

    @pytest.mark.parametrize("held", [False, True])
    async def test_a_seized_job_that_is_given_back_keeps_no_slot_of_a_full_lane(
        self, harness: Harness, held: bool
    ) -> None:
        """Also one that a person held, which had no place in its lane before."""
        store = harness.store
        await rule(store, 1)
        await put(store, laned("busy"), laned("second"))
        busy = await claim_one(store)
        await harness.advance(0.001)
        await put(store, laned("third"))
        if held:
            assert (await store.change(["third"], Hold())).ids == ["third"]
        assert await settle(store, release(await seize(store, "third"))) == ["done"]
        assert await claim(store) == [], "its lane is full"
        assert await held_by(store, "second", "third") == [("lane",), ("lane",)]
        assert await settle(store, succeed(busy)) == ["done"]
        for id in ("second", "third"):
            await run(store, id)

    async def test_the_limits_of_the_queue_hold_as_well(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 2)
        await store.configure(QUEUE, QueueChange(running_limit=3))
        await put(store, *[laned(lane=lane) for lane in "abc" for _ in range(3)])
        claimed = await claim(store)
        assert len(claimed) == 3
        await store.configure(QUEUE, QueueChange(running_limit=None, paused=True))
        assert await settle(store, *map(succeed, claimed)) == ["done"] * 3
        assert await claim(store) == []
        await store.configure(QUEUE, QueueChange(paused=False, rate_limit=RateLimit(4, 60_000)))
        assert len(await claim(store)) == 4
