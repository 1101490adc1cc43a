"""How many jobs a drain needs to take long enough: by a first guess, and by what came of it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from bench.figures import Ran
from bench.lab import Lab

#: What a drain shall take at least, in seconds; of a first look only so much, or what came of the first guess.
LEAST_S, QUICK_S = 2.0, 0.3
#: For what one run does not tell of the next one.
MARGIN = 1.2
#: How often one turn may run until it took long enough.
TRIES = 3
#: Not all numbers, so that what one of them filled serves several.
STEPS = tuple(mantissa * 10**power for power in range(2, 6) for mantissa in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8))
#: Jobs per second of whom nothing is known.
SOME_RATE = 1_000.0


class Sizes:
    """The numbers of jobs of one measure."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._seconds = QUICK_S if lab.scale.quick else LEAST_S
        self._known: dict[str, int] = {}

    def run(self, name: str, drain: Callable[[int], Ran], *, rate: float = SOME_RATE, least: int = 0) -> None:
        """Run `drain`, given a number of jobs, with so many that it takes long enough; it records what it came to.

        `rate` is a first guess. What a run recorded that was over too soon is forgotten, and it has one more.
        """
        jobs = self._known.get(name) or max(least, fitting(rate, self._seconds))
        ran = drain(jobs)
        for _ in range(0 if self._lab.scale.quick else TRIES - 1):
            if ran.seconds >= self._seconds:
                break
            self._lab.forget()
            jobs = max(jobs + 1, fitting(ran.jobs / ran.seconds, self._seconds))
            ran = drain(jobs)
        self._known[name] = max(least, better(jobs, ran, self._seconds))


def fitting(rate: float, seconds: float) -> int:
    """The least step at which a drain of this rate surely takes so many seconds."""
    return int(STEPS[min(bisect_left(STEPS, rate * seconds * MARGIN), len(STEPS) - 1)])


def better(jobs: int, ran: Ran, seconds: float) -> int:
    """As many as before, unless that took more than twice as long as it had to."""
    wanted = fitting(ran.jobs / ran.seconds, seconds)
    return wanted if wanted * 2 < jobs else jobs
