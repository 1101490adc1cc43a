"""`change` on jobs that wait for others, or that others wait for."""

from __future__ import annotations

import asyncio

import msgspec

from jobmill.core.changes import Cancel, Hold, Release, Remove, Reprioritize, Requeue, Reschedule
from jobmill.core.due import Held
from jobmill.core.job import JobOptions
from jobmill.core.lifecycle import Policy
from jobmill.core.values import NOW, Depth, Filter, FlowCount, after, at
from jobmill.testing.contract.flows import GONE, chain, edges, run, waits
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    fail,
    find_all,
    look,
    new,
    only_refused,
    put,
    second,
    seize,
    settle,
    snooze,
    state_of,
    succeed,
)


class FlowChangeContract:
    """change, on jobs that wait for others or that others wait for."""

    async def test_a_requeued_dependency_is_waited_for_again(self, harness: Harness) -> None:
        store = harness.store
        await put(store, new("a"), new("b"), waits("then", "a", "b", if_failed="run"))
        claimed = {one.job.id: one for one in await claim(store)}
        await settle(store, fail(claimed["a"], "no luck"))
        assert await edges(store, "then") == [("a", "failed"), ("b", "pending")]
        assert (await store.change(["a"], Requeue())).ids == ["a"]
        assert await edges(store, "then") == [("a", "pending"), ("b", "pending")]
        await settle(store, succeed(claimed["b"]))
        await run(store, "a", 1)
        assert await claim_ids(store) == ["then"]

    async def test_a_job_that_must_fail_is_saved_if_its_dependency_is_requeued(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        await settle(store, fail(await claim_one(store), "no luck"))
        assert (await look(store, "then")).deferred_error is not None
        assert (await store.change(["first"], Requeue())).ids == ["first"]
        job = await look(store, "then")
        assert (job.deferred_error, job.held is not None) == (None, True)
        await run(store, "first", 2)
        then = await claim_one(store)
        assert (then.job.id, then.job.deferred_error) == ("then", None)

    async def test_a_requeue_after_the_dependent_has_started_changes_nothing(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        await run(store, "first", 1)
        then = await claim_one(store)
        assert (await store.change(["first"], Requeue())).ids == ["first"]
        assert await edges(store, "then") == [("first", "succeeded")]
        # A store that keeps the result with the dependent still has the old one.
        assert [edge.result_json for edge in await store.dependencies("then")] in ([None], [msgspec.Raw(b"1")])
        assert await settle(store, succeed(then)) == ["done"]
        await run(store, "first", 2)
        assert await state_of(store, "then") == "succeeded"

    async def test_a_job_whose_dependency_failed_cannot_be_requeued(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        await settle(store, fail(await claim_one(store), "no luck"))
        await settle(store, fail(await claim_one(store), "because"))
        refusal = only_refused(await store.change(["then"], Requeue()), "then")
        assert refusal == "its dependency first failed: requeue that job first, or retry the flow"
        assert (await store.change(["first"], Requeue())).ids == ["first"]
        assert (await store.change(["then"], Requeue())).ids == ["then"]
        job = await look(store, "then")
        assert (job.state, job.held and job.held.by, job.error) == ("waiting", ("jobs",), None)
        assert await edges(store, "then") == [("first", "pending")]
        await run(store, "first", 5)
        then = await claim_one(store)
        assert (then.job.id, then.job.deferred_error) == ("then", None)

    async def test_a_job_is_requeued_together_with_its_dependency(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        await store.change(["first", "then"], Cancel())
        assert (await store.change(["first", "then"], Requeue())).ids == ["first", "then"]
        assert (await look(store, "then")).held is not None
        await run(store, "first", 1)
        assert await claim_ids(store) == ["then"]

    async def test_a_requeued_job_runs_if_its_dependencies_have_succeeded(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        await run(store, "first", 1)
        await settle(store, fail(await claim_one(store), "own fault"))
        assert (await store.change(["then"], Requeue())).ids == ["then"]
        assert (await claim_one(store)).job.id == "then"

    async def test_a_cancelled_dependent_does_not_run(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        assert (await store.change(["then"], Cancel())).ids == ["then"]
        await run(store, "first", 1)
        assert await claim(store) == []
        job = await look(store, "then")
        assert (job.state, job.held) == ("cancelled", None)
        assert (await store.change(["then"], Requeue())).ids == ["then"]
        assert await claim_ids(store) == ["then"]

    async def test_a_cancelled_dependent_is_requeued_before_its_dependency_ends(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        await store.change(["then"], Cancel())
        assert (await store.change(["then"], Requeue(after(5_000)))).ids == ["then"]
        held = (await look(store, "then")).held
        assert held == Held(by=("jobs",), due=at(store.now() + 5_000))
        await run(store, "first", 1)
        assert await claim(store) == []
        await harness.advance(5)
        assert await claim_ids(store) == ["then"]

    async def test_a_requeue_meets_a_settlement(self, harness: Harness) -> None:
        store = harness.store
        async with second(harness) as other:
            for number in range(15):
                first, then = f"first-{number}", f"then-{number}"
                await put(store, new(first), waits(then, first))
                await store.change([then], Cancel())
                claimed = await claim_one(store)
                await asyncio.gather(settle(store, succeed(claimed)), other.change([then], Requeue()))
                assert await claim_ids(store) == [then]

    async def test_a_removed_dependent_frees_its_dependency(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        assert (await store.change(["then"], Remove())).ids == ["then"]
        assert await store.dependents("first") == []
        claimed = await claim_one(store)
        assert await settle(store, succeed(claimed, 1, Policy(keep_succeeded=GONE))) == ["done"]
        await store.purge()
        assert await state_of(store, "first") is None

    async def test_a_final_dependency_that_is_removed_keeps_its_edge(self, harness: Harness) -> None:
        store = harness.store
        await put(store, new("first"), new("other"), waits("then", "first", "other"))
        claimed = {one.job.id: one for one in await claim(store)}
        await settle(store, succeed(claimed["first"], 1))
        assert (await store.change(["first"], Remove())).ids == ["first"]
        assert await state_of(store, "first") is None
        await settle(store, succeed(claimed["other"], 2))
        assert await claim_ids(store) == ["then"]
        assert await edges(store, "then") == [("first", "succeeded"), ("other", "succeeded")]
        gone, there = await store.dependencies("then")
        assert gone.result_json in (None, msgspec.Raw(b"1")), "a store may keep the result with the dependent"
        assert there.result_json == msgspec.Raw(b"2")

    async def test_a_person_holds_it_as_well(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        assert (await store.change(["then"], Hold(who="ada"))).ids == ["then"]
        await run(store, "first")
        held = (await look(store, "then")).held
        assert held is not None
        assert (held.by, held.who) == (("person",), "ada")
        assert await claim(store) == []
        assert (await store.change(["then"], Release())).ids == ["then"]
        assert await claim_ids(store) == ["then"]

    async def test_a_person_holds_a_job_that_must_fail(self, harness: Harness) -> None:
        store = harness.store
        await put(store, new("bad"), new("good"), waits("then", "bad", "good"))
        assert (await store.change(["then"], Hold(who="ada"))).ids == ["then"]
        claimed = {one.job.id: one for one in await claim(store)}
        await settle(store, fail(claimed["bad"], "no luck"))
        job = await look(store, "then")
        assert (job.held and job.held.by, job.deferred_error) == (("person",), "dependency bad failed: no luck")
        assert await claim(store) == []
        assert (await store.change(["then"], Release())).ids == ["then"]
        assert (await claim_one(store)).job.deferred_error == "dependency bad failed: no luck"

    async def test_a_person_cannot_release_it(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        assert "held by jobs" in only_refused(await store.change(["then"], Release()), "then")
        await store.change(["then"], Hold(who="ada"))
        assert (await store.change(["then"], Release())).ids == ["then"]
        assert await claim_ids(store) == ["first"]
        held = (await look(store, "then")).held
        assert held is not None
        assert held.by == ("jobs",)

    async def test_a_job_that_waits_can_be_rescheduled_and_reprioritized(self, harness: Harness) -> None:
        store = harness.store
        await put(store, new("first"), waits("then", "first", priority=1), waits("urgent", "first", priority=5))
        assert (await store.change(["then"], Reschedule(after(5_000)))).ids == ["then"]
        assert (await store.change(["urgent"], Reprioritize(0))).ids == ["urgent"]
        await run(store, "first")
        assert await claim_ids(store) == ["urgent"]
        await harness.advance(5)
        assert await claim_ids(store) == ["then"]

    async def test_a_dependency_of_a_seized_job_ends(self, harness: Harness) -> None:
        """The seized job runs: what it waited for changes nothing, and other jobs of the call are released."""
        store = harness.store
        await put(store, new("a"), new("b"), waits("seized", "a"), waits("free", "b"))
        one, two = await claim(store)
        claimed = await seize(store, "seized")
        before = await look(store, "seized")
        await harness.advance(1)
        await settle(store, succeed(one), succeed(two))
        assert await look(store, "seized") == before
        assert await claim_ids(store) == ["free"]
        assert await settle(store, succeed(claimed)) == ["done"]

    async def test_a_seized_job_that_waits_again_is_held_again(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        claimed = await seize(store, "then")
        assert await settle(store, snooze(claimed, 0)) == ["done"]
        assert await claim_ids(store) == ["first"]
        held = (await look(store, "then")).held
        assert held is not None
        assert held.by == ("jobs",)

    async def test_a_seized_job_that_ends_does_not_wait_any_more(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        claimed = await seize(store, "then")
        assert await settle(store, succeed(claimed, 1)) == ["done"]
        await run(store, "first", 2)
        job = await look(store, "then")
        assert (job.state, job.result) == ("succeeded", 1)
        assert await claim(store) == []

    async def test_a_cancelled_job_that_would_be_removed_stays_for_its_dependents(self, harness: Harness) -> None:
        store = harness.store
        await put(store, new("first", options=JobOptions(keep_failed=GONE)), waits("then", "first", if_failed="run"))
        assert (await store.change(["first"], Cancel())).ids == ["first"]
        assert await state_of(store, "first") == "cancelled"
        assert await claim_ids(store) == ["then"]

    # ------------------------------------------------------------------------------------------------ reading

    async def test_jobs_of_a_flow_are_found(self, harness: Harness) -> None:
        store = harness.store
        await put(store, waits("a", flow="f"), waits("b", "a", flow="f", queue="other"), new("c"), waits("d", flow="g"))
        assert sorted(await find_all(store, Filter(flow="f"), 1)) == ["a", "b"]
        counts = await store.count(Filter(flow="f"))
        assert sorted((one.queue, one.state, one.count) for one in counts) == [
            (QUEUE, "waiting", 1),
            ("other", "waiting", 1),
        ]
        claimed = {one.job.id: one for one in await claim(store)}
        await settle(store, succeed(claimed["a"]))
        assert await find_all(store, Filter(flow="f", states=("succeeded",))) == ["a"]
        assert (await store.change(Filter(flow="f"), Cancel())).ids == ["b"]
        assert (await store.count_up_to(Filter(flow="f", states=("cancelled", "succeeded")), 10)).count == 2
        assert await find_all(store, Filter(flow="none")) == []

    async def test_flows_are_listed(self, harness: Harness) -> None:
        store = harness.store
        assert await store.flows() == []
        names = [f"flow-{number}" for number in range(7)]
        await put(store, *[waits(flow=name, queue=queue) for name in names for queue in (QUEUE, "other")], new())
        assert await store.flows() == names[::-1]
        assert await store.flows(limit=3) == ["flow-6", "flow-5", "flow-4"]
        assert await store.flows("flow-4", 2) == ["flow-3", "flow-2"]
        assert await store.flows("flow-0") == []
        await store.change(Filter(flow="flow-5"), Remove())
        assert await store.flows(limit=3) == ["flow-6", "flow-4", "flow-3"]

    async def test_jobs_of_flows_are_counted_by_state(self, harness: Harness) -> None:
        store = harness.store
        await put(store, waits("a", flow="f"), waits("b", "a", flow="f", queue="other"), waits("c", flow="g"), new("d"))
        claimed = {one.job.id: one for one in await claim(store)}
        await settle(store, succeed(claimed["a"]), fail(claimed["d"]))
        assert await store.flow_counts(["f", "none", "g"]) == {
            "f": FlowCount({"succeeded": 1, "waiting": 1}, True),
            "g": FlowCount({"running": 1}, True),
            "none": FlowCount({}, True),
        }
        assert await store.flow_counts([]) == {}
        assert (await store.change(["b"], Cancel())).ids == ["b"]
        counts = (await store.flow_counts(["f"]))["f"]
        assert counts == FlowCount({"succeeded": 1, "cancelled": 1}, True)

    async def test_a_large_flow_is_counted_up_to_a_limit(self, harness: Harness) -> None:
        store = harness.store
        await put(store, *[waits(flow="f", queue=queue) for _ in range(3) for queue in (QUEUE, "other")])
        assert await store.flow_counts(["f"], 7) == {"f": FlowCount({"waiting": 6}, True)}
        counted = (await store.flow_counts(["f"], 4))["f"]
        assert (counted.exact, counted.states["waiting"]) == (False, 4)

    async def test_edges_between_jobs_are_read_at_once(self, harness: Harness) -> None:
        store = harness.store
        await put(store, new("outside"))
        jobs = [waits("b", "a", "outside", flow="f"), waits("c", "a", "b", flow="f", queue="other"), new("d")]
        await put(store, waits("a", flow="f"), *jobs)
        assert await store.edges(["a", "b", "c", "d", "nobody"]) == {("b", "a"), ("c", "a"), ("c", "b")}
        assert await store.edges(["c", "a"]) == {("c", "a")}
        assert await store.edges(["d"]) == await store.edges([]) == set()
        # An edge stays after its dependency has ended.
        claimed = {one.job.id: one for one in await claim(store)}
        await settle(store, succeed(claimed["outside"]), succeed(claimed["a"]))
        assert await store.edges(["a", "b"]) == {("b", "a")}

    async def test_jobs_that_wait_are_counted_as_held(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        expected = Depth(queue=QUEUE, due=1, held=1, oldest_due_ms=store.now())
        assert await store.depths([QUEUE]) == [expected]
        assert await find_all(store, Filter(held=True)) == ["then"]

    async def test_jobs_without_edges(self, harness: Harness) -> None:
        assert await harness.store.dependencies("nobody") == []
        assert await harness.store.dependents("nobody") == []
        assert await harness.store.flush_outbox() == 0
        await put(harness.store, waits("alone", flow="f"))
        job = await look(harness.store, "alone")
        assert (job.held, job.dependencies, job.flow) == (None, 0, "f")
        assert job.due_ms == harness.store.now() + NOW.after_ms
