"""When what has to end: each measure's share of the run's time, and what may still begin."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

#: A measure that needs so many times its share leaves out those who have one turn only.
OVERRUN = 1.2

#: Seconds that only go forward.
Clock = Callable[[], float]


class Budget:
    """What one measure may take, from now on."""

    def __init__(self, seconds: float, until: float, clock: Clock = time.monotonic) -> None:
        self.seconds = seconds
        self.clock = clock
        self._began = clock()
        self._until = until

    def is_enough_for(self, seconds: float) -> bool:
        """Whether something that takes so long ends in time."""
        return self._spent() + seconds <= self.seconds and not self.is_run_over()

    def is_overrun(self) -> bool:
        """Whether far more was needed than was given."""
        return self._spent() > self.seconds * OVERRUN

    def is_run_over(self) -> bool:
        """Whether nothing at all may begin any more."""
        return self.clock() >= self._until

    def _spent(self) -> float:
        return self.clock() - self._began


class Timetable:
    """The time of the run, given out as the measures begin.

    Each gets such a part of what is left as it has of the seconds of all that are still to come: what one does not
    need is there for the later ones, and what one needs too much all of them pay for.
    """

    def __init__(self, seconds: Mapping[str, float], total_s: float, clock: Clock = time.monotonic) -> None:
        self._to_come = dict(seconds)
        self._clock = clock
        self._until = clock() + total_s

    def begin(self, measure: str) -> Budget:
        """The next measure begins."""
        share = self._to_come[measure] / sum(self._to_come.values())
        del self._to_come[measure]
        return Budget(max(0.0, self._until - self._clock()) * share, self._until, self._clock)


def endless() -> Budget:
    """For whoever has all the time in the world."""
    return Budget(float("inf"), float("inf"))
