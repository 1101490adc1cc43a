"""A worker is killed with -9, or frozen, in mid batch: the other runs what it left; who lives keeps what it has."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.helpers import until
from tests.interop.monque.monque import Generation
from tests.interop.monque.scene import Scene, generations, scene_at

pytestmark = [pytest.mark.slow, pytest.mark.stores("mongo")]

SLOTS = 20
FOR_EVER = 60_000


@pytest.fixture
async def scene(mongo_url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_at(mongo_url, tmp_path) as made:
        yield made


async def enqueue_both(scene: Scene, generation: Generation, data: dict[str, int]) -> list[str]:
    """Half of them by each."""
    async with scene.peer(generation) as peer:
        ids: list[str] = await peer.ask("bulk", jobs=[{"name": "work", "data": data}] * (SLOTS // 2))
    ours = [scene.jobs.draft("work", data) for _ in ids]
    return ids + [one.id for one in await scene.jobs.enqueue_many(ours)]


@generations
async def test_monque_recovers_what_our_killed_worker_left(scene: Scene, generation: Generation) -> None:
    victim = await scene.worker("--concurrency", str(SLOTS), "--lease", "60s")
    ids = await enqueue_both(scene, generation, {"our_ms": FOR_EVER, "ms": 1})
    await until(lambda: len(scene.notes()) == SLOTS, 20)
    victim.kill()
    victim.wait()
    async with scene.peer(generation, recover=False) as peer:
        # The real one looks for them when it starts, by the time of the claim alone.
        assert (await peer.ask("initialize", lock_timeout_ms=0))["recovered"] == SLOTS
        await peer.ask("start", concurrency=5)
        await scene.come_to(completed=SLOTS)
        assert peer.runs() == dict.fromkeys(ids, 1)
        if generation == 2:  # the first one does not know the fence, and leaves it
            assert peer.complaints() == []


@generations
async def test_we_recover_what_a_killed_monque_left(scene: Scene, generation: Generation) -> None:
    ids = await enqueue_both(scene, generation, {"peer_ms": FOR_EVER, "ms": 1})
    async with scene.peer(generation, heartbeat_ms=500) as victim:
        await victim.ask("start", concurrency=SLOTS)
        await until(lambda: len(victim.runs()) == SLOTS, 20)
        victim.kill()
    await scene.worker("--concurrency", "5")
    await scene.come_to(completed=SLOTS)
    assert scene.runs() == dict.fromkeys(ids, 1)
    assert await scene.complaints() == {}


async def test_we_recover_what_had_a_lease(scene: Scene) -> None:
    async with scene.peer(2, lease_ms=1_000, heartbeat_ms=500) as victim:
        id = await victim.ask("enqueue", name="work", data={"peer_ms": FOR_EVER})
        await victim.ask("start")
        await victim.event("run")
        victim.kill()
    await scene.worker()
    await scene.come_to(completed=1)
    assert scene.runs() == {id: 1}
    assert await scene.complaints() == {}


@generations
@pytest.mark.parametrize("heartbeat_ms", [200, 3_000], ids=["often", "less often than the lock timeout"])
async def test_we_do_not_take_what_a_monque_still_works_on(
    scene: Scene, generation: Generation, heartbeat_ms: int
) -> None:
    """It says so in its heartbeat alone: the time of the claim is long past."""
    async with scene.peer(generation, heartbeat_ms=heartbeat_ms) as peer:
        await peer.ask("start")
        id = await peer.ask("enqueue", name="work", data={"peer_ms": 8_000})
        await peer.event("run")
        await scene.worker("--lease", "1s")
        await scene.come_to(completed=1)
        assert (peer.runs(), scene.runs()) == ({id: 1}, {})
        assert [event for event in peer.events if event["event"] == "lost"] == []


@generations
async def test_a_monque_that_starts_takes_nothing_that_we_still_work_on(scene: Scene, generation: Generation) -> None:
    await scene.worker("--lease", "1s")
    id = (await scene.jobs.enqueue("work", {"our_ms": 7_000})).id
    await until(lambda: scene.notes())
    async with scene.peer(generation, lock_timeout_ms=5_000) as peer:
        while not scene.notes("end"):
            assert (await peer.ask("initialize", lock_timeout_ms=5_000))["recovered"] == 0
            await asyncio.sleep(0.1)
        await scene.come_to(completed=1)
        await peer.ask("start")
    assert scene.runs() == {id: 1}


@generations
async def test_a_frozen_worker_of_ours_changes_nothing_when_it_wakes(scene: Scene, generation: Generation) -> None:
    frozen = await scene.worker("--lease", "1s")
    id = (await scene.jobs.enqueue("work", {"our_ms": 2_000, "peer_ms": 3_000})).id
    await until(lambda: scene.notes())
    frozen.send_signal(signal.SIGSTOP)
    async with scene.peer(generation) as peer:

        async def is_recovered() -> bool:
            return bool((await peer.ask("initialize", lock_timeout_ms=500))["recovered"])

        await until(is_recovered)
        await peer.ask("start")
        await peer.event("run")
        claimed = await scene.get(id)
        frozen.send_signal(signal.SIGCONT)
        # It is told that its lease is lost, or ends its run, and its settlement is refused.
        await peer.event("end")
        job = await scene.get(id)
        assert job["status"] == "completed"
        assert not claimed["claimedBy"].startswith("jobmill:")
        assert [event for event in peer.events if event["event"] == "lost"] == []
        assert peer.runs() == {id: 1}
        await peer.ask("stop")
        after = (await scene.jobs.enqueue("work")).id
        await scene.come_to(completed=2)
    assert scene.runs() == {id: 1, after: 1}
    assert frozen.poll() is None


@generations
async def test_a_frozen_monque_changes_nothing_when_it_wakes(scene: Scene, generation: Generation) -> None:
    async with scene.peer(generation, heartbeat_ms=200) as peer:
        await peer.ask("start")
        id = await peer.ask("enqueue", name="work", data={"peer_ms": 2_000, "our_ms": 3_000})
        await peer.event("run")
        peer.pause()
        await scene.worker()
        await until(lambda: scene.notes(), 20)
        peer.resume()
        await peer.event("lost")
        await scene.come_to(completed=1)
        assert (scene.runs(), len(scene.notes("end"))) == ({id: 1}, 1)
        assert (await scene.jobs.get(id)).result == 1


async def test_what_we_hold_is_free_when_we_stop(scene: Scene) -> None:
    worker = await scene.worker("--lease", "60s", "--shutdown-timeout", "100ms")
    id = (await scene.jobs.enqueue("work", {"our_ms": FOR_EVER})).id
    await until(lambda: scene.notes())
    async with scene.peer() as peer:
        await peer.ask("start")
        worker.terminate()
        await peer.event("end")
        assert peer.runs() == {id: 1}
        assert peer.complaints() == []
        assert (await scene.get(id))["failCount"] == 0
    assert worker.wait(20) == 0
