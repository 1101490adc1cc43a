"""`explain` of jobs that Node added: why they do not run, whoever is to run them."""

from __future__ import annotations

from typing import Any

import pytest

from jobmill.core.reasons import Code, Reason
from tests.helpers import until
from tests.interop.scene import QUEUE, Scene

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]


async def explained(scene: Scene, id: str, *codes: Code) -> list[Reason]:
    """The reasons for a job of Node, which must have these codes."""
    reasons = await scene.jobs.explain(f"{QUEUE}:{id}")
    assert [reason.code for reason in reasons] == list(codes), reasons
    return reasons


async def active(scene: Scene, id: str) -> dict[str, Any]:
    """The job once a worker of Node has it."""
    return await scene.ended(id, state="active")


async def test_a_job_that_waits_for_any_worker(scene: Scene) -> None:
    await explained(scene, await scene.add(), "no_worker")


async def test_a_delayed_job(scene: Scene) -> None:
    id = await scene.add(delay=60_000)
    (reason,) = (await explained(scene, id, "not_due", "no_worker"))[:1]
    assert "is due in 5" in reason.text, "in 59 seconds"


async def test_a_job_that_node_will_retry(scene: Scene) -> None:
    id = await scene.add("broken", attempts=3, backoff=60_000)
    await scene.node.ask("work", queue=QUEUE)
    await scene.ended(id, state="delayed")
    (reason,) = await explained(scene, id, "retry_backoff")
    assert (reason.evidence["attempt"], reason.evidence["error"]) == (2, "always broken")


async def test_prioritized_jobs_come_after_others(scene: Scene) -> None:
    await scene.node.ask("pause", queue=QUEUE)
    last = await scene.add(priority=7)
    await scene.add(priority=3)
    await scene.add()
    await explained(scene, last, "queue_paused", "no_worker")
    await scene.node.ask("work", queue=QUEUE, opts={"name": "node-1", "autorun": False})
    (reason,) = await explained(scene, last, "queue_paused")
    assert reason.evidence == {"queue": QUEUE}, "Node says neither who nor why"
    await scene.node.ask("resume", queue=QUEUE)
    await scene.node.ask("limit", queue=QUEUE, value=50)
    (reason,) = await explained(scene, last, "behind")
    assert (reason.evidence["ahead"], reason.evidence["priority"]) == (2, 7)


@pytest.mark.parametrize("name", [None, "node-1"])
async def test_a_job_that_node_runs(scene: Scene, name: str | None) -> None:
    opts = {"lockDuration": 20_000, "concurrency": 1} | ({} if name is None else {"name": name})
    await scene.node.ask("work", queue=QUEUE, opts=opts)
    id, waits = [await scene.add("slow", {"ms": 60_000}) for _ in range(2)]
    await active(scene, id)
    (reason,) = await explained(scene, id, "foreign_owner")
    assert (reason.evidence["worker"], reason.evidence["systems"]) == (name, ["bullmq"])
    assert reason.evidence["lease_until_ms"] > scene.jobs.store.now()
    assert "bullmq" in reason.text
    await explained(scene, waits, "ready")


async def test_a_job_of_a_node_that_died(scene: Scene) -> None:
    async with scene.another_node() as node:
        await node.ask("work", queue=QUEUE, opts={"lockDuration": 30_000})
        id = await scene.add("slow", {"ms": 60_000})
        await active(scene, id)
        job = await scene.jobs.get(f"{QUEUE}:{id}")
        node.kill()

        async def is_gone() -> bool:
            return not await scene.jobs.workers()

        await until(is_gone)
        (reason,) = await explained(scene, id, "worker_lost")
        assert job.started_ms is not None
        assert abs(reason.evidence["lease_until_ms"] - job.started_ms - 30_000) < 5_000, "the end of Node's lock"


async def test_a_queue_that_node_limits(scene: Scene) -> None:
    await scene.node.ask("limit", queue=QUEUE, value=1)
    await scene.node.ask("work", queue=QUEUE, opts={"concurrency": 5})
    id, waits = [await scene.add("slow", {"ms": 60_000}) for _ in range(2)]
    await active(scene, id)
    (reason,) = await explained(scene, waits, "queue_running_limit")
    assert (reason.evidence["limit"], reason.evidence["longest"]) == (1, [f"{QUEUE}:{id}"])


async def test_a_queue_whose_rate_node_limits(scene: Scene) -> None:
    await scene.node.ask("rate", queue=QUEUE, max=1, ms=60_000)
    await scene.node.ask("work", queue=QUEUE)
    first, waits = [await scene.add() for _ in range(2)]
    await scene.ended(first)
    (reason,) = await explained(scene, waits, "queue_rate_limit")
    assert (reason.evidence["count"], reason.evidence["per_ms"]) == (1, 60_000)


async def test_a_parent_waits_for_its_children(scene: Scene) -> None:
    child = {"name": "slow", "queueName": QUEUE, "data": {"ms": 60_000}}
    tree = {"name": "send", "queueName": QUEUE, "data": {}, "children": [child]}
    parent = await scene.node.ask("flow", tree=tree)
    await scene.node.ask("work", queue=QUEUE)
    (reason,) = await explained(scene, parent, "held_by_jobs")
    (dependency,) = reason.evidence["dependencies"]
    assert (dependency["name"], dependency["queue"]) == ("slow", QUEUE)
    assert "jobs that have not ended" in reason.text


async def test_a_job_beside_a_worker_of_ours(scene: Scene) -> None:
    await scene.ready_worker("--name", "press-1")
    unknown = await scene.add("unknown")
    running = await scene.add("slow", {"ms": 60_000})
    await active(scene, running)

    async def is_announced() -> bool:
        return any(card.name == "press-1" for card in await scene.jobs.workers())

    await until(is_announced)
    (reason,) = await explained(scene, running, "running")
    assert reason.evidence["worker"] == "press-1"
    (reason,) = await explained(scene, unknown, "no_worker_for_name")
    assert "slow" in reason.evidence["names"]


async def test_an_ended_job(scene: Scene) -> None:
    id = await scene.add("broken")
    await scene.node.ask("work", queue=QUEUE)
    await scene.ended(id, state="failed")
    (reason,) = await explained(scene, id, "finished")
    assert (reason.evidence["state"], reason.evidence["error"]) == ("failed", "always broken")
