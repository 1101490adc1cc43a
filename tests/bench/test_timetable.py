"""The time of a run of the benchmark: who gets how much, and what is left out when it is over."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from rich.console import Console

from bench.child import Broken
from bench.figures import RATE, Results
from bench.lab import MEASURE_IS_OVER, RUN_IS_OVER, Lab, Turn
from bench.measures import MEASURES
from bench.scale import FULL, QUICK, QUICK_SECONDS, SECONDS, Scale
from bench.servers import Servers
from bench.timetable import Budget, Timetable
from bench.watch import Watch


class Rounds:
    """A measure whose turns take as long as they are told to."""

    def __init__(self, place: Path, budget_s: float, until: float = 1e9) -> None:
        self.now = 0.0
        self.ran: list[str] = []
        self.results = Results()
        place.mkdir(exist_ok=True)
        self.lab = Lab("drain", FULL, (), 1, place, self.results, Watch(Console(quiet=True)), Servers(None))
        self.lab.budget = Budget(budget_s, until, lambda: self.now)

    def of(self, names: str, seconds: float, *, breaks: str = "") -> dict[str, Turn]:
        """Contenders with one letter each."""
        return {name: partial(self._turn, name, seconds, name in breaks) for name in names}

    def _turn(self, name: str, seconds: float, breaks: bool, _: Path) -> None:
        self.ran.append(name)
        self.now += seconds
        if breaks:
            raise Broken("broke")
        self.lab.record("50 slots", name, RATE, 1)

    @property
    def said(self) -> str:
        """Who had a turn, in their order."""
        return "".join(self.ran)


def test_each_round_begins_with_another_one_and_who_is_not_judged_has_one_turn(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 1e6)
    rounds.lab.alternate(rounds.of("xaby", 1), rounds=3, seldom={"x", "y"})
    assert rounds.said == "abxy" + "ba" + "ab"
    assert rounds.lab.rounds == 3
    assert not rounds.results.missing


def test_no_round_begins_that_would_not_end_in_time(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 9)
    rounds.lab.alternate(rounds.of("abx", 2), rounds=5, seldom={"x"})
    assert rounds.said == "abx"  # 6 s; two more turns would be 10 s
    rounds = Rounds(tmp_path / "more", 10)
    rounds.lab.alternate(rounds.of("abx", 2), rounds=5, seldom={"x"})
    assert rounds.said == "abx" + "ba"
    assert rounds.lab.rounds == 2


def test_what_is_made_once_is_no_part_of_the_next_round(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 10)

    def turn(_: Path) -> None:
        rounds.lab.prepared("file", make)
        rounds.now += 1
        rounds.ran.append("a")

    def make(path: Path) -> None:
        rounds.now += 7
        path.touch()

    rounds.lab.alternate({"a": turn}, rounds=5)
    assert rounds.said == "aaa"


def test_who_is_left_when_a_measure_is_far_behind_is_left_out_and_named(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 5)
    rounds.lab.alternate(rounds.of("abxyz", 2), rounds=5, seldom={"x", "y", "z"})
    assert rounds.said == "abxy"  # after x 6 s are gone, which is a fifth more than 5 s, and y may still begin
    assert rounds.results.missing == {"drain: z": MEASURE_IS_OVER}


def test_nothing_begins_after_the_end_of_the_run_and_only_those_are_named_of_whom_there_is_nothing(
    tmp_path: Path,
) -> None:
    rounds = Rounds(tmp_path, 100, until=3)
    rounds.lab.alternate(rounds.of("abcx", 2), rounds=5, seldom={"x"})
    assert rounds.said == "ab"
    assert rounds.results.missing == {"drain: c": RUN_IS_OVER, "drain: x": RUN_IS_OVER}
    rounds = Rounds(tmp_path / "later", 100, until=7)
    rounds.lab.alternate(rounds.of("abc", 2), rounds=5)
    assert rounds.said == "abc" + "b"
    assert not rounds.results.missing


def test_who_breaks_has_no_further_turn_and_the_others_go_on(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 100)
    rounds.lab.alternate(rounds.of("abx", 1, breaks="ax"), rounds=3, seldom={"x"})
    assert rounds.said == "abx" + "b" + "b"
    assert rounds.results.faults["drain"] == "a: broke\n\nx: broke"


def test_a_turn_that_breaks_in_its_own_way_is_no_end_of_the_measure(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 100)

    def wrong(_: Path) -> None:
        raise ValueError("only 3 of 100 jobs were started in time")

    rounds.lab.alternate({"wrong": wrong, **rounds.of("a", 1)}, rounds=2)
    assert rounds.said == "aa"
    assert "only 3 of 100" in rounds.results.faults["drain"]


def test_what_one_measure_does_not_need_is_there_for_the_later_ones() -> None:
    now = 0.0
    timetable = Timetable({"a": 10, "b": 10, "c": 20}, 80, lambda: now)
    assert timetable.begin("a").seconds == 20
    now = 5
    assert timetable.begin("b").seconds == 25
    now = 60
    last = timetable.begin("c")
    assert last.seconds == 20
    assert last.is_enough_for(20)
    assert not last.is_enough_for(21)


def test_after_the_end_there_is_nothing_left() -> None:
    now = 0.0
    timetable = Timetable({"a": 10, "b": 10}, 80, lambda: now)
    timetable.begin("a")
    now = 81
    late = timetable.begin("b")
    assert late.is_run_over()
    assert late.seconds == 0


def test_each_measure_has_its_seconds() -> None:
    assert set(SECONDS) == set(MEASURES)
    assert set(QUICK_SECONDS) < set(MEASURES)


@pytest.mark.parametrize(
    ("seconds", "scale", "minutes"), [(SECONDS, FULL, 40), (QUICK_SECONDS, QUICK, 3)], ids=["full", "quick"]
)
def test_all_of_them_come_to_less_than_the_run(seconds: dict[str, float], scale: Scale, minutes: int) -> None:
    assert sum(seconds.values()) <= scale.total_s < minutes * 60
