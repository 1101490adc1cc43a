"""`EnqueuesWithin`, for stores with transactions: the job exists exactly if the caller's transaction commits."""

from __future__ import annotations

import pytest
from msgspec import structs

from jobmill.core.flows import After
from jobmill.core.values import EVERYTHING, NewJob, Receipt, after
from jobmill.errors import InvalidValue
from jobmill.store import EnqueuesWithin
from jobmill.testing.contract.harness import WithinHarness
from jobmill.testing.contract.lanes import held_by, laned, rule
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    enqueue_one,
    find_all,
    look,
    new,
    put,
    put_one,
    second,
    settle,
    started,
    state_of,
    succeed,
)


class WithinContract:
    """Enqueueing in the transaction of a caller."""

    async def test_a_committed_job_exists(self, harness: WithinHarness) -> None:
        connection = await harness.begin()
        (receipt,) = await _within(harness).enqueue_within(connection, [new(payload=[1], priority=3)])
        await harness.commit(connection)
        assert receipt.status == "created"
        job = await look(harness.store, receipt.id)
        assert (job.state, job.payload, job.priority) == ("waiting", [1], 3)

    async def test_a_rolled_back_job_does_not_exist(self, harness: WithinHarness) -> None:
        connection = await harness.begin()
        await _within(harness).enqueue_within(connection, [new("never", key="k")])
        await harness.rollback(connection)
        assert await find_all(harness.store, EVERYTHING) == []
        assert (await enqueue_one(harness.store, new("never", key="k"))).status == "created"

    async def test_a_job_is_not_visible_before_the_commit(self, harness: WithinHarness) -> None:
        async with second(harness) as other:
            connection = await harness.begin()
            (receipt,) = await _within(harness).enqueue_within(connection, [new()])
            assert await state_of(other, receipt.id) is None
            await harness.commit(connection)
            assert await state_of(other, receipt.id) == "waiting"

    async def test_a_committed_job_is_claimed(self, harness: WithinHarness) -> None:
        connection = await harness.begin()
        (receipt,) = await _within(harness).enqueue_within(connection, [new()])
        await harness.commit(connection)
        assert await claim_ids(harness.store) == [receipt.id]

    async def test_jobs_within_a_transaction_keep_their_order(self, harness: WithinHarness) -> None:
        first = await put_one(harness.store)
        connection = await harness.begin()
        (receipt,) = await _within(harness).enqueue_within(connection, [new()])
        await harness.commit(connection)
        last = await put_one(harness.store)
        assert await claim_ids(harness.store, 1) == [first]
        assert await claim_ids(harness.store, 1) == [receipt.id]
        assert await claim_ids(harness.store, 1) == [last]

    async def test_receipts_within_a_transaction_are_the_same_as_outside(self, harness: WithinHarness) -> None:
        await put_one(harness.store, new("taken"))
        owner = await put_one(harness.store, new(key="k"))
        connection = await harness.begin()
        receipts = await _within(harness).enqueue_within(
            connection, [new("one"), new("taken"), new("two", key="k"), new("one")]
        )
        await harness.commit(connection)
        assert [receipt.status for receipt in receipts] == ["created", "exists", "duplicate", "exists"]
        assert receipts[2] == Receipt(owner, "duplicate")

    async def test_several_calls_share_one_transaction(self, harness: WithinHarness) -> None:
        connection = await harness.begin()
        for _ in range(3):
            await _within(harness).enqueue_within(connection, [new()])
        (again,) = await _within(harness).enqueue_within(connection, [new("x", key="k")])
        (duplicate,) = await _within(harness).enqueue_within(connection, [new("y", key="k")])
        assert (duplicate.status, duplicate.id) == ("duplicate", again.id)
        await harness.rollback(connection)
        assert await find_all(harness.store, EVERYTHING) == []

    async def test_a_job_within_a_transaction_has_the_time_of_the_store(self, harness: WithinHarness) -> None:
        await harness.advance(1_000)
        connection = await harness.begin()
        (receipt,) = await _within(harness).enqueue_within(connection, [new()])
        await harness.commit(connection)
        assert (await look(harness.store, receipt.id)).created_ms == harness.store.now()

    # ------------------------------------------------------------------------------------------------ flows

    async def test_a_flow_within_a_transaction(self, harness: WithinHarness) -> None:
        connection = await harness.begin()
        await _within(harness).enqueue_within(connection, [new("first"), _waits("then", "first")])
        await harness.commit(connection)
        claimed = await claim_one(harness.store)
        assert claimed.job.id == "first"
        assert await settle(harness.store, succeed(claimed)) == ["done"]
        assert await claim_ids(harness.store) == ["then"]

    async def test_a_flow_that_is_rolled_back_leaves_no_edge(self, harness: WithinHarness) -> None:
        store = harness.store
        done = await started(store, new("done"))
        assert await settle(store, succeed(done)) == ["done"]
        connection = await harness.begin()
        await _within(harness).enqueue_within(connection, [new("first"), _waits("then", "first", "done")])
        await harness.rollback(connection)
        assert await store.dependents("done") == []
        await put(store, new("then"), new("first"))
        assert await store.dependencies("then") == []
        assert await store.dependents("first") == []
        assert sorted(await claim_ids(store)) == ["first", "then"]

    async def test_a_job_within_a_transaction_waits_for_no_live_job_of_others(self, harness: WithinHarness) -> None:
        store = harness.store
        await put(store, new("live"), new("owner", key="k"))
        done = await started(store, new("done", queue="other"), queues=("other",))
        assert await settle(store, succeed(done, 1)) == ["done"]
        connection = await harness.begin()
        within = _within(harness)
        for jobs in ([_waits("a", "live")], [new("twin", key="k"), _waits("a", "twin")], [_waits("a", "nobody")]):
            with pytest.raises(InvalidValue, match=r"after.*(live|owner|nobody)"):
                await within.enqueue_within(connection, jobs)
        receipts = await within.enqueue_within(connection, [_waits("b", "done")])
        assert [one.status for one in receipts] == ["created"]
        await harness.commit(connection)
        assert await store.get(["a", "twin"]) == [None, None]
        assert sorted(await claim_ids(store)) == ["b", "live", "owner"]

    async def test_a_flow_that_exists_within_a_transaction(self, harness: WithinHarness) -> None:
        flow = [new("first"), _waits("then", "first")]
        await put(harness.store, *flow)
        connection = await harness.begin()
        receipts = await _within(harness).enqueue_within(connection, flow)
        await harness.commit(connection)
        assert [one.status for one in receipts] == ["exists", "exists"]
        assert [one.id for one in await harness.store.dependencies("then")] == ["first"]

    # ------------------------------------------------------------------------------------------------ lanes

    async def test_jobs_with_lanes_within_a_transaction_get_slots_after_the_commit(
        self, harness: WithinHarness
    ) -> None:
        store = harness.store
        await rule(store, 2)
        connection = await harness.begin()
        within = _within(harness)
        await within.enqueue_within(connection, [laned(f"a{number}") for number in range(3)])
        await within.enqueue_within(connection, [laned("b0", "b"), laned("late", "b", due=after(5_000))])
        await harness.commit(connection)
        claimed = await claim(store)
        assert sorted(one.job.id for one in claimed) == ["a0", "a1", "b0"]
        assert await held_by(store, "a0", "a2", "late") == [(), ("lane",), ("lane",)]
        assert await settle(store, *map(succeed, claimed)) == ["done"] * 3
        assert await claim_ids(store) == ["a2"]
        await harness.advance(5)
        assert await claim_ids(store) == ["late"]

    async def test_a_full_lane_holds_a_job_of_a_transaction(self, harness: WithinHarness) -> None:
        store = harness.store
        await rule(store, 1)
        running = await started(store, laned("first"))
        connection = await harness.begin()
        await _within(harness).enqueue_within(connection, [laned("second")])
        await harness.commit(connection)
        assert await claim_ids(store) == []
        assert await settle(store, succeed(running)) == ["done"]
        assert await claim_ids(store) == ["second"]

    async def test_a_rolled_back_job_takes_no_slot(self, harness: WithinHarness) -> None:
        store = harness.store
        await rule(store, 1)
        connection = await harness.begin()
        await _within(harness).enqueue_within(connection, [laned("never"), laned("nor")])
        await harness.rollback(connection)
        assert await claim_ids(store) == []
        assert await store.lanes(QUEUE) == []
        await put(store, laned("first"), laned("second"))
        claimed = await claim_one(store)
        assert (claimed.job.id, await claim_ids(store)) == ("first", [])
        assert await settle(store, succeed(claimed)) == ["done"]
        assert await claim_ids(store) == ["second"]


def _waits(id: str, *on: str) -> NewJob:
    return structs.replace(new(id), after=tuple(After(one) for one in on))


def _within(harness: WithinHarness) -> EnqueuesWithin:
    store = harness.store
    assert isinstance(store, EnqueuesWithin)
    return store
