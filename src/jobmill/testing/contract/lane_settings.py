"""Lanes: limits that change, pauses, rates, what `lanes` lists, and two processes at once."""

from __future__ import annotations

import asyncio
from collections import Counter

from msgspec import structs

from jobmill.core.changes import Cancel
from jobmill.core.flows import After
from jobmill.core.queue_settings import LaneChange, LaneRule, LaneSettings, Pause, RateLimit
from jobmill.core.values import LANE_LIMIT, Claimed, Lane, QueueChange, Settlement, after
from jobmill.store import Store
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.lanes import held_by, laned, rule, run
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    look,
    new,
    next_due,
    put,
    put_one,
    retry,
    second,
    settle,
    succeed,
    turns,
    wish,
)


async def put_many(store: Store, count: int, lane: str = "a") -> None:
    """Enqueue jobs of a lane: a0, a1 and so on."""
    await put(store, *[laned(f"{lane}{number}", lane) for number in range(count)])


class LaneSettingsContract:
    """configure, configure_lane and lanes."""

    async def test_a_limit_that_is_raised(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put_many(store, 5)
        first = await claim_one(store)
        await rule(store, 3)
        assert sorted(await claim_ids(store)) == ["a1", "a2"]
        assert await settle(store, succeed(first)) == ["done"]
        assert await claim_ids(store) == ["a3"]

    async def test_jobs_are_due_when_a_higher_limit_gives_them_slots(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put_many(store, 3)
        await harness.advance(1)
        await put_one(store, new("free"))
        await harness.advance(1)
        await rule(store, 3)
        assert (await look(store, "a1")).due_ms == store.now()
        assert await claim_ids(store, 2) == ["a0", "free"]

    async def test_a_limit_that_is_lowered_takes_slots_back(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 3)
        await put_many(store, 5)
        await rule(store, 1)
        assert (await held_by(store, "a0", "a1", "a2")).count(()) == 1
        for number in range(5):
            await run(store, f"a{number}")

    async def test_a_limit_that_is_lowered_while_jobs_run(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 3)
        await put_many(store, 6)
        claimed = await claim(store)
        await rule(store, 1)
        for one in claimed:
            assert await claim(store) == []
            assert await settle(store, succeed(one)) == ["done"]
        assert len(await claim(store)) == 1

    async def test_a_rule_that_is_removed(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put_many(store, 5)
        settings = await store.configure(QUEUE, QueueChange(lanes=None))
        assert settings.lanes is None
        assert len(await claim(store)) == 5

    async def test_the_rule_is_a_setting_of_the_queue(self, harness: Harness) -> None:
        store = harness.store
        given = LaneRule(running=2, rate=RateLimit(30, 60_000), strict=True)
        assert (await store.configure(QUEUE, QueueChange(lanes=given))).lanes == given
        assert (await store.configure(QUEUE, QueueChange(running_limit=7))).lanes == given
        async with second(harness) as other:
            settings = (await other.settings([QUEUE]))[QUEUE]
            assert (settings.lanes, settings.running_limit) == (given, 7)

    async def test_the_rule_of_a_queue_with_many_lanes(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 2)
        await put(store, *[laned(lane=f"lane {number}") for number in range(40) for _ in range(4)])
        await rule(store, 1)
        claimed = await claim(store, 1_000)
        assert Counter(one.job.lane for one in claimed) == Counter(f"lane {number}" for number in range(40))
        await rule(store, 3)
        assert len(await claim(store, 1_000)) == 80

    async def test_one_lane_has_a_limit_of_its_own(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put_many(store, 4)
        await put_many(store, 4, "b")
        assert await store.configure_lane(QUEUE, "b", LaneChange(running=3)) == LaneSettings(running=3)
        claimed = await claim(store)
        assert sorted(one.job.id for one in claimed) == ["a0", "b0", "b1", "b2"]
        assert await store.configure_lane(QUEUE, "b", LaneChange(running=None)) == LaneSettings()
        assert await settle(store, *map(succeed, claimed)) == ["done"] * 4
        assert sorted(await claim_ids(store)) == ["a1", "b3"]

    async def test_a_lane_of_its_own_limit_without_a_rule(self, harness: Harness) -> None:
        store = harness.store
        await store.configure_lane(QUEUE, "a", LaneChange(running=1))
        await put_many(store, 3)
        await put_many(store, 3, "b")
        assert sorted(await claim_ids(store)) == ["a0", "b0", "b1", "b2"]

    async def test_one_lane_is_strict(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1, strict=True)
        await store.configure_lane(QUEUE, "b", LaneChange(strict=False))
        await put_many(store, 2)
        await put_many(store, 2, "b")
        claimed = await claim(store)
        assert await settle(store, *[retry(one, 60_000) for one in claimed]) == ["done"] * 2
        assert await claim_ids(store) == ["b1"]

    # ------------------------------------------------------------------------------------------------ pause

    async def test_a_paused_lane(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 2)
        await put_many(store, 4)
        first = await claim_one(store)
        pause = Pause(who="ada", note="they asked", since_ms=store.now())
        assert (await store.configure_lane(QUEUE, "a", LaneChange(pause=pause))).pause == pause
        await put_many(store, 1, "b")
        await put_one(store, laned("a9"))
        assert await claim_ids(store) == ["b0"]
        assert await settle(store, succeed(first)) == ["done"]
        assert await claim(store) == []
        (lane,) = await store.lanes(QUEUE, ["a"])
        assert (lane.settings.paused, lane.admitted, lane.ready) == (True, 0, 4)
        assert (await store.configure_lane(QUEUE, "a", LaneChange(pause=None))).pause is None
        await run(store, "a1", "a2")
        await run(store, "a3", "a9")

    async def test_a_job_that_loses_its_slot_keeps_its_place(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put_many(store, 2)
        await harness.advance(5)
        await store.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
        await harness.advance(5)
        await store.configure_lane(QUEUE, "a", LaneChange(pause=None))
        await run(store, "a0")
        await run(store, "a1")

    async def test_a_paused_lane_without_limits(self, harness: Harness) -> None:
        store = harness.store
        await store.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
        await put_many(store, 3)
        assert await claim(store) == []
        await store.configure_lane(QUEUE, "a", LaneChange(pause=None))
        assert len(await claim(store)) == 3

    # ------------------------------------------------------------------------------------------------ rate

    async def test_a_rate(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, rate=RateLimit(2, 10_000))
        await put_many(store, 5)
        await put_many(store, 1, "b")
        await run(store, "a0", "a1", "b0")
        assert await claim(store) == []
        assert await next_due(store) == store.now() + 10_000
        (lane,) = await store.lanes(QUEUE, ["a"])
        assert (lane.limited_until_ms, lane.ready) == (store.now() + 10_000, 3)
        await harness.advance(10)
        await run(store, "a2", "a3")
        assert await claim(store) == []
        await harness.advance(10)
        await run(store, "a4")

    async def test_slots_that_begin_in_a_later_window_count_there(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, rate=RateLimit(2, 10_000))
        await put_many(store, 5)
        await harness.advance(10)
        await run(store, "a0", "a1")
        assert await claim(store) == []
        await harness.advance(10)
        await run(store, "a2", "a3")

    async def test_a_rate_beside_a_limit(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1, rate=RateLimit(2, 10_000))
        await put_many(store, 4)
        (lane,) = await store.lanes(QUEUE, ["a"])
        assert lane.limited_until_ms is None, "the limit keeps the others, not the rate"
        await run(store, "a0")
        await run(store, "a1")
        assert await claim(store) == []
        (lane,) = await store.lanes(QUEUE, ["a"])
        assert lane.limited_until_ms == store.now() + 10_000
        await harness.advance(10)
        await run(store, "a2")

    async def test_a_window_begins_with_a_job_that_gets_a_slot(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1, rate=RateLimit(1, 10_000))
        await put_one(store, laned("a0"))
        claimed = await claim_one(store, lease_ms=60_000)
        await harness.advance(15)
        await put(store, laned("a1"), laned("a2"))
        await harness.advance(9)
        assert await settle(store, succeed(claimed)) == ["done"]
        await run(store, "a1")
        await harness.advance(2)
        assert await claim(store) == [], "a1 got its slot two seconds ago"
        await harness.advance(8)
        await run(store, "a2")

    async def test_an_urgent_job_takes_a_slot_of_a_rate_that_is_used_up(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, rate=RateLimit(1, 60_000))
        await put_one(store, laned("first", priority=5))
        await put_one(store, laned("urgent", priority=1))
        assert await held_by(store, "first", "urgent") == [("lane",), ()]
        await run(store, "urgent")
        assert await claim(store) == []

    async def test_a_lane_whose_rate_was_removed_is_not_limited(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1, rate=RateLimit(1, 60_000))
        await put_many(store, 4)
        await run(store, "a0")
        assert await claim(store) == []
        assert (await store.lanes(QUEUE))[0].limited_until_ms == store.now() + 60_000
        await rule(store, 1)
        assert (await store.lanes(QUEUE))[0].limited_until_ms is None
        await run(store, "a1")

    async def test_a_rate_that_nobody_waits_for_any_more(self, harness: Harness) -> None:
        """Otherwise a worker would claim again and again."""
        store = harness.store
        await rule(store, rate=RateLimit(1, 10_000))
        await put_many(store, 3)
        await run(store, "a0")
        assert await claim(store) == []
        assert (await store.change(["a1", "a2"], Cancel())).ids == ["a1", "a2"]
        await harness.advance(10)
        assert await claim(store) == []
        assert await next_due(store) is None
        assert await store.lanes(QUEUE) == []

    async def test_a_rate_that_is_raised_or_removed(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, rate=RateLimit(1, 60_000))
        await put_many(store, 6)
        await run(store, "a0")
        await store.configure_lane(QUEUE, "a", LaneChange(rate=RateLimit(3, 60_000)))
        await run(store, "a1", "a2")
        await store.configure(QUEUE, QueueChange(lanes=None))
        await store.configure_lane(QUEUE, "a", LaneChange(rate=None))
        await run(store, "a3", "a4", "a5")

    # ------------------------------------------------------------------------------------------------ lanes

    async def test_lanes_are_listed(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 2)
        assert await store.lanes(QUEUE) == []
        await put_many(store, 4)
        await put(store, *[laned(f"{lane}0", lane) for lane in ("b", "c", "ä b")], new("free"))
        await put_one(store, laned("late", due=after(60_000)))
        await put_one(store, laned("else", queue="other"))
        await store.configure_lane(QUEUE, "idle", LaneChange(running=7))
        assert len(await claim(store, 1)) == 1
        a = Lane(queue=QUEUE, name="a", running=1, admitted=1, ready=2, later=1)
        found = await store.lanes(QUEUE)
        by_name = {lane.name: lane for lane in found}
        assert sum(one.running for one in found) == 1
        assert structs.replace(by_name["a"], running=1, admitted=1) == a
        assert [lane.name for lane in found] == ["a", "b", "c", "idle", "ä b"]
        assert by_name["idle"] == Lane(queue=QUEUE, name="idle", settings=LaneSettings(running=7))
        assert [lane.name for lane in await store.lanes(QUEUE, ["c", "nobody", "a"])] == ["a", "c"]
        assert [lane.name for lane in await store.lanes(QUEUE, limit=2)] == ["a", "b"]
        assert [lane.name for lane in await store.lanes(QUEUE, after="b", limit=2)] == ["c", "idle"]
        assert await store.lanes("nothing") == []

    async def test_lanes_that_are_not_listed_leave_room_for_others(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, rate=RateLimit(1, 3_600_000))
        await put(store, *[laned(lane=f"a{number:02}") for number in range(15)])
        assert await settle(store, *map(succeed, await claim(store))) == ["done"] * 15
        await put_one(store, new("first"))
        waiting = [structs.replace(laned(lane=f"b{number:02}"), after=(After("first"),)) for number in range(15)]
        await put(store, *waiting, laned(lane="d"))
        await store.configure_lane(QUEUE, "c", LaneChange(pause=Pause()))
        assert [lane.name for lane in await store.lanes(QUEUE, limit=5)] == ["c", "d"]
        assert [lane.name for lane in await store.lanes(QUEUE, limit=1)] == ["c"]
        assert [lane.name for lane in await store.lanes(QUEUE, after="c", limit=1)] == ["d"]

    async def test_counts_of_a_lane_end_at_their_limit(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, *[laned() for _ in range(LANE_LIMIT + 10)])
        assert await store.lanes(QUEUE) == [Lane(queue=QUEUE, name="a", admitted=1, ready=LANE_LIMIT)]

    async def test_an_empty_lane_is_not_listed(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put_many(store, 2)
        await run(store, "a0")
        await run(store, "a1")
        await store.configure_lane(QUEUE, "b", LaneChange(running=2))
        await store.configure_lane(QUEUE, "b", LaneChange(running=None))
        assert await store.lanes(QUEUE) == []


class LaneRacesContract:
    """Two processes at once."""

    async def test_a_settlement_meets_an_arrival(self, harness: Harness) -> None:
        """The second one of them must see the free slot, or the job that needs it."""
        store = harness.store
        await rule(store, 1)
        async with second(harness) as other:
            await put_one(store, laned("job-0"))
            for number in range(1, 26):
                claimed = [*await claim(store), *await claim(other)]
                assert [one.job.id for one in claimed] == [f"job-{number - 1}"]
                arrival = laned(f"job-{number}")
                await asyncio.gather(settle(store, succeed(claimed[0])), other.enqueue([arrival]))

    async def test_arrivals_meet_each_other(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 2)
        async with second(harness) as other:
            calls = [(store, other)[number % 2].enqueue([laned()]) for number in range(20)]
            await asyncio.gather(*calls)
            claimed = [*await claim(store), *await claim(other)]
            assert len(claimed) == 2

    async def test_a_cancel_meets_a_claim(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        async with second(harness) as other:
            for number in range(10):
                await put(store, laned(f"first-{number}"), laned(f"second-{number}"))
                claimed, changed = await asyncio.gather(claim(store), other.change([f"first-{number}"], Cancel()))
                assert changed.ids == [f"first-{number}"]
                running = [one for one in claimed if one.job.id != f"first-{number}"]
                running += [*await claim(store), *await claim(other)]
                assert [one.job.id for one in running] == [f"second-{number}"]
                assert await settle(store, succeed(running[0])) == ["done"]

    async def test_the_limit_is_never_exceeded(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 2)
        running: Counter[str | None] = Counter()
        ran: list[str] = []

        async def work(own: Store) -> None:
            done: list[Settlement] = []
            for _ in turns(400):
                for one in done:
                    running[one.lease.lane] -= 1
                exchanged = await own.exchange(done, wish(3))
                claimed = [one for one in exchanged.claimed if isinstance(one, Claimed)]
                running.update(one.job.lane for one in claimed)
                assert max(running.values(), default=0) <= 2
                ran.extend(one.job.id for one in claimed)
                done = [succeed(one) for one in claimed]
                if len(ran) >= 120 and not done:
                    break
                await asyncio.sleep(0)

        async def arrive(own: Store) -> None:
            for number in range(30):
                await own.enqueue([laned(lane="abc"[number % 3])])

        async with second(harness) as other:
            await put(store, *[laned(lane="abc"[number % 3]) for number in range(60)])
            await asyncio.gather(work(store), work(other), arrive(store), arrive(other))
        assert len(ran) == len(set(ran)) == 120
