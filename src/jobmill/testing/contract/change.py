"""`change`: cancel, requeue, reschedule, reprioritize, remove and seize, without a lease (see also seize.py)."""

from __future__ import annotations

import pytest

from jobmill.core.changes import CHANGES_FROM, Cancel, Change, Remove, Reprioritize, Requeue, Reschedule, Seize
from jobmill.core.job import STATES, Job, Progress, State
from jobmill.core.values import EVERYTHING, Filter, Report, after, at
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    claim,
    claim_ids,
    claim_one,
    enqueue_one,
    fail,
    find_all,
    in_state,
    look,
    new,
    only_refused,
    put,
    put_one,
    retry,
    second,
    settle,
    started,
    state_of,
    succeed,
)

SEIZE = Seize(token="t0ken", worker="by hand", lease_ms=15_000)
CHANGES: list[Change] = [Cancel(), Requeue(), Reschedule(after(60_000)), Reprioritize(7), Remove(), SEIZE]


def kind(value: object) -> str:
    """The test id: the name of a change, or a state."""
    return value if isinstance(value, str) else type(value).__name__.lower()


class ChangeContract:
    """Every change, from every state."""

    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize("change", CHANGES, ids=kind)
    async def test_a_change_is_possible_only_from_its_states(
        self, harness: Harness, change: Change, state: State
    ) -> None:
        id = await in_state(harness.store, state)
        before = await look(harness.store, id)
        changed = await harness.store.change([id], change)
        if state in CHANGES_FROM[type(change)]:
            assert (changed.ids, changed.refused, changed.more) == ([id], {}, False)
        else:
            only_refused(changed, id)
            assert await look(harness.store, id) == before

    @pytest.mark.parametrize("state", STATES)
    @pytest.mark.parametrize("change", CHANGES, ids=kind)
    async def test_a_filter_selects_only_jobs_in_a_state_that_allows_the_change(
        self, harness: Harness, change: Change, state: State
    ) -> None:
        id = await in_state(harness.store, state)
        changed = await harness.store.change(EVERYTHING, change)
        allowed = state in CHANGES_FROM[type(change)]
        assert (changed.ids, changed.refused) == ([id] if allowed else [], {})

    @pytest.mark.parametrize("change", CHANGES, ids=kind)
    async def test_an_unknown_id_is_refused(self, harness: Harness, change: Change) -> None:
        only_refused(await harness.store.change(["never-was"], change), "never-was")

    async def test_one_refusal_does_not_affect_other_jobs(self, harness: Harness) -> None:
        final = await in_state(harness.store, "succeeded")
        a, b = await put(harness.store, new(), new())
        changed = await harness.store.change([a, final, "never-was", b], Cancel())
        assert sorted(changed.ids) == sorted([a, b])
        assert set(changed.refused) == {final, "never-was"}

    async def test_an_id_given_twice_is_changed_once(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        changed = await harness.store.change([id, id], Reprioritize(3))
        assert (changed.ids, changed.refused) == ([id], {})

    async def test_a_change_without_ids_changes_nothing(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        changed = await harness.store.change([], Cancel())
        assert (changed.ids, changed.refused, changed.more) == ([], {}, False)
        assert await state_of(harness.store, id) == "waiting"

    async def test_a_change_sets_the_time_of_the_update(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        for change in (Reprioritize(3), Reschedule(after(0)), Cancel(), Requeue(), SEIZE):
            await harness.advance(1)
            await harness.store.change([id], change)
            assert (await look(harness.store, id)).updated_ms == harness.store.now()

    # ------------------------------------------------------------------------------------------------ cancel

    @pytest.mark.parametrize("state", ["waiting", "running"])
    async def test_a_cancelled_job_is_final(self, harness: Harness, state: State) -> None:
        id = await in_state(harness.store, state)
        await harness.advance(2)
        await harness.store.change([id], Cancel())
        job = await look(harness.store, id)
        assert (job.state, job.finished_ms) == ("cancelled", harness.store.now())

    async def test_a_cancelled_running_job_is_not_claimed_after_its_lease(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.store.change([claimed.job.id], Cancel())
        await harness.advance(3_600)
        assert await claim(harness.store) == []

    async def test_a_cancelled_running_job_loses_its_lease(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.store.change([claimed.job.id], Cancel())
        assert await harness.store.extend([claimed.lease], 15_000) == [claimed.job.id]
        assert await harness.store.report([Report(lease=claimed.lease, lines=("x",))]) == [claimed.job.id]
        assert await settle(harness.store, succeed(claimed)) == ["lost"]

    # ------------------------------------------------------------------------------------------------ requeue

    async def test_a_requeued_job_waits_with_all_attempts_left(self, harness: Harness) -> None:
        await settle(harness.store, retry(await started(harness.store, new(payload=[1], priority=4)), 0))
        claimed = await claim_one(harness.store)
        await harness.store.report([Report(lease=claimed.lease, progress=Progress(60))])
        await settle(harness.store, fail(claimed))
        await harness.advance(9)
        await harness.store.change([claimed.job.id], Requeue())
        job = await look(harness.store, claimed.job.id)
        assert (job.state, job.errors, job.crashes, job.attempt) == ("waiting", 0, 0, 1)
        assert (job.error, job.result, job.progress, job.finished_ms) == (None, None, None, None)
        assert (job.due_ms, job.payload, job.priority) == (harness.store.now(), [1], 4)

    async def test_a_requeued_job_forgets_its_crashes(self, harness: Harness) -> None:
        await started(harness.store)
        await harness.advance(3_600)
        crashed = await claim_one(harness.store)
        await settle(harness.store, fail(crashed))
        assert (await look(harness.store, crashed.job.id)).crashes == 1
        await harness.store.change([crashed.job.id], Requeue())
        assert (await look(harness.store, crashed.job.id)).crashes == 0

    async def test_a_requeued_job_is_claimed_with_the_next_fence(self, harness: Harness) -> None:
        id = await in_state(harness.store, "failed")
        await harness.store.change([id], Requeue())
        # Handlers order their side effects by the fence, so it must never start again.
        assert (await claim_one(harness.store)).job.claims == 2

    async def test_a_requeued_success_has_no_result(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await settle(harness.store, succeed(claimed, "old"))
        await harness.store.change([claimed.job.id], Requeue())
        assert (await look(harness.store, claimed.job.id)).result is None

    async def test_a_requeue_can_have_a_due_time(self, harness: Harness) -> None:
        id = await in_state(harness.store, "failed")
        await harness.store.change([id], Requeue(due=after(5_000)))
        assert (await look(harness.store, id)).due_ms == harness.store.now() + 5_000
        assert await claim(harness.store) == []

    async def test_a_bulk_requeue_is_spread_by_its_step(self, harness: Harness) -> None:
        ids = [await in_state(harness.store, "failed") for _ in range(4)]
        await harness.store.change(ids, Requeue(due=after(1_000), step_ms=250))
        dues = [job.due_ms - harness.store.now() for job in await harness.store.get(ids) if job]
        assert sorted(dues) == [1_000, 1_250, 1_500, 1_750]

    async def test_a_step_can_be_a_fraction_of_a_millisecond(self, harness: Harness) -> None:
        ids = [await in_state(harness.store, "failed") for _ in range(5)]
        await harness.store.change(Filter(states=("failed",)), Requeue(step_ms=0.5))
        dues = [job.due_ms - harness.store.now() for job in await harness.store.get(ids) if job]
        assert (min(dues), max(dues)) == (0, 2)

    async def test_a_requeued_job_owns_its_unique_key_again(self, harness: Harness) -> None:
        id = await in_state(harness.store, "failed", new(key="k"))
        await harness.store.change([id], Requeue())
        assert (await enqueue_one(harness.store, new(key="k"))).id == id

    async def test_only_the_requeue_that_would_make_a_second_owner_is_refused(self, harness: Harness) -> None:
        loser = await in_state(harness.store, "failed", new(key="k"))
        free = await in_state(harness.store, "failed")
        await put_one(harness.store, new(key="k"))
        changed = await harness.store.change([loser, free], Requeue())
        assert changed.ids == [free]
        assert changed.refused[loser]
        assert await state_of(harness.store, loser) == "failed"

    async def test_of_two_requeued_jobs_with_one_key_one_is_refused(self, harness: Harness) -> None:
        ids = [await in_state(harness.store, "failed", new(key="k")) for _ in range(2)]
        changed = await harness.store.change(ids, Requeue())
        assert (len(changed.ids), len(changed.refused)) == (1, 1)
        states = sorted(job.state for job in await harness.store.get(ids) if job)
        assert states == ["failed", "waiting"]

    async def test_a_requeue_by_filter_refuses_a_second_owner_too(self, harness: Harness) -> None:
        loser = await in_state(harness.store, "failed", new(key="k"))
        await put_one(harness.store, new(key="k"))
        changed = await harness.store.change(Filter(states=("failed",)), Requeue())
        assert (changed.ids, list(changed.refused)) == ([], [loser])

    # ------------------------------------------------------------------------------------------------ the others

    async def test_a_rescheduled_job_is_due_after_its_delay(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await harness.store.change([id], Reschedule(after(5_000)))
        await harness.advance(4.999)
        assert await claim(harness.store) == []
        await harness.advance(0.001)
        assert await claim_ids(harness.store) == [id]

    async def test_a_rescheduled_job_is_due_at_its_instant(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(due=after(3_600_000)))
        await harness.store.change([id], Reschedule(at(harness.store.now() - 5)))
        assert (await look(harness.store, id)).due_ms == harness.store.now() - 5
        assert await claim_ids(harness.store) == [id]

    async def test_a_reprioritized_job_has_its_new_priority(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(due=after(1_000)))
        due_ms = (await look(harness.store, id)).due_ms
        await harness.store.change([id], Reprioritize(2_097_151))
        job = await look(harness.store, id)
        assert (job.priority, job.due_ms, job.state) == (2_097_151, due_ms, "waiting")

    async def test_a_removed_job_is_gone(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await harness.store.change([id], Remove())
        assert await harness.store.get([id]) == [None]
        assert await harness.store.count(EVERYTHING) == []

    # ------------------------------------------------------------------------------------------------ many

    async def test_a_filter_selects_all_matching_jobs_and_no_others(self, harness: Harness) -> None:
        ours = await put(harness.store, *[new(tenant="acme") for _ in range(3)])
        theirs = await put_one(harness.store, new(tenant="other"))
        changed = await harness.store.change(Filter(tenant="acme"), Cancel())
        assert sorted(changed.ids) == sorted(ours)
        assert await state_of(harness.store, theirs) == "waiting"

    async def test_a_filter_by_states_selects_no_other_states(self, harness: Harness) -> None:
        running = await in_state(harness.store, "running")
        waiting = await put_one(harness.store)
        changed = await harness.store.change(Filter(states=("waiting", "succeeded")), Cancel())
        assert changed.ids == [waiting]
        assert await state_of(harness.store, running) == "running"

    async def test_a_filter_that_matches_nothing_changes_nothing(self, harness: Harness) -> None:
        await put_one(harness.store)
        changed = await harness.store.change(Filter(queue="empty"), Remove())
        assert (changed.ids, changed.refused, changed.more) == ([], {}, False)

    async def test_a_limit_bounds_a_change_and_more_is_reported(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new() for _ in range(5)])
        seen = []
        for expected, more in ((2, True), (2, True), (1, False)):
            changed = await harness.store.change(EVERYTHING, Cancel(), 2)
            assert (len(changed.ids), changed.more) == (expected, more)
            seen += changed.ids
        assert sorted(seen) == sorted(ids)

    async def test_a_limit_that_is_just_reached_reports_no_more(self, harness: Harness) -> None:
        await put(harness.store, new(), new())
        assert (await harness.store.change(EVERYTHING, Remove(), 2)).more is False

    async def test_jobs_in_other_states_do_not_count_for_the_limit(self, harness: Harness) -> None:
        for _ in range(3):
            await in_state(harness.store, "succeeded")
        id = await put_one(harness.store)
        changed = await harness.store.change(EVERYTHING, Cancel(), 1)
        assert (changed.ids, changed.more) == ([id], False)

    async def test_a_limit_bounds_a_change_by_ids(self, harness: Harness) -> None:
        ids = await put(harness.store, new(), new(), new())
        changed = await harness.store.change(ids, Cancel(), 2)
        assert (len(changed.ids), changed.refused, changed.more) == (2, {}, True)
        assert len(await find_all(harness.store, Filter(states=("waiting",)))) == 1

    async def test_another_connection_sees_a_change(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        async with second(harness) as other:
            await harness.store.change([id], Cancel())
            assert await state_of(other, id) == "cancelled"

    async def test_a_change_does_not_affect_other_fields(self, harness: Harness) -> None:
        given = new(payload={"a": 1}, key="k", tenant="acme", priority=2, due=after(5_000))
        id = await put_one(harness.store, given)
        before = await look(harness.store, id)
        await harness.store.change([id], Cancel())
        await harness.store.change([id], Requeue(due=at(before.due_ms)))
        assert _given_fields(await look(harness.store, id)) == _given_fields(before)


def _given_fields(job: Job) -> tuple[object, ...]:
    return (job.name, job.queue, job.payload, job.unique_key, job.tenant, job.priority, job.due_ms, job.created_ms)
