"""How many jobs a drain of the benchmark gets: enough for its two seconds, whatever its rate."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from bench.calibrating import LEAST_S, QUICK_S, STEPS, TRIES, Sizes, fitting
from bench.figures import RATE, Ran, Results
from bench.lab import Lab
from bench.scale import FULL, QUICK
from bench.servers import Servers
from bench.watch import Watch


class Drains:
    """A contender of a certain rate, and what the report has of it."""

    def __init__(self, place: Path, rate: float, *, quick: bool = False) -> None:
        self.rate = rate
        self.tried: list[int] = []
        self.results = Results()
        watch = Watch(Console(quiet=True))
        self._lab = Lab("drain", QUICK if quick else FULL, (), 1, place, self.results, watch, Servers(None))
        self._sizes = Sizes(self._lab)

    def turn(self, guess: float, least: int = 0) -> list[int]:
        """With how many jobs it ran."""
        self.tried = []
        self._lab.alternate(
            {"x": lambda _: self._sizes.run("x", self._drain, rate=guess, least=least)},
            rounds=1,
        )
        return self.tried

    def recorded(self) -> int:
        """How many values there are."""
        return sum(len(one.values) for one in self.results.figures)

    def _drain(self, jobs: int) -> Ran:
        self.tried.append(jobs)
        self._lab.record("50 slots", "x", RATE, self.rate)
        return Ran(jobs=jobs, seconds=jobs / self.rate, cpu_seconds=0)


@pytest.mark.parametrize("rate", [50.0, 180.0, 675.0, 3_400.0, 12_500.0, 39_999.0])
def test_a_drain_of_any_rate_takes_long_enough_and_not_much_longer(rate: float) -> None:
    jobs = fitting(rate, LEAST_S)
    assert jobs in STEPS
    assert LEAST_S * 1.2 <= jobs / rate <= LEAST_S * 1.2 * 1.34


def test_there_is_an_end_to_it() -> None:
    assert fitting(1e9, LEAST_S) == STEPS[-1]


def test_a_guess_that_is_right_needs_one_run(tmp_path: Path) -> None:
    drains = Drains(tmp_path, 1_000)
    assert drains.turn(1_050) == [3_000]
    assert drains.turn(1_050) == [3_000]
    assert drains.recorded() == 2


def test_a_run_that_was_over_too_soon_is_forgotten_and_had_again_with_more_jobs(tmp_path: Path) -> None:
    drains = Drains(tmp_path, 10_000)
    assert drains.turn(1_000) == [2_500, 25_000]
    assert drains.recorded() == 1
    assert drains.turn(1_000) == [25_000]


def test_a_run_that_took_much_too_long_counts_and_the_next_one_is_shorter(tmp_path: Path) -> None:
    drains = Drains(tmp_path, 100)
    assert drains.turn(1_000) == [2_500]
    assert drains.turn(1_000) == [250]
    assert drains.recorded() == 2


def test_there_are_never_fewer_than_the_least(tmp_path: Path) -> None:
    drains = Drains(tmp_path, 100)
    assert drains.turn(1_000, least=8_000) == [8_000]
    assert drains.turn(1_000, least=8_000) == [8_000]


def test_who_is_never_slow_enough_counts_at_last(tmp_path: Path) -> None:
    drains = Drains(tmp_path, 1e9)
    assert len(drains.turn(1_000)) == TRIES
    assert drains.recorded() == 1


def test_a_first_look_takes_what_comes(tmp_path: Path) -> None:
    drains = Drains(tmp_path, 10_000, quick=True)
    assert drains.turn(1_000) == [fitting(1_000, QUICK_S)]
    assert drains.recorded() == 1
