"""Lanes: jobs that are changed, held, suspended or recurring, and what becomes of their slots."""

from __future__ import annotations

import pytest
from msgspec import structs

from jobmill.core.changes import Cancel, Hold, Release, Remove, Reprioritize, Requeue, Reschedule
from jobmill.core.due import NEVER_MS, Held
from jobmill.core.flows import After, Signal
from jobmill.core.lifecycle import Succeeded
from jobmill.core.queue_settings import LaneChange, Pause
from jobmill.core.recurrence import Recurrence
from jobmill.core.unique_policy import UniquePolicy
from jobmill.core.values import NOW, Filter, NewJob, after, at
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.lanes import held_by, laned, rule, run
from jobmill.testing.contract.steps import suspend
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    end,
    enqueue_one,
    fail,
    look,
    new,
    next_due,
    only_refused,
    put,
    put_one,
    release,
    retry,
    seize,
    settle,
    state_of,
    succeed,
)


class LaneChangeContract:
    """Changes without a lease, holders, flows, suspensions and recurring jobs."""

    @pytest.mark.parametrize("change", [Cancel(), Remove()], ids=["cancel", "remove"])
    async def test_a_waiting_job_that_goes_gives_its_slot_on(self, harness: Harness, change: Cancel | Remove) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, *[laned(id) for id in ("first", "second", "third")])
        assert (await store.change(["second"], change)).ids == ["second"]
        assert (await store.change(["first"], change)).ids == ["first"]
        assert await claim_ids(store) == ["third"]

    async def test_a_running_job_that_is_cancelled_gives_its_slot_on(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first"), laned("second"))
        claimed = await claim_one(store)
        assert (await store.change(["first"], Cancel())).ids == ["first"]
        assert await claim_ids(store) == ["second"]
        assert await settle(store, succeed(claimed)) == ["lost"]

    async def test_jobs_are_cancelled_by_lane(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("a0"), laned("a1"), laned("b0", "b"), laned("a2", due=after(60_000)))
        changed = await store.change(Filter(queue=QUEUE, lane="a"), Cancel())
        assert sorted(changed.ids) == ["a0", "a1", "a2"]
        assert await claim_ids(store) == ["b0"]

    async def test_a_job_that_is_rescheduled_gives_its_slot_up(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first"), laned("second"))
        assert (await store.change(["first"], Reschedule(after(10_000)))).ids == ["first"]
        job = await look(store, "first")
        assert (job.held, job.due_ms) == (Held(by=("lane",), due=at(store.now() + 10_000)), NEVER_MS)
        await run(store, "second")
        assert await next_due(store) == store.now() + 10_000
        await harness.advance(10)
        await run(store, "first")

    async def test_a_delayed_job_that_is_rescheduled_to_now(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("late", due=after(60_000)), laned("other", "b"))
        assert (await store.change(["late"], Reschedule(NOW))).ids == ["late"]
        await run(store, "late", "other")

    async def test_a_job_that_is_reprioritized_changes_its_place(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, *[laned(id, priority=5) for id in ("first", "second", "third")])
        assert (await store.change(["third"], Reprioritize(1))).ids == ["third"]
        assert await held_by(store, "first", "third") == [("lane",), ()]
        assert (await store.change(["third"], Reprioritize(9))).ids == ["third"]
        for id in ("first", "second", "third"):
            await run(store, id)

    async def test_a_requeued_job_joins_its_lane(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first"), laned("second"), laned("third"))
        assert await settle(store, fail(await claim_one(store))) == ["done"]
        claimed = await claim_one(store)
        await harness.advance(1)
        assert (await store.change(["first"], Requeue())).ids == ["first"]
        assert await held_by(store, "first") == [("lane",)]
        assert await settle(store, succeed(claimed)) == ["done"]
        await run(store, "third")
        await run(store, "first")

    async def test_a_requeued_job_of_an_empty_lane_runs(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put_one(store, laned("first"))
        await run(store, "first")
        assert (await store.change(["first"], Requeue(after(5_000)))).ids == ["first"]
        assert await claim(store) == []
        await harness.advance(5)
        await run(store, "first")

    # ------------------------------------------------------------------------------------------------ other holders

    async def test_a_person_holds_a_job_with_a_slot(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first"), laned("second"))
        assert (await store.change(["first"], Hold(who="ada"))).ids == ["first"]
        job = await look(store, "first")
        assert job.held is not None
        assert (job.held.by, job.held.who) == (("lane", "person"), "ada")
        claimed = await claim_one(store)
        assert claimed.job.id == "second"
        assert (await store.change(["first"], Release())).ids == ["first"]
        job = await look(store, "first")
        assert job.held == Held(by=("lane",), due=at(store.now()))
        assert await claim(store) == []
        assert await settle(store, succeed(claimed)) == ["done"]
        await run(store, "first")

    async def test_a_person_holds_a_job_without_a_slot(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, *[laned(id) for id in ("first", "second", "third")])
        assert (await store.change(["second"], Hold())).ids == ["second"]
        await run(store, "first")
        await run(store, "third")
        assert await claim(store) == []
        assert (await store.change(["second"], Release())).ids == ["second"]
        await run(store, "second")

    async def test_only_a_lane_holds_and_releases_by_lane(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first"), laned("second"))
        assert "only a lane" in only_refused(await store.change(["second"], Release("lane")), "second")
        assert "only a lane" in only_refused(await store.change(["first"], Hold(by="lane")), "first")

    async def test_a_job_that_waits_for_others_takes_no_slot(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        then = structs.replace(laned("then"), after=(After("first"),))
        await put(store, new("first"), then, laned("other"))
        assert await held_by(store, "then", "other") == [("jobs", "lane"), ()]
        claimed = {one.job.id: one for one in await claim(store)}
        assert sorted(claimed) == ["first", "other"]
        assert await settle(store, succeed(claimed["first"])) == ["done"]
        assert await held_by(store, "then") == [("lane",)]
        assert await claim(store) == []
        assert await settle(store, succeed(claimed["other"])) == ["done"]
        await run(store, "then")

    @pytest.mark.parametrize("delay_ms", [None, 0], ids=["given back", "retried"])
    async def test_a_job_that_waits_for_others_again_keeps_no_slot(
        self, harness: Harness, delay_ms: int | None
    ) -> None:
        """Those may be in the same lane: then nothing of it would ever run again."""
        store = harness.store
        await rule(store, 1, strict=True)
        then = structs.replace(laned("then"), after=(After("first"),))
        await put(store, laned("busy"), laned("first"), then)
        busy, seized = await claim_one(store), await seize(store, "then")
        given_up = release(seized) if delay_ms is None else retry(seized, delay_ms)
        assert await settle(store, succeed(busy), given_up) == ["done", "done"]
        assert await held_by(store, "then") == [("jobs", "lane")]
        for id in ("first", "then"):
            await run(store, id)

    async def test_a_job_that_waited_for_others_gets_a_free_slot(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, new("first"), structs.replace(laned("then"), after=(After("first"),)))
        await run(store, "first")
        assert await held_by(store, "then") == [()]
        await run(store, "then")

    async def test_a_requeue_does_not_hold_a_job_that_waits_for_its_lane(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        then = structs.replace(laned("then"), after=(After("first"),))
        await put(store, new("first", name="first"), laned("busy"), then)
        assert await settle(store, succeed(await claim_one(store, names=("first",)))) == ["done"]
        assert (await store.change(["first"], Requeue())).ids == ["first"]
        assert await held_by(store, "then") == [("lane",)]
        assert [edge.state for edge in await store.dependencies("then")] == ["succeeded"]
        await run(store, "busy")
        await run(store, "then")

    async def test_a_slot_is_given_on_beside_a_job_of_another_queue(self, harness: Harness) -> None:
        """The end of the job releases one in a queue without lanes."""
        store = harness.store
        await rule(store, 1)
        other = structs.replace(new("other", queue="other"), after=(After("first"),))
        await put(store, laned("first"), laned("second"), other)
        assert await settle(store, succeed(await claim_one(store))) == ["done"]
        assert await held_by(store, "second", "other") == [(), ()]
        assert sorted(await claim_ids(store, queues=(QUEUE, "other"))) == ["other", "second"]

    async def test_a_released_job_gets_a_free_slot(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        first, then = laned("first"), structs.replace(laned("then"), after=(After("first"),))
        await put(store, first, then)
        await run(store, "first")
        assert await held_by(store, "then") == [()]
        await run(store, "then")

    async def test_a_job_that_must_fail_needs_a_slot(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, new("bad"), structs.replace(laned("then"), after=(After("bad"),)))
        assert await settle(store, fail(await claim_one(store), "no luck")) == ["done"]
        claimed = await claim_one(store)
        assert claimed.job.deferred_error == "dependency bad failed: no luck"

    async def test_a_suspended_job_gives_its_slot_up(self, harness: Harness) -> None:
        """Its children may be in the same lane."""
        store = harness.store
        await rule(store, 1, strict=True)
        await put(store, laned("parent"))
        claimed = await claim_one(store)
        assert await settle(store, suspend(claimed, laned("child"))) == ["done"]
        assert await held_by(store, "parent") == [("jobs", "lane")]
        await run(store, "child")
        await run(store, "parent")

    async def test_the_children_of_a_suspended_job_get_slots(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put_one(store, new("p"))
        children = [laned(id, lane) for id, lane in (("a0", "a"), ("a1", "a"), ("b0", "b"))]
        assert await settle(store, suspend(await claim_one(store), *children)) == ["done"]
        assert await held_by(store, "a0", "a1", "b0") == [(), ("lane",), ()]
        for ids in (["a0", "b0"], ["a1"], ["p"]):
            claimed = await claim(store)
            assert sorted(one.job.id for one in claimed) == ids
            assert await settle(store, *map(succeed, claimed)) == ["done"] * len(ids)

    async def test_a_job_that_sleeps_gives_its_slot_up(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("sleeper"), laned("other"))
        claimed = await claim_one(store)
        assert await settle(store, suspend(claimed, due=after(60_000), waits_for="go")) == ["done"]
        await run(store, "other")
        assert await claim(store) == []
        assert await store.signal("sleeper", Signal(name="go")) == "stored"
        await run(store, "sleeper")

    # ------------------------------------------------------------------------------------------------ recurring jobs

    @pytest.mark.parametrize("strict", [False, True])
    async def test_a_recurring_job_gives_its_slot_up_after_each_run(self, harness: Harness, strict: bool) -> None:
        store = harness.store
        await rule(store, 1, strict=strict)
        every = Recurrence(key="k", every_ms=60_000)
        await put_one(store, laned("again", key="k", recurrence=every))
        await put_one(store, laned("other"))
        claimed = await claim_one(store)
        assert claimed.job.recurrence is not None
        await end(store, claimed, Succeeded())
        await run(store, "other")
        assert await claim(store) == []
        due_ms = await next_due(store)
        assert due_ms is not None
        assert store.now() < due_ms <= store.now() + 60_000
        await harness.advance(60)
        claimed = await claim_one(store)
        assert (claimed.job.lane, claimed.job.runs) == ("a", 1)

    async def test_an_update_of_a_recurring_job_moves_it(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        every = Recurrence(key="k", every_ms=60_000)
        await put_one(store, laned("again", key="k", recurrence=every))
        await put_one(store, laned("other"))
        later = structs.replace(every, every_ms=30_000)
        receipt = await enqueue_one(store, laned(key="k", recurrence=later, due=after(30_000)))
        assert receipt.status == "updated"
        await run(store, "other")
        assert await claim(store) == []
        await harness.advance(30)
        assert (await claim_one(store)).job.unique_key == "k"

    async def test_an_update_of_a_running_recurring_job_leaves_it_its_slot(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        every = Recurrence(key="k", every_ms=60_000)
        id = await put_one(store, laned(key="k", recurrence=every))
        claimed = await claim_one(store)
        await put_one(store, laned("other"))
        later = structs.replace(every, every_ms=30_000)
        receipt = await enqueue_one(store, laned(key="k", recurrence=later, due=after(30_000)))
        assert receipt.status == "updated"
        assert (await look(store, id)).held is None
        assert await claim(store) == []
        await end(store, claimed, Succeeded())
        await run(store, "other")
        assert (await look(store, id)).held == Held(by=("lane",), due=at(store.now() + 30_000))

    async def test_a_debounced_job_moves(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)

        async def debounced(payload: int) -> str:
            policy = UniquePolicy(debounce_ms=5_000)
            job = structs.replace(laned(key="k", due=after(5_000), payload=payload), policy=policy)
            return (await enqueue_one(store, job)).status

        assert await debounced(1) == "created"
        await harness.advance(3)
        assert await debounced(2) == "updated"
        await harness.advance(3)
        assert await claim(store) == []
        await harness.advance(2)
        claimed = await claim_one(store)
        assert claimed.job.payload == 2
        assert await settle(store, succeed(claimed)) == ["done"]

    async def test_a_unique_key_is_free_when_its_job_has_ended(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first", key="k"), laned("second", key="l"))
        await run(store, "first")
        assert (await enqueue_one(store, laned("third", key="k"))).status == "created"
        assert (await store.change(["second"], Cancel())).ids == ["second"]
        assert (await enqueue_one(store, laned("fourth", key="l"))).status == "created"
        await run(store, "third")
        await run(store, "fourth")

    async def test_a_throttled_key_outlives_its_job(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        policy = UniquePolicy(for_ms=10_000)

        def throttled() -> NewJob:
            return structs.replace(laned(key="k"), policy=policy)

        await put(store, laned("before"), throttled())
        assert (await enqueue_one(store, throttled())).status == "duplicate"
        for _ in range(2):
            assert await settle(store, succeed(await claim_one(store))) == ["done"]
        assert (await enqueue_one(store, throttled())).status == "duplicate"
        await harness.advance(11)
        assert (await enqueue_one(store, throttled())).status == "created"
        assert len(await claim(store)) == 1

    @pytest.mark.parametrize("id", ["first", "second"])
    async def test_a_new_payload_leaves_a_job_its_place(self, harness: Harness, id: str) -> None:
        """Of a job with a slot, and of one without."""
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first", key="first"), laned("second", key="second"), laned("third"))
        await harness.advance(1)
        policy = UniquePolicy(when_live="replace")
        job = structs.replace(laned(key=id, payload=2, lane="b"), policy=policy)
        receipt = await enqueue_one(store, job)
        assert (receipt.id, receipt.status) == (id, "updated")
        for expected in ("first", "second", "third"):
            claimed = await claim_one(store)
            assert (claimed.job.id, claimed.job.lane) == (expected, "a")
            assert claimed.job.payload == (2 if expected == id else None)
            assert await settle(store, succeed(claimed)) == ["done"]

    @pytest.mark.parametrize("id", ["first", "second"])
    async def test_a_new_due_time_takes_a_job_from_its_place(self, harness: Harness, id: str) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("first", key="first"), laned("second", key="second"))
        policy = UniquePolicy(when_live="replace")
        job = structs.replace(laned(key=id, due=after(5_000), lane="b"), policy=policy)
        assert (await enqueue_one(store, job)).status == "updated"
        await run(store, "first" if id == "second" else "second")
        assert await claim(store) == []
        assert await next_due(store) == store.now() + 5_000
        await harness.advance(5)
        await run(store, id)

    async def test_a_requeue_is_refused_while_another_job_has_the_key(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put_one(store, laned("first", key="k"))
        await run(store, "first")
        await put(store, laned("before"), laned("second", key="k"))
        assert "second" in only_refused(await store.change(["first"], Requeue()), "first")
        await run(store, "before")
        await run(store, "second")
        assert (await store.change(["first"], Requeue())).ids == ["first"]
        await run(store, "first")

    async def test_a_job_that_takes_the_place_of_another_one(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("old", key="k"), laned("second"))
        policy = UniquePolicy(when_live="cancel")
        assert (await enqueue_one(store, structs.replace(laned("new", key="k"), policy=policy))).status == "created"
        assert await state_of(store, "old") == "cancelled"
        await run(store, "second")
        await run(store, "new")

    async def test_a_job_of_another_lane_takes_the_place_of_one_with_a_slot(self, harness: Harness) -> None:
        store = harness.store
        await rule(store, 1)
        await put(store, laned("old", key="k"), laned("second"))
        policy = UniquePolicy(when_live="cancel")
        job = structs.replace(laned("new", "b", key="k"), policy=policy)
        assert (await enqueue_one(store, job)).status == "created"
        await run(store, "second", "new")

    async def test_a_job_that_is_given_back_in_a_paused_lane(self, harness: Harness) -> None:
        store = harness.store
        await put(store, laned("first"))
        claimed = await claim_one(store)
        await store.configure_lane(QUEUE, "a", LaneChange(pause=Pause()))
        assert await settle(store, release(claimed)) == ["done"]
        assert await held_by(store, "first") == [("lane",)]
        assert await claim(store) == []
