"""Concurrency: the limit holds, batch stores get batches, and one loop polls while all are idle."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

import pytest

from jobmill.crontab import CrontabJob, LockLost
from tests.crontab.support import NOON, WAYS, Plain, Scene, settled
from tests.helpers import until


class Crowd:
    """A handler that counts how many run at a time."""

    def __init__(self) -> None:
        self.now = 0
        self.most = 0
        self.seen: Counter[object] = Counter()
        self.go_on = asyncio.Semaphore(0)

    async def __call__(self, job: CrontabJob) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await self.go_on.acquire()
        self.seen[job.id] += 1
        self.now -= 1


@WAYS
async def test_at_most_concurrency_documents_run_and_each_runs_once(kind: str, concurrency: int) -> None:
    crowd = Crowd()
    scene = Scene(kind, concurrency=concurrency, on_document=crowd)
    for id in range(10):
        await scene.memory.add(id)
    async with scene.run():
        locked = [id for id in range(10) if scene.sleep_until(id) != NOON]
        assert len(locked) == crowd.now == concurrency
        for _ in range(10):
            crowd.go_on.release()
        await until(lambda: not scene.crontab.is_processing and crowd.seen.total() == 10)
    assert crowd.most == concurrency
    assert set(crowd.seen.values()) == {1}
    assert {document.sleep_until for document in scene.memory.documents.values()} == {None}


async def test_endings_at_the_same_time_are_written_together() -> None:
    scene = Scene(concurrency=5)
    for id in range(12):
        await scene.memory.add(id, auto_remove=id % 2 == 0)
    async with scene.run(1):
        assert sorted(scene.told.ids) == list(range(12))
    writes = [len(ids) for verb, ids in scene.memory.calls if verb == "write"]
    assert sum(writes) == 12
    assert max(writes) >= 5
    assert {ids[0] for verb, ids in scene.memory.calls if verb == "lock"} <= {1, 2, 3, 4, 5}
    assert set(scene.memory.documents) == {1, 3, 5, 7, 9, 11}


async def test_the_number_of_unwritten_endings_is_limited() -> None:
    scene = Scene(concurrency=5)
    scene.memory.gate = asyncio.Event()
    for id in range(50):
        await scene.memory.add(id)
    async with scene.run(1):
        assert len(scene.told.ids) <= 15
        # One call that writes is in flight; what ended since goes into the next one.
        assert len([ids for verb, ids in scene.memory.calls if verb == "write"]) == 1
        scene.memory.gate.set()
        await until(lambda: len(scene.told.ids) == 50)


async def test_the_next_lock_does_not_wait_for_the_write() -> None:
    scene = Scene()
    await scene.memory.add("a", sleep_until=NOON - timedelta(seconds=1))
    await scene.memory.add("b")
    scene.memory.gate = asyncio.Event()
    async with scene.run():
        # b is locked while a is being written, and handled only after that: one document at a time.
        assert scene.sleep_until("b") == NOON + timedelta(minutes=10)
        assert scene.told.ids == ["a"]
        scene.memory.gate.set()
        await settled()
        assert scene.told.ids == ["a", "b"]


@pytest.mark.parametrize("kind", ["plain", "whole"])
async def test_one_loop_polls_while_all_are_idle(kind: str) -> None:
    scene = Scene(kind, concurrency=20, idle_delay="1s")
    async with scene.run(0.5):
        scene.memory.calls.clear()
        await scene.time.advance(10)
        assert [verb for verb, _ in scene.memory.calls] == ["lock"] * 10
        # And all wake when there is something.
        for id in range(40):
            await scene.memory.add(id)
        await scene.time.advance(1)
        assert sorted(scene.told.ids) == list(range(40))


@pytest.mark.parametrize("kind", ["plain", "whole"])
async def test_several_documents_are_locked_at_once_after_an_idle_period(kind: str) -> None:
    crowd = Crowd()
    scene = Scene(kind, concurrency=4, on_document=crowd, idle_delay="1s")
    async with scene.run(3):
        for id in range(4):
            await scene.memory.add(id)
        await scene.time.advance(1)
        assert crowd.now == 4
        for _ in range(4):
            crowd.go_on.release()


@pytest.mark.parametrize("kind", ["plain", "whole"])
async def test_several_documents_run_next_to_a_slow_one(kind: str) -> None:
    crowd = Crowd()
    scene = Scene(kind, concurrency=4, on_document=crowd, idle_delay="1s")
    await scene.memory.add("long")
    async with scene.run(3):
        assert crowd.now == 1
        for id in range(3):
            await scene.memory.add(id)
        await scene.time.advance(1)
        assert crowd.now == 4
        for _ in range(4):
            crowd.go_on.release()


@WAYS
async def test_a_document_that_is_due_again_at_once_does_not_wait_for_the_next_poll(
    kind: str, concurrency: int
) -> None:
    scene = Scene(kind, concurrency=concurrency, idle_delay="1h", catch_up="twice")
    await scene.memory.add("a", sleep_until=NOON - timedelta(hours=2), interval="0 * * * *")
    scene.memory.gate = asyncio.Event()
    async with scene.run():
        assert scene.told.moments == ["start", "document a"]
        scene.memory.gate.set()
        await settled()
        await settled()
        assert scene.told.moments == ["start", "document a", "document a", "idle"]
        assert scene.sleep_until() == NOON + timedelta(hours=1)


@pytest.mark.parametrize("kind", ["plain", "whole"])
async def test_a_document_that_is_due_again_does_not_wait_for_another_handler(kind: str) -> None:
    async def hold(job: CrontabJob) -> None:
        scene.told.jobs.append(job)
        if job.id == "long":
            await go_on.wait()

    go_on = asyncio.Event()
    scene = Scene(kind, concurrency=3, on_document=hold, idle_delay="1h", catch_up="twice")
    await scene.memory.add("long", sleep_until=NOON - timedelta(hours=3))
    await scene.memory.add("a", sleep_until=NOON - timedelta(hours=2), interval="0 * * * *")
    scene.memory.gate = asyncio.Event()
    async with scene.run():
        assert scene.told.ids == ["long", "a"]
        scene.memory.gate.set()
        await settled()
        assert scene.told.ids == ["long", "a", "a"]
        go_on.set()


# ------------------------------------------------------------------------------------------------ the fence


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("auto_remove", [False, True])
async def test_a_lost_lock_is_reported_and_nothing_is_written(concurrency: int, auto_remove: bool) -> None:
    crowd = Crowd()
    scene = Scene(concurrency=concurrency, on_document=crowd, lock_duration="10s")
    await scene.memory.add("a", auto_remove=auto_remove)
    async with scene.crontab:
        await settled()
        # The handler takes so long that another worker has it.
        scene.time.clock.advance(10)
        theirs = NOON + timedelta(seconds=70)
        assert await scene.memory.lock_next(theirs) is not None
        crowd.go_on.release()
        await until(lambda: scene.told.errors)
        [(error, job)] = scene.told.errors
        assert isinstance(error, LockLost)
        assert job is not None
        assert job.id == "a"
        assert "lock_duration" in str(error)
        assert scene.sleep_until() == theirs


async def test_a_document_whose_lock_ended_during_the_last_write_is_skipped() -> None:
    scene = Scene(lock_duration="10s")
    await scene.memory.add("a", sleep_until=NOON - timedelta(seconds=1))
    await scene.memory.add("b")
    scene.memory.gate = asyncio.Event()
    async with scene.crontab:
        await settled()
        assert scene.sleep_until("b") == NOON + timedelta(seconds=10)
        scene.time.clock.advance(10)
        theirs = NOON + timedelta(seconds=70)
        assert len(await scene.memory.lock_documents(theirs, 2)) == 2
        scene.memory.gate.set()
        await until(lambda: len(scene.told.errors) == 2)
        await settled()
    assert scene.told.ids == ["a"]
    assert [(type(error), job and job.id) for error, job in scene.told.errors] == [(LockLost, "a"), (LockLost, "b")]
    assert "the last write took longer than lock_duration" in str(scene.told.errors[1][0])
    assert scene.sleep_until("b") == theirs


async def test_without_a_fence_nothing_is_removed_after_the_lock_has_ended() -> None:
    crowd = Crowd()
    scene = Scene("plain", on_document=crowd, lock_duration="10s")
    await scene.memory.add("a", auto_remove=True)
    async with scene.crontab:
        await settled()
        scene.time.clock.advance(10)
        crowd.go_on.release()
        await until(lambda: scene.told.errors)
        assert isinstance(scene.told.errors[0][0], LockLost)
        assert isinstance(scene.store, Plain)
        assert "remove" not in scene.store.calls
        assert "a" in scene.memory.documents
        crowd.go_on.release()  # it is due again


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_the_fence_is_the_lock_that_the_store_wrote(concurrency: int) -> None:
    scene = Scene(concurrency=concurrency)
    later = timedelta(milliseconds=321)
    lock = scene.memory.lock_documents
    scene.memory.lock_documents = lambda lock_until, most: lock(lock_until + later, most)  # type: ignore[method-assign]
    await scene.memory.add("a")
    async with scene.run(1):
        assert scene.told.jobs[0].locked_until == NOON + timedelta(minutes=10) + later
        assert scene.sleep_until() is None
