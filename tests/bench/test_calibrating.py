"""How many jobs a drain of the benchmark gets: enough for its two seconds, whatever its rate."""

from __future__ import annotations

import pytest

from bench.calibrating import LEAST_S, STEPS, enough
from bench.figures import Ran


@pytest.mark.parametrize("rate", [40.0, 180.0, 675.0, 3_400.0, 12_500.0, 39_999.0])
def test_a_drain_of_any_rate_takes_long_enough_and_not_much_longer(rate: float) -> None:
    jobs = enough(lambda jobs: Ran(jobs=jobs, seconds=jobs / rate, cpu_seconds=0), LEAST_S)
    assert jobs in STEPS
    assert LEAST_S * 1.25 <= jobs / rate <= LEAST_S * 1.25 * 2.5


def test_a_first_run_that_was_over_too_soon_is_followed_by_a_longer_one() -> None:
    tried = []

    def drain(jobs: int) -> Ran:
        tried.append(jobs)
        return Ran(jobs=jobs, seconds=0.3 if jobs == 500 else 0.6, cpu_seconds=0)

    assert enough(drain, LEAST_S) == 50_000
    assert tried == [500, 5_000]


def test_there_is_an_end_to_it() -> None:
    assert enough(lambda jobs: Ran(jobs=jobs, seconds=1e-6, cpu_seconds=0), LEAST_S) == STEPS[-1]
