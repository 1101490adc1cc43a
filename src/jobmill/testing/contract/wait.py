"""`wait_for_work`: returns when a job may be claimable, and at the latest at the given time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from msgspec import structs

from jobmill.core.changes import Cancel, Requeue, Reschedule
from jobmill.core.queue_settings import LaneRule
from jobmill.core.values import QueueChange, Settlement, after
from jobmill.store import Store
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    new,
    put,
    put_one,
    readable,
    second,
    settle,
    succeed,
    wish,
)

# A store that does not wake its waiters fails after this time; a correct one needs milliseconds.
PATIENCE_S = 5
FAR_MS = 600_000


class WaitContract:
    """Waiting for work."""

    async def test_waiting_ends_when_another_task_enqueues(self, harness: Harness) -> None:
        await self._is_woken_by_enqueue(harness.store, harness.store)

    async def test_waiting_ends_when_another_connection_enqueues(self, harness: Harness) -> None:
        async with second(harness) as other:
            await self._is_woken_by_enqueue(harness.store, other)

    async def test_all_waiting_tasks_are_woken(self, harness: Harness) -> None:
        waiters = [asyncio.create_task(self._wait(harness.store)) for _ in range(3)]
        await self._until_done(waiters, lambda: put_one(harness.store))

    async def test_waiting_for_several_queues_ends_for_each(self, harness: Harness) -> None:
        for queue in ("a", "b"):
            waiter = asyncio.create_task(self._wait(harness.store, "a", "b"))
            await self._until_done([waiter], partial(_put_into, harness.store, queue))

    async def test_waiting_ends_when_a_job_is_requeued(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new() for _ in range(300)])
        await harness.store.change(ids, Cancel())
        waiter = asyncio.create_task(self._wait(harness.store))
        await self._until_done([waiter], lambda: harness.store.change([ids.pop()], Requeue()))

    async def test_waiting_ends_when_a_job_is_rescheduled(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(due=after(FAR_MS)))
        waiter = asyncio.create_task(self._wait(harness.store))
        await self._until_done([waiter], lambda: harness.store.change([id], Reschedule(after(0))))

    @pytest.mark.parametrize("slots", [1, 2])
    async def test_waiting_ends_when_a_lane_gives_slots_on(self, harness: Harness, slots: int) -> None:
        """The next job of the lane may have a name that only a sleeping worker runs."""
        store = harness.store
        await store.configure(QUEUE, QueueChange(lanes=LaneRule(running=slots)))
        await put(store, *[structs.replace(new(), lane="a") for _ in range(600)])
        waiter = asyncio.create_task(self._wait(store))

        async def end_all() -> None:
            await settle(store, *map(succeed, await claim(store)))

        await self._until_done([waiter], end_all)

    async def test_waiting_ends_when_a_slot_goes_to_a_job_of_another_name(self, harness: Harness) -> None:
        """The call that gives the slot claims a job of another lane."""
        store = harness.store
        await store.configure(QUEUE, QueueChange(lanes=LaneRule(running=1)))
        jobs = [structs.replace(new(name=name), lane=f"{n}") for n in range(600) for name in ("send", "count")]
        await put(store, *jobs)
        settlements: list[Settlement] = []
        # The first wait may end at once, so that the caller claims once more before it sleeps.
        for _ in range(3):
            await store.exchange([], wish(1, names=("nobody",)))
            await store.wait_for_work((QUEUE,), store.now() + 20)
        waiter = asyncio.create_task(self._wait(store))

        async def run_one() -> None:
            await harness.advance(0.001)
            claimed = readable((await store.exchange(settlements, wish(1, names=("send",)))).claimed)
            settlements[:] = [succeed(one) for one in claimed]
            assert len(claimed) == 1

        await self._until_done([waiter], run_one)

    async def test_waiting_ends_when_a_queue_is_resumed(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(paused=True))
        await put_one(harness.store)
        waiter = asyncio.create_task(self._wait(harness.store))
        await self._until_done([waiter], partial(_pause_and_resume, harness.store))

    async def test_waiting_ends_at_its_time_at_the_latest(self, harness: Harness) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await harness.store.wait_for_work((QUEUE,), harness.store.now() + 20)

    async def test_waiting_until_a_time_that_has_passed_ends_at_once(self, harness: Harness) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await harness.store.wait_for_work((QUEUE,), harness.store.now() - 1)

    async def test_waiting_can_be_cancelled(self, harness: Harness) -> None:
        waiter = asyncio.create_task(self._wait(harness.store))
        await asyncio.sleep(0)
        waiter.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(waiter, return_exceptions=True)
        # The store still works.
        await self._is_woken_by_enqueue(harness.store, harness.store)

    async def _is_woken_by_enqueue(self, store: Store, by: Store) -> None:
        waiter = asyncio.create_task(self._wait(store))
        await self._until_done([waiter], lambda: put_one(by))

    async def _wait(self, store: Store, *queues: str) -> None:
        await store.wait_for_work(queues or (QUEUE,), store.now() + FAR_MS)

    async def _until_done(self, waiters: list[asyncio.Task[None]], make_work: Callable[[], Awaitable[object]]) -> None:
        """Enqueue jobs until all waiters are awake. A waiter may miss a wake-up, but not all of them."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not all(waiter.done() for waiter in waiters):
                    await make_work()
                    await asyncio.wait(waiters, timeout=0.02)
        finally:
            for waiter in waiters:
                waiter.cancel()
        for waiter in waiters:
            await waiter


async def _put_into(store: Store, queue: str) -> None:
    await put_one(store, new(queue=queue))


async def _pause_and_resume(store: Store) -> None:
    await store.configure(QUEUE, QueueChange(paused=True))
    await store.configure(QUEUE, QueueChange(paused=False))
