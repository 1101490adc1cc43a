"""Pinned recurrences: the rule of a person stays when code states its own again."""

from __future__ import annotations

from msgspec import structs

from jobmill.core.changes import Hold, Pin, Release, ReleasePin
from jobmill.core.lifecycle import Succeeded
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Filter, NewJob, at
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    NAME,
    QUEUE,
    claim,
    claim_one,
    end,
    enqueue_one,
    look,
    new,
    only_refused,
    put_one,
    second,
)

HOUR_MS = 60 * 60 * 1000
HOURLY = Recurrence(key="report", every_ms=HOUR_MS)
DAILY = Recurrence(key="report", cron="30 4 * * *", timezone="Europe/Berlin")
MINUTELY = Recurrence(key="report", every_ms=60_000)


def stated(rule: Recurrence, payload: object = None, *, keeps_due: bool = True, due_ms: int = 0) -> NewJob:
    """The recurring job as code states it."""
    job = new(payload=payload, key=rule.key, recurrence=rule, due=at(due_ms))
    return structs.replace(job, keeps_due=keeps_due)


class PinContract:
    """Pin and release."""

    async def test_an_edited_rule_applies_at_once(self, harness: Harness) -> None:
        id = await put_one(harness.store, stated(DAILY, due_ms=harness.store.now() + HOUR_MS))
        assert (await harness.store.change([id], Pin(MINUTELY))).ids == [id]
        job = await look(harness.store, id)
        assert job.recurrence is not None
        assert (job.recurrence.every_ms, job.recurrence.cron, job.recurrence.pinned) == (60_000, None, True)
        assert job.recurrence.stated == DAILY
        assert (job.due_ms, job.occurrence_ms) == (harness.store.now(), harness.store.now())
        await end(harness.store, await claim_one(harness.store), Succeeded())
        again = await look(harness.store, id)
        assert (again.due_ms, again.recurrence) == (harness.store.now() + 60_000, job.recurrence)

    async def test_what_code_states_is_stored_beside_it(self, harness: Harness) -> None:
        id = await put_one(harness.store, stated(DAILY, "old", due_ms=harness.store.now() + HOUR_MS))
        await harness.store.change([id], Pin(MINUTELY))
        before = await look(harness.store, id)
        async with second(harness) as other:
            receipt = await enqueue_one(other, stated(HOURLY, "new"))
        assert (receipt.status, receipt.id) == ("pinned", id)
        job = await look(harness.store, id)
        assert before.recurrence is not None
        assert job.recurrence == structs.replace(before.recurrence, stated=HOURLY)
        assert (job.payload, job.due_ms, job.occurrence_ms) == ("new", before.due_ms, before.occurrence_ms)

    async def test_a_statement_with_a_due_time_does_not_move_a_pinned_job(self, harness: Harness) -> None:
        id = await put_one(harness.store, stated(DAILY, due_ms=harness.store.now() + HOUR_MS))
        await harness.store.change([id], Pin(MINUTELY))
        before = await look(harness.store, id)
        later = stated(HOURLY, keeps_due=False, due_ms=harness.store.now() + 5 * HOUR_MS)
        assert (await enqueue_one(harness.store, later)).status == "pinned"
        assert (await look(harness.store, id)).due_ms == before.due_ms

    async def test_a_declared_statement_keeps_the_job_declared(self, harness: Harness) -> None:
        declared = structs.replace(DAILY, declared=True)
        id = await put_one(harness.store, stated(declared, due_ms=harness.store.now() + HOUR_MS))
        await harness.store.change([id], Pin(MINUTELY))
        assert [job.id for job in (await harness.store.find(Filter(declared=True))).jobs] == [id]
        assert (await enqueue_one(harness.store, stated(declared))).status == "pinned"
        job = await look(harness.store, id)
        assert job.recurrence is not None
        assert (job.recurrence.declared, job.recurrence.pinned, job.recurrence.stated) == (True, True, DAILY)
        assert [job.id for job in (await harness.store.find(Filter(declared=True))).jobs] == [id]

    async def test_releasing_restores_what_code_stated_last(self, harness: Harness) -> None:
        id = await put_one(harness.store, stated(DAILY, due_ms=harness.store.now() + HOUR_MS))
        await harness.store.change([id], Pin(MINUTELY))
        await enqueue_one(harness.store, stated(HOURLY))
        await harness.advance(1)
        assert (await harness.store.change([id], ReleasePin())).ids == [id]
        job = await look(harness.store, id)
        assert job.recurrence is not None
        assert (job.recurrence.every_ms, job.recurrence.pinned, job.recurrence.stated) == (HOUR_MS, False, None)
        assert (job.due_ms, job.occurrence_ms) == (harness.store.now(), harness.store.now())
        assert (await enqueue_one(harness.store, stated(DAILY))).status == "updated"

    async def test_a_run_that_ends_after_a_pin_waits_as_the_pin_decided(self, harness: Harness) -> None:
        id = await put_one(harness.store, stated(HOURLY))
        claimed = await claim_one(harness.store)
        assert (await harness.store.change([id], Pin(MINUTELY))).ids == [id]
        pinned_ms = harness.store.now()
        await harness.advance(1)
        await end(harness.store, claimed, Succeeded())
        job = await look(harness.store, id)
        assert (job.state, job.due_ms, job.runs) == ("waiting", pinned_ms, 1)
        assert (await claim_one(harness.store)).job.id == id

    async def test_a_held_job_gets_its_due_time_at_the_release(self, harness: Harness) -> None:
        id = await put_one(harness.store, stated(DAILY, due_ms=harness.store.now() + HOUR_MS))
        await harness.store.change([id], Hold())
        assert (await harness.store.change([id], Pin(MINUTELY))).ids == [id]
        assert await claim(harness.store) == []
        assert (await enqueue_one(harness.store, stated(HOURLY))).status == "pinned"
        assert await claim(harness.store) == []
        await harness.store.change([id], Release())
        assert (await claim_one(harness.store)).job.id == id

    async def test_a_held_recurring_job_that_code_updates_stays_held(self, harness: Harness) -> None:
        id = await put_one(harness.store, stated(DAILY, due_ms=harness.store.now() + HOUR_MS))
        await harness.store.change([id], Hold())
        updated = stated(HOURLY, "new", due_ms=harness.store.now() + 5_000)
        assert (await enqueue_one(harness.store, updated)).status == "updated"
        job = await look(harness.store, id)
        assert job.held is not None
        due_ms = harness.store.now() + 5_000
        assert (job.held.due, job.occurrence_ms, job.payload) == (at(due_ms), due_ms, "new")
        await harness.advance(3_600)
        assert await claim(harness.store) == []
        await harness.store.change([id], Release())
        assert (await claim_one(harness.store)).job.id == id

    async def test_what_cannot_be_pinned(self, harness: Harness) -> None:
        once = await put_one(harness.store, new(queue="other"))
        assert "not recurring" in only_refused(await harness.store.change([once], Pin(MINUTELY)), once)
        id = await put_one(harness.store, stated(DAILY, due_ms=harness.store.now() + HOUR_MS))
        assert "not pinned" in only_refused(await harness.store.change([id], ReleasePin()), id)
        assert (await look(harness.store, id)).queue == QUEUE
        assert (await look(harness.store, id)).name == NAME
