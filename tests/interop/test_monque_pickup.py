"""How soon our worker begins with a job that another process has written into the collection."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.helpers import until
from tests.interop.monque.process import MonqueProcess
from tests.interop.monque.scene import Scene, scene_at
from tests.interop.scene import is_quick
from tests.kit.measure import best_of

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.stores("mongo")]

WITHIN_MS = 20.0
ON_TIME_MS = 100.0
MANY = 100


@pytest.fixture
async def scene(mongo_url: str, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_at(mongo_url, tmp_path) as made:
        yield made


async def late_by(scene: Scene, due: dict[str, float]) -> list[float]:
    """How long after these times their jobs have begun, in ms."""

    def begun() -> dict[str, float]:
        return {note.id: note.at_ms for note in scene.notes() if note.id in due}

    await until(lambda: len(begun()) == len(due), 30)
    return [at_ms - due[id] for id, at_ms in begun().items()]


@pytest.mark.parametrize("every_ms", [20, *(pytest.param(ms, marks=pytest.mark.extended) for ms in (60, 250))])
async def test_our_idle_worker_begins_what_is_inserted_at_once(scene: Scene, every_ms: int) -> None:
    """From the answer to the insert on; one that waits until changes cease would starve."""
    await scene.worker()
    async with scene.peer() as peer:

        async def several() -> list[float]:
            count = max(11, 1_000 // every_ms)
            return await late_by(scene, await peer.ask("drip", name="work", count=count, every_ms=every_ms))

        await several()
        await is_quick(several, WITHIN_MS)


async def lateness_of_many(scene: Scene, peer: MonqueProcess) -> float:
    begin = time.time() * 1_000 + 500
    # Not in the order of their times, and none of them the only one that there is a timer for.
    dues = [begin + (n * 37 % MANY) * 30 for n in range(MANY)]
    ids = await peer.ask("bulk", jobs=[{"name": "work", "at_ms": due} for due in dues])
    late = await late_by(scene, dict(zip(ids, dues, strict=True)))
    assert min(late) > -2, "one began before its time"
    assert max(late) < 4_000, "a worker that is not woken looks after five seconds"
    # Not the latest one: the machine may be busy at some moment of three seconds.
    return sorted(late)[-MANY // 10]


@pytest.mark.extended
async def test_many_future_jobs_are_each_on_time(scene: Scene) -> None:
    await scene.worker()
    async with scene.peer() as peer:
        assert await best_of(lambda: lateness_of_many(scene, peer), below=ON_TIME_MS) < ON_TIME_MS
