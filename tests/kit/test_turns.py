"""Turns: tests that measure time run alone, whatever other processes run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.turns import Turns


class Other:
    """Another process as the lock sees it: with files that it opened itself."""

    def __init__(self, folder: Path, *, alone: bool) -> None:
        self.has_it = threading.Event()
        self.may_end = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(Turns(folder), alone))
        self._thread.start()

    def _run(self, turns: Turns, alone: bool) -> None:
        with turns.held(alone=alone):
            self.has_it.set()
            self.may_end.wait(10)
        turns.close()

    def end(self) -> None:
        self.may_end.set()
        self._thread.join(10)
        assert not self._thread.is_alive()


@pytest.fixture
def turns(tmp_path: Path) -> Iterator[Turns]:
    made = Turns(tmp_path)
    yield made
    made.close()


def test_most_hold_it_together(turns: Turns, tmp_path: Path) -> None:
    with turns.held(alone=False):
        other = Other(tmp_path, alone=False)
        assert other.has_it.wait(10)
    other.end()


def test_alone_is_after_all_others(turns: Turns, tmp_path: Path) -> None:
    with turns.held(alone=False):
        other = Other(tmp_path, alone=True)
        assert not other.has_it.wait(0.1)
    assert other.has_it.wait(10)
    other.end()


@pytest.mark.parametrize("alone", [False, True])
def test_nobody_begins_while_one_is_alone(turns: Turns, tmp_path: Path, alone: bool) -> None:
    with turns.held(alone=True):
        other = Other(tmp_path, alone=alone)
        assert not other.has_it.wait(0.1)
    assert other.has_it.wait(10)
    other.end()


def test_nobody_overtakes_who_waits_to_be_alone(turns: Turns, tmp_path: Path) -> None:
    with turns.held(alone=False):
        first = Other(tmp_path, alone=True)
        assert not first.has_it.wait(0.1)
        second = Other(tmp_path, alone=False)
        assert not second.has_it.wait(0.1)
    assert first.has_it.wait(10)
    assert not second.has_it.is_set()
    first.end()
    second.end()
