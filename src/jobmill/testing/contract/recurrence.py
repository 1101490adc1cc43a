"""Recurring jobs: one live job per key at any time, re-armed by the settlement of each run."""

from __future__ import annotations

import pytest
from msgspec import structs

from jobmill.core.changes import Cancel, Remove, Requeue
from jobmill.core.job import DAY_MS, LIVE, Job, JobOptions, Keep
from jobmill.core.lifecycle import DEFAULT_POLICY, Errored, Outcome, Policy, Released, Snoozed, Succeeded
from jobmill.core.lifecycle import settle as decide
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Claimed, Due, Filter, NewJob, after, at
from jobmill.store import Store
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    LEASE_MS,
    claim,
    claim_one,
    end,
    enqueue_one,
    find_all,
    look,
    new,
    put_one,
    settle,
    started,
    state_of,
    wish,
)

KEY = "every-minute"
MINUTE_MS = 60_000
MINUTELY = Recurrence(key=KEY, every_ms=MINUTE_MS)
DECLARED = structs.replace(MINUTELY, declared=True)


def recurring(
    payload: object = None, *, recurrence: Recurrence = MINUTELY, due: Due | None = None, queue: str = "mail"
) -> NewJob:
    """A job that recurs every minute; its key is its unique key."""
    due = after(0) if due is None else due
    return new(payload=payload, key=recurrence.key, recurrence=recurrence, due=due, queue=queue)


async def the_live_one(store: Store) -> Job:
    """The one live job with the key."""
    page = await store.find(Filter(unique_key=KEY, states=LIVE))
    assert page.next is None
    assert len(page.jobs) == 1, "exactly one live job has the key"
    return page.jobs[0]


async def run(store: Store, outcome: Outcome | None = None) -> Claimed:
    """Claim the one job and settle it as a worker would."""
    claimed = await claim_one(store)
    await end(store, claimed, Succeeded() if outcome is None else outcome)
    return claimed


class RecurrenceContract:
    """Recurring jobs."""

    async def test_a_recurring_job_is_created_like_any_other(self, harness: Harness) -> None:
        rule = Recurrence(key=KEY, cron="0 9 * * mon", timezone="Europe/Berlin", until_ms=harness.store.now() + 10**12)
        due = harness.store.now() + 5_000
        receipt = await enqueue_one(harness.store, recurring({"a": 1}, recurrence=rule, due=at(due)))
        assert receipt.status == "created"
        job = await look(harness.store, receipt.id)
        assert (job.recurrence, job.due_ms, job.occurrence_ms, job.unique_key) == (rule, due, due, KEY)

    async def test_a_recurring_job_is_not_claimed_before_its_occurrence(self, harness: Harness) -> None:
        await put_one(harness.store, recurring(due=after(1_000)))
        await harness.advance(0.999)
        assert await claim(harness.store) == []

    # ------------------------------------------------------------------------------------------------ re-arming

    async def test_a_succeeded_run_leaves_one_live_job_for_the_next_occurrence(self, harness: Harness) -> None:
        start = harness.store.now()
        await put_one(harness.store, recurring([1]))
        await harness.advance(7)
        await run(harness.store, Succeeded(b'"good"'))
        job = await the_live_one(harness.store)
        assert (job.state, job.due_ms, job.occurrence_ms) == ("waiting", start + MINUTE_MS, start + MINUTE_MS)
        assert (job.payload, job.recurrence, job.queue, job.name) == ([1], MINUTELY, "mail", "send")

    async def test_a_rearmed_job_is_claimed_at_its_occurrence(self, harness: Harness) -> None:
        await put_one(harness.store, recurring())
        await run(harness.store)
        await harness.advance(59.999)
        assert await claim(harness.store) == []
        await harness.advance(0.001)
        assert (await claim_one(harness.store)).job.state == "running"

    async def test_runs_are_counted(self, harness: Harness) -> None:
        await put_one(harness.store, recurring())
        for number in range(1, 4):
            await run(harness.store)
            job = await the_live_one(harness.store)
            assert (job.runs, job.failed_runs, job.last_error) == (number, 0, None)
            assert job.last_finished_ms == harness.store.now()
            await harness.advance(60)

    async def test_a_failed_run_continues_with_the_next_occurrence(self, harness: Harness) -> None:
        start = harness.store.now()
        await put_one(harness.store, recurring())
        await run(harness.store, Errored(error="boom", final=True))
        job = await the_live_one(harness.store)
        assert (job.state, job.due_ms, job.errors, job.attempt) == ("waiting", start + MINUTE_MS, 0, 1)
        assert (job.runs, job.failed_runs, job.last_error) == (1, 1, "boom")
        assert job.last_finished_ms == harness.store.now()

    async def test_the_last_error_stays_after_a_succeeded_run(self, harness: Harness) -> None:
        await put_one(harness.store, recurring())
        await run(harness.store, Errored(error="boom", final=True))
        await harness.advance(60)
        await run(harness.store)
        job = await the_live_one(harness.store)
        assert (job.runs, job.failed_runs, job.last_error, job.error) == (2, 1, "boom", None)

    async def test_a_retry_keeps_the_occurrence_and_counts_no_run(self, harness: Harness) -> None:
        start = harness.store.now()
        await put_one(harness.store, recurring())
        await run(harness.store, Errored(error="boom", delay_ms=2_000))
        job = await the_live_one(harness.store)
        assert (job.state, job.due_ms, job.occurrence_ms) == ("waiting", start + 2_000, start)
        assert (job.errors, job.runs, job.failed_runs, job.last_finished_ms) == (1, 0, 0, None)

    async def test_a_retry_after_the_next_occurrence_is_replaced_by_it(self, harness: Harness) -> None:
        start = harness.store.now()
        await put_one(harness.store, recurring())
        await run(harness.store, Errored(error="boom", delay_ms=2 * MINUTE_MS))
        job = await the_live_one(harness.store)
        assert (job.due_ms, job.runs, job.failed_runs) == (start + MINUTE_MS, 1, 1)

    async def test_missed_occurrences_run_once(self, harness: Harness) -> None:
        start = harness.store.now()
        await put_one(harness.store, recurring())
        await harness.advance(10 * 60 + 1)
        await run(harness.store)
        assert (await the_live_one(harness.store)).due_ms == start + 11 * MINUTE_MS
        assert await claim(harness.store) == []

    async def test_a_snoozed_and_a_released_run_keep_occurrence_and_counts(self, harness: Harness) -> None:
        start = harness.store.now()
        await put_one(harness.store, recurring())
        await run(harness.store, Released())
        await run(harness.store, Snoozed(3_000))
        job = await the_live_one(harness.store)
        assert (job.due_ms, job.occurrence_ms, job.runs) == (start + 3_000, start, 0)

    async def test_the_last_occurrence_ends_the_job(self, harness: Harness) -> None:
        rule = Recurrence(key=KEY, every_ms=MINUTE_MS, until_ms=harness.store.now() + MINUTE_MS)
        await put_one(harness.store, recurring(recurrence=rule))
        await run(harness.store)
        await harness.advance(60)
        claimed = await run(harness.store)
        job = await look(harness.store, claimed.job.id)
        assert (job.state, job.runs) == ("succeeded", 2)
        assert (await enqueue_one(harness.store, recurring())).status == "created"

    async def test_a_rearmed_job_loses_its_lease(self, harness: Harness) -> None:
        await put_one(harness.store, recurring())
        claimed = await run(harness.store)
        assert await harness.store.extend([claimed.lease], LEASE_MS) == [claimed.job.id]
        settlement = decide(claimed, Succeeded(), DEFAULT_POLICY, harness.store.now())
        assert await settle(harness.store, settlement) == ["lost"]
        assert (await the_live_one(harness.store)).runs == 1

    async def test_a_rearm_under_a_lost_lease_changes_nothing(self, harness: Harness) -> None:
        late = await started(harness.store, recurring())
        await harness.advance(LEASE_MS / 1_000)
        claimed = await claim_one(harness.store)
        settlement = decide(late, Succeeded(), DEFAULT_POLICY, harness.store.now())
        assert await settle(harness.store, settlement) == ["lost"]
        job = await the_live_one(harness.store)
        assert (job.state, job.runs, job.due_ms) == ("running", 0, claimed.job.due_ms)

    async def test_a_recurring_job_that_keeps_nothing_continues(self, harness: Harness) -> None:
        said = new(key=KEY, recurrence=MINUTELY, options=JobOptions(keep_succeeded=Keep(last=0)))
        await put_one(harness.store, said)
        await run(harness.store)
        assert (await the_live_one(harness.store)).state == "waiting"

    # ------------------------------------------------------------------------------------------------ updating

    async def test_enqueueing_a_live_key_updates_it(self, harness: Harness) -> None:
        id = await put_one(harness.store, recurring("old"))
        await harness.advance(1)
        hourly = Recurrence(key=KEY, every_ms=3_600_000)
        due = harness.store.now() + 5_000
        receipt = await enqueue_one(harness.store, recurring("new", recurrence=hourly, due=at(due)))
        assert (receipt.status, receipt.id) == ("updated", id)
        job = await the_live_one(harness.store)
        assert (job.id, job.payload, job.due_ms, job.occurrence_ms) == (id, "new", due, due)
        assert job.recurrence == Recurrence(key=KEY, every_ms=3_600_000, revision=1)
        assert job.updated_ms == harness.store.now()

    async def test_an_update_can_change_the_size_of_the_payload(self, harness: Harness) -> None:
        await put_one(harness.store, recurring("small"))
        for payload in ("x" * 1_000_000, "small again", "y" * 1_000_000):
            await harness.store.enqueue([recurring(payload)])
            assert (await the_live_one(harness.store)).payload == payload
        assert (await claim_one(harness.store)).job.payload == "y" * 1_000_000

    async def test_each_update_increments_the_revision(self, harness: Harness) -> None:
        await put_one(harness.store, recurring())
        for number in (1, 2, 3):
            await harness.store.enqueue([recurring()])
            rule = (await the_live_one(harness.store)).recurrence
            assert rule is not None
            assert rule.revision == number

    async def test_an_update_within_one_call_counts_as_one(self, harness: Harness) -> None:
        receipts = await harness.store.enqueue([recurring("first"), recurring("second")])
        assert [receipt.status for receipt in receipts] == ["created", "updated"]
        assert receipts[0].id == receipts[1].id
        assert (await the_live_one(harness.store)).payload == "second"

    async def test_an_updated_job_is_claimed_at_its_new_due_time(self, harness: Harness) -> None:
        await put_one(harness.store, recurring(due=after(60_000)))
        await harness.store.enqueue([recurring(due=after(1_000))])
        await harness.advance(1)
        assert len(await claim(harness.store)) == 1

    async def test_a_running_job_can_be_updated_and_keeps_running(self, harness: Harness) -> None:
        claimed = await started(harness.store, recurring("old"))
        receipt = await enqueue_one(harness.store, recurring("new", due=after(5_000)))
        assert (receipt.status, receipt.id) == ("updated", claimed.job.id)
        job = await the_live_one(harness.store)
        assert (job.state, job.payload) == ("running", "new")
        assert await harness.store.extend([claimed.lease], LEASE_MS) == []

    async def test_a_rearm_decided_before_an_update_keeps_the_update(self, harness: Harness) -> None:
        claimed = await started(harness.store, recurring("old"))
        hourly = Recurrence(key=KEY, every_ms=3_600_000)
        due = harness.store.now() + 12_345
        await harness.store.enqueue([recurring("new", recurrence=hourly, due=at(due))])
        await end(harness.store, claimed, Succeeded())
        job = await the_live_one(harness.store)
        assert (job.state, job.payload, job.due_ms, job.occurrence_ms) == ("waiting", "new", due, due)
        assert job.recurrence == Recurrence(key=KEY, every_ms=3_600_000, revision=1)

    async def test_enqueueing_the_same_rule_again_keeps_the_due_time(self, harness: Harness) -> None:
        before = await look(harness.store, await put_one(harness.store, recurring("old", due=after(5_000))))
        await harness.advance(2)
        again = structs.replace(recurring("new", due=after(60_000)), keeps_due=True)
        assert (await enqueue_one(harness.store, again)).status == "updated"
        job = await the_live_one(harness.store)
        assert (job.due_ms, job.occurrence_ms, job.payload) == (before.due_ms, before.occurrence_ms, "new")
        assert job.recurrence == before.recurrence

    async def test_enqueueing_another_rule_changes_the_due_time(self, harness: Harness) -> None:
        await put_one(harness.store, recurring(due=after(5_000)))
        hourly = Recurrence(key=KEY, every_ms=3_600_000)
        await harness.store.enqueue([structs.replace(recurring(recurrence=hourly, due=at(777_000)), keeps_due=True)])
        assert (await the_live_one(harness.store)).due_ms == 777_000

    async def test_an_update_during_the_last_run_continues_the_recurrence(self, harness: Harness) -> None:
        now_ms = harness.store.now()
        claimed = await started(
            harness.store, recurring(recurrence=Recurrence(key=KEY, every_ms=1_000, until_ms=now_ms))
        )
        due = now_ms + 12_345
        await harness.store.enqueue([recurring("new", due=at(due))])
        # The settlement was decided by the old rule, which has no next occurrence.
        gone_at_once = Policy(keep_succeeded=Keep(last=0))
        decided = await end(harness.store, claimed, Succeeded(), gone_at_once)
        assert decided.state == "succeeded"
        job = await the_live_one(harness.store)
        assert (job.state, job.payload, job.due_ms, job.occurrence_ms, job.runs) == ("waiting", "new", due, due, 1)

    async def test_the_call_that_settles_the_last_run_does_not_claim_the_job_that_an_update_continues(
        self, harness: Harness
    ) -> None:
        ends_now = Recurrence(key=KEY, every_ms=1_000, until_ms=harness.store.now())
        claimed = await started(harness.store, recurring(recurrence=ends_now))
        await harness.advance(1)
        await harness.store.enqueue([recurring("new")])
        decided = decide(claimed, Succeeded(), DEFAULT_POLICY, harness.store.now())
        assert decided.state == "succeeded"
        exchanged = await harness.store.exchange([decided], wish())
        assert (exchanged.settled, exchanged.claimed) == (["done"], [])
        assert (await claim_one(harness.store)).job.payload == "new"

    async def test_a_run_with_an_update_meanwhile_is_counted(self, harness: Harness) -> None:
        claimed = await started(harness.store, recurring())
        await harness.store.enqueue([recurring(due=after(5_000))])
        await end(harness.store, claimed, Errored(error="boom", final=True))
        job = await the_live_one(harness.store)
        assert (job.runs, job.failed_runs, job.last_error) == (1, 1, "boom")

    async def test_the_run_after_an_update_rearms_by_the_new_rule(self, harness: Harness) -> None:
        await put_one(harness.store, recurring())
        await harness.store.enqueue([recurring(recurrence=Recurrence(key=KEY, every_ms=3_600_000))])
        start = harness.store.now()
        await run(harness.store)
        assert (await the_live_one(harness.store)).due_ms == start + 3_600_000

    async def test_an_update_keeps_the_counts_of_runs(self, harness: Harness) -> None:
        await put_one(harness.store, recurring())
        await run(harness.store, Errored(error="boom", final=True))
        await harness.store.enqueue([recurring("new")])
        job = await the_live_one(harness.store)
        assert (job.runs, job.failed_runs, job.last_error) == (1, 1, "boom")

    async def test_a_recurrence_counts_within_its_queue(self, harness: Harness) -> None:
        await put_one(harness.store, recurring(queue="a"))
        assert (await enqueue_one(harness.store, recurring(queue="b"))).status == "created"

    async def test_a_plain_job_with_the_key_of_a_recurring_one_is_a_duplicate(self, harness: Harness) -> None:
        id = await put_one(harness.store, recurring("recurring"))
        receipt = await enqueue_one(harness.store, new(key=KEY, payload="plain"))
        assert (receipt.status, receipt.id) == ("duplicate", id)
        job = await the_live_one(harness.store)
        assert (job.payload, job.recurrence) == ("recurring", MINUTELY)

    async def test_a_recurring_job_with_the_key_of_a_plain_one_is_a_duplicate(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(key=KEY, payload="plain"))
        receipt = await enqueue_one(harness.store, recurring("recurring"))
        assert (receipt.status, receipt.id) == ("duplicate", id)
        job = await the_live_one(harness.store)
        assert (job.payload, job.recurrence) == ("plain", None)

    # ------------------------------------------------------------------------------------------------ declared

    async def test_declared_recurrences_are_found(self, harness: Harness) -> None:
        declared = [structs.replace(DECLARED, key=key) for key in ("a", "b", "c")]
        ids = [await put_one(harness.store, recurring(recurrence=rule, queue=rule.key)) for rule in declared]
        await put_one(harness.store, recurring())
        await put_one(harness.store, recurring(recurrence=Recurrence(key='"declared":true', every_ms=1_000)))
        await put_one(harness.store)
        wanted = Filter(declared=True, states=LIVE)
        assert sorted(await find_all(harness.store, wanted, limit=2)) == sorted(ids)
        assert [job.recurrence for job in (await harness.store.find(structs.replace(wanted, queue="b"))).jobs] == [
            declared[1]
        ]
        assert [one.queue for one in await harness.store.count(Filter(declared=True))] == ["a", "b", "c"]
        await harness.store.change([ids[0]], Cancel())
        assert sorted(await find_all(harness.store, wanted)) == sorted(ids[1:])

    async def test_a_declared_recurrence_stays_declared_from_run_to_run(self, harness: Harness) -> None:
        await put_one(harness.store, recurring(recurrence=DECLARED))
        claimed = await run(harness.store)
        assert claimed.job.recurrence == DECLARED
        (job,) = (await harness.store.find(Filter(declared=True, states=LIVE))).jobs
        assert (job.recurrence, job.state, job.runs) == (DECLARED, "waiting", 1)

    @pytest.mark.parametrize("is_running", [False, True], ids=["waiting", "running"])
    async def test_the_same_rule_is_declared_and_declared_no_longer(self, harness: Harness, is_running: bool) -> None:
        start = harness.store.now()
        await put_one(harness.store, recurring())
        claimed = await claim_one(harness.store) if is_running else None
        await harness.advance(5)
        for rule in (DECLARED, MINUTELY, DECLARED):
            stated = structs.replace(recurring("new", recurrence=rule), keeps_due=True)
            assert (await enqueue_one(harness.store, stated)).status == "updated"
            job = await the_live_one(harness.store)
            assert (job.recurrence, job.payload) == (rule, "new")
            assert (job.due_ms, job.occurrence_ms) == (start, start), "the job keeps its due time"
            found = await find_all(harness.store, Filter(declared=True, states=LIVE))
            assert found == ([job.id] if rule.declared else [])
        claimed = claimed or await claim_one(harness.store)
        await end(harness.store, claimed, Succeeded())
        job = await the_live_one(harness.store)
        assert (job.recurrence, job.due_ms) == (DECLARED, start + MINUTE_MS)

    async def test_another_rule_takes_its_mark_along(self, harness: Harness) -> None:
        await put_one(harness.store, recurring(recurrence=DECLARED))
        for number, declared in enumerate((False, True), 1):
            rule = Recurrence(key=KEY, cron=f"{number} 9 * * mon", declared=declared)
            await harness.store.enqueue([recurring(recurrence=rule, due=after(1_000))])
            job = await the_live_one(harness.store)
            assert job.recurrence == structs.replace(rule, revision=number)

    # ------------------------------------------------------------------------------------------------ statistics

    async def test_each_run_counts_in_the_statistics(self, harness: Harness) -> None:
        await put_one(harness.store, recurring())
        for seconds, outcome in (2, Succeeded()), (4, Succeeded()), (9, Errored(error="boom", final=True)):
            claimed = await claim_one(harness.store)
            await harness.advance(seconds)
            await end(harness.store, claimed, outcome)
            await harness.advance(60 - seconds)
        (line,) = await harness.store.stats()
        assert (line.queue, line.name, line.waiting, line.succeeded, line.failed) == ("mail", "send", 1, 2, 1)
        assert (line.average_ms, line.p50_ms, line.p99_ms) == (3_000, 2_000, 4_000)
        assert await harness.store.stats("mail", "other") == await harness.store.stats("other", "send") == []

    async def test_runs_and_plain_jobs_of_one_name_count_together(self, harness: Harness) -> None:
        for job in (recurring(), new()):
            claimed = await started(harness.store, job)
            await harness.advance(2 if job.recurrence else 4)
            await end(harness.store, claimed, Succeeded())
        (line,) = await harness.store.stats()
        assert (line.waiting, line.succeeded, line.failed, line.average_ms) == (1, 2, 0, 3_000)

    async def test_an_attempt_that_is_retried_is_no_run_in_the_statistics(self, harness: Harness) -> None:
        await put_one(harness.store, recurring())
        for outcome in Errored(error="boom", delay_ms=0), Released(), Snoozed(0):
            await run(harness.store, outcome)
        (line,) = await harness.store.stats()
        assert (line.waiting, line.succeeded, line.failed) == (1, 0, 0)

    async def test_the_last_run_counts_once_in_the_statistics(self, harness: Harness) -> None:
        rule = Recurrence(key=KEY, every_ms=MINUTE_MS, until_ms=harness.store.now() + MINUTE_MS)
        await put_one(harness.store, recurring(recurrence=rule))
        for _ in range(2):
            await run(harness.store)
            await harness.advance(60)
        (line,) = await harness.store.stats()
        assert (line.waiting, line.succeeded) == (0, 2)

    @pytest.mark.parametrize("is_last", [False, True], ids=["with a next occurrence", "of the last occurrence"])
    async def test_a_run_during_which_the_rule_changed_counts_in_the_statistics(
        self, harness: Harness, is_last: bool
    ) -> None:
        rule = Recurrence(key=KEY, every_ms=MINUTE_MS, until_ms=harness.store.now() + 1) if is_last else MINUTELY
        claimed = await started(harness.store, recurring(recurrence=rule))
        await harness.store.enqueue([recurring(recurrence=Recurrence(key=KEY, every_ms=1_000), due=after(5_000))])
        await harness.advance(2)
        await end(harness.store, claimed, Succeeded())
        (line,) = await harness.store.stats()
        assert (line.waiting, line.succeeded, line.average_ms) == (1, 1, 2_000)

    async def test_a_lost_run_does_not_count_in_the_statistics(self, harness: Harness) -> None:
        claimed = await started(harness.store, recurring())
        await harness.advance(LEASE_MS / 1000)
        settlement = decide(claimed, Succeeded(), DEFAULT_POLICY, harness.store.now())
        assert await settle(harness.store, settlement) == ["lost"]
        (line,) = await harness.store.stats()
        assert (line.running, line.succeeded) == (1, 0)

    async def test_a_purge_removes_runs_from_the_statistics_after_a_day(self, harness: Harness) -> None:
        await put_one(harness.store, recurring())
        await run(harness.store)
        await harness.advance(DAY_MS / 1000 - 0.001)
        await harness.store.purge()
        assert (await harness.store.stats())[0].succeeded == 1
        await run(harness.store, Errored(error="boom", final=True))
        await harness.advance(0.001)
        await harness.store.purge()
        (line,) = await harness.store.stats()
        assert (line.waiting, line.succeeded, line.failed, line.average_ms) == (1, 0, 1, None)

    # ------------------------------------------------------------------------------------------------ ending

    async def test_cancelling_a_waiting_recurring_job_ends_it(self, harness: Harness) -> None:
        id = await put_one(harness.store, recurring())
        await harness.store.change([id], Cancel())
        await harness.advance(3_600)
        assert await claim(harness.store) == []
        assert await state_of(harness.store, id) == "cancelled"

    async def test_cancelling_a_running_recurring_job_ends_it(self, harness: Harness) -> None:
        claimed = await started(harness.store, recurring())
        await harness.store.change([claimed.job.id], Cancel())
        settlement = decide(claimed, Succeeded(), DEFAULT_POLICY, harness.store.now())
        assert await settle(harness.store, settlement) == ["lost"]
        await harness.advance(3_600)
        assert await claim(harness.store) == []

    async def test_removing_a_recurring_job_ends_it(self, harness: Harness) -> None:
        id = await put_one(harness.store, recurring())
        await harness.store.change([id], Remove())
        await harness.advance(3_600)
        assert await claim(harness.store) == []
        assert (await enqueue_one(harness.store, recurring())).status == "created"

    async def test_an_ended_recurrence_can_be_enqueued_again(self, harness: Harness) -> None:
        id = await put_one(harness.store, recurring())
        await harness.store.change([id], Cancel())
        fresh = await put_one(harness.store, recurring("fresh"))
        assert (await the_live_one(harness.store)).id == fresh
        assert id in (await harness.store.change([id], Requeue())).refused
