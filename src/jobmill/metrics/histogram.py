"""A histogram: how many values are at most each bound. Every job is counted, so to add a value is one append."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence


class Histogram:
    """Counts values by bounds; the last count is of the values above all bounds. Only one thread may use it.

    Values are collected in a list and counted together, which costs a third of counting each by itself. Call `fold`
    from time to time, so that the list stays short.
    """

    __slots__ = ("_counts", "_sum", "bounds", "values")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0
        #: Append a value here: it is counted later.
        self.values: list[float] = []

    @property
    def counts(self) -> list[int]:
        """How many values are at most each bound, without those of the bounds before; and the rest."""
        self.fold()
        return self._counts

    @property
    def sum(self) -> float:
        """The sum of all values."""
        self.fold()
        return self._sum

    def fold(self) -> None:
        """Count the values that were collected."""
        if not self.values:
            return
        values = sorted(self.values)
        self.values.clear()
        self._count(values)

    def _count(self, values: list[float]) -> None:
        """Count values, which are in order."""
        # The sum must not go down, also if a clock was corrected.
        self._sum += max(0.0, sum(values))
        add_counts(self._counts, values, self.bounds, bisect_right)


def add_counts(
    counts: list[int], values: list[float], bounds: Sequence[float], bisect: Callable[[list[float], float, int], int]
) -> None:
    """Add how many of the values, which are in order, are below each bound; bisect_right: or equal to it."""
    below = 0
    for index, bound in enumerate(bounds):
        upto = bisect(values, bound, below)
        counts[index] += upto - below
        below = upto
    counts[-1] += len(values) - below
