"""Held jobs: waiting, but claimed by nobody until nothing holds them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec import structs

from jobmill.core.changes import Cancel, Hold, Release, Remove, Reprioritize, Requeue, Reschedule
from jobmill.core.due import NEVER_MS, Held
from jobmill.core.durations import to_datetime
from jobmill.core.values import Depth, Filter, Lease, QueueChange, RateLimit, after, at
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    find_all,
    in_state,
    look,
    new,
    next_due,
    only_refused,
    put,
    put_one,
    second,
    seize,
    settle,
    started,
    state_of,
    succeed,
)

WAITING = Filter(queue=QUEUE, states=("waiting",))


async def hold(harness: Harness, *ids: str, **about: Any) -> None:
    """Hold jobs, which must be possible."""
    assert (await harness.store.change(ids, Hold(**about))).ids == list(ids)


class HoldContract:
    """Hold and release."""

    async def test_a_held_job_is_not_claimed(self, harness: Harness) -> None:
        held, free = await put(harness.store, new(), new())
        due_ms = harness.store.now()
        await harness.advance(1)
        await hold(harness, held, who="ada", note="“wrong” letter")
        job = await look(harness.store, held)
        expected = Held(by=("person",), due=at(due_ms), who="ada", note="“wrong” letter")
        assert (job.state, job.held, job.due_ms) == ("waiting", expected, NEVER_MS)
        assert (job.due_at, job.updated_ms) == (to_datetime(due_ms), harness.store.now())
        await harness.advance(3_600)
        assert await claim_ids(harness.store) == [free]
        async with second(harness) as other:
            assert await claim(other) == []
            assert await look(other, held) == job

    @pytest.mark.parametrize("priority", [0, 7])
    @pytest.mark.parametrize("delay_ms", [0, 60_000])
    async def test_a_released_job_is_due_as_before(self, harness: Harness, delay_ms: int, priority: int) -> None:
        id = await put_one(harness.store, new(due=after(delay_ms), priority=priority, payload={"a": 1}))
        before = await look(harness.store, id)
        await hold(harness, id, who="ada")
        assert (await harness.store.change([id], Release())).ids == [id]
        assert await look(harness.store, id) == before
        if delay_ms:
            assert await claim(harness.store) == []
            assert await next_due(harness.store) == before.due_ms
            await harness.advance(delay_ms / 1000)
        claimed = await claim_one(harness.store)
        assert (claimed.job.id, claimed.job.payload, claimed.job.held) == (id, {"a": 1}, None)
        assert await settle(harness.store, succeed(claimed)) == ["done"]

    async def test_a_released_job_stands_where_it_stood(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new(f"job-{number}") for number in range(4)])
        await harness.advance(0.001)
        later = await put_one(harness.store, new("later"))
        await hold(harness, ids[1])
        assert await claim_ids(harness.store, n=1) == [ids[0]]
        await harness.store.change([ids[1]], Release())
        assert set(await claim_ids(harness.store, n=3)) == {ids[1], ids[2], ids[3]}
        assert await claim_ids(harness.store) == [later]

    async def test_a_held_job_wakes_no_worker(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await hold(harness, id)
        assert await next_due(harness.store) is None
        await put_one(harness.store, new(due=after(5_000)))
        assert await next_due(harness.store) == harness.store.now() + 5_000

    async def test_a_held_job_does_not_use_a_limit(self, harness: Harness) -> None:
        held, free = await put(harness.store, new(), new())
        await hold(harness, held)
        change = QueueChange(running_limit=1, rate_limit=RateLimit(1, 60_000))
        await harness.store.configure(QUEUE, change)
        assert await claim_ids(harness.store) == [free]
        assert await next_due(harness.store, queues=("elsewhere",)) is None

    async def test_several_holders_must_all_release(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await hold(harness, id, by="rule")
        await hold(harness, id, who="ada", note="x")
        held = (await look(harness.store, id)).held
        assert held is not None
        assert (held.by, held.who) == (("person", "rule"), "ada")
        assert (await harness.store.change([id], Release("person"))).ids == [id]
        held = (await look(harness.store, id)).held
        assert held is not None
        assert (held.by, held.who, held.note) == (("rule",), None, None)
        assert await claim(harness.store) == []
        assert (await harness.store.change([id], Release("rule"))).ids == [id]
        assert await claim_ids(harness.store) == [id]

    async def test_holding_again_replaces_the_note(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await hold(harness, id, who="ada", note="first")
        before = await look(harness.store, id)
        await hold(harness, id, who="bob", note="second")
        after_it = await look(harness.store, id)
        assert before.held is not None
        assert after_it.held == structs.replace(before.held, who="bob", note="second")

    async def test_what_is_refused(self, harness: Harness) -> None:
        free = await put_one(harness.store)
        assert "not held" in only_refused(await harness.store.change([free], Release()), free)
        await hold(harness, free)
        assert "person" in only_refused(await harness.store.change([free], Release("rule")), free)
        claimed = await started(harness.store, new(queue="other"))
        refusal = only_refused(await harness.store.change([claimed.job.id], Hold()), claimed.job.id)
        assert "running" in refusal
        assert only_refused(await harness.store.change(["unknown"], Hold()), "unknown")

    async def test_jobs_are_held_and_released_by_filter(self, harness: Harness) -> None:
        a, b = await put(harness.store, new(tenant="acme"), new(tenant="acme"))
        other = await put_one(harness.store, new())
        assert sorted((await harness.store.change(Filter(tenant="acme"), Hold())).ids) == sorted([a, b])
        assert await claim_ids(harness.store) == [other]
        assert sorted((await harness.store.change(Filter(held=True), Release())).ids) == sorted([a, b])
        assert sorted(await claim_ids(harness.store)) == sorted([a, b])

    # ------------------------------------------------------------------------------------------------ other changes

    @pytest.mark.parametrize(
        ("due", "resolved"), [(after(5_000), 5_000), (at(4_102_444_800_000), None)], ids=["delay", "instant"]
    )
    async def test_a_held_job_can_be_rescheduled(self, harness: Harness, due: Any, resolved: int | None) -> None:
        id = await put_one(harness.store)
        await hold(harness, id)
        assert (await harness.store.change([id], Reschedule(due))).ids == [id]
        job = await look(harness.store, id)
        assert job.held is not None
        assert (job.held.due, job.due_ms) == (due, NEVER_MS)
        assert (job.due_at is None) == (due.at_ms is None)
        await harness.advance(1)
        await harness.store.change([id], Release())
        expected = due.at_ms if resolved is None else harness.store.now() + resolved
        assert (await look(harness.store, id)).due_ms == expected

    async def test_a_held_job_can_be_reprioritized(self, harness: Harness) -> None:
        first, second_one = await put(harness.store, new(priority=1), new(priority=2))
        await hold(harness, second_one)
        assert (await harness.store.change([second_one], Reprioritize(0))).ids == [second_one]
        assert await next_due(harness.store, names=("nothing",)) is None
        job = await look(harness.store, second_one)
        assert (job.priority, job.held is not None) == (0, True)
        await harness.store.change([second_one], Release())
        assert await claim_ids(harness.store) == [second_one, first]

    async def test_a_held_job_can_be_cancelled_and_requeued(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(key="k"))
        due_ms = harness.store.now()
        await hold(harness, id)
        assert (await harness.store.change([id], Cancel())).ids == [id]
        job = await look(harness.store, id)
        assert (job.state, job.held, job.due_ms) == ("cancelled", None, due_ms)
        assert (await harness.store.change([id], Requeue())).ids == [id]
        assert await claim_ids(harness.store) == [id]

    async def test_a_held_job_can_be_removed(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(key="k"))
        await hold(harness, id)
        assert (await harness.store.change([id], Remove())).ids == [id]
        assert await state_of(harness.store, id) is None
        assert await harness.store.depths() in ([], [Depth(queue=QUEUE)])
        fresh = await put_one(harness.store, new(key="k"))
        assert await claim_ids(harness.store) == [fresh]

    async def test_a_seized_job_is_held_no_longer(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await hold(harness, id)
        claimed = await seize(harness.store, id)
        assert (claimed.job.state, claimed.job.held) == ("running", None)
        lease: Lease = claimed.lease
        assert await harness.store.extend([lease], 15_000) == []
        assert await settle(harness.store, succeed(claimed)) == ["done"]

    async def test_a_held_job_still_has_its_unique_key(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(key="k"))
        await hold(harness, id)
        (receipt,) = await harness.store.enqueue([new(key="k")])
        assert (receipt.status, receipt.id) == ("duplicate", id)

    # ------------------------------------------------------------------------------------------------ reading

    async def test_held_jobs_are_counted_apart(self, harness: Harness) -> None:
        ids = await put(harness.store, new(), new(due=after(60_000)), new(), new(priority=3))
        oldest_due_ms = harness.store.now()
        await hold(harness, ids[0], ids[1])
        expected = Depth(queue=QUEUE, due=2, held=2, oldest_due_ms=oldest_due_ms)
        assert await harness.store.depths() == [expected]
        (limited,) = await harness.store.depths(limit=2)
        assert (limited.held, limited.exact) == (2, False)
        counts = await harness.store.count(Filter())
        assert [(one.state, one.count) for one in counts] == [("waiting", 4)]
        await harness.store.change(ids[:2], Release())
        (depth,) = await harness.store.depths()
        assert (depth.due, depth.later, depth.held) == (3, 1, 0)

    async def test_held_jobs_are_found(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new(f"job-{number}") for number in range(5)])
        await in_state(harness.store, "succeeded", new("done", queue="other"))
        await hold(harness, ids[1], ids[3])
        assert sorted(await find_all(harness.store, Filter(held=True), 1)) == [ids[1], ids[3]]
        assert sorted(await find_all(harness.store, Filter(held=False))) == ["done", ids[0], ids[2], ids[4]]
        waiting = await find_all(harness.store, WAITING, 2)
        assert waiting[:3] == [ids[0], ids[2], ids[4]], "held jobs come last"
        assert sorted(waiting[3:]) == [ids[1], ids[3]]
        assert (await harness.store.count_up_to(structs.replace(WAITING, held=True), 10)).count == 2

    async def test_a_purge_leaves_held_jobs(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await hold(harness, id)
        for _ in range(3):
            await harness.advance(40 * 24 * 3_600)
            await harness.store.purge()
            assert await claim(harness.store) == []
            assert await next_due(harness.store) is None
        assert (await harness.store.change([id], Release())).ids == [id]
        assert await claim_ids(harness.store) == [id]

    async def test_a_race_of_a_hold_with_a_claim_has_one_winner(self, harness: Harness) -> None:
        async with second(harness) as other:
            for number in range(20):
                id = await put_one(harness.store, new(f"race-{number}"))
                calls = harness.store.change([id], Hold()), claim_ids(other)
                changed, claimed = await asyncio.gather(*calls)
                assert (changed.ids == [id]) != (claimed == [id])
                job = await look(harness.store, id)
                assert (job.state == "running", job.held is None) == (claimed == [id], claimed == [id])
