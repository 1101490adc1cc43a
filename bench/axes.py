"""From values to places on a picture: axes from nought, or by powers of ten, and the ticks on them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol


class Axis(Protocol):
    """Where a value lies between 0 and 1, and the values that are written beside it."""

    @property
    def ticks(self) -> Sequence[float]:
        """From the least to the most."""

    def at(self, value: float) -> float:
        """Between 0 and 1."""


class FromNought:
    """As far as the most value, and on to the next tick."""

    def __init__(self, most: float) -> None:
        step = _step(most)
        self._end = step * max(1, math.ceil(most / step - 1e-9))
        self.ticks = [step * number for number in range(round(self._end / step) + 1)]

    def at(self, value: float) -> float:
        """Between 0 and 1."""
        return value / self._end


class ByPowers:
    """From the least value to the most, both above 0; each power of ten takes as much room."""

    def __init__(self, least: float, most: float, ticks: Sequence[float] = ()) -> None:
        first, last = math.log10(least), math.log10(most)
        if not ticks:
            first, last = math.floor(first + 1e-9), math.ceil(last - 1e-9)
            last = max(last, first + 1)
        self._first, self._last = first, max(last, first + 0.1)
        self.ticks = list(ticks) or [10.0**power for power in range(int(first), int(last) + 1)]

    def at(self, value: float) -> float:
        """Between 0 and 1."""
        return (math.log10(value) - self._first) / (self._last - self._first)


def _step(most: float) -> float:
    """1, 2 or 5 times a power of ten, so that there are three to six ticks."""
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most / 4))
    return next(power * digit for digit in (1, 2, 5, 10) if most / (power * digit) <= 5)


def short(value: float) -> str:
    """A number as it stands beside a tick or a bar: 850, 12.5k, 1.2M."""
    for bound, letter in ((1e6, "M"), (1e3, "k")):
        if value >= bound * 0.9995:
            return f"{value / bound:.3g}{letter}"
    return f"{value:.3g}"
