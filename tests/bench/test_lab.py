"""Rounds of the benchmark: who has a turn when, with how many jobs, and what happens when the time is over."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from msgspec import structs

from bench.child import Broken
from bench.clocks import Ran
from bench.contenders import CONTENDERS
from bench.figures import RATE, Results
from bench.grounds import Grounds, Memory
from bench.lab import FULL, QUICK, STEPS, TIME_OVER, TRIES, Lab, Run, Turn, fitting


class Rounds:
    """Turns of one letter each, on a clock that only they move."""

    def __init__(self, folder: Path, share_s: float, *, total_s: float = 1e9, rounds: int = 3) -> None:
        self.now = 0.0
        self.ran: list[str] = []
        self.results = Results()
        run = Run(
            scale=structs.replace(FULL, rounds=rounds, total_s=total_s),
            grounds=Grounds(None),
            results=self.results,
            seed=1,
            peers=(),
            progress=lambda _: None,
            began=0.0,
            clock=lambda: self.now,
        )
        self.lab = Lab(run, "memory drain", Memory(folder), share_s)

    def turns(self, names: str, seconds: float, breaks: str = "") -> dict[str, Turn]:
        return {name: partial(self._turn, name, seconds, name in breaks) for name in names}

    def _turn(self, name: str, seconds: float, breaks: bool) -> None:
        self.ran.append(name)
        self.now += seconds
        self.lab.record("50 slots", name, RATE, 1)
        if breaks:
            raise Broken("it broke")

    @property
    def order(self) -> str:
        return "".join(self.ran)


def test_each_round_begins_with_another_one(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 1e6)
    rounds.lab.alternate(rounds.turns("xaby", 1), once=["x", "y"])
    assert rounds.order == "abxy" + "ba" + "ab"
    assert rounds.lab.rounds == 3
    assert not rounds.results.missing


def test_no_round_begins_that_would_not_end_in_time(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 9)
    rounds.lab.alternate(rounds.turns("abx", 2), once=["x"])
    assert rounds.order == "abx"  # 6 s; two more turns would end after 10 s


def test_single_turns_are_left_out_and_named_when_the_share_is_overrun(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 3)
    rounds.lab.alternate(rounds.turns("abx", 2), once=["x"])
    assert rounds.order == "ab"
    assert rounds.results.missing == {"memory drain: x": TIME_OVER}


def test_after_the_end_of_the_run_nothing_begins(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 100, total_s=3)
    rounds.lab.alternate(rounds.turns("abc", 2))
    assert rounds.order == "ab"
    assert rounds.results.missing == {"memory drain: c": TIME_OVER}


def test_a_contender_that_breaks_has_no_further_turn_and_no_figure(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 1e6, rounds=2)
    rounds.lab.alternate(rounds.turns("ab", 1, breaks="a"))
    assert rounds.order == "ab" + "b"
    assert [one.who for one in rounds.results.figures] == ["b"]
    assert "a: it broke" in rounds.results.faults["memory drain"]


@pytest.mark.parametrize("rate", [40.0, 999.0, 30_000.0])
def test_a_drain_of_any_rate_takes_long_enough_and_not_much_longer(rate: float) -> None:
    assert 2 <= fitting(rate, 2.0) / rate <= 4 or fitting(rate, 2.0) == STEPS[0]


def test_a_run_that_was_over_too_soon_is_repeated_with_more_jobs(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 1e6)
    asked: list[int] = []

    def drain(jobs: int) -> Ran:
        asked.append(jobs)
        rounds.lab.record("50 slots", "a", RATE, jobs)
        return Ran(jobs=jobs, seconds=jobs / 5_000, cpu_seconds=0)

    rounds.lab.alternate({"a": lambda: rounds.lab.sized("a", 100, drain)})
    assert asked[0] < asked[1]
    assert len(asked) == 2 + 1 + 1, "later rounds know the size"
    assert rounds.results.figures[0].values == [float(asked[-1])] * 3


def test_there_is_an_end_to_repeating(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 1e6, rounds=1)
    asked: list[int] = []

    def drain(jobs: int) -> Ran:
        asked.append(jobs)
        return Ran(jobs=jobs, seconds=1e-3, cpu_seconds=0)

    rounds.lab.alternate({"a": lambda: rounds.lab.sized("a", 100, drain)})
    assert len(asked) == TRIES


def test_a_peer_is_asked_for_by_its_name_or_the_part_before_the_comma(tmp_path: Path) -> None:
    rounds = Rounds(tmp_path, 1)
    run = rounds.lab.run
    ours, node, port = CONTENDERS["redis"][:3]
    rounds.results.missing["bullmq, Node.js"] = "made up, so that nothing is installed"
    run.peers = ("bullmq",)
    assert run.wants(ours)
    assert not run.wants(node), "it is missing"
    run.peers = ("rq",)
    assert run.wants(ours)
    assert not run.wants(port)
    assert list(rounds.results.missing) == ["bullmq, Node.js"], "who is not asked for is not missing"


def test_a_quick_run_is_within_three_minutes_and_a_full_one_within_forty() -> None:
    assert QUICK.total_s <= 180
    assert FULL.total_s <= 2_400
