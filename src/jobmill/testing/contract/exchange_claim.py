"""`exchange`, claiming: which jobs a claim takes, and in which order."""

from __future__ import annotations

import asyncio

import pytest
from msgspec import structs

from jobmill.core.changes import Remove, Reprioritize, Requeue, Reschedule
from jobmill.core.job import FINAL, JobOptions, State
from jobmill.core.lifecycle import begin
from jobmill.core.values import EVERYTHING, Broken, QueueChange, after, at
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    LEASE_MS,
    QUEUE,
    claim,
    claim_ids,
    claim_in_turn,
    claim_one,
    find_all,
    in_state,
    look,
    new,
    put,
    put_one,
    release,
    retry,
    second,
    settle,
    started,
    state_of,
    succeed,
    wish,
)


class ClaimOrderContract:
    """Smaller priorities first; within a priority, undelayed jobs as enqueued and delayed jobs by due time."""

    async def test_undelayed_jobs_of_one_call_are_claimed_in_order(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new(f"{letter}1") for letter in "dbeac"])
        assert await claim_in_turn(harness.store) == ids

    async def test_undelayed_jobs_of_several_calls_are_claimed_in_order(self, harness: Harness) -> None:
        # Within one millisecond: time stands still.
        ids = [await put_one(harness.store, new(f"{letter}1")) for letter in "dbeac"]
        assert await claim_in_turn(harness.store) == ids

    async def test_undelayed_jobs_keep_their_order_over_time(self, harness: Harness) -> None:
        ids = []
        for letter in "dbeac":
            ids.append(await put_one(harness.store, new(f"{letter}1")))
            await harness.advance(0.5)
        assert await claim_in_turn(harness.store) == ids

    async def test_one_claim_takes_the_same_jobs_as_claims_one_by_one(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new(priority=priority) for priority in (2, 0, 1, 0, 2)])
        assert set(await claim_ids(harness.store, 3)) == {ids[1], ids[3], ids[2]}

    async def test_a_smaller_priority_goes_first(self, harness: Harness) -> None:
        low, high, middle = await put(harness.store, new(priority=2_097_151), new(priority=0), new(priority=5))
        assert await claim_in_turn(harness.store) == [high, middle, low]

    async def test_a_priority_goes_before_age(self, harness: Harness) -> None:
        old = await put_one(harness.store, new(priority=1))
        await harness.advance(60)
        fresh = await put_one(harness.store, new(priority=0))
        assert await claim_in_turn(harness.store) == [fresh, old]

    async def test_a_priority_goes_before_the_due_time(self, harness: Harness) -> None:
        early, late = await put(harness.store, new(priority=1, due=after(1_000)), new(priority=0, due=after(2_000)))
        await harness.advance(3)
        assert await claim_in_turn(harness.store) == [late, early]

    async def test_delayed_jobs_are_claimed_by_due_time(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new(due=after(delay)) for delay in (3_000, 1_000, 2_000, 1_001)])
        await harness.advance(10)
        assert await claim_in_turn(harness.store) == [ids[1], ids[3], ids[2], ids[0]]

    async def test_a_priority_that_is_not_due_does_not_block_others(self, harness: Harness) -> None:
        _, due = await put(harness.store, new(priority=0, due=after(60_000)), new(priority=7))
        assert await claim_ids(harness.store) == [due]

    async def test_undelayed_jobs_of_several_names_are_claimed_in_order(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new(name=name) for name in "babcab"])
        assert await claim_in_turn(harness.store, names="abc") == ids

    async def test_delayed_jobs_of_several_names_are_claimed_by_due_time(self, harness: Harness) -> None:
        delays = [("b", 3_000), ("a", 4_000), ("c", 1_000), ("a", 2_000)]
        ids = await put(harness.store, *[new(name=name, due=after(delay)) for name, delay in delays])
        await harness.advance(10)
        assert await claim_in_turn(harness.store, names="abc") == [ids[2], ids[3], ids[0], ids[1]]

    async def test_a_priority_goes_before_the_order_of_the_names(self, harness: Harness) -> None:
        ids = await put(
            harness.store, *[new(name=name, priority=priority) for name, priority in zip("abc", (3, 1, 2), strict=True)]
        )
        assert set(await claim_ids(harness.store, 2, names="abc")) == {ids[1], ids[2]}

    async def test_a_reprioritized_job_is_claimed_in_its_new_order(self, harness: Harness) -> None:
        first, last = await put(harness.store, new(priority=1), new(priority=2))
        await harness.store.change([last], Reprioritize(0))
        assert await claim_in_turn(harness.store) == [last, first]

    async def test_a_rescheduled_job_is_claimed_in_its_new_order(self, harness: Harness) -> None:
        first, last = await put(harness.store, new(due=after(1_000)), new(due=after(5_000)))
        await harness.store.change([first], Reschedule(after(9_000)))
        await harness.advance(10)
        assert await claim_in_turn(harness.store) == [last, first]

    async def test_a_requeued_job_is_claimed_by_its_priority(self, harness: Harness) -> None:
        urgent = await in_state(harness.store, "failed", new(priority=0))
        patient = await put_one(harness.store, new(priority=1))
        await harness.store.change([urgent], Requeue())
        assert await claim_in_turn(harness.store) == [urgent, patient]

    async def test_queues_are_tried_in_the_order_given(self, harness: Harness) -> None:
        a, b = await put(harness.store, new(queue="a", priority=0), new(queue="b", priority=9))
        assert await claim_ids(harness.store, 1, queues=("b", "a")) == [b]
        assert await claim_ids(harness.store, 1, queues=("b", "a")) == [a]

    async def test_one_claim_can_take_jobs_of_several_queues(self, harness: Harness) -> None:
        ids = await put(harness.store, new(queue="a"), new(queue="b"), new(queue="c"))
        assert set(await claim_ids(harness.store, 2, queues=("a", "b", "c"))) == {ids[0], ids[1]}


class ClaimBoundsContract:
    """A claim takes only matching jobs, and never too many."""

    async def test_a_claim_from_an_empty_store_takes_nothing(self, harness: Harness) -> None:
        exchanged = await harness.store.exchange([], wish())
        assert (exchanged.claimed, exchanged.settled) == ([], [])

    async def test_an_exchange_without_a_claim_claims_nothing(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        assert (await harness.store.exchange([], None)).claimed == []
        assert await state_of(harness.store, id) == "waiting"

    async def test_a_claim_takes_at_most_n(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(5)])
        assert len(await claim(harness.store, 3)) == 3
        assert len(await claim(harness.store, 3)) == 2

    async def test_a_claim_of_zero_jobs_takes_none(self, harness: Harness) -> None:
        await put_one(harness.store)
        assert await claim(harness.store, 0) == []

    async def test_n_counts_over_all_queues(self, harness: Harness) -> None:
        await put(harness.store, *[new(queue=queue) for queue in "aabb"])
        assert len(await claim(harness.store, 3, queues=("a", "b"))) == 3

    async def test_jobs_of_other_queues_are_not_claimed(self, harness: Harness) -> None:
        other = await put_one(harness.store, new(queue="other"))
        assert await claim(harness.store) == []
        job = await look(harness.store, other)
        assert (job.state, job.claims) == ("waiting", 0)

    async def test_jobs_of_other_names_are_not_claimed(self, harness: Harness) -> None:
        foreign, ours = await put(harness.store, new(name="foreign"), new(name="ours"))
        before = await look(harness.store, foreign)
        assert await claim_ids(harness.store, names=("ours", "absent")) == [ours]
        await harness.advance(3_600)
        assert await claim_ids(harness.store, names=("absent",)) == []
        assert await look(harness.store, foreign) == before

    async def test_many_jobs_of_other_names_do_not_hide_a_job(self, harness: Harness) -> None:
        await put(harness.store, *[new(name="foreign") for _ in range(500)])
        ours = await put_one(harness.store, new(name="ours"))
        assert await claim_ids(harness.store, 5, names=("ours",)) == [ours]

    async def test_a_claim_without_names_takes_nothing(self, harness: Harness) -> None:
        await put_one(harness.store)
        assert await claim(harness.store, names=()) == []

    async def test_the_room_of_a_name_bounds_its_jobs(self, harness: Harness) -> None:
        await put(harness.store, *[new(name="a") for _ in range(5)], *[new(name="b") for _ in range(5)])
        claimed = await claim(harness.store, 10, names={"a": 2, "b": 5})
        assert sorted(one.job.name for one in claimed) == ["a"] * 2 + ["b"] * 5

    async def test_the_room_of_a_name_counts_over_all_queues(self, harness: Harness) -> None:
        await put(harness.store, *[new(name="a", queue=queue) for queue in ("x", "x", "y", "y")])
        assert len(await claim(harness.store, 10, queues=("x", "y"), names={"a": 3})) == 3

    async def test_a_name_without_room_does_not_block_others(self, harness: Harness) -> None:
        *_, other = await put(harness.store, *[new(name="full") for _ in range(50)], new(name="free", priority=9))
        assert await claim_ids(harness.store, 1, names={"full": 0, "free": 1}) == [other]

    async def test_ended_leases_without_room_do_not_hide_others(self, harness: Harness) -> None:
        *_, free = await put(harness.store, *[new(name="full") for _ in range(5)], new(name="free"))
        assert len(await claim(harness.store, names=("full", "free"))) == 6
        await harness.advance(3_600)
        assert await claim_ids(harness.store, 1, names={"full": 0, "free": 1}) == [free]

    async def test_room_counts_ended_leases_too(self, harness: Harness) -> None:
        await put(harness.store, new(), new(), new())
        await claim(harness.store, 2)
        await harness.advance(3_600)
        assert len(await claim(harness.store, 10, names={"send": 1})) == 1

    async def test_a_job_is_not_claimed_before_it_is_due(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(due=after(1_000)))
        await harness.advance(0.999)
        assert await claim(harness.store) == []
        await harness.advance(0.001)
        assert await claim_ids(harness.store) == [id]

    async def test_a_job_with_a_past_due_time_is_due(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(due=at(harness.store.now() - 86_400_000)))
        assert await claim_ids(harness.store) == [id]

    @pytest.mark.parametrize("state", FINAL)
    async def test_a_final_job_is_not_claimed(self, harness: Harness, state: State) -> None:
        await in_state(harness.store, state)
        await harness.advance(3_600)
        assert await claim(harness.store) == []

    async def test_a_removed_job_is_not_claimed(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await harness.store.change([id], Remove())
        assert await claim(harness.store) == []

    async def test_a_job_is_claimed_once(self, harness: Harness) -> None:
        await put_one(harness.store)
        assert len(await claim(harness.store)) == 1
        async with second(harness) as other:
            assert await claim(harness.store) == await claim(other) == []

    async def test_claims_at_the_same_time_share_the_jobs(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new() for _ in range(30)])
        async with second(harness) as other:
            claims = await asyncio.gather(*[claim_ids(store, 5) for store in [harness.store, other] * 5])
        assert sorted(id for taken in claims for id in taken) == sorted(ids)


class ClaimedContract:
    """How a claim changes a job, and what it returns."""

    async def test_a_claimed_job_is_running_with_worker_and_time(self, harness: Harness) -> None:
        await put_one(harness.store)
        await harness.advance(7)
        job = (await claim_one(harness.store, worker="host-1-ab")).job
        assert (job.state, job.worker, job.claims, job.attempt) == ("running", "host-1-ab", 1, 1)
        assert (job.started_ms, job.updated_ms, job.finished_ms) == (harness.store.now(), harness.store.now(), None)

    async def test_a_claimed_job_is_the_stored_one(self, harness: Harness) -> None:
        claimed = await started(harness.store, new(payload=[1], key="k", tenant="acme", priority=4))
        assert claimed.job == await look(harness.store, claimed.job.id)

    async def test_a_lease_has_its_job_and_its_end(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        token = "only-this-claim"
        (claimed,) = await claim(harness.store, lease_ms=4_321, token=token)
        lease = claimed.lease
        assert (lease.id, lease.token, lease.queue, lease.name) == (id, token, QUEUE, "send")
        assert lease.until_ms == harness.store.now() + 4_321

    async def test_each_claim_is_counted(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        for number in (2, 3, 4):
            await settle(harness.store, release(claimed))
            claimed = await claim_one(harness.store, worker=f"worker-{number}")
            assert (claimed.job.claims, claimed.job.worker) == (number, f"worker-{number}")

    async def test_released_claims_count_neither_errors_nor_crashes(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await settle(harness.store, release(claimed))
        claimed = await claim_one(harness.store)
        assert (claimed.job.errors, claimed.job.crashes, claimed.job.attempt) == (0, 0, 1)

    async def test_the_token_is_not_visible(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(feed=True))
        token = "5ec2e7"
        claimed = await started(harness.store, token=token)
        shown = [claimed.job, claimed.lease, await look(harness.store, claimed.job.id), wish(token=token)]
        assert token not in repr(shown)
        assert token not in repr(structs.asdict(claimed.job)) + repr(claimed.job.to_dict())
        await settle(harness.store, succeed(claimed))
        events = await harness.store.events(QUEUE)
        assert events
        assert token not in repr([event.to_dict() for event in events])

    async def test_an_unreadable_job_is_broken_with_a_reason(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await harness.corrupt(id)
        (broken,) = (await harness.store.exchange([], wish())).claimed
        assert isinstance(broken, Broken)
        assert (broken.lease.id, broken.lease.name, broken.lease.queue) == (id, "send", QUEUE)
        assert broken.why

    async def test_a_broken_job_does_not_affect_others(self, harness: Harness) -> None:
        before, bad, behind = await put(harness.store, new(), new(), new())
        await harness.corrupt(bad)
        claimed = (await harness.store.exchange([], wish())).claimed
        assert {one.lease.id: isinstance(one, Broken) for one in claimed} == {before: False, bad: True, behind: False}

    async def test_a_broken_job_can_be_failed(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await harness.corrupt(id)
        (broken,) = (await harness.store.exchange([], wish())).claimed
        assert isinstance(broken, Broken)
        settlement = begin(broken, None, harness.store.now())
        assert settlement is not None
        assert await settle(harness.store, settlement) == ["done"]
        (count,) = await harness.store.count(EVERYTHING)
        assert (count.state, count.count) == ("failed", 1)
        assert await claim(harness.store) == []

    async def test_a_broken_job_does_not_break_find(self, harness: Harness) -> None:
        good, bad = await put(harness.store, new(payload="good"), new())
        await harness.corrupt(bad)
        assert sorted(await find_all(harness.store, EVERYTHING)) == sorted([good, bad])
        assert [job and job.id for job in await harness.store.get([bad, good])] == [bad, good]

    async def test_a_broken_job_can_be_removed(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await harness.corrupt(id)
        assert (await harness.store.change([id], Remove())).ids == [id]
        assert await claim(harness.store) == []

    # ------------------------------------------------------------------------------------------------ ended leases

    async def test_a_live_lease_is_not_claimable(self, harness: Harness) -> None:
        await started(harness.store, lease_ms=15_000)
        await harness.advance(14.999)
        assert await claim(harness.store) == []

    @pytest.mark.parametrize("kind", ["plain", "with options"])
    async def test_a_job_of_a_dead_worker_names_that_worker(self, harness: Harness, kind: str) -> None:
        job = new() if kind == "plain" else new(key="k", tenant="acme", options=JobOptions(max_attempts=7))
        first = await started(harness.store, job, worker='dead "1"')
        assert first.recovered_from is None
        await harness.advance(15)
        second = await claim_one(harness.store, worker="next")
        assert (second.recovered_from, second.job.worker) == ('dead "1"', "next")
        assert second.job == await look(harness.store, first.job.id)
        await settle(harness.store, release(second))
        assert (await claim_one(harness.store)).recovered_from is None

    async def test_jobs_of_dead_workers_name_their_own_worker(self, harness: Harness) -> None:
        dead = {(await started(harness.store, worker=f"dead-{n}")).job.id: f"dead-{n}" for n in range(3)}
        await harness.advance(15)
        waiting = await put_one(harness.store)
        named = {one.job.id: one.recovered_from for one in await claim(harness.store)}
        assert named == {**dead, waiting: None}

    async def test_an_ended_lease_is_claimable_and_counts_a_crash(self, harness: Harness) -> None:
        first = await started(harness.store, lease_ms=15_000, worker="dead")
        await harness.advance(15)
        again = await claim_one(harness.store, worker="alive")
        assert (again.job.id, again.job.worker) == (first.job.id, "alive")
        assert (again.job.crashes, again.job.claims, again.job.errors) == (1, 2, 0)
        assert again.job.started_ms == harness.store.now()

    async def test_each_ended_lease_counts_a_crash(self, harness: Harness) -> None:
        await started(harness.store)
        for crashes in (1, 2, 3):
            await harness.advance(LEASE_MS / 1_000)
            assert (await claim_one(harness.store)).job.crashes == crashes

    async def test_an_ended_lease_of_another_name_is_not_claimed(self, harness: Harness) -> None:
        claimed = await started(harness.store, new(name="foreign"))
        await harness.advance(3_600)
        assert await claim(harness.store, names=("ours",)) == []
        assert await look(harness.store, claimed.job.id) == claimed.job

    async def test_an_ended_lease_of_another_queue_is_not_claimed(self, harness: Harness) -> None:
        claimed = await started(harness.store, new(queue="other"))
        await harness.advance(3_600)
        assert await claim(harness.store) == []
        assert await look(harness.store, claimed.job.id) == claimed.job

    async def test_another_connection_claims_an_ended_lease(self, harness: Harness) -> None:
        first = await started(harness.store)
        await harness.advance(3_600)
        async with second(harness) as other:
            assert await claim_ids(other) == [first.job.id]

    async def test_ended_leases_are_found_behind_many_live_ones(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new() for _ in range(200)])
        await claim(harness.store, 199, lease_ms=7_200_000)
        await claim(harness.store, 1, lease_ms=1_000)
        await harness.advance(3_600)
        assert await claim_ids(harness.store, 10) == [ids[-1]]

    async def test_a_job_settled_in_the_same_call_is_not_claimed(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        exchanged = await harness.store.exchange([release(claimed)], wish())
        assert (exchanged.settled, exchanged.claimed) == (["done"], [])
        assert await claim_ids(harness.store) == [claimed.job.id]

    async def test_a_retry_without_delay_is_not_claimed_in_the_same_call(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        exchanged = await harness.store.exchange([retry(claimed, 0)], wish())
        assert (exchanged.settled, exchanged.claimed) == (["done"], [])

    async def test_a_call_that_settles_claims_other_jobs(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        others = await put(harness.store, new(), new())
        exchanged = await harness.store.exchange([succeed(claimed)], wish(2))
        assert exchanged.settled == ["done"]
        assert [one.lease.id for one in exchanged.claimed] == others
