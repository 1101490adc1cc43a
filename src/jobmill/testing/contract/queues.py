"""`configure` and `settings`: pause, rate limit and running limit of a queue."""

from __future__ import annotations

import asyncio

from jobmill.core.changes import Cancel
from jobmill.core.values import Pause, QueueChange, QueueSettings, RateLimit, after
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    LEASE_MS,
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    new,
    next_due,
    put,
    put_one,
    release,
    second,
    settle,
    started,
    succeed,
    wish,
)

ONE_A_MINUTE = QueueChange(rate_limit=RateLimit(1, 60_000))
TWO_A_MINUTE = QueueChange(rate_limit=RateLimit(2, 60_000))


class SettingsContract:
    """Reading and changing settings."""

    async def test_a_queue_without_settings_has_the_defaults(self, harness: Harness) -> None:
        assert (await harness.store.settings([QUEUE]))[QUEUE] == QueueSettings()

    async def test_configure_returns_the_new_settings(self, harness: Harness) -> None:
        told = await harness.store.configure(QUEUE, QueueChange(paused=True, running_limit=3))
        assert told == QueueSettings(paused=True, running_limit=3)
        assert await harness.store.settings([QUEUE]) == {QUEUE: told}

    async def test_settings_that_are_not_given_stay(self, harness: Harness) -> None:
        changes = [
            QueueChange(paused=True),
            QueueChange(rate_limit=RateLimit(5, 1_000)),
            QueueChange(running_limit=7),
            QueueChange(feed=True),
            QueueChange(events_max_len=50),
        ]
        for change in changes:
            await harness.store.configure(QUEUE, change)
        expected = QueueSettings(
            paused=True, rate_limit=RateLimit(5, 1_000), running_limit=7, feed=True, events_max_len=50
        )
        assert await harness.store.configure(QUEUE, QueueChange()) == expected

    async def test_limits_can_be_removed(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(rate_limit=RateLimit(1, 1_000), running_limit=1, paused=True))
        change = QueueChange(rate_limit=None, running_limit=None, paused=False)
        assert await harness.store.configure(QUEUE, change) == QueueSettings()

    async def test_settings_returns_all_queues_that_have_settings(self, harness: Harness) -> None:
        for queue in ("a", "b"):
            await harness.store.configure(queue, QueueChange(paused=True))
        told = await harness.store.settings()
        assert {queue for queue, settings in told.items() if settings.paused} == {"a", "b"}

    async def test_settings_of_named_queues_returns_only_these(self, harness: Harness) -> None:
        for queue in ("a", "b"):
            await harness.store.configure(queue, QueueChange(paused=True))
        assert set(await harness.store.settings(["b"])) == {"b"}

    async def test_another_connection_respects_settings(self, harness: Harness) -> None:
        await put_one(harness.store)
        async with second(harness) as other:
            await other.exchange([], wish(queues=("elsewhere",)))
            await harness.store.configure(QUEUE, QueueChange(paused=True))
            assert (await other.settings([QUEUE]))[QUEUE].paused is True
            assert await claim(other) == []


class PauseContract:
    """No job is claimed from a paused queue."""

    async def test_no_job_is_claimed_from_a_paused_queue(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await harness.store.configure(QUEUE, QueueChange(paused=True))
        assert await claim(harness.store) == []
        await harness.store.configure(QUEUE, QueueChange(paused=False))
        assert await claim_ids(harness.store) == [id]

    async def test_a_queue_can_be_paused_before_its_first_job(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(paused=True))
        await put_one(harness.store)
        assert await claim(harness.store) == []

    async def test_no_ended_lease_is_claimed_from_a_paused_queue(self, harness: Harness) -> None:
        await started(harness.store)
        await harness.store.configure(QUEUE, QueueChange(paused=True))
        await harness.advance(3_600)
        assert await claim(harness.store) == []

    async def test_other_queues_are_not_paused(self, harness: Harness) -> None:
        _, b = await put(harness.store, new(queue="a"), new(queue="b"))
        await harness.store.configure("a", QueueChange(paused=True))
        assert await claim_ids(harness.store, queues=("a", "b")) == [b]

    async def test_running_jobs_of_a_paused_queue_can_be_settled(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await harness.store.configure(QUEUE, QueueChange(paused=True))
        assert await harness.store.extend([claimed.lease], 15_000) == []
        assert await settle(harness.store, succeed(claimed)) == ["done"]

    async def test_a_pause_has_a_reason_and_an_author(self, harness: Harness) -> None:
        pause = Pause(who="ada", note="“wrong” letters", since_ms=harness.store.now(), until_ms=None)
        told = await harness.store.configure(QUEUE, QueueChange(paused=True, pause=pause))
        assert told == QueueSettings(paused=True, pause=pause)
        async with second(harness) as other:
            assert (await other.settings([QUEUE]))[QUEUE] == told
        assert (await harness.store.configure(QUEUE, QueueChange(running_limit=3))).pause == pause
        assert await harness.store.configure(QUEUE, QueueChange(paused=False)) == QueueSettings(running_limit=3)

    async def test_a_second_pause_replaces_the_first(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(paused=True, pause=Pause(who="ada")))
        told = await harness.store.configure(QUEUE, QueueChange(paused=True))
        assert told == QueueSettings(paused=True)

    async def test_a_queue_resumes_by_itself(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        until_ms = harness.store.now() + 60_000
        await harness.store.configure(QUEUE, QueueChange(paused=True, pause=Pause(who="ada", until_ms=until_ms)))
        await harness.advance(59.999)
        assert await claim(harness.store) == []
        assert (await harness.store.settings([QUEUE]))[QUEUE].paused is True
        await harness.advance(0.001)
        assert (await harness.store.settings([QUEUE]))[QUEUE] == QueueSettings()
        assert await claim_ids(harness.store) == [id]
        assert (await harness.store.settings([QUEUE]))[QUEUE] == QueueSettings()

    async def test_a_worker_sleeps_until_a_pause_is_over(self, harness: Harness) -> None:
        await put_one(harness.store)
        until_ms = harness.store.now() + 60_000
        await harness.store.configure(QUEUE, QueueChange(paused=True, pause=Pause(until_ms=until_ms)))
        assert await next_due(harness.store) == until_ms
        await harness.store.configure(QUEUE, QueueChange(paused=True, pause=Pause(who="ada")))
        assert await next_due(harness.store) is None

    async def test_after_the_end_of_a_pause_the_other_settings_apply(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(3)])
        pause = Pause(until_ms=harness.store.now() + 1_000)
        await harness.store.configure(QUEUE, QueueChange(paused=True, pause=pause, running_limit=2))
        await harness.advance(1)
        await harness.store.purge()
        assert len(await claim(harness.store)) == 2
        assert (await harness.store.settings())[QUEUE] == QueueSettings(running_limit=2)


class RunningLimitContract:
    """The maximum number of running jobs of a queue, over all workers."""

    async def test_at_most_running_limit_jobs_run(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(5)])
        await harness.store.configure(QUEUE, QueueChange(running_limit=2))
        assert len(await claim(harness.store)) == 2
        async with second(harness) as other:
            assert await claim(other) == []

    async def test_a_settled_job_makes_room_in_the_same_call(self, harness: Harness) -> None:
        await put(harness.store, new(), new())
        await harness.store.configure(QUEUE, QueueChange(running_limit=1))
        claimed = await claim_one(harness.store)
        exchanged = await harness.store.exchange([succeed(claimed)], wish())
        assert (exchanged.settled, len(exchanged.claimed)) == (["done"], 1)

    async def test_a_lost_settlement_makes_no_room(self, harness: Harness) -> None:
        await put(harness.store, new(), new())
        claimed = await claim_one(harness.store)
        await settle(harness.store, succeed(claimed))
        await harness.store.configure(QUEUE, QueueChange(running_limit=1))
        await claim_one(harness.store)
        await put_one(harness.store)
        exchanged = await harness.store.exchange([succeed(claimed)], wish())
        assert (exchanged.settled, exchanged.claimed) == (["lost"], [])

    async def test_a_cancelled_job_makes_room(self, harness: Harness) -> None:
        await put(harness.store, new(), new())
        await harness.store.configure(QUEUE, QueueChange(running_limit=1))
        claimed = await claim_one(harness.store)
        await harness.store.change([claimed.job.id], Cancel())
        assert len(await claim(harness.store)) == 1

    async def test_an_ended_lease_can_be_claimed_in_a_full_queue(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(running_limit=1))
        claimed = await started(harness.store)
        await harness.advance(LEASE_MS / 1_000)
        assert await claim_ids(harness.store) == [claimed.job.id]

    async def test_live_leases_never_exceed_the_limit_after_crashes(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(running_limit=2))
        await put(harness.store, *[new() for _ in range(6)])
        for _ in range(4):
            assert len(await claim(harness.store)) == 2
            await harness.advance(LEASE_MS / 1_000)

    async def test_running_jobs_from_before_the_limit_count(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(4)])
        await claim(harness.store, 2)
        await harness.store.configure(QUEUE, QueueChange(running_limit=3))
        assert len(await claim(harness.store)) == 1

    async def test_no_job_is_claimed_while_more_jobs_run_than_the_limit(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(4)])
        await claim(harness.store, 3)
        await harness.store.configure(QUEUE, QueueChange(running_limit=1))
        assert await claim(harness.store) == []

    async def test_a_running_limit_holds_only_for_its_queue(self, harness: Harness) -> None:
        await put(harness.store, *[new(queue=queue) for queue in "aabb"])
        await harness.store.configure("a", QueueChange(running_limit=1))
        assert len(await claim(harness.store, queues=("a", "b"))) == 3

    async def test_a_removed_running_limit_has_no_effect(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(4)])
        await harness.store.configure(QUEUE, QueueChange(running_limit=1))
        await claim(harness.store)
        await harness.store.configure(QUEUE, QueueChange(running_limit=None))
        assert len(await claim(harness.store)) == 3

    async def test_claims_at_the_same_time_do_not_exceed_the_limit(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(20)])
        await harness.store.configure(QUEUE, QueueChange(running_limit=5))
        async with second(harness) as other:
            claims = await asyncio.gather(*[claim(store, 2) for store in [harness.store, other] * 5])
        assert sum(map(len, claims)) == 5


class RateLimitContract:
    """The maximum number of claims in a window, which opens with the first claim after the last window."""

    async def test_a_window_allows_no_more_claims_than_its_count(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(5)])
        await harness.store.configure(QUEUE, TWO_A_MINUTE)
        assert len(await claim(harness.store)) == 2
        await harness.advance(59.999)
        assert await claim(harness.store) == []

    async def test_the_next_window_allows_more_claims(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(5)])
        await harness.store.configure(QUEUE, TWO_A_MINUTE)
        await claim(harness.store, lease_ms=3_600_000)
        await harness.advance(60)
        assert len(await claim(harness.store, lease_ms=3_600_000)) == 2
        await harness.advance(60)
        assert len(await claim(harness.store, lease_ms=3_600_000)) == 1

    async def test_a_window_counts_over_several_calls(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(5)])
        await harness.store.configure(QUEUE, TWO_A_MINUTE)
        assert len(await claim(harness.store, 1)) == 1
        await harness.advance(30)
        async with second(harness) as other:
            assert len(await claim(other, 5, lease_ms=3_600_000)) == 1

    async def test_a_window_opens_with_its_first_claim(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, ONE_A_MINUTE)
        await harness.advance(1_000)
        await put(harness.store, new(), new())
        assert len(await claim(harness.store, lease_ms=3_600_000)) == 1
        await harness.advance(59.999)
        assert await claim(harness.store) == []
        await harness.advance(0.001)
        assert len(await claim(harness.store)) == 1

    async def test_a_claim_that_finds_nothing_opens_no_window(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, ONE_A_MINUTE)
        assert await claim(harness.store) == []
        await harness.advance(30)
        await put(harness.store, new(), new())
        assert len(await claim(harness.store, lease_ms=3_600_000)) == 1
        await harness.advance(31)
        assert await claim(harness.store) == []

    async def test_each_window_counts_from_zero(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(5)])
        await harness.store.configure(QUEUE, TWO_A_MINUTE)
        assert len(await claim(harness.store, lease_ms=3_600_000)) == 2
        await harness.advance(60)
        assert [len(await claim(harness.store, 1, lease_ms=3_600_000)) for _ in range(3)] == [1, 1, 0]

    async def test_unused_room_is_not_carried_over(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(5)])
        await harness.store.configure(QUEUE, TWO_A_MINUTE)
        await claim(harness.store, 1, lease_ms=86_400_000)
        await harness.advance(600)
        assert len(await claim(harness.store)) == 2

    async def test_released_jobs_count_for_the_rate_limit(self, harness: Harness) -> None:
        await put(harness.store, new(), new())
        await harness.store.configure(QUEUE, ONE_A_MINUTE)
        await settle(harness.store, release(await claim_one(harness.store)))
        assert await claim(harness.store) == []

    async def test_claiming_an_ended_lease_counts_for_the_rate_limit(self, harness: Harness) -> None:
        await put(harness.store, new(), new())
        await claim(harness.store, 2)
        await harness.advance(LEASE_MS / 1_000)
        await harness.store.configure(QUEUE, ONE_A_MINUTE)
        assert len(await claim(harness.store)) == 1
        assert await claim(harness.store) == []

    async def test_a_rate_limit_counts_no_attempts(self, harness: Harness) -> None:
        await put(harness.store, new(), new())
        await harness.store.configure(QUEUE, ONE_A_MINUTE)
        await settle(harness.store, succeed(await claim_one(harness.store)))
        await claim(harness.store)
        await harness.advance(60)
        job = (await claim_one(harness.store)).job
        assert (job.claims, job.errors, job.crashes) == (1, 0, 0)

    async def test_a_rate_limit_holds_only_for_its_queue(self, harness: Harness) -> None:
        await put(harness.store, *[new(queue=queue) for queue in "aabb"])
        await harness.store.configure("a", ONE_A_MINUTE)
        assert len(await claim(harness.store, queues=("a", "b"))) == 3

    async def test_a_removed_rate_limit_has_no_effect(self, harness: Harness) -> None:
        await put(harness.store, new(), new())
        await harness.store.configure(QUEUE, ONE_A_MINUTE)
        await claim(harness.store)
        await harness.store.configure(QUEUE, QueueChange(rate_limit=None))
        assert len(await claim(harness.store)) == 1

    async def test_both_limits_hold(self, harness: Harness) -> None:
        await put(harness.store, *[new(due=after(0)) for _ in range(9)])
        await harness.store.configure(QUEUE, QueueChange(rate_limit=RateLimit(4, 60_000), running_limit=3))
        first = await claim(harness.store, lease_ms=3_600_000)
        assert len(first) == 3
        await settle(harness.store, *[succeed(one) for one in first])
        assert len(await claim(harness.store)) == 1
