"""Ending tasks, also tasks that lose the first cancellation."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from jobmill.runtime import tasks
from jobmill.runtime.tasks import end


async def test_a_task_that_loses_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "AGAIN_S", 0.01)
    deaf = 2

    async def loop() -> None:
        nonlocal deaf
        while True:
            with contextlib.suppress(*([asyncio.CancelledError] if deaf else [])):
                await asyncio.sleep(60)
            deaf -= 1

    task = asyncio.create_task(loop())
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await end([task])
    assert task.cancelled()
    assert deaf == 0


async def test_tasks_that_have_ended_or_raise_can_be_ended() -> None:
    async def raises() -> None:
        raise ValueError

    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise KeyError

    over, ends = asyncio.create_task(raises()), asyncio.create_task(stubborn())
    await asyncio.wait([over])
    async with asyncio.timeout(10):
        await end([over, ends])
    assert [type(task.exception()) for task in (over, ends)] == [ValueError, KeyError]
    await end([])
