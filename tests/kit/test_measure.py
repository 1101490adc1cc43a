from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from tests.kit.measure import ATTEMPTS, best_of


def measuring(values: Iterator[float]) -> Callable[[], Awaitable[float]]:
    async def measure() -> float:
        return next(values)

    return measure


@pytest.mark.parametrize(
    ("values", "best", "left"),
    [
        ([1.0, 0.5], 1.0, [0.5]),
        ([9.0, 8.0, 1.0, 7.0], 1.0, [7.0]),
        ([9.0] * (ATTEMPTS - 1) + [8.0, 1.0], 8.0, [1.0]),
        ([2.0, *[9.0] * (ATTEMPTS - 1)], 2.0, []),
    ],
    ids=["the first is enough", "a later one is", "none is", "below means below"],
)
async def test_it_measures_until_one_is_below_the_limit(values: list[float], best: float, left: list[float]) -> None:
    several = iter(values)
    assert await best_of(measuring(several), below=2.0) == best
    assert list(several) == left
