"""The claim cursor: where claims of this process ended, so that the next claim need not begin at the start.

An index range is all waiting jobs of one queue, name and priority, in the order in which they are due. Before the last
job that a claim took, every job is running, settled or another process's, or was committed late. A position that is
wrong costs time, never a job:

- claims return to the start at once when a write has put a job before the position (`rewind`);
- under load, when claims come back full, they return every second, or up to every five seconds where the scan from the
  start is long;
- otherwise they return each time, unless that scan is long. No worker falls asleep after a claim that did not begin at
  the start.

Where several processes compete, one of them may leave jobs to the others and continue behind them (`jump`). It returns
to the start under load as above, and otherwise each time.

A store may ask only the ranges that have a position, because an empty range is expensive there. Between two returns it
knows that nothing waits elsewhere before `stop`: `learn` names what it has seen, `added` what this process enqueues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from msgspec import Struct, structs

#: The due time of the last job that was claimed from a range, and what orders jobs of the same due time.
Position: TypeAlias = tuple[int, Any]
#: Where a job stands in claim order: its priority, its due time, and what orders jobs of the same due time.
Order: TypeAlias = tuple[Any, ...]

RETURN_SECONDS = 1.0
MAX_RETURN_SECONDS = 5.0
# The share of the time that returns may take: a fiftieth under load, a fifth where others wait for what they find.
SHARE = 50
SHARE_WHEN_SHORT = 5
# A scan of this many index pages, or fewer, is short; where a store does not count pages, one of this many seconds.
SHORT_SCAN_PAGES = 100
SHORT_SCAN_SECONDS = 0.01


class Start(Struct, frozen=True):
    """Where one claim begins: the positions that the cursor had when the claim was sent."""

    generation: int
    began: float
    is_return: bool
    #: How much the server showed to the claim that the positions begin with; None: they begin nowhere.
    seen: str | None
    #: (queue, name) > priority > position.
    positions: dict[tuple[str, str], dict[float, Position]]
    #: Whether a claim has seen all of these queues and names since the last return.
    is_known: bool

    @property
    def has_positions(self) -> bool:
        """Whether the claim begins anywhere but at the start."""
        return any(self.positions.values())

    def reaches(self, queue: str, order: Order, name: str) -> bool:
        """Whether the claim asks for this queue and name, and begins at this job or before it."""
        known = self.positions.get((queue, name))
        return known is not None and (order[0] not in known or known[order[0]] <= order[1:])


class ClaimCursor:
    """The positions of the index ranges that this process claims from."""

    def __init__(
        self,
        monotonic: Callable[[], float] = time.monotonic,
        *,
        share: int = SHARE,
        share_when_short: int = SHARE_WHEN_SHORT,
    ) -> None:
        self._monotonic = monotonic
        self._share, self._share_when_short = share, share_when_short
        self._positions: dict[tuple[str, str], dict[float, Position]] = {}
        self._stops: dict[str, Order] = {}
        self._seen: str | None = None
        self._generation = 0
        # Whether a claim has left out jobs since the last return.
        self._has_jumped = False
        self._returned = monotonic()
        # Of the last return: how long it took, and whether its scan was short. Of the last claim: whether it was full.
        self._return_took = 0.0
        self._return_was_short = True
        self._was_full = False

    def start(self, queues: Sequence[str], names: Iterable[str], *, anew: bool = False) -> Start:
        """Where a claim of these queues and names begins; `anew`: at the start, whatever the time."""
        now = self._monotonic()
        is_return = anew or now >= self._returned + self._pause()
        if is_return:
            self.rewind()
            self._returned = now
        asked = [(queue, name) for queue in queues for name in names]
        positions = {one: dict(self._positions.get(one, {})) for one in asked}
        is_known = all(one in self._positions for one in asked)
        return Start(self._generation, now, is_return, self._seen, positions, is_known)

    def rewind(self) -> None:
        """Begin at the start again: a write may have put a job before a position."""
        self._positions.clear()
        self._stops.clear()
        self._seen = None
        self._has_jumped = False
        self._generation += 1

    def jump(self, start: Start, position: Position) -> Start:
        """Where a claim begins that leaves the jobs before this position, in each range that it knows, to others."""
        self._has_jumped = True
        positions = {one: dict.fromkeys(known, position) for one, known in start.positions.items()}
        return structs.replace(start, positions=positions)

    def stop(self, queue: str) -> Order | None:
        """Where the first job may wait in a range without a position; None: nowhere, as far as is known."""
        return self._stops.get(queue)

    def stop_at(self, queue: str, order: Order) -> None:
        """A job waits there, in a range without a position: a claim that gets there has to return to the start."""
        self._stops[queue] = min(order, self._stops.get(queue, order))

    def added(self, queue: str, name: str, priority: float, due_ms: int) -> None:
        """This process has enqueued a job that is due."""
        known = self._positions.get((queue, name))
        if known is None:
            return
        if priority not in known:
            self.stop_at(queue, (priority, due_ms))
        elif due_ms < known[priority][0]:
            self.rewind()

    def look_again_ms(self, start: Start) -> int | None:
        """When to claim again, from now, after a claim that may have missed a job; None where it cannot have."""
        if self._was_full or start.is_return or not start.has_positions:
            return None
        return max(0, round(1000 * (self._returned + self._pause() - self._monotonic())))

    def learn(
        self,
        start: Start,
        claimed: Iterable[tuple[str, str, float, Position]],
        *,
        full: bool,
        seen: str | None = None,
        pages: int | None = None,
        skipped: bool = False,
        replaces: bool = False,
    ) -> None:
        """Advance to the jobs that a claim took: queue, name, priority and position of each.

        `full`: the claim found as many as it asked for. `seen`: the claim began at the start, or where a later write
        has put a job, and this is how much the server showed to it; the next claim gives it back, and the server
        compares it with later writes. `skipped`: the claim had to leave out jobs that the same call settled, so nothing
        is known. `replaces`: of these queues and names, only these positions are known from now on.
        """
        self._was_full = full
        if start.is_return:
            self._return_took = self._monotonic() - start.began
            is_quick = self._return_took <= SHORT_SCAN_SECONDS
            self._return_was_short = is_quick if pages is None else pages <= SHORT_SCAN_PAGES
        # What was sent before the last return to the start may have jumped over the job that the return is for.
        is_fresh = start.generation == self._generation
        if skipped or (is_fresh and seen is not None):
            self.rewind()
        if skipped or not is_fresh:
            return
        self._seen = seen or self._seen
        for one in start.positions:
            self._positions[one] = {} if replaces else self._positions.get(one, {})
        for queue, name, priority, position in claimed:
            by_priority = self._positions.setdefault((queue, name), {})
            by_priority[priority] = max(by_priority.get(priority, position), position)

    def _pause(self) -> float:
        """How long after a return the next one is due, in seconds."""
        if self._was_full:
            return min(MAX_RETURN_SECONDS, max(RETURN_SECONDS, self._share * self._return_took))
        if self._return_was_short or self._has_jumped:
            return 0.0
        return min(MAX_RETURN_SECONDS, self._share_when_short * self._return_took)
