"""`change` with `Seize`: a process takes a live job without a claim, and then settles it as usual."""

from __future__ import annotations

import pytest

from jobmill.core.changes import Cancel, Seize
from jobmill.core.job import FINAL, Keep, Progress, State
from jobmill.core.lifecycle import Policy, Succeeded
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Filter, QueueChange, RateLimit, Report, after
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    LEASE_MS,
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    end,
    enqueue_one,
    fail,
    find_all,
    in_state,
    look,
    new,
    next_due,
    only_refused,
    put,
    put_one,
    recovered,
    release,
    retry,
    second,
    seize,
    settle,
    started,
    state_of,
    succeed,
    wish,
)

HOUR = 3_600_000
HOURLY = Recurrence(key="hourly", every_ms=HOUR)


class SeizeContract:
    """Seized jobs."""

    async def test_a_seized_job_runs(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(payload=[1], priority=3, due=after(60_000)))
        waiting = await look(harness.store, id)
        await harness.advance(2)
        job = (await seize(harness.store, id, worker="console")).job
        assert (job.state, job.worker, job.claims) == ("running", "console", 1)
        assert job.started_ms == job.updated_ms == harness.store.now()
        assert (job.errors, job.crashes, job.attempt, job.finished_ms) == (0, 0, 1, None)
        assert (job.payload, job.priority, job.due_ms) == ([1], 3, waiting.due_ms)

    async def test_a_seized_job_cannot_be_claimed_until_its_lease_ends(self, harness: Harness) -> None:
        seized = await seize(harness.store, await put_one(harness.store))
        await harness.advance(LEASE_MS / 1_000 - 0.001)
        assert await claim(harness.store) == []
        await harness.advance(0.001)
        again = await claim_one(harness.store)
        assert (again.job.id, again.job.claims, again.job.crashes) == (seized.job.id, 2, 1)
        assert await settle(harness.store, succeed(seized)) == ["lost"]

    async def test_a_job_that_was_seized_before_it_was_due_and_lost_is_recovered_when_its_lease_ends(
        self, harness: Harness
    ) -> None:
        released, cancelled, ended = [await put_one(harness.store, new(due=after(HOUR))) for _ in range(3)]
        due_ms = (await look(harness.store, released)).due_ms
        again = await recovered(harness, await recovered(harness, await seize(harness.store, released)))
        assert await settle(harness.store, release(again)) == ["done"]
        assert (await look(harness.store, released)).due_ms == due_ms
        await recovered(harness, await seize(harness.store, cancelled))
        assert (await harness.store.change([cancelled], Cancel())).ids == [cancelled]
        assert (await look(harness.store, cancelled)).due_ms == due_ms
        again = await recovered(harness, await seize(harness.store, ended))
        assert await settle(harness.store, succeed(again)) == ["done"]
        assert (await look(harness.store, ended)).due_ms == due_ms

    async def test_a_job_that_was_seized_before_it_was_due_is_found_by_its_due_time(self, harness: Harness) -> None:
        sooner, later = await put(harness.store, new(due=after(HOUR)), new(due=after(2 * HOUR)))
        due_ms = (await look(harness.store, later)).due_ms
        for id in (sooner, later):
            await seize(harness.store, id)
        for states in (("running",), None):
            assert await find_all(harness.store, Filter(queue=QUEUE, states=states, due_after_ms=due_ms)) == [later]
            assert await find_all(harness.store, Filter(queue=QUEUE, states=states, due_before_ms=due_ms)) == [sooner]

    async def test_the_previous_worker_of_a_seized_job_has_lost_it(self, harness: Harness) -> None:
        held = await started(harness.store)
        seized = await seize(harness.store, held.job.id)
        assert (seized.job.claims, seized.job.crashes) == (2, 0)
        assert await harness.store.extend([held.lease], 60_000) == [held.job.id]
        report = Report(lease=held.lease, progress=Progress(50), lines=("late",))
        assert await harness.store.report([report]) == [held.job.id]
        assert await settle(harness.store, succeed(held, "late")) == ["lost"]
        assert await look(harness.store, held.job.id) == seized.job
        assert await harness.store.logs(held.job.id) == []

    async def test_the_new_lease_extends_reports_and_settles(self, harness: Harness) -> None:
        seized = await seize(harness.store, (await started(harness.store)).job.id, 1_000)
        assert await harness.store.extend([seized.lease], 60_000) == []
        await harness.advance(30)
        report = Report(lease=seized.lease, progress=Progress(50), lines=("on it",))
        assert await harness.store.report([report]) == []
        assert [line.text for line in await harness.store.logs(seized.job.id)] == ["on it"]
        assert await settle(harness.store, succeed(seized, "by hand")) == ["done"]
        job = await look(harness.store, seized.job.id)
        assert (job.state, job.result, job.finished_ms) == ("succeeded", "by hand", harness.store.now())
        assert await settle(harness.store, succeed(seized)) == ["lost"]

    async def test_a_seized_job_can_wait_again(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        assert await settle(harness.store, retry(await seize(harness.store, id), 1_500, "boom")) == ["done"]
        job = await look(harness.store, id)
        assert (job.state, job.errors, job.error) == ("waiting", 1, "boom")
        assert job.due_ms == harness.store.now() + 1_500
        await harness.advance(1.5)
        assert await claim_ids(harness.store) == [id]

    async def test_a_seized_job_can_fail(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        assert await settle(harness.store, fail(await seize(harness.store, id), "boom")) == ["done"]
        job = await look(harness.store, id)
        assert (job.state, job.errors, job.error) == ("failed", 1, "boom")

    async def test_an_exchange_does_not_claim_the_seized_job_that_it_settles(self, harness: Harness) -> None:
        seized = await seize(harness.store, await put_one(harness.store))
        exchanged = await harness.store.exchange([retry(seized, 0)], wish())
        assert (exchanged.settled, exchanged.claimed) == (["done"], [])
        assert await claim_ids(harness.store) == [seized.job.id]

    async def test_several_seized_jobs_are_settled_in_one_call(self, harness: Harness) -> None:
        ids = await put(harness.store, new(), new(), new(), new())
        change = Seize(token="one for all", worker="by hand", lease_ms=LEASE_MS)
        assert sorted((await harness.store.change(Filter(queue=QUEUE), change)).ids) == sorted(ids)
        seized = [await seize(harness.store, id) for id in ids]
        await harness.store.change([ids[1]], Cancel())
        answers = await settle(harness.store, *[succeed(one) for one in seized])
        assert answers == ["done", "lost", "done", "done"]

    async def test_the_last_of_two_seizes_has_the_job(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        first, last = await seize(harness.store, id), await seize(harness.store, id)
        assert await settle(harness.store, succeed(first, 1), succeed(last, 2)) == ["lost", "done"]
        assert (await look(harness.store, id)).result == 2

    async def test_seizing_a_job_of_a_dead_worker_counts_no_crash(self, harness: Harness) -> None:
        held = await started(harness.store)
        await harness.advance(3_600)
        seized = await seize(harness.store, held.job.id)
        assert (seized.job.claims, seized.job.crashes) == (2, 0)
        assert await settle(harness.store, succeed(seized)) == ["done"]

    async def test_a_job_can_be_seized_through_another_connection(self, harness: Harness) -> None:
        held = await started(harness.store)
        async with second(harness) as other:
            seized = await seize(other, held.job.id)
            assert await settle(harness.store, succeed(held)) == ["lost"]
            assert await settle(other, succeed(seized)) == ["done"]

    @pytest.mark.parametrize("state", FINAL)
    async def test_a_final_job_is_not_seized(self, harness: Harness, state: State) -> None:
        id = await in_state(harness.store, state)
        change = Seize(token="too late", worker="by hand", lease_ms=LEASE_MS)
        assert only_refused(await harness.store.change([id], change), id) == f"the job is {state}"

    # ------------------------------------------------------------------------------------------------ limits

    async def test_pause_and_limits_do_not_prevent_a_seize(self, harness: Harness) -> None:
        limits = QueueChange(paused=True, running_limit=0, rate_limit=RateLimit(1, 60_000))
        await harness.store.configure(QUEUE, limits)
        for id in await put(harness.store, new(), new(), new()):
            assert await settle(harness.store, succeed(await seize(harness.store, id))) == ["done"]

    async def test_a_seize_does_not_count_for_the_rate_limit(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(rate_limit=RateLimit(1, 60_000)))
        seized, left = await put(harness.store, new(), new())
        await seize(harness.store, seized)
        assert await claim_ids(harness.store) == [left]

    async def test_a_seized_job_counts_for_the_running_limit(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(running_limit=1))
        id, left = await put(harness.store, new(), new())
        seized = await seize(harness.store, id)
        assert await claim(harness.store) == []
        assert await next_due(harness.store) == seized.lease.until_ms
        await settle(harness.store, succeed(seized))
        assert await claim_ids(harness.store) == [left]

    # ------------------------------------------------------------------------------------------------ the rest

    async def test_a_seized_job_has_its_unique_key_until_it_is_final(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(key="k"))
        seized = await seize(harness.store, id)
        assert (await enqueue_one(harness.store, new(key="k"))).id == id
        await settle(harness.store, succeed(seized))
        assert (await enqueue_one(harness.store, new(key="k"))).created

    async def test_a_seized_recurring_job_continues(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(key="hourly", recurrence=HOURLY))
        due_ms = (await look(harness.store, id)).due_ms
        settlement = await end(harness.store, await seize(harness.store, id), Succeeded())
        assert settlement.rearm is not None
        (job,) = (await harness.store.find(Filter(unique_key="hourly", states=("waiting",)))).jobs
        assert (job.due_ms, job.runs, job.failed_runs) == (due_ms + HOUR, 1, 0)
        assert job.recurrence is not None

    async def test_an_update_while_a_recurring_job_is_seized_is_kept(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(key="hourly", recurrence=HOURLY))
        seized = await seize(harness.store, id)
        daily = Recurrence(key="hourly", every_ms=24 * HOUR)
        assert (
            await enqueue_one(harness.store, new(key="hourly", recurrence=daily, due=after(7_000)))
        ).status == "updated"
        await end(harness.store, seized, Succeeded())
        (job,) = (await harness.store.find(Filter(unique_key="hourly", states=("waiting",)))).jobs
        assert job.due_ms == harness.store.now() + 7_000
        assert job.recurrence is not None
        assert job.recurrence.every_ms == 24 * HOUR

    async def test_a_seized_job_is_kept_as_its_settlement_says(self, harness: Harness) -> None:
        briefly, never = await put(harness.store, new(), new())
        rules = Policy(keep_succeeded=Keep(age_ms=5_000))
        await end(harness.store, await seize(harness.store, briefly), Succeeded(), rules)
        await end(harness.store, await seize(harness.store, never), Succeeded(), Policy(keep_succeeded=Keep(last=0)))
        assert (await state_of(harness.store, briefly), await state_of(harness.store, never)) == ("succeeded", None)
        await harness.advance(5)
        assert (await harness.store.purge()).removed == 1
        assert await state_of(harness.store, briefly) is None

    async def test_a_seize_is_a_claimed_event(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(feed=True))
        id = await put_one(harness.store)
        await settle(harness.store, retry(await claim_one(harness.store), 0))
        await claim_one(harness.store)
        await harness.advance(LEASE_MS / 1_000)
        before = (await harness.store.events(QUEUE))[-1].id
        await settle(harness.store, succeed(await seize(harness.store, id, worker="console")))
        claimed, succeeded = await harness.store.events(QUEUE, before)
        assert (claimed.type, claimed.job_id, claimed.name, claimed.attempt) == ("claimed", id, "send", 2)
        assert (claimed.data, claimed.at_ms) == ({"worker": "console"}, harness.store.now())
        assert (succeeded.type, succeeded.job_id) == ("succeeded", id)
