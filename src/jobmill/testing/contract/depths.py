"""`depths` and `count_up_to`: how many jobs there are, at a bounded cost."""

from __future__ import annotations

from typing import Any

import pytest

from jobmill.core.job import FINAL, State
from jobmill.core.values import EVERYTHING, Depth, Filter, QueueChange, RateLimit, after
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import QUEUE, claim, in_state, new, put, put_one, second, started


class DepthsContract:
    """Counts by queue and state."""

    async def test_an_empty_store_has_no_depths(self, harness: Harness) -> None:
        assert await harness.store.depths() == []

    async def test_waiting_jobs_are_due_or_due_later(self, harness: Harness) -> None:
        await put(harness.store, new(), new(due=after(1_000)), new(due=after(2_000)))
        due_ms = harness.store.now()
        expected = Depth(queue=QUEUE, due=1, later=2, oldest_due_ms=due_ms)
        assert await harness.store.depths() == [expected]
        await harness.advance(1)
        expected = Depth(queue=QUEUE, due=2, later=1, oldest_due_ms=due_ms)
        assert await harness.store.depths() == [expected]

    async def test_the_oldest_due_job_counts_whatever_its_priority(self, harness: Harness) -> None:
        await put_one(harness.store, new(priority=9))
        due_ms = harness.store.now()
        await harness.advance(5)
        await put_one(harness.store, new(priority=1))
        (depth,) = await harness.store.depths()
        assert (depth.due, depth.oldest_due_ms) == (2, due_ms)

    @pytest.mark.parametrize("state", [*FINAL, "running"])
    async def test_other_jobs_count_by_their_state(self, harness: Harness, state: State) -> None:
        await in_state(harness.store, state)
        await in_state(harness.store, state)
        expected: dict[str, Any] = {state: 2}
        assert await harness.store.depths() == [Depth(queue=QUEUE, **expected)]

    async def test_queues_come_by_name_and_those_with_settings_too(self, harness: Harness) -> None:
        await put(harness.store, new(queue="b"), new(queue="a"), new(queue="a"))
        await harness.store.configure("c", QueueChange(paused=True))
        depths = await harness.store.depths()
        assert [(one.queue, one.due) for one in depths] == [("a", 2), ("b", 1), ("c", 0)]

    async def test_named_queues_are_returned_even_if_empty(self, harness: Harness) -> None:
        await put(harness.store, new(queue="a"), new(queue="b"))
        depths = await harness.store.depths(["b", "empty"])
        assert [(one.queue, one.due) for one in depths] == [("b", 1), ("empty", 0)]

    @pytest.mark.parametrize("state", [*FINAL, "running", "waiting"])
    async def test_a_count_stops_at_the_limit(self, harness: Harness, state: State) -> None:
        field = "due" if state == "waiting" else state
        for _ in range(2):
            await in_state(harness.store, state, new(name=f"at-{state}"))
        (below,) = await harness.store.depths(limit=3)
        assert (getattr(below, field), below.exact) == (2, True)
        await in_state(harness.store, state, new(name="third"))
        await in_state(harness.store, state, new(name="fourth"))
        (above,) = await harness.store.depths(limit=3)
        assert (getattr(above, field), above.exact) == (3, False)

    async def test_a_used_up_rate_limit_says_when_it_ends(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(3)])
        await harness.store.configure(QUEUE, QueueChange(rate_limit=RateLimit(2, 60_000)))
        start_ms = harness.store.now()
        for until_ms in (None, start_ms + 60_000):
            await claim(harness.store, n=1)
            (depth,) = await harness.store.depths([QUEUE])
            assert depth.limited_until_ms == until_ms
        await harness.advance(60)
        (depth,) = await harness.store.depths()
        assert (depth.due, depth.limited_until_ms) == (1, None)

    async def test_a_write_is_seen_at_once_from_another_connection(self, harness: Harness) -> None:
        await harness.store.depths()
        claimed = await started(harness.store)
        async with second(harness) as other:
            (depth,) = await other.depths()
            assert (depth.due, depth.running) == (0, 1)
        assert claimed.job.state == "running"

    async def test_a_job_whose_lease_has_ended_still_runs(self, harness: Harness) -> None:
        await started(harness.store)
        await harness.advance(3_600)
        (depth,) = await harness.store.depths()
        assert (depth.due, depth.running) == (0, 1)


class CountUpToContract:
    """A count that ends early."""

    async def test_it_counts_matches(self, harness: Harness) -> None:
        await put(harness.store, *[new(tenant="acme") for _ in range(4)], new())
        assert (await harness.store.count_up_to(Filter(tenant="acme"), 100)).count == 4
        assert (await harness.store.count_up_to(EVERYTHING, 100)).count == 5

    async def test_it_stops_at_the_limit(self, harness: Harness) -> None:
        await put(harness.store, *[new() for _ in range(5)])
        assert (await harness.store.count_up_to(EVERYTHING, 3)).count == 3

    async def test_it_counts_jobs_of_every_state(self, harness: Harness) -> None:
        for state in (*FINAL, "running"):
            await in_state(harness.store, state)
        await put_one(harness.store)
        assert (await harness.store.count_up_to(Filter(queue=QUEUE), 100)).count == 5
        assert (await harness.store.count_up_to(Filter(queue=QUEUE, states=FINAL), 100)).count == 3
        assert (await harness.store.count_up_to(Filter(queue="elsewhere"), 100)).count == 0
        assert len(await claim(harness.store)) == 1
