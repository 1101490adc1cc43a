"""`exchange`, times: the clock of the store, and when to claim again; jobs that wait, and jobs whose lease ends."""

from __future__ import annotations

from jobmill.core.values import Exchanged, QueueChange, RateLimit, after
from jobmill.store import Store
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    LEASE_MS,
    QUEUE,
    claim_ids,
    in_state,
    new,
    next_due,
    put,
    put_one,
    readable,
    second,
    snooze,
    started,
    turns,
    wish,
)


class NextDueContract:
    """`next_due_ms`: when another claim may return a job."""

    async def test_an_exchange_returns_the_time_of_the_store(self, harness: Harness) -> None:
        assert (await harness.store.exchange([], wish())).now_ms == harness.store.now()
        await harness.advance(5)
        assert (await harness.store.exchange([], None)).now_ms == harness.store.now()

    async def test_an_empty_queue_has_no_next_due_time(self, harness: Harness) -> None:
        assert await next_due(harness.store) is None

    async def test_final_jobs_have_no_next_due_time(self, harness: Harness) -> None:
        await in_state(harness.store, "succeeded")
        await in_state(harness.store, "cancelled")
        assert await next_due(harness.store) is None

    async def test_the_next_due_time_is_the_earliest_one(self, harness: Harness) -> None:
        await put(harness.store, new(due=after(9_000)), new(due=after(4_000), priority=9), new(due=after(6_000)))
        assert await next_due(harness.store) == harness.store.now() + 4_000

    async def test_the_next_due_time_is_the_earliest_of_all_queues(self, harness: Harness) -> None:
        await put(harness.store, new(queue="a", due=after(9_000)), new(queue="b", due=after(4_000)))
        assert await next_due(harness.store, queues=("a", "b")) == harness.store.now() + 4_000

    async def test_other_queues_do_not_count_for_the_next_due_time(self, harness: Harness) -> None:
        await put(harness.store, new(due=after(9_000)), new(queue="other", due=after(4_000)))
        assert await next_due(harness.store) == harness.store.now() + 9_000

    async def test_more_that_is_claimable_is_due_now_or_before(self, harness: Harness) -> None:
        await put(harness.store, new(), new(), new())
        exchanged = await harness.store.exchange([], wish(2))
        assert exchanged.next_due_ms is not None
        assert exchanged.next_due_ms <= exchanged.now_ms

    async def test_more_in_a_second_queue_is_due_now_or_before(self, harness: Harness) -> None:
        await put(harness.store, new(queue="a"), new(queue="b"))
        exchanged = await harness.store.exchange([], wish(1, queues=("a", "b")))
        assert exchanged.next_due_ms is not None
        assert exchanged.next_due_ms <= exchanged.now_ms

    async def test_more_of_a_name_whose_room_is_used_up_is_due_now_or_before(self, harness: Harness) -> None:
        await put(harness.store, new(queue="a", name="build"), new(queue="b", name="build"))
        exchanged = await harness.store.exchange([], wish(3, queues=("a", "b"), names={"build": 1, "send": 5}))
        assert len(exchanged.claimed) == 1
        assert exchanged.next_due_ms is not None
        assert exchanged.next_due_ms <= exchanged.now_ms

    async def test_jobs_settled_in_the_same_call_count_for_the_next_due_time(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        exchanged = await harness.store.exchange([snooze(claimed, 2_500)], wish())
        assert exchanged.next_due_ms == exchanged.now_ms + 2_500

    async def test_a_paused_queue_has_no_next_due_time(self, harness: Harness) -> None:
        await put(harness.store, new(), new(due=after(5_000)))
        await harness.store.configure(QUEUE, QueueChange(paused=True))
        assert await next_due(harness.store) is None

    async def test_a_paused_queue_does_not_hide_the_next_due_time_of_another(self, harness: Harness) -> None:
        await put(harness.store, new(queue="a"), new(queue="b", due=after(5_000)))
        await harness.store.configure("a", QueueChange(paused=True))
        assert await next_due(harness.store, queues=("a", "b")) == harness.store.now() + 5_000

    async def test_a_full_queue_has_no_next_due_time(self, harness: Harness) -> None:
        await put(harness.store, new(), new())
        await harness.store.configure(QUEUE, QueueChange(running_limit=1))
        exchanged = await harness.store.exchange([], wish())
        assert (len(exchanged.claimed), exchanged.next_due_ms) == (1, None)

    async def test_a_rate_limited_queue_is_next_due_when_its_window_ends(self, harness: Harness) -> None:
        await put(harness.store, new(), new())
        await harness.store.configure(QUEUE, QueueChange(rate_limit=RateLimit(1, 60_000)))
        exchanged = await harness.store.exchange([], wish())
        assert (len(exchanged.claimed), exchanged.next_due_ms) == (1, exchanged.now_ms + 60_000)
        await harness.advance(20)
        exchanged = await harness.store.exchange([], wish())
        assert (len(exchanged.claimed), exchanged.next_due_ms) == (0, exchanged.now_ms + 40_000)

    async def test_an_emptied_rate_limited_queue_has_no_next_due_time(self, harness: Harness) -> None:
        await put_one(harness.store)
        await harness.store.configure(QUEUE, QueueChange(rate_limit=RateLimit(1, 60_000)))
        assert await next_due(harness.store) is None

    async def test_the_next_due_time_after_the_window_is_that_of_the_job(self, harness: Harness) -> None:
        await put(harness.store, new(), new(due=after(90_000)))
        await harness.store.configure(QUEUE, QueueChange(rate_limit=RateLimit(1, 60_000)))
        assert await next_due(harness.store) == harness.store.now() + 90_000


class LeaseEndContract:
    """A claim that finds nothing says when the first lease ends, so that an idle worker takes the job over at once."""

    async def test_a_running_job_is_next_due_when_its_lease_ends(self, harness: Harness) -> None:
        late = await started(harness.store, new(priority=1), lease_ms=9_000)
        early = await started(harness.store, new(priority=7), lease_ms=4_000)
        assert await next_due(harness.store) == early.lease.until_ms
        await harness.advance(4)
        assert await next_due(harness.store, names=("other",)) in (None, late.lease.until_ms)

    async def test_a_job_that_is_due_before_the_lease_ends_is_next(self, harness: Harness) -> None:
        claimed = await started(harness.store)
        await put(harness.store, new(due=after(LEASE_MS + 1)))
        assert await next_due(harness.store) == claimed.lease.until_ms
        await put(harness.store, new(due=after(LEASE_MS - 1)))
        assert await next_due(harness.store) == claimed.lease.until_ms - 1

    async def test_another_process_knows_the_end_of_a_lease_when_half_of_it_is_over(self, harness: Harness) -> None:
        async with second(harness) as idle:
            assert await next_due(idle) is None
            claimed = await started(harness.store)
            await harness.advance(LEASE_MS / 2_000)
            assert await next_due(idle) == claimed.lease.until_ms

    async def test_an_idle_worker_takes_a_job_over_when_its_lease_ends(self, harness: Harness) -> None:
        async with second(harness) as idle:
            claimed = await started(harness.store)
            assert await taken_over(harness, idle) == (claimed.job.id, claimed.lease.until_ms)

    async def test_an_idle_worker_follows_a_lease_that_is_extended(self, harness: Harness) -> None:
        async with second(harness) as idle:
            claimed = await started(harness.store)
            await next_due(idle)
            await harness.advance(10)
            assert await harness.store.extend([claimed.lease], 40_000) == []
            extended_ms = harness.store.now() + 40_000
            assert await taken_over(harness, idle) == (claimed.job.id, extended_ms)

    async def test_a_full_queue_is_next_due_when_a_lease_ends(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(running_limit=1))
        await put(harness.store, new("first"), new("second"))
        assert await claim_ids(harness.store) == ["first"]
        assert await next_due(harness.store) == harness.store.now() + LEASE_MS
        assert await taken_over(harness, harness.store) == ("first", harness.store.now())

    async def test_a_lease_that_ends_while_the_rate_limit_is_used_up_waits_for_the_window(
        self, harness: Harness
    ) -> None:
        await harness.store.configure(QUEUE, QueueChange(rate_limit=RateLimit(1, 60_000)))
        claimed = await started(harness.store)
        assert await next_due(harness.store) == harness.store.now() + 60_000
        await harness.advance(60)
        assert await claim_ids(harness.store) == [claimed.job.id]

    async def test_an_ended_lease_that_nobody_may_take_keeps_nobody_awake(self, harness: Harness) -> None:
        await started(harness.store, lease_ms=2_000)
        for _ in range(2):
            await started(harness.store)
        await harness.store.configure(QUEUE, QueueChange(running_limit=1))
        await harness.advance(2)
        for _ in range(3):
            answer = await harness.store.exchange([], wish())
            assert answer.claimed == []
            assert sleeps(answer)

    async def test_an_ended_lease_of_a_paused_queue_keeps_nobody_awake(self, harness: Harness) -> None:
        await started(harness.store)
        await harness.store.configure(QUEUE, QueueChange(paused=True))
        assert await next_due(harness.store) is None
        await harness.advance(60)
        assert await next_due(harness.store) is None

    async def test_an_ended_lease_of_another_name_keeps_nobody_awake(self, harness: Harness) -> None:
        await started(harness.store, new(name="other"))
        await harness.advance(60)
        for _ in range(3):
            assert sleeps(await harness.store.exchange([], wish()))


def sleeps(answer: Exchanged) -> bool:
    """Whether a worker sleeps after this answer, and does not claim again at once."""
    return answer.next_due_ms is None or answer.next_due_ms > answer.now_ms


async def taken_over(harness: Harness, store: Store) -> tuple[str, int]:
    """Claim and sleep as an idle worker does, for less than half a lease. Returns the job that it gets, and when."""
    for _ in turns(20):
        answer = await store.exchange([], wish())
        if answer.claimed:
            return readable(answer.claimed)[0].job.id, answer.now_ms
        assert sleeps(answer)
        wait_ms = LEASE_MS if answer.next_due_ms is None else answer.next_due_ms - answer.now_ms
        await harness.advance(min(wait_ms, LEASE_MS // 2 - 1) / 1_000)
    raise AssertionError
