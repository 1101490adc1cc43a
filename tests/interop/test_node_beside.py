"""Node and we beside each other on one queue: every job runs once, and Node sees all of it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from redis.asyncio import Redis

import jobmill
from tests.helpers import until
from tests.interop.scene import QUEUE, Scene, node_place
from tests.kit.node import NodeFailed

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]

MANY = 6_000


async def test_both_work_one_queue(scene: Scene) -> None:
    await scene.node.ask("listen", queue=QUEUE)
    async with scene.another_node() as other:
        await other.ask("work", queue=QUEUE, opts={"concurrency": 25})
        await scene.ready_worker("--concurrency", "25")
        for _ in range(6):
            batch = [{"name": "slow", "data": {"ms": 1}} for _ in range(MANY // 12)]
            await scene.node.ask("bulk", queue=QUEUE, jobs=batch)
            await scene.jobs.enqueue_many([scene.jobs.draft("slow", {"ms": 1}, queue=QUEUE) for _ in batch])

        async def all_ended() -> bool:
            return await scene.counts() == {"completed": MANY}

        await until(all_ended, 60)
        theirs = Counter(event["job"] for event in other.events if event["event"] == "run")
    ours = Counter(note.id for note in scene.notes() if note.word == "run")
    runs = theirs + ours
    assert len(runs) == MANY
    assert set(runs.values()) == {1}
    assert theirs, "Node ran nothing"
    assert ours, "we ran nothing"

    async def all_heard() -> bool:
        return len(await scene.node.ask("completed")) == MANY

    await until(all_heard, 20)
    assert set((await scene.node.ask("completed")).values()) == {1}


async def test_node_lists_our_workers(scene: Scene) -> None:
    worker = await scene.ready_worker("--name", "py-1")
    assert await scene.node.ask("workers", queue=QUEUE) == ["py-1"]
    await scene.ready_worker("--name", "py-2")
    assert sorted(await scene.node.ask("workers", queue=QUEUE)) == ["py-1", "py-2"]
    assert await scene.node.ask("workers", queue="another") == []
    worker.terminate()
    assert worker.wait(20) == 0

    async def one_is_left() -> bool:
        return bool(await scene.node.ask("workers", queue=QUEUE) == ["py-2"])

    await until(one_is_left)


async def test_what_each_pauses_holds_for_the_other(scene: Scene) -> None:
    await scene.ready_worker()
    await scene.node.ask("pause", queue=QUEUE)
    assert (await scene.jobs.queue(QUEUE).settings()).paused
    id = await scene.add()
    assert await scene.counts() == {"waiting": 1}
    await scene.jobs.queue(QUEUE).resume()
    await scene.ended(id)
    await scene.jobs.queue(QUEUE).pause()
    await scene.add()
    await scene.node.ask("work", queue=QUEUE)
    await scene.node.ask("resume", queue=QUEUE)

    async def all_ended() -> bool:
        return await scene.counts() == {"completed": 2}

    await until(all_ended)


async def test_removing_orphans_harms_nothing_of_ours(scene: Scene) -> None:
    jobs, queue = scene.jobs, scene.jobs.queue(QUEUE)
    await queue.feed()
    await queue.rate_limit(1_000, 60)
    await queue.running_limit(50)
    await jobs.enqueue("send", {}, queue=QUEUE, every=3_600, key="often")
    await jobs.enqueue("send", {}, queue=QUEUE, delay=3_600, unique_key="once", tenant="acme")
    cancelled = await jobs.enqueue("send", {}, queue=QUEUE, delay=3_600)
    await jobs.cancel(cancelled.id)
    worker = await scene.ready_worker()
    await (await jobs.enqueue("send", {"to": "log"}, queue=QUEUE, keep_succeeded="1h")).result(timeout=20)
    with pytest.raises(jobmill.JobFailed):
        await (await jobs.enqueue("broken", {}, queue=QUEUE, max_attempts=1)).result(timeout=20)
    worker.terminate()
    assert worker.wait(20) == 0
    url, prefix = node_place(scene.url)
    async with Redis.from_url(url) as redis:
        before = {key async for key in redis.scan_iter(f"{prefix}:*")}
        assert any(b":jobmill:" in key for key in before), "nothing of ours is at stake"
        assert await scene.node.ask("orphans", queue=QUEUE) == 0
        assert {key async for key in redis.scan_iter(f"{prefix}:*")} == before


async def test_a_job_that_node_removes_while_we_run_it(scene: Scene, tmp_path: Path) -> None:
    """BullMQ refuses that: the lock is ours."""
    await scene.ready_worker()
    enqueued = await scene.jobs.enqueue("slow", {"ms": 500}, queue=QUEUE)
    await until(lambda: scene.notes())
    with pytest.raises(NodeFailed, match="locked"):
        await scene.node.ask("remove", queue=QUEUE, job=enqueued.id)
    assert await enqueued.result(timeout=20) == 500
