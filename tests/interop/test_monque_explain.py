"""`explain` of jobs beside Monque, which says nothing about its processes but which jobs they run."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobmill.core.reasons import Code, Reason
from tests.helpers import until
from tests.interop.monque.monque import Generation
from tests.interop.monque.scene import Scene, generations, scene_at

pytestmark = [pytest.mark.slow, pytest.mark.stores("mongo")]


@pytest.fixture
async def scene(mongo_url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_at(mongo_url, tmp_path) as made:
        yield made


async def explained(scene: Scene, id: str, *codes: Code) -> list[Reason]:
    """The reasons for a job, which must have these codes."""
    reasons = await scene.jobs.explain(id)
    assert [reason.code for reason in reasons] == list(codes), reasons
    return reasons


@generations
async def test_a_pending_job(scene: Scene, generation: Generation) -> None:
    async with scene.peer(generation) as peer:
        due = await peer.ask("enqueue", name="work", data={})
        later = await peer.ask("enqueue", name="work", data={}, at_ms=(time.time() + 60) * 1_000)
        await explained(scene, due, "no_worker")
        (reason, _) = await explained(scene, later, "not_due", "no_worker")
        assert "is due in 5" in reason.text, "in 59 seconds"


@generations
async def test_a_job_that_monque_will_retry(scene: Scene, generation: Generation) -> None:
    async with scene.peer(generation, base_ms=60_000) as peer:
        await peer.ask("start")
        id = await peer.ask("enqueue", name="work", data={"fails": 1})
        await peer.event("end")
        reason, _ = await explained(scene, id, "retry_backoff", "no_worker")
        assert (reason.evidence["attempt"], reason.evidence["error"]) == (2, "attempt 1 is no good")


@generations
async def test_a_job_that_monque_runs(scene: Scene, generation: Generation) -> None:
    async with scene.peer(generation, heartbeat_ms=2_000) as peer:
        await peer.ask("start")
        id = await peer.ask("enqueue", name="work", data={"ms": 60_000})
        await peer.event("run")
        job = await scene.jobs.get(id)
        (reason,) = await explained(scene, id, "foreign_owner")
        assert (reason.evidence["worker"], reason.evidence["systems"]) == (job.worker, ["monque"])
        (card,) = await scene.jobs.workers()
        assert (card.system, card.name, card.queues) == ("monque", job.worker, (job.queue,))
        # A Monque process may run all jobs of the collection, so this one may be claimed.
        await explained(scene, await peer.ask("enqueue", name="other", data={}), "ready")


@generations
async def test_a_job_of_a_monque_that_died(scene: Scene, generation: Generation) -> None:
    async with scene.peer(generation, heartbeat_ms=100) as peer:
        await peer.ask("start")
        id = await peer.ask("enqueue", name="work", data={"ms": 60_000})
        await peer.event("run")
        peer.kill()
        document = await scene.get(id)

        async def is_lost() -> bool:
            return [one.code for one in await scene.jobs.explain(id)] == ["worker_lost"]

        await until(is_lost)
        (reason,) = await explained(scene, id, "worker_lost")
        beat_ms = round(document["lastHeartbeat"].timestamp() * 1_000)
        assert reason.evidence["lease_until_ms"] - beat_ms in (1_000, 1_100), "the lock timeout of our URL"
        await scene.worker()
        await until(lambda: scene.runs()[id])


@generations
async def test_a_job_that_monque_runs_beside_our_workers(scene: Scene, generation: Generation) -> None:
    await scene.worker("--name", "press-1")
    async with scene.peer(generation, heartbeat_ms=2_000) as peer:
        await peer.ask("start", names=["elsewhere"])
        id = await peer.ask("enqueue", name="elsewhere", data={"ms": 60_000})
        await peer.event("run")
        await explained(scene, id, "foreign_owner")
