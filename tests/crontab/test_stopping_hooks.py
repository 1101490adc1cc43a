"""Hooks that stop their own crontab, which cannot wait for themselves; and tasks of theirs, which may."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobmill import JobmillError
from jobmill.crontab import CrontabJob
from tests.crontab.support import WAYS, Scene, settled
from tests.crontab.test_stopping import Held
from tests.helpers import until


@WAYS
async def test_a_handler_may_stop_its_crontab(kind: str, concurrency: int) -> None:
    async def stop(job: CrontabJob) -> None:
        await scene.crontab.stop()
        scene.told.jobs.append(job)

    scene = Scene(kind, concurrency=concurrency, on_document=stop)
    await scene.memory.add("a")
    async with asyncio.timeout(5):
        await scene.crontab.run()
    assert scene.told.ids == ["a"]
    assert scene.sleep_until() is None


@WAYS
async def test_a_handler_may_stop_its_crontab_in_a_task_that_it_awaits(kind: str, concurrency: int) -> None:
    async def stop(job: CrontabJob) -> None:
        await asyncio.wait_for(scene.crontab.stop(), 20)
        scene.told.jobs.append(job)

    scene = Scene(kind, concurrency=concurrency, on_document=stop)
    await scene.memory.add("a")
    async with asyncio.timeout(5):
        await scene.crontab.run()
    assert scene.told.ids == ["a"]
    assert scene.sleep_until() is None


async def test_a_handler_may_stop_its_crontab_in_a_thread() -> None:
    loop = asyncio.get_running_loop()

    def stop(job: CrontabJob) -> None:
        asyncio.run_coroutine_threadsafe(scene.crontab.stop(), loop).result(10)
        scene.told.jobs.append(job)

    scene = Scene(on_document=stop)
    await scene.memory.add("a")
    async with asyncio.timeout(5):
        await scene.crontab.run()
    assert scene.told.ids == ["a"]
    assert scene.sleep_until() is None


async def test_a_task_that_outlives_its_hook_waits_for_the_stop() -> None:
    async def stop_later() -> None:
        await until(lambda: held.began)
        await scene.crontab.stop()
        ends.append(scene.crontab.is_processing)

    def begin() -> None:
        tasks.append(asyncio.create_task(stop_later()))

    tasks: list[asyncio.Task[None]] = []
    ends: list[bool] = []
    held = Held()
    scene = Scene(on_start=begin, on_document=held)
    await scene.memory.add("a")
    await scene.crontab.start()
    await until(lambda: not scene.crontab.is_running)
    await settled()
    assert ends == []
    held.go_on.set()
    await tasks[0]
    assert ends == [False]
    assert held.ended == ["a"]


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("name", ["on_start", "on_idle", "on_stop"])
async def test_other_hooks_may_stop_their_crontab(name: str, concurrency: int) -> None:
    async def stop() -> None:
        await scene.crontab.stop()

    hook: dict[str, Any] = {name: stop}
    scene = Scene(concurrency=concurrency, **hook)
    async with asyncio.timeout(5):
        running = asyncio.create_task(scene.crontab.run())
        if name == "on_stop":
            await until(lambda: scene.crontab.is_running)
            await scene.crontab.stop()
        await running
    assert not scene.crontab.is_running


async def test_a_hook_cannot_start_a_stopping_crontab() -> None:
    async def start() -> None:
        await scene.crontab.start()

    scene = Scene(on_stop=start)
    async with scene.crontab:
        await settled()
    [(error, job)] = scene.told.errors
    assert isinstance(error, JobmillError)
    assert job is None
    assert not scene.crontab.is_running
