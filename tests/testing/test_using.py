"""`client.using(store)`: another store for a while, in this context."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import jobmill
from jobmill import Client, Worker
from jobmill.errors import StoreUnavailable
from jobmill.store import Store
from jobmill.stores.memory import MemoryStore
from tests.helpers import FaultyStore, until
from tests.stores_under_test import make_store


@pytest.fixture
def own() -> FaultyStore:
    """The client's own store, which no call may reach."""
    store = FaultyStore()
    store.faults = {"enqueue": StoreUnavailable("not this one"), "exchange": StoreUnavailable("not this one")}
    return store


@pytest.fixture
def jobs(own: FaultyStore) -> Client:
    return jobmill.connect(store=own)


@pytest.fixture
async def other(store_url: str) -> Store:
    return make_store(store_url)


async def test_calls_reach_the_other_store_and_handlers_stay(jobs: Client, own: FaultyStore, other: Store) -> None:
    @jobs.handler
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with jobs.using(other) as same:
        assert same is jobs
        assert jobs.store is other
        enqueued = await greet.enqueue(name="Ada")
        await jobs.tick()
        assert await enqueued.result(timeout="10s") == "hello Ada"
        assert [job.id async for job in jobs.find_all()] == [enqueued.id]
    assert jobs.store is own
    assert own.calls == []
    with pytest.raises(StoreUnavailable, match="not this one"):
        await greet.enqueue(name="Ada")


async def test_uses_nest_and_clients_do_not_share_them(jobs: Client, own: FaultyStore) -> None:
    first, second, other = MemoryStore(), MemoryStore(), jobmill.connect("memory://")
    with jobs.using(first), other.using(MemoryStore()):
        with jobs.using(second):
            assert jobs.store is second
        assert jobs.store is first
        assert other.store is not first
    assert jobs.store is own


async def test_tasks_do_not_see_each_other(jobs: Client, own: FaultyStore) -> None:
    both = asyncio.Barrier(3)

    async def one(name: str) -> list[str]:
        with jobs.using(MemoryStore()):
            await both.wait()
            await jobs.enqueue(name)
            await both.wait()
            return [job.name async for job in jobs.find_all()]

    async def without() -> Store:
        await both.wait()
        await both.wait()
        return jobs.store

    a, b, c = await asyncio.gather(one("a"), one("b"), without())
    assert (a, b, c is own) == (["a"], ["b"], True)


def test_threads_do_not_see_each_other_and_jobs_sync_follows(jobs: Client, own: FaultyStore) -> None:
    together = threading.Barrier(4)

    def one(number: int) -> list[str]:
        with jobs.using(MemoryStore()):
            together.wait(10)
            jobs.sync.enqueue(f"job-{number}")
            together.wait(10)
            return [job.name for job in jobs.sync.find_all()]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(4))) == [[f"job-{number}"] for number in range(4)]
    assert own.calls == []
    jobs.sync.close()


def test_everywhere_holds_for_threads_that_do_not_inherit_the_context(jobs: Client, own: FaultyStore) -> None:
    store = MemoryStore()
    with ThreadPoolExecutor(1) as pool:
        with jobs.using(MemoryStore()):
            assert pool.submit(lambda: jobs.store).result() is own
        with jobs.using(store, everywhere=True):
            assert pool.submit(lambda: jobs.store).result() is store
        assert pool.submit(lambda: jobs.store).result() is own


async def test_a_worker_and_its_sync_handlers_use_the_store(jobs: Client, own: FaultyStore) -> None:
    @jobs.handler
    def split(count: int) -> None:
        jobs.sync.enqueue_many(jobs.draft("part") for _ in range(count))

    async def has_parts() -> bool:
        return len((await jobs.find(name="part")).jobs) == 3

    with jobs.using(MemoryStore()):
        await split.enqueue(count=3)
        async with Worker(jobs):
            await until(has_parts)
    assert own.calls == []
    await asyncio.to_thread(jobs.sync.close)


async def test_a_context_that_outlives_a_use_has_the_own_store(jobs: Client, own: FaultyStore) -> None:
    go_on = asyncio.Event()

    async def later() -> Store:
        await go_on.wait()
        return jobs.store

    with jobs.using(MemoryStore()):
        task = asyncio.create_task(later())
        await asyncio.sleep(0)
    go_on.set()
    assert await task is own


def test_a_use_is_entered_once_and_a_store_is_not_assigned(jobs: Client) -> None:
    use = jobs.using(MemoryStore())
    with use, pytest.raises(RuntimeError, match="once"), use:
        pass
    with pytest.raises(AttributeError, match="with jobs.using"):
        jobs.store = MemoryStore()


async def test_usage_goes_to_the_other_store_or_nowhere(jobs: Client, own: FaultyStore) -> None:
    class Recording(MemoryStore):
        async def record_usage(self, records: object) -> None: ...

    mine = Recording()
    given: list[jobmill.Usage] = []
    client = jobmill.connect(store=mine)
    client.record_usage(mine)
    client.record_usage(given.append)
    with client.using(MemoryStore()):
        assert client.usage_recorders == [given.append]
    with client.using(other := Recording()):
        assert client.usage_recorders == [other, given.append]
    assert client.usage_recorders == [mine, given.append]


async def test_declared_recurrences_are_stated_to_each_store(jobs: Client, own: FaultyStore) -> None:
    @jobs.handler(every="1h")
    async def clean() -> None: ...

    for _ in range(2):
        with jobs.using(MemoryStore()):
            await jobs.tick()
            assert [job.name async for job in jobs.find_all()] == ["clean"]
