"""`Keep` and `purge`: final jobs are removed after their retention, by a purge."""

from __future__ import annotations

import pytest

from jobmill.core.changes import Cancel, Requeue
from jobmill.core.job import DAY_MS, JobOptions, Keep
from jobmill.core.lifecycle import DEFAULT_POLICY, Policy, policy
from jobmill.core.values import EVERYTHING
from jobmill.store import Store
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    claim_one,
    enqueue_one,
    fail,
    find_all,
    in_state,
    new,
    put_one,
    settle,
    started,
    state_of,
    succeed,
)

AT_ONCE = [Keep(last=0), Keep(age_ms=0)]


async def finished(store: Store, keep: Keep, *, how: str = "succeeded", queue: str = "mail") -> str:
    """Create a final job with this retention. Returns its id."""
    claimed = await started(store, new(queue=queue))
    rules = Policy(keep_succeeded=keep, keep_failed=keep)
    settlement = succeed(claimed, rules=rules) if how == "succeeded" else fail(claimed, rules=rules)
    assert await settle(store, settlement) == ["done"]
    return claimed.job.id


class RetentionContract:
    """Retention of final jobs."""

    # ------------------------------------------------------------------------------------------------ at once

    @pytest.mark.parametrize("keep", AT_ONCE, ids=["last=0", "age=0"])
    async def test_a_success_that_is_not_kept_is_removed_in_the_same_step(self, harness: Harness, keep: Keep) -> None:
        id = await finished(harness.store, keep)
        assert await state_of(harness.store, id) is None
        assert await harness.store.count(EVERYTHING) == []

    @pytest.mark.parametrize("keep", AT_ONCE, ids=["last=0", "age=0"])
    async def test_a_failure_that_is_not_kept_is_removed_in_the_same_step(self, harness: Harness, keep: Keep) -> None:
        id = await finished(harness.store, keep, how="failed")
        assert await state_of(harness.store, id) is None

    async def test_a_job_that_is_removed_at_once_frees_id_and_key(self, harness: Harness) -> None:
        claimed = await started(harness.store, new("again", key="k"))
        await settle(harness.store, succeed(claimed, rules=Policy(keep_succeeded=Keep(last=0))))
        assert (await enqueue_one(harness.store, new("again", key="k"))).status == "created"

    async def test_a_cancelled_job_that_is_not_kept_is_removed_in_the_same_step(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(options=JobOptions(keep_failed=Keep(last=0))))
        assert (await harness.store.change([id], Cancel())).ids == [id]
        assert await state_of(harness.store, id) is None

    # ------------------------------------------------------------------------------------------------ for ever

    async def test_a_job_kept_for_ever_stays(self, harness: Harness) -> None:
        ids = [await finished(harness.store, Keep(), how=how) for how in ("succeeded", "failed")]
        await harness.advance(100 * 365 * 86_400)
        assert (await harness.store.purge()).removed == 0
        assert sorted(await find_all(harness.store, EVERYTHING)) == sorted(ids)

    async def test_live_jobs_are_never_purged(self, harness: Harness) -> None:
        options = JobOptions(keep_succeeded=Keep(age_ms=1), keep_failed=Keep(age_ms=1))
        running = (await started(harness.store, new(options=options))).job.id
        waiting = await put_one(harness.store, new(options=options))
        await harness.advance(100 * 365 * 86_400)
        assert (await harness.store.purge()).removed == 0
        assert [await state_of(harness.store, id) for id in (waiting, running)] == ["waiting", "running"]

    async def test_a_requeued_job_is_not_purged(self, harness: Harness) -> None:
        id = await finished(harness.store, Keep(age_ms=1_000))
        await harness.store.change([id], Requeue())
        await harness.advance(10)
        assert (await harness.store.purge()).removed == 0
        assert await state_of(harness.store, id) == "waiting"

    async def test_a_requeued_job_has_the_retention_of_its_next_settlement(self, harness: Harness) -> None:
        id = await finished(harness.store, Keep(age_ms=1_000))
        await harness.store.change([id], Requeue())
        claimed = await claim_one(harness.store)
        await settle(harness.store, succeed(claimed, rules=Policy(keep_succeeded=Keep(age_ms=60_000))))
        await harness.advance(30)
        assert (await harness.store.purge()).removed == 0
        await harness.advance(31)
        assert (await harness.store.purge()).removed == 1

    # ------------------------------------------------------------------------------------------------ by age

    async def test_a_job_is_removed_when_it_is_old_enough(self, harness: Harness) -> None:
        id = await finished(harness.store, Keep(age_ms=60_000))
        await harness.advance(59)
        assert (await harness.store.purge()).removed == 0
        assert await state_of(harness.store, id) == "succeeded"
        await harness.advance(1.001)
        assert (await harness.store.purge()).removed == 1
        assert await state_of(harness.store, id) is None

    async def test_the_age_counts_from_the_end_not_from_the_start(self, harness: Harness) -> None:
        claimed = await started(harness.store, lease_ms=3_600_000)
        await harness.advance(120)
        await settle(harness.store, succeed(claimed, rules=Policy(keep_succeeded=Keep(age_ms=60_000))))
        assert (await harness.store.purge()).removed == 0

    async def test_each_job_has_its_own_age(self, harness: Harness) -> None:
        short = await finished(harness.store, Keep(age_ms=1_000))
        long = await finished(harness.store, Keep(age_ms=60_000))
        await harness.advance(10)
        assert (await harness.store.purge()).removed == 1
        assert (await state_of(harness.store, short), await state_of(harness.store, long)) == (None, "succeeded")

    async def test_the_defaults_are_7_and_30_days(self, harness: Harness) -> None:
        assert DEFAULT_POLICY.keep_succeeded == Keep(age_ms=7 * DAY_MS)
        succeeded = await in_state(harness.store, "succeeded")
        failed = await in_state(harness.store, "failed")
        cancelled = await in_state(harness.store, "cancelled")
        await harness.advance(7 * 86_400 - 60)
        assert (await harness.store.purge()).removed == 0
        await harness.advance(61)
        assert (await harness.store.purge()).removed == 1
        assert await state_of(harness.store, succeeded) is None
        await harness.advance(23 * 86_400 - 120)
        assert (await harness.store.purge()).removed == 0
        await harness.advance(121)
        assert (await harness.store.purge()).removed == 2
        assert [await state_of(harness.store, id) for id in (failed, cancelled)] == [None, None]

    async def test_the_retention_of_a_job_overrides_the_default(self, harness: Harness) -> None:
        claimed = await started(harness.store, new(options=JobOptions(keep_succeeded=Keep(age_ms=1_000))))
        await settle(harness.store, succeed(claimed, rules=policy(claimed.job.options)))
        await harness.advance(2)
        assert (await harness.store.purge()).removed == 1

    async def test_a_cancelled_job_follows_its_keep_failed(self, harness: Harness) -> None:
        await in_state(harness.store, "cancelled", new(options=JobOptions(keep_failed=Keep(age_ms=1_000))))
        kept = await in_state(harness.store, "cancelled", new(options=JobOptions(keep_failed=Keep())))
        await harness.advance(31 * 86_400)
        assert (await harness.store.purge()).removed == 1
        assert await state_of(harness.store, kept) == "cancelled"

    # ------------------------------------------------------------------------------------------------ last n

    async def test_the_last_n_stay(self, harness: Harness) -> None:
        ids = []
        for _ in range(5):
            ids.append(await finished(harness.store, Keep(last=2)))
            await harness.advance(1)
        await harness.store.purge()
        assert sorted(await find_all(harness.store, EVERYTHING)) == sorted(ids[3:])

    async def test_the_last_n_are_the_last_to_end_not_to_begin(self, harness: Harness) -> None:
        slow = await started(harness.store, lease_ms=3_600_000)
        quick = await finished(harness.store, Keep(last=1))
        await harness.advance(1)
        await settle(harness.store, succeed(slow, rules=Policy(keep_succeeded=Keep(last=1))))
        await harness.store.purge()
        assert (await state_of(harness.store, quick), await state_of(harness.store, slow.job.id)) == (None, "succeeded")

    async def test_the_last_n_count_per_queue(self, harness: Harness) -> None:
        ids = [await finished(harness.store, Keep(last=1), queue=queue) for queue in ("a", "b")]
        await harness.store.purge()
        assert sorted(await find_all(harness.store, EVERYTHING)) == sorted(ids)

    async def test_the_last_n_count_per_final_state(self, harness: Harness) -> None:
        ids = [await finished(harness.store, Keep(last=1), how=how) for how in ("succeeded", "failed")]
        await harness.store.purge()
        assert sorted(await find_all(harness.store, EVERYTHING)) == sorted(ids)

    # ------------------------------------------------------------------------------------------------ limits

    async def test_purging_an_empty_store_removes_nothing(self, harness: Harness) -> None:
        purged = await harness.store.purge()
        assert (purged.removed, purged.more) == (0, False)

    async def test_a_limit_bounds_a_purge_and_more_is_reported(self, harness: Harness) -> None:
        for _ in range(5):
            await finished(harness.store, Keep(age_ms=1))
        await harness.advance(1)
        first = await harness.store.purge(2)
        assert (first.removed, first.more) == (2, True)
        removed = first.removed
        # `more` may be true once too often, but not for ever.
        for _ in range(4):
            purged = await harness.store.purge(2)
            assert purged.removed <= 2
            removed += purged.removed
        assert removed == 5
        assert (await harness.store.purge(2)).more is False

    async def test_a_purged_job_frees_its_id(self, harness: Harness) -> None:
        claimed = await started(harness.store, new("again"))
        await settle(harness.store, succeed(claimed, rules=Policy(keep_succeeded=Keep(age_ms=1))))
        await harness.advance(1)
        await harness.store.purge()
        assert (await enqueue_one(harness.store, new("again"))).status == "created"
