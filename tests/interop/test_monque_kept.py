"""Jobs of ours that Monque ended: they stay as long as those that we ended ourselves."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from jobmill import JobNotFound
from tests.helpers import until
from tests.interop.monque.monque import Generation
from tests.interop.monque.scene import Scene, generations, scene_at

pytestmark = [pytest.mark.slow, pytest.mark.stores("mongo")]


@pytest.fixture
async def scene(mongo_url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_at(mongo_url, tmp_path) as made:
        yield made


async def is_gone(scene: Scene, id: str) -> bool:
    await scene.jobs.purge()
    try:
        await scene.jobs.get(id)
    except JobNotFound:
        return True
    return False


@generations
async def test_what_monque_ended_is_removed_in_time(scene: Scene, generation: Generation) -> None:
    jobs = scene.jobs
    async with scene.peer(generation, max_retries=1) as peer:
        soon = [
            (await jobs.enqueue("work", keep_succeeded="50ms")).id,
            (await jobs.enqueue("work", {"fails": 9}, keep_failed="50ms")).id,
            (await jobs.enqueue("work", keep_succeeded=0)).id,
        ]
        cancelled = (await jobs.enqueue("work", delay="1h", keep_failed="50ms")).id
        later = {
            (await jobs.enqueue("work")).id: timedelta(days=7),
            (await jobs.enqueue("work", {"fails": 9})).id: timedelta(days=30),
        }
        for_ever = (await jobs.enqueue("work", keep_succeeded=True)).id
        theirs = await peer.ask("enqueue", name="work")
        await peer.ask("start")
        assert await peer.ask("cancel", job=cancelled)
        await scene.come_to(completed=5, failed=2, cancelled=1)
        await peer.ask("stop")
        for id in (*soon, cancelled):
            await until(lambda id=id: is_gone(scene, id))  # type: ignore[misc]  # noqa: A006
        for id, age in later.items():
            job = await scene.get(id)
            assert job["jobmill"]["purgeAt"] == job["updatedAt"] + age
        assert "jobmill" not in await scene.get(theirs), "it is its own system's to remove"
        assert await scene.status() == {"completed": 3, "failed": 1}
        kept = await scene.get(for_ever)
        await jobs.purge()
        assert await scene.get(for_ever) == kept
        assert await peer.ask("check") == {}


async def test_of_what_monque_ended_the_last_ones_stay(scene: Scene) -> None:
    async with scene.peer() as peer:
        ids = [(await scene.jobs.enqueue("work", keep_succeeded=2, delay=n / 100)).id for n in range(5)]
        await peer.ask("start", concurrency=1)
        await scene.come_to(completed=5)
        await scene.jobs.purge()
        assert sorted([str(one["_id"]) async for one in scene.documents.find()]) == ids[3:]


@generations
async def test_what_monque_ends_again_stays_as_long_again(scene: Scene, generation: Generation) -> None:
    """We failed it; somebody retries it with Monque after its time."""
    id = (await scene.jobs.enqueue("work", {"fails": 1}, max_attempts=1, keep_failed="1ms", keep_succeeded="1h")).id
    worker = await scene.worker()
    await scene.come_to(failed=1)
    worker.terminate()
    assert worker.wait(20) == 0
    async with scene.peer(generation) as peer:
        await peer.ask("retry", job=id)
        await peer.ask("start")
        await scene.come_to(completed=1)
        await scene.jobs.purge()
        job = await scene.get(id)
        assert job["jobmill"]["purgeAt"] == job["updatedAt"] + timedelta(hours=1)
