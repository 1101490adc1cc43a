"""The last runs of recurring jobs, from what workers counted.

No store lists single runs. Workers count them by queue and name: the last hour is known by minutes, the days before it
by hours. So the runs of one step have no order among themselves, and all jobs with the queue and name are counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final, Literal

from msgspec import Struct

from jobmill.core.tallies import Tally

#: How many runs are shown, and how old they may be.
SHOWN: Final = 20
MAX_DAYS: Final = 7
#: About as many tallies are read for one page: they take 35 ms of the processor.
MAX_HOURS: Final = 4_000


class LastRun(Struct, frozen=True):
    """A run that ended between two times."""

    state: Literal["succeeded", "failed"]
    after_ms: int
    before_ms: int


class _Step:
    """What ended in one step."""

    def __init__(self, tally: Tally) -> None:
        self.start_ms, self.end_ms = tally.start_ms, tally.start_ms + tally.step_ms
        self.succeeded, self.failed = tally.succeeded, tally.failed

    def runs(self, *, failed_last: bool) -> list[LastRun]:
        """At most `SHOWN` of each state."""
        succeeded = [LastRun("succeeded", self.start_ms, self.end_ms)] * min(SHOWN, self.succeeded)
        failed = [LastRun("failed", self.start_ms, self.end_ms)] * min(SHOWN, self.failed)
        return succeeded + failed if failed_last else failed + succeeded


class LastRuns:
    """The last runs of every queue and name."""

    def __init__(self, hours: Iterable[Tally], minutes: Sequence[Tally], minutes_since_ms: int, days: int) -> None:
        """From tallies by hours, and by minutes since a time: an hour in which both begin loses what both count."""
        self.days = days
        self._steps: dict[tuple[str, str], list[_Step]] = defaultdict(list)
        recent: dict[tuple[str, str], list[_Step]] = defaultdict(list)
        for minute in minutes:
            recent[minute.queue, minute.name].append(_Step(minute))
        for hour in hours:
            step = _Step(hour)
            if step.start_ms >= minutes_since_ms:
                continue
            for one in recent.get((hour.queue, hour.name), ()) if step.end_ms > minutes_since_ms else ():
                if one.start_ms < step.end_ms:
                    step.succeeded -= one.succeeded
                    step.failed -= one.failed
            step.end_ms = min(step.end_ms, minutes_since_ms)
            self._steps[hour.queue, hour.name].append(step)
        for key, steps in recent.items():
            self._steps[key] += steps

    def of(self, queue: str, name: str, *, last_failed: bool) -> list[LastRun]:
        """The last runs, the oldest first. Of the last step it is known how its last run ended."""
        found: list[LastRun] = []
        steps = sorted(self._steps.get((queue, name), ()), key=lambda step: step.start_ms)
        while steps and len(found) < SHOWN:
            found = steps.pop().runs(failed_last=last_failed or bool(found)) + found
        return found[-SHOWN:]


def known_days(minutes: Iterable[Tally]) -> int:
    """How many days of hours are read for one page, by the number of names that ran in the last hour."""
    names = len({(tally.queue, tally.name) for tally in minutes})
    return min(MAX_DAYS, MAX_HOURS // (24 * max(1, names)))
