"""Timeouts of running jobs: one heap and one timer for all, because a timer per job costs half as much as a job."""

from __future__ import annotations

import asyncio
import heapq
import itertools

from jobmill.worker.running import Run

#: Up to this size the heap keeps runs that are over.
MIN_SWEEP_SIZE = 1_000


class Deadlines:
    """Stops runs at their timeout."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Run]] = []
        self._number = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._sweep_at = MIN_SWEEP_SIZE

    def add(self, run: Run, timeout_ms: int) -> None:
        """Stop this run in `timeout_ms`, unless it is over by then."""
        loop = asyncio.get_running_loop()
        when = loop.time() + timeout_ms / 1000
        heapq.heappush(self._heap, (when, next(self._number), run))
        if self._timer is None or when < self._timer.when():
            self._arm(loop)
        if len(self._heap) > self._sweep_at:
            self._sweep()

    def clear(self) -> None:
        """Forget all runs."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        """Forget runs that are over. With a timeout of an hour, the jobs of an hour would stay in memory."""
        self._heap = [entry for entry in self._heap if not entry[2].over]
        heapq.heapify(self._heap)
        self._sweep_at = max(MIN_SWEEP_SIZE, 2 * len(self._heap))

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = loop.call_at(self._heap[0][0], self._ring, loop) if self._heap else None

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        while self._heap and (self._heap[0][2].over or self._heap[0][0] <= loop.time()):
            heapq.heappop(self._heap)[2].stop("timeout")
        self._arm(loop)
