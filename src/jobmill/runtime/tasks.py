"""Ending tasks, also those whose driver loses a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

#: A task that has not ended by then is cancelled once more.
AGAIN_S = 1.0


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended, whatever they raise.

    Python 3.11's `wait_for`, through which pymongo sends each command, forgets a cancellation that comes together with
    what it waits for. A loop that was cancelled just then would go on for ever.
    """
    left = {task for task in tasks if not task.done()}
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=AGAIN_S)
        for task in done:
            if not task.cancelled():
                task.exception()  # or asyncio would complain that nobody has looked


def being_cancelled(error: BaseException) -> bool:
    """Whether this task itself is to end; else what was cancelled is something that it awaited: an error like any."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
