"""Durable runs: recorded steps, suspended runs that wait for children, and signals."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from msgspec import structs

from jobmill.core.changes import Cancel, Remove, Requeue
from jobmill.core.flows import After, Dependency, Recorded, Signal, Step
from jobmill.core.lifecycle import DEFAULT_POLICY, Suspended
from jobmill.core.lifecycle import settle as decide
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Claimed, Due, NewJob, Refused, Settlement, after, at
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    claim,
    claim_ids,
    claim_one,
    fail,
    look,
    new,
    next_due,
    put,
    put_one,
    retry,
    second,
    settle,
    started,
    state_of,
    succeed,
)

ONE = Step(number=0, name="reserve", result_json=b'{"a":"\xc3\xa4"}')
TWO = Step(number=1, name="charge", error="no money")


def suspend(claimed: Claimed, *children: NewJob, waits_for: str | None = None, due: Due | None = None) -> Settlement:
    """The handler waits for children, or for a signal."""
    return decide(claimed, Suspended(children=children, waits_for=waits_for, due=due), DEFAULT_POLICY, 0)


class StepContract:
    """record_step and recorded."""

    async def test_steps_are_recorded(self, harness: Harness) -> None:
        store = harness.store
        claimed = await started(store)
        id = claimed.job.id
        assert await store.recorded(id) == Recorded()
        assert await store.record_step(claimed.lease, TWO)
        assert await store.record_step(claimed.lease, ONE)
        async with second(harness) as other:
            assert await other.recorded(id) == Recorded([ONE, TWO])
        assert await store.recorded("nobody") == Recorded()

    async def test_the_first_step_of_a_number_counts(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        assert await harness.store.record_step(claimed.lease, ONE)
        assert await harness.store.record_step(claimed.lease, structs.replace(ONE, result_json=b"2"))
        assert (await harness.store.recorded(claimed.job.id)).steps == [ONE]

    async def test_a_lost_lease_records_nothing(self, harness: Harness) -> None:
        store = harness.store
        stale = await started(store)
        assert await store.record_step(stale.lease, ONE)
        await harness.advance(16)
        assert not await store.record_step(stale.lease, TWO)
        fresh = await claim_one(store)
        assert not await store.record_step(stale.lease, TWO)
        assert await store.recorded(fresh.job.id) == Recorded([ONE])
        await settle(store, succeed(fresh))
        assert not await store.record_step(fresh.lease, TWO)

    async def test_steps_stay_over_errors(self, harness: Harness) -> None:
        store = harness.store
        claimed = await started(store)
        await store.record_step(claimed.lease, ONE)
        await settle(store, retry(claimed, 1_000))
        await harness.advance(1)
        again = await claim_one(store)
        await store.record_step(again.lease, TWO)
        await settle(store, fail(again))
        assert await store.recorded(claimed.job.id) == Recorded([ONE, TWO])

    async def test_a_requeue_clears_them_unless_told_otherwise(self, harness: Harness) -> None:
        store = harness.store
        claimed = await started(store)
        id = claimed.job.id
        await store.record_step(claimed.lease, ONE)
        await store.signal(id, Signal(name="go"))
        await settle(store, fail(claimed))
        assert (await store.change([id], Requeue(keep_steps=True))).ids == [id]
        assert await store.recorded(id) == Recorded([ONE], [Signal(name="go")])
        assert (await store.change([id], Cancel())).ids == [id]
        assert (await store.change([id], Requeue())).ids == [id]
        assert await store.recorded(id) == Recorded()

    async def test_they_go_with_the_job(self, harness: Harness) -> None:
        store = harness.store
        claimed = await started(store, new("again"))
        await store.record_step(claimed.lease, ONE)
        await settle(store, fail(claimed))
        assert (await store.change(["again"], Remove())).ids == ["again"]
        assert await store.recorded("again") == Recorded()
        await put_one(store, new("again"))
        assert await store.recorded("again") == Recorded()

    async def test_large_and_many_steps(self, harness: Harness) -> None:
        store = harness.store
        claimed = await started(store)
        large = Step(number=0, name="x" * 200, result_json=msgspec.json.encode("y" * 512 * 1024))
        assert await store.record_step(claimed.lease, large)
        for number in range(1, 30):
            assert await store.record_step(claimed.lease, Step(number=number, name="same"))
        steps = (await store.recorded(claimed.job.id)).steps
        assert [step.number for step in steps] == list(range(30))
        assert steps[0] == large


class SuspendContract:
    """Settlements that suspend a run."""

    async def test_a_job_waits_for_its_children(self, harness: Harness) -> None:
        store = harness.store
        parent = await started(store, new("p", payload={"a": 1}))
        children = new("p.0", payload=1), new("p.1", payload=2)
        assert await settle(store, suspend(parent, *children)) == ["done"]
        job = await look(store, "p")
        assert (job.state, job.held and job.held.by, job.dependencies) == ("waiting", ("jobs",), 2)
        assert (job.errors, job.crashes, job.attempts) == (0, 0, ())
        found = await claim(store)
        assert [(one.job.id, one.job.payload) for one in found] == [("p.0", 1), ("p.1", 2)]
        await settle(store, succeed(found[0], "x"))
        assert await claim(store) == []
        await settle(store, succeed(found[1], "y"))
        again = await claim_one(store)
        assert (again.job.id, again.job.claims, again.job.payload, again.job.crashes) == ("p", 2, {"a": 1}, 0)
        edges = await store.dependencies("p")
        assert edges == [
            Dependency(id="p.0", number=0, if_failed="run", state="succeeded", result_json=msgspec.Raw(b'"x"')),
            Dependency(id="p.1", number=1, if_failed="run", state="succeeded", result_json=msgspec.Raw(b'"y"')),
        ]
        assert await settle(store, suspend(again, new("p.2"))) == ["done"]
        assert [(edge.id, edge.number) for edge in await store.dependencies("p", 1)] == [("p.1", 1), ("p.2", 2)]
        assert await claim_ids(store) == ["p.2"]

    async def test_it_runs_again_if_a_child_has_failed(self, harness: Harness) -> None:
        store = harness.store
        await settle(store, suspend(await started(store, new("p")), new("p.0")))
        await settle(store, fail(await claim_one(store), "no luck"))
        again = await claim_one(store)
        assert (again.job.id, again.job.deferred_error) == ("p", None)
        (edge,) = await store.dependencies("p")
        assert (edge.state, edge.error) == ("failed", "no luck")

    async def test_children_that_exist_are_only_waited_for(self, harness: Harness) -> None:
        store = harness.store
        await settle(store, succeed(await started(store, new("p.0")), 7))
        await put_one(store, new("p.1", queue="other"))
        parent = await started(store, new("p"))
        assert await settle(store, suspend(parent, new("p.0", payload="other"), new("p.1"))) == ["done"]
        assert await claim(store) == []
        (other,) = await claim(store, queues=("other",))
        await settle(store, succeed(other, 8))
        assert await claim_ids(store) == ["p"]
        results = [edge.result_json for edge in await store.dependencies("p")]
        assert results == [msgspec.Raw(b"7"), msgspec.Raw(b"8")]

    async def test_children_that_have_all_ended(self, harness: Harness) -> None:
        store = harness.store
        await settle(store, succeed(await started(store, new("p.0")), 7))
        parent = await started(store, new("p"))
        assert await settle(store, suspend(parent, new("p.0"))) == ["done"]
        job = await look(store, "p")
        assert (job.state, job.held) == ("waiting", None)
        assert await claim_ids(store) == ["p"]

    async def test_a_child_whose_unique_key_is_taken(self, harness: Harness) -> None:
        store = harness.store
        parent = await started(store, new("p"))
        owner = await put_one(store, new("owner", key="k"))
        assert await settle(store, suspend(parent, new("p.0", key="k"))) == ["done"]
        await settle(store, succeed(await claim_one(store), 5))
        assert await claim_ids(store) == ["p"]
        assert [(edge.id, edge.result_json) for edge in await store.dependencies("p")] == [(owner, msgspec.Raw(b"5"))]

    @pytest.mark.parametrize("why", ["unknown", "recurring", "itself", "ancestor"])
    async def test_children_that_cannot_be_waited_for(self, harness: Harness, why: str) -> None:
        """The settlement is refused, and nothing is stored; the others of the call are not affected."""
        store = harness.store
        parent, other = await started(store, new("p", key="k")), await started(store, new("other"))
        await put(store, structs.replace(new("above"), after=(After("p"),)))
        children = {
            "unknown": structs.replace(new("p.0"), after=(After("nobody"),)),
            "recurring": new("p.0", key="r", recurrence=Recurrence(key="r", every_ms=60_000)),
            "itself": new("p.0", key="k"),
            "ancestor": new("above"),
        }
        answers = await settle(store, suspend(parent, new("p.1"), children[why]), succeed(other))
        assert answers[1] == "done"
        refused = answers[0]
        assert isinstance(refused, Refused)
        assert "after" in refused.why
        assert await store.get(["p.0", "p.1"]) == [None, None]
        job = await look(store, "p")
        assert (job.state, job.held, job.dependencies) == ("running", None, 0)
        assert await store.dependencies("p") == []
        assert await settle(store, fail(parent, refused.error)) == ["done"]

    async def test_a_lost_lease_creates_no_children(self, harness: Harness) -> None:
        store = harness.store
        stale = await started(store, new("p"))
        await harness.advance(16)
        fresh = await claim_one(store)
        assert await settle(store, suspend(stale, new("p.0"))) == ["lost"]
        assert await state_of(store, "p.0") is None
        assert await settle(store, suspend(fresh, new("p.0")), suspend(stale, new("p.1"))) == ["done", "lost"]
        assert await store.get(["p.1"]) == [None]
        assert await claim_ids(store) == ["p.0"]

    async def test_others_still_wait_for_a_suspended_job(self, harness: Harness) -> None:
        store = harness.store
        parent = await started(store, new("p"))
        await put_one(store, structs.replace(new("then"), after=(After("p"),)))
        await settle(store, suspend(parent, new("p.0")))
        await settle(store, succeed(await claim_one(store)))
        again = await claim_one(store)
        assert again.job.id == "p"
        await settle(store, succeed(again, 1))
        assert await claim_ids(store) == ["then"]

    async def test_a_suspended_job_is_cancelled(self, harness: Harness) -> None:
        store = harness.store
        await settle(store, suspend(await started(store, new("p")), new("p.0")))
        assert (await store.change(["p"], Cancel())).ids == ["p"]
        await settle(store, succeed(await claim_one(store)))
        assert await claim(store) == []
        assert await state_of(store, "p") == "cancelled"


class SignalContract:
    """signal, and settlements that wait for one."""

    async def test_a_signal_ends_a_wait(self, harness: Harness) -> None:
        store = harness.store
        claimed = await started(store, new("p"))
        until_ms = store.now() + 3_600_000
        assert await settle(store, suspend(claimed, waits_for="go", due=at(until_ms))) == ["done"]
        job = await look(store, "p")
        assert (job.state, job.held, job.due_ms, job.waits_for) == ("waiting", None, until_ms, "go")
        async with second(harness) as other:
            assert await next_due(other) == until_ms
            woken = asyncio.ensure_future(store.wait_for_work(["mail"], store.now() + 60_000))
            await asyncio.sleep(0)
            assert await other.signal("p", Signal(name="other", value_json=b"1")) == "stored"
            assert await claim(store) == []
            assert await other.signal("p", Signal(name="go", value_json=b'{"by":"ann"}')) == "stored"
            await asyncio.wait_for(woken, 30)
        again = await claim_one(store)
        assert (again.job.id, again.job.errors, again.job.crashes) == ("p", 0, 0)
        signals = (await store.recorded("p")).signals
        assert sorted(signals, key=lambda one: one.name) == [
            Signal(name="go", value_json=b'{"by":"ann"}'),
            Signal(name="other", value_json=b"1"),
        ]
        await settle(store, retry(again, 1_000))
        assert (await look(store, "p")).waits_for is None

    async def test_a_signal_that_comes_before_the_wait(self, harness: Harness) -> None:
        store = harness.store
        claimed = await started(store, new("p"))
        assert await store.signal("p", Signal(name="go")) == "stored"
        assert await settle(store, suspend(claimed, waits_for="go", due=after(3_600_000))) == ["done"]
        assert await claim_ids(store) == ["p"]

    async def test_a_wait_ends_at_its_due_time(self, harness: Harness) -> None:
        store = harness.store
        await settle(store, suspend(await started(store, new("p")), waits_for="go", due=after(60_000)))
        assert await claim(store) == []
        await harness.advance(60)
        assert await claim_ids(store) == ["p"]

    async def test_the_first_signal_of_a_name_counts(self, harness: Harness) -> None:
        store = harness.store
        await put_one(store, new("p"))
        assert await store.signal("p", Signal(name="go", value_json=b"1")) == "stored"
        assert await store.signal("p", Signal(name="go", value_json=b"2")) == "exists"
        assert (await store.recorded("p")).signals == [Signal(name="go", value_json=b"1")]

    async def test_signals_that_nobody_gets(self, harness: Harness) -> None:
        store = harness.store
        await settle(store, succeed(await started(store, new("p"))))
        assert await store.signal("p", Signal(name="go")) == "final"
        assert await store.signal("nobody", Signal(name="go")) == "unknown"
        assert await store.recorded("nobody") == Recorded()

    async def test_a_signal_does_not_change_a_job_that_does_not_wait_for_it(self, harness: Harness) -> None:
        store = harness.store
        await put_one(store, new("p", due=after(60_000)))
        before = await look(store, "p")
        assert await store.signal("p", Signal(name="go")) == "stored"
        assert (await look(store, "p")).due_ms == before.due_ms
        assert await claim(store) == []

    async def test_a_signal_meets_the_wait(self, harness: Harness) -> None:
        store = harness.store
        async with second(harness) as other:
            for number in range(15):
                claimed = await started(store, new(f"p-{number}"))
                waits = suspend(claimed, waits_for="go", due=after(3_600_000))
                await asyncio.gather(settle(store, waits), other.signal(claimed.job.id, Signal(name="go")))
                assert await claim_ids(store) == [claimed.job.id]
