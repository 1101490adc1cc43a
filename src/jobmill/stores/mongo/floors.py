"""Floors: from which due time on there may be jobs that wait, so that a claim need not walk over those that are gone.

A job that was claimed leaves its entry in the index for minutes: MongoDB keeps what snapshots may still want to see.
Each claim begins at the oldest job and would walk over all of these; measured with 40,000 of them, that is five times
what a claim costs without. So a busy worker remembers the oldest job that waits and begins there. What is put behind
it (a job that was given back, or that was enqueued for a time past) is found by a look at everything, every second or
as often as costs a twentieth of the time, and at once where a claim was not filled and such a look costs little.
"""

from __future__ import annotations

from msgspec import Struct

#: A process that has claimed fewer jobs has left next to nothing behind.
FROM_CLAIMS = 2_000
#: How often the oldest job is asked for.
RAISED_EVERY_S = 0.25
#: Others' clocks may be behind by so much, and what they insert may take so long.
MARGIN_MS = 500
#: How often everything is looked at, and how much of the time that may take.
ALL_EVERY_S = 1.0
ALL_SHARE = 20
#: A look that takes longer is not made for each claim that was not filled.
DEAR_S = 0.01


class Floor(Struct):
    """That of some names of a queue. Times are those of a clock that never goes back."""

    #: No job that waits is due before, as far as is known; None: nothing is known.
    due_ms: int | None = None
    raise_at: float = 0.0
    all_at: float = 0.0
    all_took_s: float = 0.0

    def is_for(self, at: float) -> bool:
        """Whether a look may begin here, and not at the very first."""
        return self.due_ms is not None and at < self.all_at

    @property
    def is_enough(self) -> bool:
        """Whether a look that began here and was not filled has to do."""
        return self.all_took_s > DEAR_S

    def looked_at_all(self, began: float, ended: float) -> None:
        """Everything was looked at."""
        self.all_took_s = ended - began
        self.all_at = ended + max(ALL_EVERY_S, ALL_SHARE * self.all_took_s)

    def raised(self, oldest_ms: int | None, now_ms: int, at: float) -> None:
        """The oldest job that waits is due then; None: none does."""
        latest_ms = now_ms - MARGIN_MS
        self.due_ms = latest_ms if oldest_ms is None else min(oldest_ms, latest_ms)
        self.raise_at = at + RAISED_EVERY_S


class Floors:
    """Those of a store."""

    def __init__(self) -> None:
        self._floors: dict[tuple[str, ...], Floor] = {}
        self._claims = 0

    def claimed(self, jobs: int) -> None:
        """So many more were claimed here."""
        self._claims += jobs

    def of(self, queue: str, names: tuple[str, ...]) -> Floor | None:
        """The floor of these names; None where none is needed yet."""
        if self._claims < FROM_CLAIMS:
            return None
        if len(self._floors) > 100:  # names come in many sets where their room is used up now and then
            self._floors.clear()
        return self._floors.setdefault((queue, *names), Floor())

    def forget(self) -> None:
        """A job may have been put behind."""
        self._floors.clear()
