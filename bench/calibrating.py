"""How many jobs a drain needs to take long enough, told by a short one before it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable

from bench.figures import Ran
from bench.lab import Lab

#: What a drain shall take at least, in seconds; of a first look only so much.
LEAST_S, QUICK_S = 2.0, 0.5
#: For what a first short run does not tell: it may have been a lucky one.
MARGIN = 1.25
#: Few sizes, so that what one of them filled serves several.
STEPS = (100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 50_000, 100_000, 200_000)
#: Jobs of the first trial, and of the second one, for whom the first was over too soon to tell.
TRIALS = (500, 5_000)


class Sizes:
    """The numbers of jobs of one measure, each found when it is first asked for."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._seconds = QUICK_S if lab.scale.quick else LEAST_S
        self._known: dict[str, int] = {}

    def of(self, name: str, drain: Callable[[int], Ran]) -> int:
        """So many that `drain`, given their number, takes long enough."""
        if name not in self._known:
            self._lab.prepare(f"calibrating {name}")
            self._known[name] = enough(drain, self._seconds)
        return self._known[name]

    def of_ours(self, name: str, drain: Callable[[int], Ran]) -> int:
        """The same where we are compared with ourselves: a first look does without trials."""
        return self._lab.scale.server_jobs if self._lab.scale.quick else self.of(name, drain)


def enough(drain: Callable[[int], Ran], seconds: float) -> int:
    """The least step at which a drain takes so many seconds, by the rate of a trial."""
    rate = 0.0
    for jobs in TRIALS:
        ran = drain(jobs)
        rate = ran.jobs / ran.seconds
        if ran.seconds >= seconds / 4:
            break
    return STEPS[min(bisect_left(STEPS, rate * seconds * MARGIN), len(STEPS) - 1)]
