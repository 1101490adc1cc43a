"""One attempt in an isolated process, as the worker sees it, and how the worker waits for its end."""

from __future__ import annotations

import asyncio
import signal
from typing import Protocol

from jobmill.core.lifecycle import Outcome

#: How long a process may take to end after SIGTERM, or after its outcome.
GRACE_S = 2.0


class IsolatedAttempt(Protocol):
    """An attempt that has been started."""

    #: The outcome; it may arrive a little before the attempt is over.
    outcome: asyncio.Future[Outcome]
    #: Done when nothing of the attempt runs any more: its process is reaped, or is idle in a pool.
    over: asyncio.Future[None]

    def signal(self, signum: signal.Signals) -> None:
        """Send a signal to the process and its children, now or as soon as it has started; never waits."""


async def outcome_of(attempt: IsolatedAttempt) -> Outcome:
    """Wait until the attempt is over and return its outcome.

    When this returns or raises, nothing of the attempt runs any more. A cancellation stops the process with SIGTERM,
    and with SIGKILL after the grace period or a second cancellation.
    """
    outcome: Outcome | None = None
    try:
        outcome = await attempt.outcome
    except asyncio.CancelledError:
        attempt.signal(signal.SIGTERM)
        raise
    finally:
        cancelled = False
        if not attempt.over.done():
            cancelled = await wait_over(attempt.over, GRACE_S)
        while not attempt.over.done():
            attempt.signal(signal.SIGKILL)
            cancelled = await wait_over(attempt.over) or cancelled
        # An outcome that has arrived counts, even if the wait for the end of the process was cancelled.
        if cancelled and outcome is None:
            raise asyncio.CancelledError
    return outcome


async def wait_over(future: asyncio.Future[None], timeout: float | None = None) -> bool:
    """Wait; True if this task was cancelled meanwhile."""
    try:
        await asyncio.wait([future], timeout=timeout)
    except asyncio.CancelledError:
        return True
    return False
