"""What a measure works with: rounds that alternate between contenders, files to work on, and a place for figures."""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from bench.child import Broken
from bench.figures import CPU, RATE, Ran, Results
from bench.scale import Scale
from bench.servers import Servers
from bench.timetable import endless

RUN_IS_OVER, MEASURE_IS_OVER = "the time of the run was over", "the time of its measure was over"

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
        #: What this measure may take; the command sets it when the measure begins.
        self.budget = endless()
        #: So many rounds there were.
        self.rounds = 0
        #: And so long they took.
        self.took_s = 0.0
        self._made_s = 0.0
        self._recorded: list[tuple[str, str, str, float]] = []
        self._had_a_turn: set[str] = set()

    def prepared(self, name: str, make: Callable[[Path], None]) -> Path:
        """The file of this name, made when it is first asked for."""
        path = self._place / name
        if not path.exists():
            with self._making(name):
                make(path)
        return path

    def template(self, name: str, fill: Callable[[str], None]) -> str:
        """The database of this name on the server, filled when it is first asked for."""
        if self.servers.postgres.is_made(name):
            return self.servers.postgres.template(name, fill)
        with self._making(name):
            return self.servers.postgres.template(name, fill)

    @contextmanager
    def _making(self, name: str) -> Iterator[None]:
        """What is made once is no part of what a turn takes."""
        self.prepare(f"making {name}")
        began = self.budget.clock()
        yield
        self._made_s += self.budget.clock() - began

    def prepare(self, text: str) -> None:
        """Tell who watches that something is made ready."""
        self._watch.prepare(text)

    def wants(self, name: str) -> bool:
        """Whether a peer of this name was asked for, by all of it or by what stands before its first comma."""
        return not self.peers or name in self.peers or name.partition(",")[0] in self.peers

    @property
    def is_wide(self) -> bool:
        """Whether those are measured too whom no target names: in a first look only where somebody was asked for."""
        return not self.scale.quick or bool(self.peers)

    @property
    def side_rounds(self) -> int:
        """How often each has its turn in a measure that has no targets."""
        return min(self.scale.rounds, self.scale.side_rounds)

    def alternate(
        self,
        turns: dict[str, Turn],
        rounds: int | None = None,
        seldom: Collection[str] = (),
    ) -> None:
        """Let all have their turn, round after round, each round beginning with another one.

        Those whom no target names (`seldom`) have one turn, at the end of the first round. No further round begins that
        would not end within the measure's budget. Where that is overrun by far in the first round, what is left of
        `seldom` is left out, and after the end of the run everybody is: the report names them. One that breaks has no
        further turn, and the report says how; the others go on.
        """
        rounds = rounds or self.scale.rounds
        often, once = [name for name in turns if name not in seldom], [name for name in turns if name in seldom]
        self._watch.begin(self.measure, rounds * len(often) + len(once))
        took: dict[str, float] = {}
        for number in range(rounds):
            if number and not (took and self.budget.is_enough_for(sum(took.values()))):
                break
            first = number % max(1, len(often))
            for name in often[first:] + often[:first]:
                if number == 0 or name in took:
                    self._watch.step(f"round {number + 1} of {rounds}: {name}")
                    self._timed(name, turns[name], took)
            if number == 0:
                for name in once:
                    self._watch.step(f"once: {name}")
                    self._once(name, turns[name])
            self.rounds = max(self.rounds, number + 1)
        self._watch.end()

    def _timed(self, name: str, turn: Turn, took: dict[str, float]) -> None:
        """A turn of somebody who has several; what it took is known afterwards, unless it has no further one."""
        took.pop(name, None)
        if self.budget.is_run_over():
            self._leave_out(name, RUN_IS_OVER)
            return
        began, made_s = self.budget.clock(), self._made_s
        if self._turn(name, turn):
            took[name] = self.budget.clock() - began - (self._made_s - made_s)

    def _once(self, name: str, turn: Turn) -> None:
        if self.budget.is_run_over():
            self._leave_out(name, RUN_IS_OVER)
        elif self.budget.is_overrun():
            self._leave_out(name, MEASURE_IS_OVER)
        else:
            self._turn(name, turn)

    def _leave_out(self, name: str, why: str) -> None:
        """Not silently: unless it had a turn before, nothing of it is in the report."""
        if name not in self._had_a_turn:
            self.results.missing[f"{self.measure}: {name}"] = why

    def _turn(self, name: str, turn: Turn) -> bool:
        place = self._place / "turn"
        place.mkdir()
        self._had_a_turn.add(name)
        self.forget()
        broken = None
        try:
            turn(place)
        except Broken as error:
            broken = str(error)
        except Exception:
            broken = traceback.format_exc()
        finally:
            shutil.rmtree(place)
        for figure in self._recorded:
            self.results.add(self.measure, *figure)
        if broken is not None:
            self.results.fault(self.measure, f"{name}: {broken}")
        return broken is None

    def record(self, what: str, who: str, unit: str, value: float) -> None:
        """One value of a figure; it counts when its turn is over."""
        self._recorded.append((what, who, unit, value))

    def forget(self) -> None:
        """What was recorded in this turn so far."""
        self._recorded.clear()

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
