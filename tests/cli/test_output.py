from __future__ import annotations

import sys

import pytest

from jobmill.cli.output import duration_text, make_table, one_line, plural, print_rich, relative
from jobmill.cli.params import STATES
from jobmill.core import job


@pytest.mark.parametrize(
    ("ms", "said"),
    [
        (0, "0 ms"),
        (0.4, "0.4 ms"),
        (12, "12 ms"),
        (999, "999 ms"),
        (1_400, "1.4 s"),
        (59_000, "59 s"),
        (90_000, "90 s"),
        (300_000, "5 m"),
        (90 * 60_000, "90 m"),
        (3 * 3_600_000, "3 h"),
        (5 * 86_400_000, "5 d"),
    ],
)
def test_durations_are_shown_in_one_unit(ms: float, said: str) -> None:
    assert duration_text(ms) == said


@pytest.mark.parametrize(
    ("delta", "said"),
    [(0, "now"), (-900, "now"), (3_700, "in 3 s"), (-3_000, "3 s ago"), (300_000, "in 5 m"), (-7_200_000, "2 h ago")],
)
def test_instants_are_shown_relative_to_now(delta: int, said: str) -> None:
    now = 1_700_000_000_000
    assert relative(now + delta, now) == said


def test_texts_are_shown_on_one_line() -> None:
    assert one_line("a\n  b") == "a b"
    assert one_line("abcdef", 4) == "abc…"


def test_counts_have_a_plural() -> None:
    assert [plural(0), plural(1), plural(1_204)] == ["0 jobs", "1 job", "1,204 jobs"]


def test_the_states_on_the_command_line_are_the_states_of_the_core() -> None:
    assert STATES == job.STATES


def test_a_pipe_gets_whole_lines_without_colors(capsys: pytest.CaptureFixture[str]) -> None:
    assert not sys.stdout.isatty()
    table = make_table(("id", "error"), cut=("error",))
    table.add_row("one", "x" * 500)
    print_rich(table)
    assert capsys.readouterr().out == f"id   error\none  {'x' * 500}\n"
