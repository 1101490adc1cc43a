"""What was measured: figures with one value a round, ratios of them, and verdicts on targets."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Literal

from msgspec import Struct

RATE = "jobs/s"
CLIENT = "client CPU us/job"
NOTHING = "not measured"


class Figure(Struct, kw_only=True):
    """One quantity of one contender, measured once a round."""

    measure: str
    what: str
    who: str
    unit: str
    values: list[float]

    @property
    def median(self) -> float:
        """The middle of the rounds."""
        return statistics.median(self.values)

    def __str__(self) -> str:
        """Median and spread."""
        return spread(self.values)


class Verdict(Struct, frozen=True, kw_only=True):
    """One line of the table at the end; `met` is None where there is no target, or nothing was measured."""

    what: str
    target: str
    measured: str
    met: bool | None
    #: Whose verdict it is; the harness says so.
    measure: str = ""

    @property
    def word(self) -> str:
        """As it stands in the table."""
        if self.measured == NOTHING:
            return "–"
        return "reported" if self.met is None else "met" if self.met else "missed"


class Results:
    """Everything that was measured so far."""

    def __init__(self) -> None:
        self.figures: list[Figure] = []
        self.verdicts: list[Verdict] = []
        #: Which measures failed, or turns of them, and how.
        self.faults: dict[str, str] = {}
        #: Which contenders are not here, and why.
        self.missing: dict[str, str] = {}

    def fault(self, measure: str, text: str) -> None:
        """A part of a measure failed; earlier failures of it are kept."""
        self.faults[measure] = f"{self.faults[measure]}\n\n{text}" if measure in self.faults else text

    def add(self, measure: str, what: str, who: str, unit: str, value: float) -> None:
        """One more round of a figure."""
        known = self.get(measure, what, who, unit)
        if known is None:
            self.figures.append(Figure(measure=measure, what=what, who=who, unit=unit, values=[value]))
        else:
            known.values.append(value)

    def get(self, measure: str, what: str, who: str, unit: str) -> Figure | None:
        """One figure, if it was measured."""
        wanted = (measure, what, who, unit)
        return next((one for one in self.figures if (one.measure, one.what, one.who, one.unit) == wanted), None)

    def of(self, measure: str, unit: str | None = None) -> list[Figure]:
        """The figures of a measure, or those in one unit, as they came."""
        return [one for one in self.figures if one.measure == measure and unit in (None, one.unit)]


def ratios(above: Figure | None, below: Figure | None) -> list[float]:
    """Round by round, so that what slows the whole machine down for a while cancels out; empty: nothing to compare."""
    if above is None or below is None:
        return []
    return [one / other for one, other in zip(above.values, below.values, strict=False) if other]


def judge(
    what: str, values: list[float], how: Literal["at least", "at most", "below"], bound: float, unit: str
) -> Verdict:
    """Compare the median with a target."""
    text = f"{how} {amount(bound)} {unit}"
    if not values:
        return Verdict(what=what, target=text, measured=NOTHING, met=None)
    median = statistics.median(values)
    met = {"at least": median >= bound, "at most": median <= bound, "below": median < bound}[how]
    return Verdict(what=what, target=text, measured=f"{spread(values)} {unit}", met=met)


def values_of(figure: Figure | None) -> list[float]:
    """Of a figure that may not have been measured."""
    return [] if figure is None else figure.values


def percentile(values: Iterable[float], percent: float) -> float:
    """By nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def spread(values: list[float]) -> str:
    """The median, and from the least to the most in brackets."""
    median = amount(statistics.median(values))
    return median if len(values) == 1 else f"{median} ({amount(min(values))} – {amount(max(values))})"


def amount(value: float) -> str:
    """A number in as many digits as mean something."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
