"""The claim cursor: where claims of this process ended, so that the next claim need not begin at the start.

An index range is all waiting jobs of one queue, name and priority, in the order in which they are due. Before the last
job that a claim took, every job is running, settled or another process's, or was committed late. A position that is
wrong costs time, never a job:

- claims return to the start at once when a write has put a job before the position (`rewinds`);
- under load, when claims come back full, they return every second, or up to every five seconds where the scan from the
  start is long;
- otherwise they return each time, unless that scan is long. No worker falls asleep after a claim that did not begin at
  the start.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

#: The due time of the last job that was claimed from a range, and what orders jobs of the same due time.
Position: TypeAlias = tuple[int, Any]

RETURN_SECONDS = 1.0
MAX_RETURN_SECONDS = 5.0
# The share of the time that returns may take: a fiftieth under load, a fifth where others wait for what they find.
_SHARE = 50
_SHARE_WHEN_SHORT = 5
# A scan of this many index pages, or fewer, is short.
SHORT_SCAN_PAGES = 100


class Start:
    """Where one claim begins: the positions that the cursor had when the claim was sent."""

    __slots__ = ("began", "generation", "has_positions", "is_return", "positions", "rewinds")

    def __init__(
        self,
        generation: int,
        began: float,
        is_return: bool,
        rewinds: int,
        positions: dict[tuple[str, str], dict[int, Position]],
    ) -> None:
        self.generation = generation
        self.began = began
        self.is_return = is_return
        self.rewinds = rewinds
        #: (queue, name) > priority > position.
        self.positions = positions
        #: Whether the claim begins anywhere but at the start.
        self.has_positions = any(positions.values())


class ClaimCursor:
    """The positions of the index ranges that this process claims from."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._positions: dict[tuple[str, str], dict[int, Position]] = {}
        self._rewinds = -1
        self._generation = 0
        self._returned = monotonic()
        # Of the last return: how long it took, and how many pages it read. Of the last claim: whether it was full.
        self._return_took = 0.0
        self._return_pages = 0
        self._was_full = False

    def start(self, queues: Sequence[str], names: Iterable[str]) -> Start:
        """Where a claim of these queues and names begins."""
        now = self._monotonic()
        is_return = now >= self._returned + self._pause()
        if is_return:
            self.rewind()
            self._returned = now
        positions = {(queue, name): dict(self._positions.get((queue, name), {})) for queue in queues for name in names}
        return Start(self._generation, now, is_return, self._rewinds, positions)

    def rewind(self) -> None:
        """Begin at the start again: a write may have put a job before a position."""
        self._positions.clear()
        self._generation += 1

    def look_again_ms(self, start: Start) -> int | None:
        """When to claim again, from now, after a claim that may have missed a job; None where it cannot have."""
        if self._was_full or start.is_return or not start.has_positions:
            return None
        return max(0, round(1000 * (self._returned + self._pause() - self._monotonic())))

    def learn(
        self,
        start: Start,
        claimed: Iterable[tuple[str, str, int, Position]],
        *,
        full: bool,
        rewinds: int = -1,
        pages: int = 0,
        skipped: bool = False,
    ) -> None:
        """Advance to the jobs that a claim took: queue, name, priority and position of each.

        `full`: the claim found as many as it asked for. `rewinds`: the server's count of writes that put a job before
        a position. `skipped`: the claim had to leave out jobs that the same call settled, so nothing is known.
        """
        self._was_full = full
        if start.is_return:
            self._return_took = self._monotonic() - start.began
            self._return_pages = pages
        if rewinds != self._rewinds:
            self.rewind()
            self._rewinds = rewinds
            is_fresh = True
        else:
            # What was sent before the last return to the start may have jumped over the job that the return is for.
            is_fresh = start.generation == self._generation
        if skipped:
            self.rewind()
        if skipped or not is_fresh:
            return
        for queue, name, priority, position in claimed:
            by_priority = self._positions.setdefault((queue, name), {})
            by_priority[priority] = max(by_priority.get(priority, position), position)

    def _pause(self) -> float:
        """How long after a return the next one is due, in seconds."""
        if self._was_full:
            return min(MAX_RETURN_SECONDS, max(RETURN_SECONDS, _SHARE * self._return_took))
        if self._return_pages <= SHORT_SCAN_PAGES:
            return 0.0
        return min(MAX_RETURN_SECONDS, _SHARE_WHEN_SHORT * self._return_took)
