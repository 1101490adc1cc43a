"""`exchange`, times: the clock of the store, and when to claim again."""

from __future__ import annotations

from jobmill.core.values import QueueChange, RateLimit, after
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import QUEUE, in_state, new, next_due, put, put_one, snooze, started, wish


class NextDueContract:
    """`next_due_ms`: when another claim may return a job. It may ignore ended leases."""

    async def test_an_exchange_returns_the_time_of_the_store(self, harness: Harness) -> None:
        assert (await harness.store.exchange([], wish())).now_ms == harness.store.now()
        await harness.advance(5)
        assert (await harness.store.exchange([], None)).now_ms == harness.store.now()

    async def test_an_empty_queue_has_no_next_due_time(self, harness: Harness) -> None:
        assert await next_due(harness.store) is None

    async def test_running_and_final_jobs_have_no_next_due_time(self, harness: Harness) -> None:
        await in_state(harness.store, "succeeded")
        await in_state(harness.store, "running")
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
