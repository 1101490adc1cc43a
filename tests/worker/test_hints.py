"""Hints of the store: a cancelled handler stops at once and a result comes at once, and both also without hints."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Sized
from functools import partial
from typing import Any

import pytest

import jobmill
from jobmill import Client, JobCancelled
from jobmill.stores.memory.store import MemoryStore
from jobmill.worker.worker import Worker
from tests.helpers import until

#: A heartbeat of this lease comes after 10 seconds: whatever is quicker came by a hint.
LEASE = "60s"
SOON_S = 4.0


class NoHints(MemoryStore):
    """Never gives a hint."""

    async def wait_for_cancel(self, ids: Collection[str], until_ms: int) -> None:
        await asyncio.sleep(max(0, until_ms - self.now()) / 1000)

    async def wait_for_end(self, id: str, queue: str, until_ms: int) -> None:
        await asyncio.sleep(max(0, until_ms - self.now()) / 1000)


class CountedGets(NoHints):
    """Counts how often jobs are read and leases extended."""

    gets = extends = 0

    async def get(self, ids: Any) -> Any:
        self.gets += 1
        return await super().get(ids)

    async def extend(self, leases: Any, for_ms: int) -> list[str]:
        self.extends += 1
        return await super().extend(leases, for_ms)


class Broken(CountedGets):
    """Cannot wait for hints."""

    async def wait_for_cancel(self, ids: Collection[str], until_ms: int) -> None:
        raise RuntimeError("no hints here")

    async def wait_for_end(self, id: str, queue: str, until_ms: int) -> None:
        raise RuntimeError("no hints here")


class Eager(CountedGets):
    """Gives hints without a reason, all the time."""

    async def wait_for_cancel(self, ids: Collection[str], until_ms: int) -> None:
        await asyncio.sleep(0)

    async def wait_for_end(self, id: str, queue: str, until_ms: int) -> None:
        await asyncio.sleep(0)


@pytest.fixture
async def jobs(store_url: str, store_name: str) -> AsyncIterator[Client]:
    jobs = jobmill.connect(store_url)
    if store_name in ("postgres", "mongo"):
        await jobs.store.migrate()
    async with jobs:
        yield jobs


def other_client(jobs: Client, store_url: str) -> Client:
    """A client of its own connections, as in another process; a store in memory is shared."""
    return jobmill.connect(store=jobs.store) if isinstance(jobs.store, MemoryStore) else jobmill.connect(store_url)


def holding(jobs: Client) -> tuple[Any, list[float]]:
    """A handler that runs until it is stopped, and when it was."""
    stopped: list[float] = []

    @jobs.handler
    async def hold() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(time.monotonic())

    return hold, stopped


def has_length(items: Sized, length: int) -> bool:
    return len(items) == length


async def is_running(enqueued: jobmill.Enqueued[Any]) -> bool:
    return (await enqueued.job()).state == "running"


async def test_a_cancelled_handler_is_stopped_long_before_the_next_heartbeat(jobs: Client, store_url: str) -> None:
    hold, stopped = holding(jobs)
    other = other_client(jobs, store_url)
    async with Worker(jobs, lease=LEASE):
        for number in range(1, 4):
            enqueued = await hold.enqueue()
            await until(partial(is_running, enqueued))
            began = time.monotonic()
            await other.cancel(enqueued.id)
            await until(partial(has_length, stopped, number))
            assert stopped[-1] - began < SOON_S
    if other.store is not jobs.store:
        await other.close()


async def test_many_cancels_in_one_process_stop_all_handlers(jobs: Client) -> None:
    hold, stopped = holding(jobs)
    async with Worker(jobs, lease=LEASE, concurrency=20):
        enqueued = await jobs.enqueue_many([hold.draft() for _ in range(20)])
        for one in enqueued:
            await until(partial(is_running, one))
        began = time.monotonic()
        await asyncio.gather(*(jobs.cancel(one.id) for one in enqueued))
        await until(lambda: len(stopped) == 20)
        assert max(stopped) - began < SOON_S


async def test_a_result_is_hinted(jobs: Client, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    hinted: list[bool] = []
    other = other_client(jobs, store_url)
    wait_for_end = other.store.wait_for_end

    async def long_wait(id: str, queue: str, until_ms: int) -> None:
        # Much longer than the interval of queries, so that only a hint ends it.
        began = time.monotonic()
        await wait_for_end(id, queue, until_ms + 60_000)
        hinted.append(time.monotonic() - began < SOON_S)

    monkeypatch.setattr(other.store, "wait_for_end", long_wait)
    go = asyncio.Event()

    @jobs.handler
    async def work() -> int:
        await go.wait()
        return 42

    async def hints() -> bool:
        """One job; a hint may be missed, but not all of them."""
        go.clear()
        enqueued = await work.enqueue()
        result = asyncio.create_task(other.result(enqueued.id, timeout=30))
        await until(lambda: is_running(enqueued))
        # Until the client queries only every 0.25 s: before that, on a quiet machine, its own query always comes first.
        await asyncio.sleep(1)
        hinted.clear()
        go.set()
        assert await result == 42
        return True in hinted

    async with Worker(jobs, lease=LEASE):
        await until(hints)
    if other.store is not jobs.store:
        await other.close()


@pytest.mark.stores("sqlite", "postgres", "redis", "mongo")
def test_results_in_threads_are_hinted_too(store_url: str, store_name: str) -> None:
    """`jobs.sync` has an event loop of its own."""
    jobs = jobmill.connect(store_url)
    if store_name in ("postgres", "mongo"):
        jobs.sync(jobs.store.migrate())

    @jobs.handler
    async def work(number: int) -> int:
        await asyncio.sleep(0.05)
        return number

    worker = jobs.sync(_started(jobs))
    try:
        enqueued = [jobs.sync(work.enqueue(number)) for number in range(10)]
        assert [jobs.sync(one.result(timeout=10)) for one in enqueued] == list(range(10))
    finally:
        jobs.sync(worker.stop())
        jobs.sync.close()


async def _started(jobs: Client) -> Worker:
    worker = Worker(jobs)
    await worker.start()
    return worker


# ---------------------------------------------------------------------------------------------------- without hints


@pytest.mark.parametrize("store", [NoHints, Broken, Eager])
async def test_cancels_and_results_do_not_depend_on_hints(store: Callable[[], MemoryStore]) -> None:
    jobs = jobmill.connect(store=store())
    hold, stopped = holding(jobs)

    @jobs.handler
    async def work() -> int:
        await asyncio.sleep(0.05)
        return 42

    async with Worker(jobs, lease="300ms"):
        assert await (await work.enqueue()).result(timeout=5) == 42
        enqueued = await hold.enqueue()
        result = asyncio.create_task(enqueued.result(timeout=5))
        await until(lambda: is_running(enqueued))
        await jobs.cancel(enqueued.id)
        await until(lambda: stopped)
        with pytest.raises(JobCancelled):
            await result


@pytest.mark.parametrize("store", [Broken, Eager])
async def test_a_store_with_bad_hints_is_not_queried_all_the_time(store: Callable[[], CountedGets]) -> None:
    counted = store()
    jobs = jobmill.connect(store=counted)
    hold, _ = holding(jobs)
    async with Worker(jobs, lease=LEASE, shutdown_timeout=0):
        enqueued = await hold.enqueue()
        await until(lambda: is_running(enqueued))
        counted.gets = counted.extends = 0
        with pytest.raises(jobmill.ResultTimeout):
            await enqueued.result(timeout=0.5)
        # At most every 10 ms; and at most every 5 ms.
        assert counted.gets <= 60
        assert counted.extends <= 110
