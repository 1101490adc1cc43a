"""Schedulers of Node that only Node can advance: a Python worker gives their runs back, and the schedulers go on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from tests.helpers import until
from tests.interop.scene import QUEUE, Scene
from tests.kit.node import NodeProcess

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]

ZONE = "Asia/Kolkata"
DAY_MS = 86_400_000


@asynccontextmanager
async def given_back(
    scene: Scene, node: NodeProcess, why: str, repeat: Callable[[], Mapping[str, str]]
) -> AsyncIterator[dict[str, Any]]:
    """A scheduler that Node makes and whose first run a Python worker gives back; in the block both work."""
    worker = await scene.ready_worker()
    await node.ask("schedule", queue=QUEUE, scheduler="often", repeat=repeat(), template={"name": "send"})
    (before,) = await node.ask("schedulers", queue=QUEUE)
    line = (
        f"WARNING job mail:repeat:often (send) is left to other programs: the stored recurrence cannot be read: {why}"
    )
    await until(lambda: line in scene.processes.output(worker))
    await node.ask("work", queue=QUEUE)
    yield before
    assert scene.notes() == []
    assert scene.processes.output(worker).count("is left to other programs") == 1
    assert "failed" not in await scene.counts()


async def test_a_pattern_that_python_cannot_read(scene: Scene) -> None:
    why = "cron: expected one of @hourly"
    async with given_back(scene, scene.node, why, lambda: {"pattern": "@secondly", "tz": "UTC"}):
        await until(lambda: [event["event"] for event in scene.node.events].count("ran") >= 2, 60)


async def test_a_pattern_in_the_zone_of_nodes_process(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", ZONE)

    def each_day() -> dict[str, str]:
        """From four seconds after the processes have started."""
        soon = datetime.now(ZoneInfo(ZONE)) + timedelta(seconds=4)
        return {"pattern": f"{soon.second} {soon.minute} {soon.hour} * * *"}

    async with (
        scene.another_node() as node,
        given_back(scene, node, "timezone: expected the IANA name", each_day) as before,
    ):
        await node.event("ran", timeout=60)
        (after,) = await node.ask("schedulers", queue=QUEUE)
        assert after["next"] - before["next"] == DAY_MS


async def test_a_pattern_in_utc_needs_no_zone(scene: Scene) -> None:
    await scene.ready_worker()
    repeat = {"pattern": "* * * * * *", "limit": 3}
    await scene.node.ask("schedule", queue=QUEUE, scheduler="often", repeat=repeat, template={"name": "send"})
    await until(lambda: len(scene.notes()) == 3, 20)
