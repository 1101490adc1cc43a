"""What a measure works with: rounds that alternate between contenders, files to work on, and a place for figures."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from bench.child import Broken
from bench.figures import CPU, RATE, Ran, Results
from bench.scale import Scale
from bench.servers import Servers

#: What one contender does in one round, in a directory of its own, which is removed afterwards.
Turn = Callable[[Path], None]


class Progress(Protocol):
    """Somebody who watches."""

    def begin(self, measure: str, steps: int) -> None:
        """A measure begins, in so many steps."""

    def step(self, text: str) -> None:
        """The next step begins."""

    def prepare(self, text: str) -> None:
        """Something is made ready; not one of the steps."""

    def end(self) -> None:
        """The measure is over."""


class Lab:
    """One measure's view of the run."""

    def __init__(
        self,
        measure: str,
        scale: Scale,
        stores: Sequence[str],
        seed: int,
        place: Path,
        results: Results,
        watch: Progress,
        servers: Servers,
        peers: Sequence[str] = (),
    ) -> None:
        self.measure = measure
        self.scale = scale
        self.stores = stores
        self.seed = seed
        self.results = results
        self._place = place / measure
        self._place.mkdir()
        self._watch = watch
        self.servers = servers
        #: Only these are measured beside us; empty: all.
        self.peers = peers

    def prepared(self, name: str, make: Callable[[Path], None]) -> Path:
        """The file of this name, made when it is first asked for."""
        path = self._place / name
        if not path.exists():
            self.prepare(f"making {name}")
            make(path)
        return path

    def template(self, name: str, fill: Callable[[str], None]) -> str:
        """The database of this name on the server, filled when it is first asked for."""
        if not self.servers.postgres.is_made(name):
            self.prepare(f"making {name}")
        return self.servers.postgres.template(name, fill)

    def prepare(self, text: str) -> None:
        """Tell who watches that something is made ready."""
        self._watch.prepare(text)

    def wants(self, name: str) -> bool:
        """Whether a peer of this name was asked for, by all of it or by what stands before its first comma."""
        return not self.peers or name in self.peers or name.partition(",")[0] in self.peers

    @property
    def side_rounds(self) -> int:
        """How often each has its turn in a measure that has no targets."""
        return min(self.scale.rounds, self.scale.side_rounds)

    def alternate(self, turns: dict[str, Turn], rounds: int | None = None, budget_s: float | None = None) -> None:
        """Let all have their turn, round after round, each round beginning with another one.

        No further round begins when the budget is spent, which is the scale's where none is named.
        One that breaks has no further turn, and the report says how; the others go on.
        """
        names = list(turns)
        rounds = rounds or self.scale.rounds
        self._watch.begin(self.measure, rounds * len(names))
        began = time.monotonic()
        broken: set[str] = set()
        budget_s = self.scale.budget_s if budget_s is None else budget_s
        for number in range(rounds):
            if number and time.monotonic() - began > budget_s:
                break
            first = number % len(names)
            for name in names[first:] + names[:first]:
                self._watch.step(f"round {number + 1} of {rounds}: {name}")
                if name not in broken and not self._turn(name, turns[name]):
                    broken.add(name)
        self._watch.end()

    def _turn(self, name: str, turn: Turn) -> bool:
        place = self._place / "turn"
        place.mkdir()
        try:
            turn(place)
        except Broken as error:
            self.results.fault(self.measure, f"{name}: {error}")
            return False
        finally:
            shutil.rmtree(place)
        return True

    def record(self, what: str, who: str, unit: str, value: float) -> None:
        """One value of a figure."""
        self.results.add(self.measure, what, who, unit, value)

    def record_run(self, what: str, who: str, ran: Ran) -> None:
        """Rate and CPU of a run."""
        if not ran.jobs:
            raise Broken(f"{who}: not a single job in {ran.seconds:.1f} s")
        self.record(what, who, RATE, ran.jobs / ran.seconds)
        self.record(what, who, CPU, ran.cpu_seconds / ran.jobs * 1e6)


def copied(file: Path, place: Path) -> Path:
    """A copy to be used up. It is on the disk before anything is measured, or that would pay for writing it."""
    copy = place / file.name
    shutil.copyfile(file, copy)
    with copy.open("rb+") as opened:
        os.fsync(opened.fileno())
    return copy


def sqlite_url(path: Path, synchronous: str = "FULL") -> str:
    """The URL of our store in this file."""
    return f"sqlite:///{path}?synchronous={synchronous}"
