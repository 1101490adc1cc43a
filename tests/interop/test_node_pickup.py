"""How soon an idle worker of one system begins with a job of the other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from tests.helpers import until
from tests.interop.scene import QUEUE, Scene, is_quick

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.stores("redis")]

TIMES = 11
WITHIN_MS = 20.0
# One measurement, which may be slow by chance. A worker that lost its way looks by itself after five seconds.
AWAKE_MS = 1_000.0


async def node_begins(scene: Scene) -> float:
    """From the call that enqueues to the begin of the run in Node, in ms."""
    asked = time.time() * 1000
    enqueued = await scene.jobs.enqueue("send", {}, queue=QUEUE)
    run = await scene.node.event("run", lambda event: event["job"] == enqueued.id)
    return float(run["at"]) - asked


async def we_begin(scene: Scene) -> float:
    """From the answer to Node's add to the begin of the run in Python, in ms."""
    added = await scene.node.ask("add", queue=QUEUE, name="send", data={}, opts={})
    note = await until(lambda: next((note for note in scene.notes() if note.id == added["id"]), None))
    return float(note.at_ms - added["at"])


async def several(scene: Scene, once: Callable[[Scene], Awaitable[float]]) -> list[float]:
    """Each when the worker is idle again."""
    took = []
    for _ in range(TIMES):
        await asyncio.sleep(0.05)
        took.append(await once(scene))
    return took


async def test_an_idle_node_worker_begins_our_job_at_once(scene: Scene) -> None:
    await scene.node.ask("work", queue=QUEUE)
    await node_begins(scene)
    await is_quick(lambda: several(scene, node_begins), WITHIN_MS)


async def test_our_idle_worker_begins_nodes_job_at_once(scene: Scene) -> None:
    await scene.ready_worker()
    await we_begin(scene)
    await is_quick(lambda: several(scene, we_begin), WITHIN_MS)


@pytest.mark.extended
async def test_also_after_a_minute_of_silence(scene: Scene) -> None:
    """Three queues would be fairer to a busy machine; three workers on one would hide a sleeper."""
    async with scene.another_node() as idle:
        await scene.ready_worker()
        await idle.ask("work", queue="theirs")
        await asyncio.sleep(60)
        added = await scene.node.ask("add", queue=QUEUE, name="send", data={}, opts={})
        enqueued = await scene.jobs.enqueue("send", {}, queue="theirs")
        acknowledged = time.time() * 1000
        (note,) = await until(lambda: scene.notes())
        run = await idle.event("run")
        assert (note.id, run["job"]) == (added["id"], enqueued.id)
        assert note.at_ms - added["at"] < AWAKE_MS
        assert run["at"] - acknowledged < AWAKE_MS
