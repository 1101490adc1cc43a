"""Recurring jobs that are held, seized, or updated while they run: due time and occurrence."""

from __future__ import annotations

import pytest

from jobmill.core.changes import Hold, Pin, Release
from jobmill.core.job import DAY_MS
from jobmill.core.lifecycle import Succeeded
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Filter, NewJob, at
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    end,
    enqueue_one,
    look,
    new,
    put_one,
    recovered,
    release,
    seize,
    settle,
    snooze,
    started,
)

DAILY = Recurrence(key="report", cron="0 4 * * *")
EVERY_TWO_DAYS = Recurrence(key="report", every_ms=2 * DAY_MS)
#: How much later: stores may keep due times that are far away in another field.
LATER = pytest.mark.parametrize("later_ms", [60_000, 90 * DAY_MS], ids=["soon", "much_later"])
RULES = pytest.mark.parametrize("rule", [DAILY, EVERY_TWO_DAYS], ids=["cron", "interval"])


def recurring(rule: Recurrence, due_ms: int) -> NewJob:
    """A recurring job that is due then."""
    return new(key=rule.key, recurrence=rule, due=at(due_ms))


class RecurrenceUpdatesContract:
    """Due times and occurrences of recurring jobs that are held, seized, or updated while they run."""

    @LATER
    @RULES
    async def test_a_seized_job_keeps_its_due_time_and_its_occurrence(
        self, harness: Harness, rule: Recurrence, later_ms: int
    ) -> None:
        store = harness.store
        due_ms = store.now() + later_ms
        id = await put_one(store, recurring(rule, due_ms))
        assert await settle(store, release(await seize(store, id))) == ["done"]
        job = await look(store, id)
        assert (job.due_ms, job.occurrence_ms) == (due_ms, due_ms)
        assert await settle(store, snooze(await seize(store, id), 5_000)) == ["done"]
        job = await look(store, id)
        assert (job.due_ms, job.occurrence_ms) == (store.now() + 5_000, due_ms)

    @LATER
    async def test_an_update_of_a_held_job_changes_its_occurrence(self, harness: Harness, later_ms: int) -> None:
        store = harness.store
        id = await put_one(store, recurring(DAILY, store.now()))
        await store.change([id], Hold())
        due_ms = store.now() + later_ms
        await enqueue_one(store, recurring(EVERY_TWO_DAYS, due_ms))
        assert (await look(store, id)).occurrence_ms == due_ms
        await store.change([id], Release())
        job = await look(store, id)
        assert (job.held, job.due_ms, job.occurrence_ms) == (None, due_ms, due_ms)

    # ------------------------------------------------------------------------------------------------ lost runs

    @LATER
    @RULES
    async def test_a_run_that_was_seized_before_it_was_due_and_lost_is_recovered_when_its_lease_ends(
        self, harness: Harness, rule: Recurrence, later_ms: int
    ) -> None:
        store = harness.store
        due_ms = store.now() + later_ms
        id = await put_one(store, recurring(rule, due_ms))
        again = await recovered(harness, await recovered(harness, await seize(store, id)))
        assert again.job.due_ms == due_ms
        assert await settle(store, release(again)) == ["done"]
        job = await look(store, id)
        assert (job.state, job.due_ms, job.occurrence_ms) == ("waiting", due_ms, due_ms)

    @LATER
    async def test_a_run_whose_rule_was_updated_and_that_was_lost_is_recovered_when_its_lease_ends(
        self, harness: Harness, later_ms: int
    ) -> None:
        store = harness.store
        lost = await started(store, recurring(DAILY, store.now()))
        moved = recurring(EVERY_TWO_DAYS, store.now() + later_ms)
        assert (await enqueue_one(store, moved)).status == "updated"
        await end(store, await recovered(harness, lost), Succeeded())
        (job,) = (await store.find(Filter(unique_key="report", states=("waiting",)))).jobs
        assert job.runs == 1

    async def test_a_run_whose_rule_was_pinned_and_that_was_lost_is_recovered_when_its_lease_ends(
        self, harness: Harness
    ) -> None:
        store = harness.store
        lost = await started(store, recurring(EVERY_TWO_DAYS, store.now()))
        assert (await store.change([lost.job.id], Pin(DAILY))).ids == [lost.job.id]
        await end(store, await recovered(harness, lost), Succeeded())
        (job,) = (await store.find(Filter(unique_key="report", states=("waiting",)))).jobs
        assert job.runs == 1
