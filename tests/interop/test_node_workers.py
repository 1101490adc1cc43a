"""BullMQ's workers in our list of workers."""

from __future__ import annotations

import pytest

from jobmill.core.announcing import WorkerCard
from jobmill.testing.contract.announce import card
from tests.helpers import until
from tests.interop.scene import QUEUE, Scene

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]


async def workers(scene: Scene, number: int) -> list[WorkerCard]:
    """The workers, once there are this many."""

    async def all_there() -> bool:
        return len(await scene.jobs.store.workers()) == number

    await until(all_there)
    return await scene.jobs.store.workers()


async def test_workers_of_node_are_listed_while_they_are_connected(scene: Scene) -> None:
    await scene.jobs.store.open()
    started_ms = scene.jobs.store.now()
    await scene.node.ask("work", queue=QUEUE, opts={"name": "resizer-1"})
    await scene.node.ask("work", queue="bücher")
    await scene.node.ask("listen", queue=QUEUE)
    found = {one.queues: one for one in await workers(scene, 2)}
    assert {queues: one.name for queues, one in found.items()} == {(QUEUE,): "resizer-1", ("bücher",): ""}
    for one in found.values():
        assert (one.system, one.host, one.stopping) == ("bullmq", "127.0.0.1", False)
        assert started_ms - 2_000 <= one.started_ms <= scene.jobs.store.now()
    assert len({one.id for one in found.values()}) == 2
    await scene.node.ask("rest")
    assert await workers(scene, 0) == []


async def test_workers_of_both_sides_are_listed_once(scene: Scene) -> None:
    await scene.jobs.store.announce(card("ours", queues=(QUEUE,), started_ms=0), [])
    await scene.node.ask("work", queue=QUEUE, opts={"name": "theirs"})
    assert [(one.system, one.id if one.system == "jobmill" else one.name) for one in await workers(scene, 2)] == [
        ("jobmill", "ours"),
        ("bullmq", "theirs"),
    ]
    theirs = (await workers(scene, 2))[1]
    assert await scene.jobs.store.order_stop([theirs.id]) == [], "nobody can order a worker of Node"
