"""`exchange`, settling: a settlement is written under the fence of its lease, or nothing is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec import structs

from jobmill.core.changes import Cancel, Remove, Requeue
from jobmill.core.job import Attempt, Keep, Progress
from jobmill.core.lifecycle import DEFAULT_POLICY, Errored, begin
from jobmill.core.values import Claimed, Lease, Report, Settlement, at
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    LEASE_MS,
    claim,
    claim_in_turn,
    claim_one,
    end,
    fail,
    look,
    new,
    put,
    put_one,
    release,
    retry,
    second,
    settle,
    snooze,
    started,
    state_of,
    succeed,
    wish,
)


class SettleContract:
    """The fields that each kind of settlement writes."""

    async def test_a_succeeded_job_is_final_with_its_result(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.advance(3)
        assert await settle(harness.store, succeed(claimed, {"sent": 1})) == ["done"]
        job = await look(harness.store, claimed.job.id)
        assert (job.state, job.result, job.error) == ("succeeded", {"sent": 1}, None)
        assert job.finished_ms == job.updated_ms == harness.store.now()

    @pytest.mark.parametrize("result", [None, False, 0, "", [], {"a": [1, "\u0000 🦫", 1.5]}], ids=repr)
    async def test_a_result_is_stored_unchanged(self, harness: Harness, result: object) -> None:
        claimed = await started(harness.store)
        await settle(harness.store, succeed(claimed, result))
        assert (await look(harness.store, claimed.job.id)).result == result

    async def test_a_result_of_a_megabyte_is_stored(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await settle(harness.store, succeed(claimed, ["0123456789" * 1_000] * 100))
        assert (await look(harness.store, claimed.job.id)).result == ["0123456789" * 1_000] * 100

    async def test_a_failed_job_is_final_with_its_error(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.advance(3)
        assert await settle(harness.store, fail(claimed, "boom 'quoted' \u0001 🦫")) == ["done"]
        job = await look(harness.store, claimed.job.id)
        assert (job.state, job.error, job.errors, job.attempt) == ("failed", "boom 'quoted' \u0001 🦫", 1, 1)
        assert job.finished_ms == job.updated_ms == harness.store.now()

    async def test_a_retried_job_waits_for_its_delay(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.advance(2)
        assert await settle(harness.store, retry(claimed, 1_500, "boom")) == ["done"]
        job = await look(harness.store, claimed.job.id)
        assert (job.state, job.error, job.errors, job.attempt) == ("waiting", "boom", 1, 2)
        assert (job.due_ms, job.finished_ms) == (harness.store.now() + 1_500, None)
        await harness.advance(1.499)
        assert await claim(harness.store) == []
        await harness.advance(0.001)
        assert (await claim_one(harness.store)).job.attempt == 2

    async def test_a_snoozed_job_waits_and_counts_no_attempt(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        assert await settle(harness.store, snooze(claimed, 2_500)) == ["done"]
        job = await look(harness.store, claimed.job.id)
        assert (job.state, job.errors, job.crashes, job.error) == ("waiting", 0, 0, None)
        assert job.due_ms == harness.store.now() + 2_500

    async def test_a_released_job_keeps_its_due_time(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.advance(5)
        assert await settle(harness.store, release(claimed)) == ["done"]
        job = await look(harness.store, claimed.job.id)
        assert (job.state, job.due_ms, job.errors, job.crashes) == ("waiting", claimed.job.due_ms, 0, 0)

    async def test_a_released_job_keeps_its_order(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new(f"{letter}1") for letter in "dbeac"])
        claimed = await claim(harness.store, 3)
        await settle(harness.store, *[release(one) for one in reversed(claimed)])
        assert await claim_in_turn(harness.store) == ids

    async def test_a_job_released_with_a_delay_waits_for_it(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await settle(harness.store, release(claimed, 4_000))
        assert (await look(harness.store, claimed.job.id)).due_ms == harness.store.now() + 4_000

    async def test_a_due_instant_in_a_settlement_is_stored(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        instant = harness.store.now() + 123_457
        await settle(harness.store, structs.replace(snooze(claimed), due=at(instant)))
        assert (await look(harness.store, claimed.job.id)).due_ms == instant

    async def test_a_job_that_waits_again_keeps_its_other_fields(self, harness: Harness) -> None:
        said = new(payload=[1], priority=3, key="k", tenant="acme")
        claimed = await started(harness.store, said)
        await settle(harness.store, retry(claimed))
        job = await look(harness.store, claimed.job.id)
        assert (job.payload, job.priority, job.unique_key, job.tenant) == ([1], 3, "k", "acme")
        assert (job.claims, job.created_ms) == (1, claimed.job.created_ms)

    async def test_a_success_after_errors_has_no_error(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await settle(harness.store, retry(claimed, 0, "boom"))
        await settle(harness.store, succeed(await claim_one(harness.store)))
        job = await look(harness.store, claimed.job.id)
        assert (job.state, job.error, job.errors) == ("succeeded", None, 1)

    async def test_attempts_are_kept_as_given(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        attempts = tuple(
            Attempt(
                number=number,
                started_ms=1_000 + number,
                finished_ms=2_000 + number,
                worker="w 'x' 🦫",
                error_type="app.mail.MailError",
                error=f"no luck {number} 🦫",
                traceback=f"Traceback {number}\n  'x' \u0000 🦫",
            )
            for number in range(8)
        )
        crash = Attempt(number=8, worker="dead", outcome="crashed", error="it died")
        attempts = (*attempts, crash, Attempt(number=9, error="no traceback"))
        await settle(harness.store, structs.replace(retry(claimed, 0), attempts=attempts))
        assert (await look(harness.store, claimed.job.id)).attempts == attempts
        again = await claim_one(harness.store)
        assert again.job.attempts == attempts
        await settle(harness.store, structs.replace(fail(again), attempts=attempts[1:]))
        assert (await look(harness.store, claimed.job.id)).attempts == attempts[1:]

    async def test_a_worker_writes_the_attempt_with_its_error(self, harness: Harness) -> None:
        claimed = await started(harness.store, worker="w1")
        started_ms = harness.store.now()
        await harness.advance(1)
        errored = Errored(error="MailError: no luck", error_type="app.MailError", traceback="Traceback")
        await end(harness.store, claimed, errored)
        job = await look(harness.store, claimed.job.id)
        expected = Attempt(
            number=1,
            started_ms=started_ms,
            finished_ms=started_ms + 1_000,
            worker="w1",
            error_type="app.MailError",
            error="MailError: no luck",
            traceback="Traceback",
        )
        assert (job.attempts, job.error_type) == ((expected,), "app.MailError")

    @pytest.mark.parametrize("ends", ["succeeds", "waits"])
    async def test_a_crash_is_an_attempt_once_the_next_one_ends(self, harness: Harness, ends: str) -> None:
        await started(harness.store, worker="dead")
        await harness.advance(LEASE_MS / 1000)
        claimed = await claim_one(harness.store)
        await settle(harness.store, succeed(claimed) if ends == "succeeds" else snooze(claimed))
        (attempt,) = (await look(harness.store, claimed.job.id)).attempts
        assert (attempt.number, attempt.worker, attempt.outcome) == (1, "dead", "crashed")

    async def test_the_attempts_of_a_job_that_is_requeued_stay(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await settle(harness.store, fail(claimed, "boom"))
        before = (await look(harness.store, claimed.job.id)).attempts
        await harness.store.change([claimed.job.id], Requeue())
        assert (await claim_one(harness.store)).job.attempts == before

    async def test_attempts_stay_if_a_settlement_has_none(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await settle(harness.store, retry(claimed, 0, "boom"))
        await settle(harness.store, succeed(await claim_one(harness.store)))
        assert (await look(harness.store, claimed.job.id)).attempts[0].traceback == "Traceback of boom"

    async def test_several_attempts_are_kept_in_order(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        for number in range(12):
            await settle(harness.store, retry(claimed, 0, f"boom {number}"))
            claimed = await claim_one(harness.store)
        texts = [attempt.traceback for attempt in claimed.job.attempts]
        assert texts == [f"Traceback of boom {number}" for number in range(2, 12)]

    async def test_the_counts_are_written_as_decided(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await settle(harness.store, structs.replace(release(claimed), errors=7, crashes=5))
        job = await look(harness.store, claimed.job.id)
        assert (job.errors, job.crashes) == (7, 5)

    async def test_a_job_fails_after_max_crashes(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        for _ in range(3):
            await harness.advance(LEASE_MS / 1_000)
            claimed = await claim_one(harness.store)
        settlement = begin(claimed, DEFAULT_POLICY, harness.store.now())
        assert settlement is not None
        assert await settle(harness.store, settlement) == ["done"]
        job = await look(harness.store, claimed.job.id)
        assert (job.state, job.crashes, job.errors) == ("failed", 3, 0)

    async def test_a_job_runs_through_its_attempts_to_failed(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        for _ in range(2):
            await end(harness.store, claimed, Errored(error="boom"))
            assert await state_of(harness.store, claimed.job.id) == "waiting"
            await harness.advance(3_600)
            claimed = await claim_one(harness.store)
        await end(harness.store, claimed, Errored(error="last"))
        job = await look(harness.store, claimed.job.id)
        assert (job.state, job.errors, job.attempt, job.error) == ("failed", 3, 3, "last")

    async def test_progress_stays_with_a_succeeded_job(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.store.report([Report(lease=claimed.lease, progress=Progress(80, "soon"))])
        await settle(harness.store, succeed(claimed))
        assert (await look(harness.store, claimed.job.id)).progress == Progress(80, "soon")

    async def test_answers_come_in_the_order_of_the_settlements(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(5)])
        a, b, c, d, e = await claim(harness.store)
        await harness.store.change([b.job.id], Cancel())
        answers = await settle(harness.store, succeed(a), succeed(b), fail(c), _stolen(d), release(e))
        assert answers == ["done", "lost", "done", "lost", "done"]
        stored = await harness.store.get([one.job.id for one in (a, b, c, d, e)])
        assert [job.state for job in stored if job] == ["succeeded", "cancelled", "failed", "running", "waiting"]

    async def test_many_jobs_can_be_settled_in_one_call(self, harness: Harness) -> None:
        await put(harness.store, *[new(payload=number) for number in range(300)])
        claimed = await claim(harness.store, 300)
        answers = await settle(harness.store, *[succeed(one, one.job.payload) for one in claimed])
        assert answers == ["done"] * 300
        stored = await harness.store.get([one.job.id for one in claimed])
        assert [job.result for job in stored if job] == [one.job.payload for one in claimed]

    async def test_a_settled_job_is_seen_by_another_connection(self, harness: Harness) -> None:
        async with second(harness) as other:
            claimed = await started(harness.store)
            await settle(harness.store, succeed(claimed))
            assert await state_of(other, claimed.job.id) == "succeeded"

    async def test_a_lease_can_be_settled_through_another_connection(self, harness: Harness) -> None:
        async with second(harness) as other:
            claimed = await started(harness.store)
            assert await settle(other, succeed(claimed)) == ["done"]


class LostContract:
    """A lost lease writes nothing: its token does not match, it has ended, or the job is not running."""

    async def test_a_settlement_with_a_wrong_token_is_lost(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await self._is_lost(harness, claimed, _stolen(claimed))

    async def test_a_settlement_with_the_token_of_another_job_is_lost(self, harness: Harness) -> None:
        other = await started(harness.store)
        claimed = await started(harness.store)
        lease = structs.replace(claimed.lease, token=other.lease.token)
        await self._is_lost(harness, claimed, structs.replace(succeed(claimed), lease=lease))

    async def test_a_lease_is_valid_until_the_millisecond_before_its_end(self, harness: Harness) -> None:
        claimed = await started(harness.store, lease_ms=15_000)
        await harness.advance(14.999)
        assert await settle(harness.store, succeed(claimed)) == ["done"]

    async def test_a_lease_is_lost_exactly_at_its_end(self, harness: Harness) -> None:
        claimed = await started(harness.store, lease_ms=15_000)
        await harness.advance(15)
        await self._is_lost(harness, claimed, succeed(claimed))

    async def test_an_ended_lease_is_lost_even_if_the_job_was_not_claimed_again(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.advance(86_400)
        await self._is_lost(harness, claimed, fail(claimed))

    async def test_a_settlement_after_another_claim_is_lost(self, harness: Harness) -> None:
        late = await started(harness.store)
        await harness.advance(LEASE_MS / 1_000)
        claimed = await claim_one(harness.store)
        await self._is_lost(harness, claimed, succeed(late, "late"))
        assert await settle(harness.store, succeed(claimed, "good")) == ["done"]
        assert (await look(harness.store, claimed.job.id)).result == "good"

    async def test_a_settlement_after_a_cancel_is_lost(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.store.change([claimed.job.id], Cancel())
        await self._is_lost(harness, claimed, succeed(claimed))

    async def test_a_settlement_of_a_removed_job_is_lost(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.store.change([claimed.job.id], Cancel())
        await harness.store.change([claimed.job.id], Remove())
        assert await settle(harness.store, succeed(claimed)) == ["lost"]
        assert await state_of(harness.store, claimed.job.id) is None

    async def test_a_settlement_of_an_unknown_job_is_lost(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        lease = Lease("never-was", "token", claimed.lease.queue, claimed.lease.name, claimed.lease.until_ms)
        assert await settle(harness.store, structs.replace(succeed(claimed), lease=lease)) == ["lost"]

    @pytest.mark.parametrize("how", [succeed, fail, release])
    async def test_a_second_settlement_is_lost(self, harness: Harness, how: Callable[[Claimed], Settlement]) -> None:
        claimed = await started(harness.store)
        assert await settle(harness.store, how(claimed)) == ["done"]
        await self._is_lost(harness, claimed, succeed(claimed, "again"))

    async def test_a_second_settlement_in_the_same_call_is_lost(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        assert await settle(harness.store, succeed(claimed, "first"), fail(claimed)) == ["done", "lost"]
        job = await look(harness.store, claimed.job.id)
        assert (job.state, job.result, job.error) == ("succeeded", "first", None)

    async def test_an_old_lease_is_lost_after_a_release_and_a_new_claim(self, harness: Harness) -> None:
        old = await started(harness.store)
        await settle(harness.store, release(old))
        claimed = await claim_one(harness.store)
        await self._is_lost(harness, claimed, succeed(old))

    async def test_the_end_of_a_lease_in_the_store_decides(self, harness: Harness) -> None:
        # The clock of the store and its end of the lease decide, not the value that the caller passes.
        claimed = await started(harness.store)
        await harness.advance(LEASE_MS / 1_000)
        lease = structs.replace(claimed.lease, until_ms=harness.store.now() + 1_000_000)
        await self._is_lost(harness, claimed, structs.replace(succeed(claimed), lease=lease))

    async def test_a_lost_settlement_that_keeps_nothing_removes_nothing(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await self._is_lost(harness, claimed, structs.replace(_stolen(claimed), keep=Keep(last=0)))

    async def test_a_job_can_be_claimed_after_a_lost_settlement(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.advance(LEASE_MS / 1_000)
        await settle(harness.store, succeed(claimed))
        assert (await claim_one(harness.store)).job.crashes == 1

    async def test_a_lost_settlement_does_not_hide_a_job_that_replaced_its_job(self, harness: Harness) -> None:
        gone = await started(harness.store)
        await settle(harness.store, structs.replace(succeed(gone), keep=Keep(last=0)))
        # A store that numbers its rows may give this job the number of the removed one.
        id = await put_one(harness.store)
        exchanged = await harness.store.exchange([snooze(gone, 0)], wish(1))
        assert (exchanged.settled, [one.lease.id for one in exchanged.claimed]) == (["lost"], [id])

    async def test_a_lost_settlement_does_not_hide_other_ended_leases(self, harness: Harness) -> None:
        await put(harness.store, new(), new())
        late, _ = await claim(harness.store)
        await harness.advance(LEASE_MS / 1_000)
        exchanged = await harness.store.exchange([release(late)], wish(1))
        assert (exchanged.settled, len(exchanged.claimed)) == (["lost"], 1)

    async def _is_lost(self, harness: Harness, claimed: Claimed, settlement: Settlement) -> None:
        """The settlement is lost, and nothing was written."""
        before = await look(harness.store, claimed.job.id)
        assert await settle(harness.store, settlement) == ["lost"]
        assert await look(harness.store, claimed.job.id) == before


def _stolen(claimed: Claimed) -> Settlement:
    """A settlement with a guessed token."""
    return structs.replace(succeed(claimed), lease=structs.replace(claimed.lease, token="guessed"))
