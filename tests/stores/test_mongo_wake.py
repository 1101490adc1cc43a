"""Sleeping workers on MongoDB: whoever writes a job wakes those it is for, in time, and again after trouble."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pymongo
import pytest

from jobmill.core.changes import Cancel, Requeue
from jobmill.stores.mongo import MongoStore, wake
from jobmill.stores.mongo.codec import date
from jobmill.stores.mongo.url import MongoUrl
from jobmill.testing.contract.support import claim, new, put, put_one, settle, succeed
from tests.helpers import until
from tests.kit.measure import ATTEMPTS, best_of

pytestmark = pytest.mark.stores("mongo")

PATIENCE_S = 20
FAR_MS = 600_000
QUEUES = ("default",)

Client = pymongo.AsyncMongoClient[dict[str, Any]]


class Scene:
    """A store that has claimed, with its stream open; and another program that writes."""

    def __init__(self, store: MongoStore, client: Client) -> None:
        self.store = store
        self.client = client
        self.jobs = client[store.context.url.database][store.context.url.collection]

    async def insert(self, in_ms: int = 0, name: str = "send") -> int:
        """Write a job as another program does; when it is due."""
        now = self.store.now()
        at = {"createdAt": date(now), "updatedAt": date(now), "nextRunAt": date(now + in_ms)}
        await self.jobs.insert_one({"name": name, "data": None, "status": "pending", "failCount": 0, **at})
        return now + in_ms

    async def ready(self) -> None:
        """Nothing to claim, and nothing told that a claim has not seen."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                await claim(self.store, queues=QUEUES)
                sleep = asyncio.create_task(self.store.wait_for_work(QUEUES, self.store.now() + FAR_MS))
                done, _ = await asyncio.wait([sleep], timeout=0.1)
                sleep.cancel()
                if not done:
                    return

    def sleep(self) -> asyncio.Task[float]:
        """Wait for work; when it was over."""

        async def wait() -> float:
            await self.store.wait_for_work(QUEUES, self.store.now() + FAR_MS)
            return time.monotonic()

        return asyncio.create_task(wait())


@pytest.fixture
async def scene(mongo_url: str) -> AsyncIterator[Scene]:
    store = MongoStore(mongo_url)
    await store.migrate()
    await store.open()
    async with Client(MongoUrl.read(mongo_url).driver_url) as client:
        scene = Scene(store, client)
        await scene.ready()
        yield scene
    await store.close()


async def woken(sleep: asyncio.Task[float]) -> float:
    async with asyncio.timeout(PATIENCE_S):
        return await sleep


async def ends_a_sleep(scene: Scene, act: Callable[[], Awaitable[object]]) -> bool:
    """Whether it does so each time: by chance, the stream may be late with something older, and end a sleep."""
    for _ in range(ATTEMPTS):
        await scene.ready()
        sleep = scene.sleep()
        await act()
        done, _ = await asyncio.wait([sleep], timeout=0.6)
        sleep.cancel()
        if not done:
            return False
    return True


async def test_a_job_of_another_program_wakes(scene: Scene) -> None:
    sleep = scene.sleep()
    await scene.insert()
    await woken(sleep)


async def test_a_job_that_came_between_claim_and_sleep_wakes(scene: Scene) -> None:
    await claim(scene.store, queues=QUEUES)
    await scene.insert()
    await woken(scene.sleep())


async def test_a_job_of_a_name_that_nobody_works_wakes_nobody(scene: Scene) -> None:
    assert not await ends_a_sleep(scene, lambda: scene.insert(name="elsewhere"))
    sleep = scene.sleep()
    await scene.insert()
    await woken(sleep)


@pytest.fixture
async def other(scene: Scene) -> AsyncIterator[MongoStore]:
    """Of another process."""
    store = MongoStore(scene.store.context.url.driver_url)
    await store.open()
    yield store
    await store.close()


async def test_a_job_that_monque_ended_wakes_and_one_of_another_worker_does_not(
    scene: Scene, other: MongoStore
) -> None:
    """A worker may have to re-arm the first; that others end jobs is no work for anybody."""
    await put(other, *[new(name="elsewhere", queue="default") for _ in range(ATTEMPTS)])
    claimed = await claim(other, ATTEMPTS, queues=QUEUES, names=("elsewhere",))
    theirs = await scene.jobs.insert_one({"name": "elsewhere", "status": "processing", "claimedBy": "node-1"})
    assert not await ends_a_sleep(scene, lambda: settle(other, succeed(claimed.pop())))
    sleep = scene.sleep()
    end = {"$set": {"status": "completed"}, "$unset": {"claimedBy": ""}}
    await scene.jobs.update_one({"_id": theirs.inserted_id}, end)
    await woken(sleep)


async def test_each_of_many_future_jobs_wakes_when_it_is_due(scene: Scene) -> None:
    # The earliest comes last: a timer for the first that was told would be too late.
    sleep = scene.sleep()
    for in_ms in (60_000, 50_000):
        await scene.insert(in_ms)
    due_ms = await scene.insert(400)
    await woken(sleep)
    assert scene.store.now() >= due_ms
    assert len(await claim(scene.store, queues=QUEUES)) == 1


async def test_a_job_that_waits_again_wakes(scene: Scene) -> None:
    id = await put_one(scene.store, new(queue="default"))
    await scene.store.change([id], Cancel())
    await scene.ready()
    sleep = scene.sleep()
    await scene.store.change([id], Requeue())
    await woken(sleep)


@pytest.mark.slow
async def test_jobs_that_come_all_the_time_are_each_picked_up_at_once(scene: Scene) -> None:
    async def median() -> float:
        waits: list[float] = []
        for _ in range(20):
            sleep = scene.sleep()
            began = time.monotonic()
            await scene.insert()
            waits.append(await woken(sleep) - began)
            await claim(scene.store, queues=QUEUES)
        return statistics.median(waits)

    assert await best_of(median, below=0.1) < 0.1


async def test_a_stream_that_was_ended_goes_on(scene: Scene) -> None:
    for _ in range(3):
        sleep = scene.sleep()
        await scene.client.admin.command("killAllSessions", [])
        await scene.insert()
        await woken(sleep)
        await scene.ready()


async def streams(client: Client) -> int:
    """How many change streams the server holds for us."""
    found = await client.admin.aggregate([{"$currentOp": {"idleCursors": True}}, {"$match": {"appName": "jobmill"}}])
    return sum("$changeStream" in repr(one) for one in await found.to_list())


async def test_a_stream_is_closed_where_nobody_sleeps_and_opened_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep = scene.sleep()

    async def is_open() -> bool:
        return await streams(scene.client) > 0

    async def is_closed() -> bool:
        return await streams(scene.client) == 0

    await until(is_open, PATIENCE_S)
    monkeypatch.setattr(wake, "UNUSED_SECONDS", 0.0)
    sleep.cancel()
    await until(is_closed, PATIENCE_S)
    await scene.insert()
    await woken(scene.sleep())
    await claim(scene.store, queues=QUEUES)
    await scene.ready()
    sleep = scene.sleep()
    await scene.insert()
    await woken(sleep)


async def test_a_database_that_was_dropped_is_watched_again(scene: Scene) -> None:
    await scene.client.drop_database(scene.store.context.url.database)
    await scene.store.migrate()
    await scene.ready()
    sleep = scene.sleep()
    await scene.insert()
    await woken(sleep)
