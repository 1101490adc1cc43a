"""`wait_for_cancel` and `wait_for_end`: return when a job may have been cancelled, or may have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from jobmill.core.changes import Cancel, Remove
from jobmill.core.values import Claimed
from jobmill.store import Store
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import QUEUE, fail, put_one, second, settle, started, succeed

# A store that gives no hints fails after this time; a correct one needs milliseconds, or one interval of its polls.
PATIENCE_S = 6.0
# How long a hint may take before the next job is tried: a hint may be missed, but not all of them.
HINT_S = 1.5
FAR_MS = 600_000

Act = Callable[[Store, Claimed], Coroutine[Any, Any, object]]


class HintsContract:
    """Waiting for the cancel and for the end of jobs."""

    async def test_waiting_for_a_cancel_ends_when_the_job_is_cancelled(self, harness: Harness) -> None:
        await self._cancel_is_hinted(harness.store, harness.store)

    async def test_waiting_for_a_cancel_ends_when_another_connection_cancels(self, harness: Harness) -> None:
        async with second(harness) as other:
            await self._cancel_is_hinted(harness.store, other)

    async def test_waiting_for_a_cancel_follows_the_jobs_that_run(self, harness: Harness) -> None:
        store, runs = harness.store, dict[str, None]()
        waiting = await _begin(store.wait_for_cancel(runs.keys(), store.now() + FAR_MS))
        async with asyncio.timeout(PATIENCE_S):
            while not waiting.done():
                runs[(await started(store)).job.id] = None
                await store.change(list(runs), Cancel())
                await asyncio.wait([waiting], timeout=HINT_S)
        await waiting

    async def test_waiting_for_an_end_ends_when_the_job_is_settled(self, harness: Harness) -> None:
        await self._end_is_hinted(harness.store, harness.store, _succeeds)

    async def test_waiting_for_an_end_ends_when_another_connection_settles(self, harness: Harness) -> None:
        async with _worker(harness) as other:
            await self._end_is_hinted(harness.store, other, _succeeds)

    async def test_waiting_for_an_end_ends_when_the_job_fails(self, harness: Harness) -> None:
        async with _worker(harness) as other:
            await self._end_is_hinted(harness.store, other, _fails)

    async def test_waiting_for_an_end_ends_when_the_job_is_cancelled(self, harness: Harness) -> None:
        async with second(harness) as other:
            await self._end_is_hinted(harness.store, other, _is_cancelled)

    async def test_waiting_for_an_end_ends_when_a_waiting_job_is_removed(self, harness: Harness) -> None:
        store = harness.store
        async with second(harness) as other, asyncio.timeout(PATIENCE_S):
            while True:
                id = await put_one(store)
                waiting = await _begin(store.wait_for_end(id, QUEUE, store.now() + FAR_MS))
                await other.change([id], Remove())
                if await _is_hinted(waiting):
                    return

    async def test_all_tasks_that_wait_for_an_end_are_woken(self, harness: Harness) -> None:
        store = harness.store
        async with _worker(harness) as other, asyncio.timeout(PATIENCE_S):
            while True:
                jobs = [await started(store) for _ in range(3)]
                waits = [await _begin(store.wait_for_end(one.job.id, QUEUE, store.now() + FAR_MS)) for one in jobs * 2]
                await settle(other, *map(succeed, jobs))
                if all([await _is_hinted(waiting) for waiting in waits]):
                    return

    async def test_waiting_for_a_hint_ends_at_its_time_at_the_latest(self, harness: Harness) -> None:
        store, claimed = harness.store, await started(harness.store)
        for late_ms in (20, 0, -1):
            async with asyncio.timeout(PATIENCE_S):
                await store.wait_for_cancel([claimed.job.id], store.now() + late_ms)
                await store.wait_for_end(claimed.job.id, QUEUE, store.now() + late_ms)

    async def test_waiting_for_a_hint_can_be_cancelled(self, harness: Harness) -> None:
        store, claimed = harness.store, await started(harness.store)
        waits = [
            await _begin(store.wait_for_cancel([claimed.job.id], store.now() + FAR_MS)),
            await _begin(store.wait_for_end(claimed.job.id, QUEUE, store.now() + FAR_MS)),
        ]
        for waiting in waits:
            waiting.cancel()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*waits, return_exceptions=True)
        # The store still works.
        await self._cancel_is_hinted(store, store)

    async def test_the_end_of_an_unknown_job_may_be_waited_for(self, harness: Harness) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await harness.store.wait_for_end("nobody", QUEUE, harness.store.now() + 20)

    async def _cancel_is_hinted(self, store: Store, by: Store) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                claimed = await started(store)
                waiting = await _begin(store.wait_for_cancel({claimed.job.id}, store.now() + FAR_MS))
                await by.change([claimed.job.id], Cancel())
                if await _is_hinted(waiting):
                    return

    async def _end_is_hinted(self, store: Store, by: Store, act: Act) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                claimed = await started(store)
                waiting = await _begin(store.wait_for_end(claimed.job.id, QUEUE, store.now() + FAR_MS))
                await act(by, claimed)
                if await _is_hinted(waiting):
                    return


@asynccontextmanager
async def _worker(harness: Harness) -> AsyncIterator[Store]:
    """A second connection that waits for cancels, as every worker does."""
    async with second(harness) as store:
        waiting = await _begin(store.wait_for_cancel((), store.now() + FAR_MS))
        try:
            yield store
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])


async def _begin(wait: Coroutine[Any, Any, None]) -> asyncio.Future[None]:
    waiting = asyncio.ensure_future(wait)
    await asyncio.sleep(0)
    return waiting


async def _is_hinted(waiting: asyncio.Future[None]) -> bool:
    """Whether a hint comes; otherwise nobody waits any more."""
    await asyncio.wait([waiting], timeout=HINT_S)
    if waiting.done():
        await waiting
        return True
    waiting.cancel()
    await asyncio.wait([waiting])
    return False


async def _succeeds(store: Store, claimed: Claimed) -> None:
    assert await settle(store, succeed(claimed)) == ["done"]


async def _fails(store: Store, claimed: Claimed) -> None:
    assert await settle(store, fail(claimed)) == ["done"]


async def _is_cancelled(store: Store, claimed: Claimed) -> None:
    assert (await store.change([claimed.job.id], Cancel())).ids == [claimed.job.id]
