"""What Jobmill shows of a job that both have run: the last run, whoever had it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from jobmill import Job
from tests.helpers import until
from tests.interop.monque.monque import Generation
from tests.interop.monque.scene import Scene, generations, scene_at
from tests.interop.test_monque_recurring import RARE, have_slot_pass, is_armed

pytestmark = [pytest.mark.slow, pytest.mark.stores("mongo")]


@pytest.fixture
async def scene(mongo_url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_at(mongo_url, tmp_path) as made:
        yield made


def run_of(job: Job) -> tuple[Any, ...]:
    return job.worker, job.started_at, job.result, job.progress


async def run_here_once(scene: Scene, id: str, **status: int) -> Job:
    """A worker of ours runs it, and stops."""
    worker = await scene.worker()
    await until(lambda: scene.runs()[id])
    await scene.come_to(**status)
    worker.terminate()
    assert worker.wait(20) == 0
    return await scene.jobs.get(id)


@generations
@pytest.mark.parametrize("forgets", [False, True], ids=["keeps its interval", "removes its interval"])
async def test_a_job_that_failed_here_and_succeeded_there(scene: Scene, generation: Generation, forgets: bool) -> None:
    id = (await scene.jobs.enqueue("work", {"fails": 1}, backoff=60)).id
    here = await run_here_once(scene, id, pending=1)
    assert here.worker is not None
    assert here.started_at is not None
    async with scene.peer(generation) as peer:
        await peer.ask("start")
        assert await peer.ask("reschedule", job=id, at_ms=0)
        await peer.event("end")
    if forgets:  # as some versions of Monque do
        await scene.documents.update_one({}, {"$unset": {"heartbeatInterval": ""}})
    there = await scene.jobs.get(id)
    assert (there.state, there.errors, there.error) == ("succeeded", 1, None)
    assert there.finished_at == (await scene.get(id))["updatedAt"]
    assert run_of(there) == (None, None, None, None)
    assert len(there.attempts) == 1, "of the attempt here"
    (stats,) = await scene.jobs.stats()
    assert (stats.succeeded, stats.p50_ms) == (1, None), "nobody knows when Monque began"


@generations
async def test_a_job_that_failed_there_and_succeeded_here(scene: Scene, generation: Generation) -> None:
    async with scene.peer(generation, base_ms=30_000) as peer:
        id = (await scene.jobs.enqueue("work", {"fails": 1})).id
        await peer.ask("start")
        await peer.event("end")
        await peer.ask("stop")
        waits = await scene.jobs.get(id)
        assert (waits.error, *run_of(waits)) == ("attempt 1 is no good", None, None, None, None)
        assert await peer.ask("reschedule", job=id, at_ms=0)
    job = await run_here_once(scene, id, completed=1)
    assert (job.result, job.started_at is None, job.worker is None) == (2, False, False)
    (stats,) = await scene.jobs.stats()
    assert (stats.succeeded, stats.p50_ms is None) == (1, False)


@generations
async def test_a_recurring_job(scene: Scene, generation: Generation) -> None:
    id = (await scene.jobs.enqueue("work", cron=RARE, key="often")).id
    assert (await scene.jobs.get(id)).last_finished_at is None
    await have_slot_pass(scene, id)
    here = await run_here_once(scene, id, pending=1)
    assert (here.result, here.runs) == (1, 1)
    async with scene.peer(generation) as peer:
        await peer.ask("start")
        await have_slot_pass(scene, id)
        await peer.event("end")
        document = await is_armed(scene, id)
    there = await scene.jobs.get(id)
    assert (there.last_finished_at, *run_of(there)) == (document["updatedAt"], None, None, None, None)
