"""Tasks: ending them, also if a driver loses the cancellation, and recognizing the cancellation of the own task."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

#: A task that has not ended after this time is cancelled again.
AGAIN_S = 1.0


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended. Their exceptions are ignored.

    The `wait_for` of Python 3.11, with which pymongo sends each command, loses a cancellation that arrives together
    with the answer. A loop that is cancelled at that moment would never end.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=AGAIN_S)
        for task in done:
            if not task.cancelled():
                task.exception()  # retrieved, so that asyncio does not log it


def being_cancelled(error: BaseException) -> bool:
    """Whether the current task is being cancelled. Otherwise something that it awaited was, which is an error."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
