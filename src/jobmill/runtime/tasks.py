"""Tasks: ending them, also where a driver loses the cancellation, and telling whose cancellation an error is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

#: A task that has not ended after this time is cancelled again.
AGAIN_S = 1.0


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended, whatever they raise.

    Python 3.11's `wait_for`, through which pymongo sends each command, forgets a cancellation that comes together with
    the answer that it waits for. A loop that was cancelled just then would never end.
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
    """Whether this task itself is being cancelled; otherwise something that it awaited was, which is an error."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
