"""Batching: what is asked while a call is in flight goes into the next one, and one bad call harms nobody else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

import jobmill
from jobmill.core.job import Job
from jobmill.core.values import NewJob, Receipt
from jobmill.errors import StoreUnavailable
from jobmill.runtime.batcher import Batcher
from jobmill.stores.memory import MemoryStore


class Doubling:
    """A call that doubles numbers; it waits for `go`, refuses negative ones and writes down what it was asked."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.go = asyncio.Event()
        self.go.set()
        self.began = asyncio.Event()
        self.error: BaseException | None = None

    async def __call__(self, items: list[int]) -> list[int]:
        self.calls.append(items)
        self.began.set()
        await self.go.wait()
        if self.error is not None:
            raise self.error
        if any(item < 0 for item in items):
            raise ValueError("negative")
        return [item * 2 for item in items]


async def test_a_lone_call_goes_through_as_it_is() -> None:
    call = Doubling()
    batched = Batcher(call)
    assert await batched([1, 2]) == [2, 4]
    assert await batched([3]) == [6]
    assert await batched([]) == []
    assert call.calls == [[1, 2], [3], []]


async def test_calls_at_the_same_time_are_one_call_with_an_answer_for_each() -> None:
    call = Doubling()
    batched = Batcher(call)
    assert await asyncio.gather(*(batched([n, -n or 0]) for n in [0] * 3), batched([5])) == [[0, 0]] * 3 + [[10]]
    assert len(call.calls) == 1


async def test_what_is_asked_while_a_call_is_in_flight_goes_into_the_next() -> None:
    call = Doubling()
    call.go.clear()
    batched = Batcher(call)
    first = asyncio.create_task(batched([1]))
    await call.began.wait()
    others = [asyncio.create_task(batched([n])) for n in range(2, 12)]
    await asyncio.sleep(0)
    assert call.calls == [[1]]
    call.go.set()
    assert await first == [2]
    assert await asyncio.gather(*others) == [[n * 2] for n in range(2, 12)]
    assert call.calls == [[1], list(range(2, 12))]


async def test_a_batch_has_a_size_but_no_callers_items_are_split() -> None:
    call = Doubling()
    batched = Batcher(call, max_items=3)
    await asyncio.gather(batched([1, 2]), batched([3]), batched([4]), batched([5, 6, 7, 8]), batched([9]))
    assert call.calls == [[1, 2, 3], [4], [5, 6, 7, 8], [9]]


async def test_one_bad_call_does_not_harm_the_others() -> None:
    call = Doubling()
    batched = Batcher(call)
    answers = await asyncio.gather(batched([1]), batched([-1, 5]), batched([2]), return_exceptions=True)
    assert [answers[0], answers[2]] == [[2], [4]]
    assert isinstance(answers[1], ValueError)
    assert call.calls == [[1, -1, 5, 2], [1], [-1, 5], [2]]


async def test_a_store_that_is_away_is_not_asked_for_each_of_them() -> None:
    call = Doubling()
    call.error = StoreUnavailable("no route")
    batched = Batcher(call)
    answers = await asyncio.gather(*(batched([n]) for n in range(5)), return_exceptions=True)
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    assert len(call.calls) == 1
    call.error = None
    assert await batched([1]) == [2], "and it goes on"


async def test_a_caller_who_gives_up_takes_nobody_along() -> None:
    call = Doubling()
    call.go.clear()
    batched = Batcher(call)
    one, other = asyncio.create_task(batched([1])), asyncio.create_task(batched([2]))
    await call.began.wait()
    one.cancel()
    call.go.set()
    assert await other == [4]
    with pytest.raises(asyncio.CancelledError):
        await one


async def test_a_call_that_is_cancelled_leaves_nobody_waiting() -> None:
    call = Doubling()
    call.go.clear()
    call.error = asyncio.CancelledError()
    batched = Batcher(call)
    first = asyncio.create_task(batched([1]))
    await call.began.wait()
    second = asyncio.create_task(batched([2]))
    await asyncio.sleep(0)
    call.go.set()
    answers = await asyncio.wait_for(asyncio.gather(first, second, return_exceptions=True), 5)
    assert all(isinstance(answer, StoreUnavailable) for answer in answers)
    call.error = None
    assert await batched([3]) == [6]


def test_every_loop_has_a_line_of_its_own() -> None:
    asked: list[list[int]] = []

    async def call(items: list[int]) -> list[int]:
        asked.append(items)
        return [item * 2 for item in items]

    batched: Batcher[int, int] = Batcher(call)
    answers: dict[int, list[int]] = {}

    async def ask(n: int) -> None:
        answers[n] = await batched([n])

    threads = [threading.Thread(target=lambda n=n: asyncio.run(ask(n))) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {n: [n * 2] for n in range(4)}
    assert sorted(asked) == [[n] for n in range(4)]


# ---------------------------------------------------------------------------------------------------- in the client


class CountingStore(MemoryStore):
    """Writes down how many jobs each call is about; refuses jobs of one name."""

    def __init__(self) -> None:
        super().__init__()
        self.enqueued: list[int] = []
        self.looked: list[int] = []

    async def enqueue(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        self.enqueued.append(len(new_jobs))
        await asyncio.sleep(0)
        if any(job.name == "poison" for job in new_jobs):
            raise RuntimeError("this store chokes on poison")
        return await super().enqueue(new_jobs)

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        self.looked.append(len(ids))
        await asyncio.sleep(0)
        return await super().get(ids)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore()


@pytest.fixture
def jobs(store: CountingStore) -> jobmill.Client:
    return jobmill.connect(store=store)


async def test_concurrent_callers_share_the_stores_calls(jobs: jobmill.Client, store: CountingStore) -> None:
    async def caller(number: int) -> list[str]:
        return [(await jobs.enqueue("work", {"n": number * 10 + n})).id for n in range(10)]

    ids = await asyncio.gather(*(caller(number) for number in range(50)))
    assert sum(store.enqueued) == 500
    assert len(store.enqueued) <= 25
    jobs_of_callers = await asyncio.gather(*(jobs.get(own[3]) for own in ids))
    assert [job.payload["n"] for job in jobs_of_callers] == [number * 10 + 3 for number in range(50)]
    assert len(store.looked) == 1


async def test_a_lone_caller_waits_for_nobody(jobs: jobmill.Client, store: CountingStore) -> None:
    for _ in range(3):
        await jobs.enqueue("work")
    assert store.enqueued == [1, 1, 1]


async def test_a_job_that_the_store_chokes_on_harms_its_own_caller_only(
    jobs: jobmill.Client, store: CountingStore
) -> None:
    names = ["work", "poison", "work", "work"]
    answers = await asyncio.gather(*(jobs.enqueue(name) for name in names), return_exceptions=True)
    assert [isinstance(answer, RuntimeError) for answer in answers] == [False, True, False, False]
    assert [one.count for one in await jobs.count()] == [3]
    assert store.enqueued == [4, 1, 1, 1, 1]


async def test_a_refused_job_is_never_on_its_way(jobs: jobmill.Client, store: CountingStore) -> None:
    calls = [jobs.enqueue("work"), jobs.enqueue("work", delay=-1), jobs.enqueue("work", {"x": {1}})]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(answer, jobmill.InvalidValue) for answer in answers] == [False, True, True]
    assert store.enqueued == [1]
