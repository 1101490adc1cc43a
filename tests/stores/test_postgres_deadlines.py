"""Deadlines that share one timer: each passes at its own time, and a call that ends in time starts no timer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from jobmill.stores.postgres.connection.deadlines import CallDeadlines

pytestmark = pytest.mark.stores("postgres")

SOON_S, LATER_S, NEVER_S = 0.01, 0.03, 20.0


async def limited(deadlines: CallDeadlines, seconds: float, work: Callable[[], Awaitable[Any]]) -> bool:
    """Do something within a deadline; whether it has passed."""
    deadline = asyncio.timeout(None)
    try:
        async with deadline:
            deadlines.add(deadline, seconds)
            await work()
    except TimeoutError:
        pass
    finally:
        deadlines.remove(deadline)
    return deadline.expired()


async def for_ever() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("order", [(SOON_S, LATER_S), (LATER_S, SOON_S)], ids=["sooner first", "later first"])
async def test_no_deadline_passes_before_its_time(order: tuple[float, float]) -> None:
    deadlines = CallDeadlines()

    async def one(seconds: float) -> None:
        began = asyncio.get_running_loop().time()
        assert await limited(deadlines, seconds, for_ever)
        assert asyncio.get_running_loop().time() - began >= seconds

    async with asyncio.timeout(NEVER_S):
        await asyncio.gather(*map(one, order))


async def test_a_sooner_deadline_passes_first_and_leaves_the_other_alone() -> None:
    deadlines = CallDeadlines()

    async def outlive() -> None:
        # The timer of the sooner deadline checks this one as well.
        assert await limited(deadlines, SOON_S, for_ever)
        await asyncio.sleep(0)

    assert not await limited(deadlines, NEVER_S, outlive)
    deadlines.close()


async def test_many_calls_start_one_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, started = asyncio.get_running_loop(), list[float]()
    call_at = loop.call_at

    def counted(when: float, *args: Any, **more: Any) -> asyncio.TimerHandle:
        started.append(when)
        return call_at(when, *args, **more)

    monkeypatch.setattr(loop, "call_at", counted)
    deadlines = CallDeadlines()
    for _ in range(100):
        assert not await limited(deadlines, NEVER_S, lambda: asyncio.sleep(0))
    assert len(started) == 1
    deadlines.close()


async def test_a_call_that_the_caller_cancels_is_not_late() -> None:
    deadlines = CallDeadlines()
    call = asyncio.create_task(limited(deadlines, NEVER_S, for_ever))
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    deadlines.close()
