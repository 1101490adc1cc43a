"""Policies of unique keys beside Node: both sides respect what the other one has taken, and replace its jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from jobmill import Enqueued
from tests.helpers import until
from tests.interop.scene import QUEUE, Scene, node_place

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]

ID = "send k"
THROTTLE = {"id": ID, "ttl": 60_000}
DEBOUNCE = {"id": ID, "ttl": 60_000, "extend": True, "replace": True}


@pytest.fixture
async def raw(redis_url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(redis_url.partition("?")[0], decode_responses=True) as client:
        yield client


async def ours(scene: Scene, to: str = "", **options: Any) -> Enqueued[Any]:
    return await scene.jobs.enqueue("send", {"to": to}, queue=QUEUE, unique_key="k", **options)


async def theirs(scene: Scene, deduplication: dict[str, Any], **opts: Any) -> str:
    """The id that `jobmill` shows for the job that Node's call became."""
    id = await scene.add("send", {"to": "node"}, deduplication=deduplication, **opts)
    return f"{QUEUE}:{id}" if id.isdecimal() else id


async def payload(scene: Scene, id: str) -> Any:
    return (await scene.jobs.get(id)).payload


async def holder(scene: Scene, raw: Redis) -> object:
    """The job that has the key, as BullMQ knows it."""
    return await raw.get(f"{node_place(scene.url)[1]}:{QUEUE}:de:{ID}")


async def test_nodes_throttle_blocks_ours(scene: Scene) -> None:
    id = await theirs(scene, THROTTLE)
    assert (await ours(scene, unique_for="1m")).id == id
    await scene.node.ask("work", queue=QUEUE)
    await scene.ended(id.partition(":")[2])
    again = await ours(scene, unique_for="1m")
    assert (again.status, again.id) == ("duplicate", id)


@pytest.mark.parametrize("worker", ["Node", "Python"])
async def test_our_throttle_blocks_nodes(scene: Scene, worker: str) -> None:
    id = (await ours(scene, unique_for="1m")).id
    assert await theirs(scene, THROTTLE) == id
    if worker == "Node":
        await scene.node.ask("work", queue=QUEUE)
    else:
        scene.worker()
    await scene.ended(id)
    assert await theirs(scene, THROTTLE) == id
    assert await theirs(scene, {"id": ID}) == id
    assert (await ours(scene, unique_for="1m")).id == id


async def test_a_throttle_that_is_over_blocks_nobody(scene: Scene, raw: Redis) -> None:
    await scene.node.ask("work", queue=QUEUE)
    first = await ours(scene, unique_for="200ms")
    await scene.ended(first.id)
    await until(lambda: free(scene, raw), 20)
    assert await theirs(scene, THROTTLE) != first.id


async def test_a_live_job_has_its_key_longer_than_the_time_for_us_only(scene: Scene, raw: Redis) -> None:
    first = await ours(scene, unique_for="50ms")
    await until(lambda: free(scene, raw), 20)
    again = await ours(scene, unique_for="50ms")
    assert (again.status, again.id) == ("duplicate", first.id)
    assert (await ours(scene)).id == first.id
    assert await theirs(scene, THROTTLE) != first.id


async def free(scene: Scene, raw: Redis) -> bool:
    return await holder(scene, raw) is None


async def test_nodes_debounce_takes_the_place_of_our_job(scene: Scene) -> None:
    first = await ours(scene, "first", debounce="1m")
    second = await theirs(scene, DEBOUNCE, delay=60_000)
    assert second != first.id
    assert await scene.jobs.store.get([first.id]) == [None]
    assert await scene.counts() == {"delayed": 1}


async def test_nodes_job_takes_over_what_we_debounce(scene: Scene) -> None:
    first = await theirs(scene, DEBOUNCE, delay=60_000)
    again = await ours(scene, "ours", debounce="100ms")
    assert (again.status, again.id) == ("updated", first)
    assert await payload(scene, first) == {"to": "ours"}
    await scene.node.ask("work", queue=QUEUE)
    await scene.ended(first.partition(":")[2])


async def test_both_debounce_one_job(scene: Scene) -> None:
    ids = set()
    for turn in range(3):
        ids.add((await ours(scene, f"ours {turn}", debounce="1m")).id)
        ids.add(await theirs(scene, DEBOUNCE, delay=60_000))
    assert len(ids) == 4, "each job of Node takes the place of one; ours take over its payload"
    assert await scene.counts() == {"delayed": 1}


async def test_a_job_that_node_runs_passes_its_key_on(scene: Scene, raw: Redis) -> None:
    slow: dict[str, Any] = {"queue": QUEUE, "unique_key": "k", "debounce": "50ms"}
    first = await scene.jobs.enqueue("slow", {"ms": 0, "node_ms": 500}, **slow)
    await scene.node.ask("work", queue=QUEUE)
    await until(lambda: is_in(scene, first.id, "active"), 20)
    second = await scene.jobs.enqueue("slow", {"ms": 1, "node_ms": 0}, **(slow | {"debounce": "1m"}))
    assert second.created
    await scene.ended(first.id)
    key = f"{node_place(scene.url)[1]}:{QUEUE}:de:slow k"
    assert await raw.get(key) == second.id, "Node leaves the key to its new owner"


async def is_in(scene: Scene, id: str, state: str) -> bool:
    return bool((await scene.get(id))["state"] == state)


async def test_a_job_that_node_runs_is_cancelled_for_a_new_one(scene: Scene, raw: Redis) -> None:
    slow: dict[str, Any] = {"queue": QUEUE, "unique_key": "k", "when_live": "cancel"}
    first = await scene.jobs.enqueue("slow", {"ms": 0, "node_ms": 300}, **slow)
    await scene.node.ask("work", queue=QUEUE)
    await until(lambda: is_in(scene, first.id, "active"), 20)
    second = await scene.jobs.enqueue("slow", {"ms": 1, "node_ms": 0}, **slow)
    await scene.ended(second.id)
    assert (await first.job()).state == "cancelled"
    await scene.node.ask("rest")
    assert (await first.job()).state == "cancelled", "Node has lost its lock"
