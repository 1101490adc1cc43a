"""The announcer loop: says every ten seconds that this worker lives, and what it has counted since the last time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import platform
import socket
import time
from collections.abc import Callable

from msgspec import structs

from jobmill._version import __version__
from jobmill.core.announcing import ANNOUNCE_EVERY_S, WorkerCard
from jobmill.core.tallies import BUCKETS, MINUTE_MS, Tally, added_groups
from jobmill.errors import StoreUnavailable
from jobmill.worker.context import WorkerContext
from jobmill.worker.counts import TALLIED, Series

log = logging.getLogger("jobmill")

#: The last announcement of a stopping worker may take this long. Nothing depends on it.
LEAVE_TIMEOUT_S = 3.0


class Announcer:
    """Sends each count once: an announcement without an answer is sent again as it was, before the next one."""

    def __init__(self, context: WorkerContext, *, is_stopping: Callable[[], bool], on_stop: Callable[[], None]) -> None:
        self._context = context
        self._is_stopping = is_stopping
        self._on_stop = on_stop
        self._seen: dict[tuple[str, str], list[int]] = {}
        #: What the present announcement says; None before it is made and after its answer.
        self._unanswered: list[Tally] | None = None
        self._has_announced = False
        settings = context.settings
        self._card = WorkerCard(
            id=context.store.new_id(),
            name=settings.name,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            python=platform.python_version(),
            started_ms=context.store.now(),
            queues=settings.queues,
            names=tuple(sorted(context.handlers)),
            concurrency=settings.concurrency,
        )

    async def turn(self) -> float:
        """Announce once; returns the seconds until the next time. Other loops report that the store is away."""
        with contextlib.suppress(StoreUnavailable):
            await self._announce()
        return ANNOUNCE_EVERY_S * (0.8 + 0.2 * self._context.random.random())

    async def leave(self) -> None:
        """Say that this worker has stopped, with the last counts. A worker that never announced only sends counts."""
        if not self._has_announced and not self._context.counts.has_any:
            return
        try:
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                if self._unanswered is not None:
                    await self._announce()
                await self._announce(leaves=True)
        except Exception as error:
            log.info("worker %s could not announce that it has stopped: %r", self._card.name, error)

    async def _announce(self, *, leaves: bool = False) -> None:
        context = self._context
        now_ms = context.store.now()
        if self._unanswered is None:
            self._unanswered = self._counted(now_ms)
            self._card = structs.replace(self._card, announcement=self._card.announcement + 1)
        card = self._card = structs.replace(
            self._card,
            running=context.running.started,
            stopping=self._is_stopping(),
            clock_skew_ms=round(time.time() * 1000) - now_ms,
            loops={loop: round(age * 1000) for loop, age in context.watchdog.ages().items()},
            purge_age_ms=round((time.monotonic() - context.counts.purged_at) * 1000),
        )
        orders = await context.store.announce(card, self._unanswered, leaves=leaves)
        self._unanswered = None
        self._has_announced = True
        if orders.stop and not self._is_stopping():
            log.warning("worker %s was ordered to stop", card.name)
            self._on_stop()

    def _counted(self, now_ms: int) -> list[Tally]:
        """What was counted since the last call, as tallies of this minute."""
        tallies = []
        for queue, name, series in self._context.counts.all_series():
            key, counts = (queue, name), series.as_counts()
            before = self._seen.get(key, [0] * len(counts))
            if counts != before:
                self._seen[key] = counts
                grown = [now - then for now, then in zip(counts, before, strict=True)]
                tallies.append(_tally(now_ms - now_ms % MINUTE_MS, key, grown, series))
        return tallies


def _tally(start_ms: int, key: tuple[str, str], grown: list[int], series: Series) -> Tally:
    groups, series.error_groups = series.error_groups, {}
    end = len(TALLIED)
    counts = dict(zip(TALLIED, grown, strict=False))
    return Tally(
        start_ms=start_ms,
        queue=key[0],
        name=key[1],
        **counts,
        run_buckets=tuple(grown[end : end + BUCKETS]),
        wait_buckets=tuple(grown[end + BUCKETS :]),
        error_groups=added_groups(groups.values()),
    )
