"""A spell of pure Python work, and what went on beside it."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct


class Beside(Struct, frozen=True, kw_only=True):
    """What ran beside a busy handler, or for as long without one."""

    jobs: int
    seconds: float
    heartbeat_delay_s: float | None = None


class Spell:
    """Keeps a thread busy for a while; `count` tells how many other jobs have run."""

    def __init__(self, seconds: float, count: Callable[[], int]) -> None:
        self._seconds = seconds
        self._count = count
        self._from = self._to = (0.0, 0)

    def run(self) -> None:
        """Count in plain Python until the time is over."""
        self._from = (time.perf_counter(), self._count())
        until = self._from[0] + self._seconds
        number = 0
        while number % 1_000 or time.perf_counter() < until:
            number += 1
        self._to = (time.perf_counter(), self._count())

    def told(self, exhausted: float | None = None, heartbeat_delay_s: float | None = None) -> Beside:
        """What ran meanwhile; `exhausted` is when nothing was left to run, if that came first."""
        if not self._to[0]:
            raise RuntimeError("the busy handler did not end in time")
        (began, before), (ended, after) = self._from, self._to
        if exhausted is not None:
            ended = min(ended, max(exhausted, began + 1e-9))
        return Beside(jobs=after - before, seconds=ended - began, heartbeat_delay_s=heartbeat_delay_s)
