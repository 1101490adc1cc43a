"""The watchdog, which runs loops that survive errors, and finds loops that are stuck."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeAlias

from jobmill.errors import StoreUnavailable
from jobmill.runtime.backoff import LoopBackoff
from jobmill.runtime.tasks import being_cancelled

log = logging.getLogger("jobmill")

STUCK_AFTER_S = 30.0

#: One iteration of a loop. Returns the seconds until the next one; None ends the loop.
Turn: TypeAlias = Callable[[], Awaitable[float | None]]


class Watchdog:
    """When each loop last ran an iteration, and whether the store answered last time."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._last: dict[str, float] = {}
        #: Why the store could not be reached last time; None after an answer.
        self.store_error: str | None = None
        self._unavailable_since: float | None = None

    def beat(self, loop: str) -> None:
        """The loop begins an iteration."""
        self._last[loop] = self._monotonic()

    def ages(self) -> dict[str, float]:
        """How many seconds ago each loop began its last iteration."""
        now = self._monotonic()
        return {loop: now - last for loop, last in self._last.items()}

    def stuck(self) -> dict[str, float]:
        """Loops without an iteration for 30 s, and for how many seconds."""
        return {loop: age for loop, age in self.ages().items() if age > STUCK_AFTER_S}

    def store_failed(self, error: BaseException) -> None:
        """The store did not answer."""
        if isinstance(error, StoreUnavailable) and self._unavailable_since is None:
            self._unavailable_since = self._monotonic()
        self.store_error = f"{type(error).__name__}: {error}"

    def store_answered(self, store: str) -> None:
        """The store answered. After an outage, this is logged once."""
        self.store_error = None
        if self._unavailable_since is not None:
            log.warning("the %s store is back after %.1f s", store, self._monotonic() - self._unavailable_since)
            self._unavailable_since = None

    async def run(self, name: str, turn: Turn, on_error: Callable[[BaseException], None], random: Random) -> None:
        """Call `turn`, then sleep for the seconds that it returned, until it returns None; survive its exceptions.

        After an exception, log it and wait longer each time, unless `on_error` raises. `on_error` must not block: a
        slow hook would delay the heartbeat until all leases have ended.
        """
        backoff = LoopBackoff(random)
        wait: float | None = 0.0
        while wait is not None:
            self.beat(name)
            try:
                wait = await turn()
                backoff.reset()
            except (Exception, asyncio.CancelledError) as error:
                if being_cancelled(error):
                    raise
                on_error(error)
                wait = backoff.next()
                _log(name, error, wait)
            if wait:
                await asyncio.sleep(wait)
        self._last.pop(name, None)


def _log(name: str, error: BaseException, wait: float) -> None:
    if isinstance(error, StoreUnavailable):
        log.warning("the %s loop cannot reach the store (%s); trying again in %.1f s", name, error, wait)
    else:
        log.error("the %s loop raised an error; it continues in %.1f s", name, wait, exc_info=error)
