"""BullMQ 5 on the other end: its pause moves jobs into a list of their own, and its resume writes over `wait`."""

from __future__ import annotations

import pytest

from jobmill.core.lifecycle import DEFAULT_POLICY, Succeeded, settle
from jobmill.core.values import Claim, Claimed
from jobmill.errors import StoreError
from tests.helpers import until
from tests.interop.scene import QUEUE, Scene
from tests.kit.node import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]

CLAIM = Claim(queues=(QUEUE,), names={"send": 1}, n=1, token="t", worker="w", lease_ms=30_000)


async def counts(node: NodeProcess) -> dict[str, int]:
    found = await node.ask("counts", queue=QUEUE)
    return {state: count for state, count in found.items() if count}


async def test_nothing_is_lost_when_version_5_pauses_and_resumes(scene5: Scene) -> None:
    async with scene5.another_node("bullmq5") as node:
        first = await node.ask("add", queue=QUEUE, name="send", data={})
        await node.ask("pause", queue=QUEUE)
        ours = await scene5.jobs.enqueue("send", {}, queue=QUEUE)
        urgent = await scene5.jobs.enqueue("send", {}, queue=QUEUE, priority=1)
        last = await node.ask("add", queue=QUEUE, name="send", data={})
        assert await counts(node) == {"paused": 3, "prioritized": 1}
        await scene5.ready_worker()
        await node.ask("resume", queue=QUEUE)
        for id in (first["id"], ours.id, urgent.id, last["id"]):
            await scene5.ended(id)
        assert await counts(node) == {"completed": 4}


async def test_nothing_is_lost_when_we_pause_and_resume(scene5: Scene) -> None:
    async with scene5.another_node("bullmq5") as node:
        first = await scene5.jobs.enqueue("send", {}, queue=QUEUE)
        await scene5.jobs.queue(QUEUE).pause()
        assert await counts(node) == {"paused": 1}
        second = await node.ask("add", queue=QUEUE, name="send", data={})
        delayed = await scene5.jobs.enqueue("send", {}, queue=QUEUE, delay=0.05)
        third = await scene5.jobs.enqueue("send", {}, queue=QUEUE)
        assert await counts(node) == {"paused": 3, "delayed": 1}
        await node.ask("work", queue=QUEUE)
        await scene5.jobs.queue(QUEUE).resume()
        ids = {first.id, second["id"], third.id, delayed.id}
        await until(lambda: ids == {event["job"] for event in node.events if event["event"] == "ran"})


async def test_a_queue_of_version_5_is_refused_without_the_option(scene: Scene) -> None:
    async with scene.another_node("bullmq5") as node:
        first = await node.ask("add", queue=QUEUE, name="send", data={})
        await node.ask("pause", queue=QUEUE)
        with pytest.raises(StoreError, match=r"BullMQ 5 .* layout=5 .* bullmq:5\.81\.5 works t\w+:mail"):
            await scene.jobs.enqueue("send", {}, queue=QUEUE)
        with pytest.raises(StoreError, match="layout=5"):
            await scene.jobs.queue(QUEUE).resume()
        await node.ask("resume", queue=QUEUE)
        with pytest.raises(StoreError, match="layout=5"):
            await scene.jobs.store.exchange([], CLAIM)
        assert await counts(node) == {"waiting": 1}
        (job,) = (await scene.jobs.find(queue=QUEUE)).jobs  # reading is no danger
        assert job.id == f"{QUEUE}:{first['id']}"


async def test_what_runs_when_version_5_comes_is_settled(scene: Scene) -> None:
    store = scene.jobs.store
    running = await scene.jobs.enqueue("send", {}, queue=QUEUE)
    (claimed,) = (await store.exchange([], CLAIM)).claimed
    assert isinstance(claimed, Claimed)
    async with scene.another_node("bullmq5") as node:
        await node.ask("add", queue=QUEUE, name="send", data={})
        settlement = settle(claimed, Succeeded(b"1"), DEFAULT_POLICY, store.now())
        assert (await store.exchange([settlement], None)).settled == ["done"]
        assert (await scene.jobs.get(running.id)).state == "succeeded"


async def test_a_paused_queue_is_left_alone(scene5: Scene) -> None:
    async with scene5.another_node("bullmq5") as node:
        await node.ask("add", queue=QUEUE, name="send", data={})
        await node.ask("pause", queue=QUEUE)
        await scene5.ready_worker("--queue", QUEUE, "--queue", "beside")
        beside = await scene5.jobs.enqueue("send", {}, queue="beside")
        await beside.result(timeout=20)
        assert [note.id for note in scene5.notes()] == [beside.id]
        await node.ask("resume", queue=QUEUE)
        await until(lambda: len(scene5.notes()) == 2)


async def test_a_retry_while_paused_waits_where_version_5_finds_it(scene5: Scene) -> None:
    async with scene5.another_node("bullmq5") as node:
        await scene5.ready_worker("--lease", "30s")
        added = await node.ask(
            "add", queue=QUEUE, name="flaky", data={"failures": 1}, opts={"attempts": 2, "backoff": 300}
        )
        await until(lambda: len(scene5.notes()) == 1)
        await node.ask("pause", queue=QUEUE)
        await node.ask("resume", queue=QUEUE)
        job = await scene5.ended(added["id"])
        assert job["attemptsMade"] == 2
