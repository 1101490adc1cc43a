"""Beats: every loop says when it last turned, so that a watchdog sees one that has stopped; and how loops survive."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from random import Random

from jobmill.errors import StoreUnavailable
from jobmill.runtime.backoff import Backing
from jobmill.runtime.tasks import being_cancelled

log = logging.getLogger("jobmill")

STUCK_AFTER_S = 30.0


class Beats:
    """When each loop last turned, and whether the store answered last time."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last: dict[str, float] = {}
        self.store_away: str | None = None

    def beat(self, loop: str) -> None:
        """The loop has turned."""
        self._last[loop] = self._monotonic()

    def ended(self, loop: str) -> None:
        """The loop has ended as it should."""
        self._last.pop(loop, None)

    def stuck(self) -> dict[str, float]:
        """Loops that have not turned for 30 s, and for how long."""
        now = self._monotonic()
        return {loop: now - last for loop, last in self._last.items() if now - last > STUCK_AFTER_S}


async def loop_for_ever(
    name: str,
    turn: Callable[[], Awaitable[float]],
    beats: Beats,
    tell: Callable[[BaseException], None],
    random: Random,
) -> None:
    """Turn, then sleep for the seconds that the turn answered; an exception is logged, told, and backed off from.

    `tell` must not wait: a slow hook would hold the heartbeat up until all leases have ended.
    """
    pause = Backing(random)
    while True:
        beats.beat(name)
        try:
            wait = await turn()
            pause.reset()
        except (Exception, asyncio.CancelledError) as error:
            if being_cancelled(error):
                raise
            wait = pause.next()
            if isinstance(error, StoreUnavailable):
                log.warning("the %s loop cannot reach the store (%s); trying again in %.1f s", name, error, wait)
            else:
                log.exception("the %s loop raised; it goes on in %.1f s", name, wait)
            tell(error)
        await asyncio.sleep(wait)
