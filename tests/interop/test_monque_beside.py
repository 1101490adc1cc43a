"""Monque and we beside each other on one collection: every job runs once, in the same order, under one unique key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import bson
import pytest

import jobmill
from tests.helpers import until
from tests.interop.monque.monque import Generation
from tests.interop.monque.scene import Scene, generations, scene_at

pytestmark = [pytest.mark.slow, pytest.mark.stores("mongo")]

MANY = 2_000
BATCH = 100


@pytest.fixture
async def scene(mongo_url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_at(mongo_url, tmp_path) as made:
        yield made


@pytest.mark.extended
async def test_three_work_one_collection(scene: Scene) -> None:
    """One of each generation, and we."""
    async with scene.peer(1, poll_ms=100) as one, scene.peer(2, poll_ms=100) as other:
        await one.ask("start", concurrency=20)
        await other.ask("start", concurrency=20)
        await scene.worker("--concurrency", "10")
        ids: list[str] = []
        for _ in range(MANY // BATCH // 4):
            batch = [{"name": "work", "data": {"ms": 20}} for _ in range(BATCH)]
            ids += await one.ask("bulk", jobs=batch)
            ids += await other.ask("bulk", jobs=batch)
            for _ in range(2):
                ours = [scene.jobs.draft("work", {"ms": 20}) for _ in batch]
                ids += [one.id for one in await scene.jobs.enqueue_many(ours)]
        await scene.come_to(120, completed=MANY)
        runs = [one.runs(), other.runs(), scene.runs()]
        assert runs[0] + runs[1] + runs[2] == dict.fromkeys(ids, 1)
        assert [bool(each) for each in runs] == [True] * 3, "one of them ran nothing"
        assert one.complaints() + other.complaints() == []
        assert await other.ask("check") == {}


async def test_both_run_jobs_in_the_same_order(scene: Scene) -> None:
    """By priority and then as they came; only the second generation knows priorities."""
    priorities = [0, 3, 1, 2, 0, 3]
    expected = sorted(range(6), key=lambda n: priorities[n])
    orders: list[list[str]] = []
    for who in ("monque", "we"):
        async with scene.peer(2) as peer:
            ids = []
            for n, priority in enumerate(priorities):
                if n % 2:
                    ids.append((await scene.jobs.enqueue("work", priority=priority)).id)
                else:
                    ids.append(await peer.ask("enqueue", name="work", priority=-priority))
                await asyncio.sleep(0.002)  # due times are whole milliseconds
            if who == "monque":
                await peer.ask("start", concurrency=1)
                await scene.come_to(completed=6)
                orders.append([event["job"] for event in peer.events if event["event"] == "run"])
            else:
                await scene.worker("--concurrency", "1")
                await scene.come_to(completed=12)
                orders.append([note.id for note in scene.notes()])
        assert orders[-1] == [ids[n] for n in expected], who


@generations
async def test_jobs_of_monque_do_not_wait_for_ours(scene: Scene, generation: Generation) -> None:
    """A job of the first generation has no priority: that is 0, as in the second."""
    async with scene.peer(generation) as peer:
        later = [one.id for one in await scene.jobs.enqueue_many([scene.jobs.draft("work", priority=1)] * 40)]
        orders: list[str] = []
        for _ in range(5):
            orders.append((await scene.jobs.enqueue("work")).id)
            orders.append(await peer.ask("enqueue", name="work"))
            await asyncio.sleep(0.002)  # due times are whole milliseconds
    await scene.worker("--concurrency", "1")
    await scene.come_to(completed=50)
    ran = [note.id for note in scene.notes()]
    assert sorted(ran[10:]) == sorted(later)
    assert [orders.index(id) // 2 for id in ran[:10]] == [n // 2 for n in range(10)]


async def test_unique_keys_hold_across_all(scene: Scene) -> None:
    keys = [f"key-{n}" for n in range(20)]
    async with scene.peer(1) as one, scene.peer(2) as other:

        async def ours(key: str) -> str:
            return (await scene.jobs.enqueue("work", unique_key=key)).id

        answers: list[list[str]] = []
        for _ in range(3):
            asked = [
                [one.ask("enqueue", name="work", unique_key=key), other.ask("enqueue", name="work", unique_key=key)]
                + [ours(key) for _ in range(2)]
                for key in keys
            ]
            answers = await asyncio.gather(*(asyncio.gather(*each) for each in asked))
            assert [len(set(ids)) for ids in answers] == [1] * len(keys)
        await scene.come_to(pending=len(keys))
        # What ends makes room, whoever ends it.
        await scene.worker()
        await scene.come_to(completed=len(keys))
        assert (await other.ask("enqueue", name="work", unique_key="key-0")) not in answers[0]
        assert await one.ask("check") == {}


@generations
async def test_attempts_are_counted_by_both(scene: Scene, generation: Generation) -> None:
    async with scene.peer(generation, base_ms=10) as peer:
        id = await peer.ask("enqueue", name="work", data={"fails": 2})
        await peer.ask("start")
        await peer.event("end", lambda event: bool(event["fails"] == 1))
        await peer.ask("stop")
        job = await scene.get(id)
        assert (job["status"], job["failCount"], job["failReason"]) == ("pending", 2, "attempt 2 is no good")
        seen = await scene.jobs.get(id)
        assert (seen.state, seen.errors, seen.error) == ("waiting", 2, "attempt 2 is no good")
        await scene.worker()
        await scene.come_to(completed=1)
        job = await scene.get(id)
        assert job["failCount"] == 2
        assert "failReason" not in job
        assert await peer.ask("check") == {}


@generations
async def test_what_fails_here_is_tried_there(scene: Scene, generation: Generation) -> None:
    worker = await scene.worker()
    async with scene.peer(generation) as peer:
        id = (await scene.jobs.enqueue("work", {"fails": 1, "ms": 1}, backoff=60)).id

        async def has_failed() -> bool:
            return bool((await scene.get(id))["failCount"] == 1)

        await until(has_failed)
        job = await scene.get(id)
        assert (job["status"], job["failReason"]) == ("pending", "attempt 1 is no good"), "as Monque would write it"
        assert (await scene.jobs.get(id)).error == "RuntimeError: attempt 1 is no good"
        worker.terminate()
        assert worker.wait(20) == 0
        await peer.ask("start")
        assert await peer.ask("reschedule", job=id, at_ms=0)
        await peer.event("end")
        job = await scene.get(id)
        assert (job["status"], job["failCount"], "failReason" in job) == ("completed", 1, False)
        assert (await scene.jobs.get(id)).state == "succeeded"
        assert peer.complaints() == []


async def test_names_that_we_do_not_know_are_left_alone(scene: Scene) -> None:
    await scene.worker()
    async with scene.peer() as peer:
        theirs = await peer.ask("enqueue", name="theirs", data={"ms": 1})
        before = await scene.get(theirs)
        await peer.ask("enqueue", name="work")
        await scene.come_to(completed=1, pending=1)
        assert await scene.get(theirs) == before
        await peer.ask("start", names=["theirs"])
        await scene.come_to(completed=2)


async def test_what_each_does_by_hand_holds_for_the_other(scene: Scene) -> None:
    async with scene.peer() as peer:
        theirs = await peer.ask("enqueue", name="work")
        ours = (await scene.jobs.enqueue("work", delay="1h")).id
        assert await peer.ask("cancel", job=ours)
        assert (await scene.jobs.get(ours)).state == "cancelled"
        await scene.jobs.cancel(theirs)
        assert not await peer.ask("cancel", job=theirs)
        assert await peer.ask("retry", job=theirs)
        assert (await scene.jobs.requeue(ours)).ids == [ours]
        await scene.worker()
        await scene.come_to(completed=2)
        assert await peer.ask("check") == {}
        assert await peer.ask("delete", job=ours)
        with pytest.raises(jobmill.JobNotFound):
            await scene.jobs.get(ours)


async def test_a_job_that_monque_deletes_while_we_run_it(scene: Scene) -> None:
    worker = await scene.worker()
    async with scene.peer() as peer:
        id = (await scene.jobs.enqueue("work", {"our_ms": 500})).id
        await until(lambda: scene.notes())
        assert await peer.ask("delete", job=id)
        # The run ends by itself, or the worker notices first that its job is gone.
        await until(lambda: scene.notes("end") or "was stopped: it was removed" in scene.processes.output(worker))
        after = (await scene.jobs.enqueue("work")).id
        await scene.come_to(completed=1)
        assert await scene.documents.find_one({"_id": bson.ObjectId(id)}) is None
        assert scene.runs()[after] == 1
        assert "Traceback" not in scene.processes.output(worker)
