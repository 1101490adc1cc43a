"""A worker is killed with -9 in mid batch: the other system's worker runs what it left, and counts it."""

from __future__ import annotations

from collections import Counter
from functools import partial

import pytest

from tests.helpers import until
from tests.interop.scene import QUEUE, Scene

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]

SLOTS = 20
FOR_EVER = 60_000


async def test_node_recovers_what_our_killed_worker_left(scene: Scene) -> None:
    victim = await scene.ready_worker("--lease", "1s", "--concurrency", str(SLOTS))
    batch = [{"name": "slow", "data": {"ms": FOR_EVER, "node_ms": 1}} for _ in range(SLOTS // 2)]
    ids = set(await scene.node.ask("bulk", queue=QUEUE, jobs=batch))
    ours = [scene.jobs.draft("slow", {"ms": FOR_EVER, "node_ms": 1}, queue=QUEUE) for _ in batch]
    ids |= {one.id for one in await scene.jobs.enqueue_many(ours)}
    await until(lambda: len(scene.notes()) == SLOTS, 20)
    victim.kill()
    victim.wait()
    await scene.node.ask("work", queue=QUEUE, opts={"concurrency": 5, "stalledInterval": 500})

    async def all_ended() -> bool:
        return await scene.counts() == {"completed": SLOTS}

    await until(all_ended, 30)
    assert Counter(event["job"] for event in scene.node.events if event["event"] == "run") == dict.fromkeys(ids, 1)
    for id in ids:
        job = await scene.get(id)
        assert (job["stalledCounter"], job["attemptsMade"], job["attemptsStarted"]) == (1, 1, 2)


async def test_we_recover_what_nodes_killed_worker_left(scene: Scene) -> None:
    async with scene.another_node() as victim:
        await victim.ask("work", queue=QUEUE, opts={"concurrency": SLOTS, "lockDuration": 1_000})
        batch = [{"name": "slow", "data": {"ms": 1, "node_ms": FOR_EVER}} for _ in range(SLOTS // 2)]
        ids = set(await scene.node.ask("bulk", queue=QUEUE, jobs=batch))
        ours = [scene.jobs.draft("slow", {"ms": 1, "node_ms": FOR_EVER}, queue=QUEUE) for _ in batch]
        ids |= {one.id for one in await scene.jobs.enqueue_many(ours)}
        await until(lambda: sum(event["event"] == "run" for event in victim.events) == SLOTS, 20)
        victim.kill()
    scene.worker("--concurrency", "5")

    async def all_ended() -> bool:
        return await scene.counts() == {"completed": SLOTS}

    await until(all_ended, 30)
    assert Counter(note.id for note in scene.notes() if note.word == "run") == dict.fromkeys(ids, 1)
    for id in ids:
        job = await scene.get(id)
        assert (job["stalledCounter"], job["attemptsMade"], job["attemptsStarted"]) == (1, 1, 2)


def fences(scene: Scene, fence: int) -> bool:
    return fence in {note.fence for note in scene.notes()}


async def test_a_job_that_both_lose_ends_as_node_says(scene: Scene) -> None:
    """Node's limit of one stall holds for its own jobs: the second loss is the last, whoever finds it."""
    id = await scene.add("slow", {"ms": FOR_EVER}, attempts=5)
    for fence in (1, 2):
        victim = scene.worker("--lease", "1s")
        await until(partial(fences, scene, fence), 30)
        victim.kill()
        victim.wait()
    scene.worker("--lease", "1s")
    job = await scene.ended(id, state="failed", timeout=30)
    assert job["failedReason"] == "job stalled more than allowable limit"
    assert len(scene.notes()) == 2
