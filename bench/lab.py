"""What a measure works with: rounds that alternate between contenders, within a share of the run's time."""

from __future__ import annotations

import time
import traceback
from bisect import bisect_left
from collections.abc import Callable, Collection
from random import Random

from msgspec import Struct

from bench.child import BEGUN, SETTLED, Broken, Child
from bench.clocks import Ran
from bench.contenders import Contender
from bench.figures import CLIENT, RATE, Results
from bench.grounds import Ground, Grounds

Turn = Callable[[], None]

#: For what one run does not tell of the next one.
MARGIN = 1.2
TRIES = 3
#: Not all numbers, so that what one of them filled serves several.
STEPS = tuple(int(part * 10**power) for power in range(2, 6) for part in (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8))
TIME_OVER = "the time was over"
#: A measure that needs more than this part of its share leaves out those who have one turn only.
OVERRUN = 1.2


class Scale(Struct, frozen=True, kw_only=True):
    """All sizes of a run."""

    quick: bool
    rounds: int
    #: Nothing begins after this time.
    total_s: float
    #: How long a drain takes at least, and an enqueue.
    drain_s: float
    enqueue_s: float
    pickups: int
    depth_jobs: int
    #: How many others wait in the deepest queue, and how many more are delayed.
    deep: int
    memory_jobs: int
    #: Jobs in all states for `operations`, and how often each operation is called.
    crowd: int
    looks: int
    documents: int
    sleeping: int


FULL = Scale(
    quick=False,
    rounds=5,
    total_s=2_400,
    drain_s=2.0,
    enqueue_s=2.0,
    pickups=200,
    depth_jobs=5_000,
    deep=1_000_000,
    memory_jobs=1_000,
    crowd=1_000_000,
    looks=100,
    documents=2_000,
    sleeping=100_000,
)
QUICK = Scale(
    quick=True,
    rounds=2,
    total_s=165,
    drain_s=0.3,
    enqueue_s=0.5,
    pickups=40,
    depth_jobs=2_000,
    deep=20_000,
    memory_jobs=500,
    crowd=20_000,
    looks=20,
    documents=500,
    sleeping=20_000,
)


class Run(Struct, kw_only=True):
    """All that the measures of one run share."""

    scale: Scale
    grounds: Grounds
    results: Results
    seed: int
    #: Only these are measured beside us; empty: all.
    peers: tuple[str, ...]
    progress: Callable[[str], None]
    began: float
    clock: Callable[[], float] = time.monotonic

    def wants(self, contender: Contender) -> bool:
        """Whether it was asked for, by its name or by the part before the comma, and is there."""
        if self.peers and not {contender.name, contender.name.partition(",")[0]} & {*self.peers, "jobmill"}:
            return False
        if contender.name not in self.results.missing and (why := contender.missing()) is not None:
            self.results.missing[contender.name] = why
        return contender.name not in self.results.missing


class Lab:
    """One measure on one store."""

    def __init__(self, run: Run, measure: str, ground: Ground, share_s: float) -> None:
        self.run = run
        self.scale = run.scale
        self.measure = measure
        self.ground = ground
        self.random = Random(run.seed)
        self.rounds = 0
        self._until = run.clock() + share_s
        self._overrun = run.clock() + share_s * OVERRUN
        #: The figures of the present turn.
        self.recorded: list[tuple[str, str, str, float]] = []
        self._sizes: dict[str, int] = {}

    @property
    def contenders(self) -> list[Contender]:
        """Who takes part. A quick run has only the peers that targets name, unless peers are named."""
        is_wide = not self.scale.quick or bool(self.run.peers) or self.measure.endswith("drain")
        return [
            one
            for one in self.ground.contenders
            if self._is_ours(one) or is_wide or one.is_rival
            if self.run.wants(one)
        ]

    def _is_ours(self, contender: Contender) -> bool:
        return contender.name.partition(",")[0] == "jobmill"

    def is_often(self, contender: Contender) -> bool:
        """Whether it has a turn in every round."""
        return contender is self.ground.ours or contender.is_rival

    def alternate(self, turns: dict[str, Turn], once: Collection[str] = (), rounds: int | None = None) -> None:
        """Let all have their turn, round after round, each round beginning with another one.

        Those of `once` have one turn, in the first round, unless that takes far too long. No round begins that would
        not end in the measure's time. One that breaks has no further turn, and the report says how; the others go on.
        """
        often = [name for name in turns if name not in once]
        took: dict[str, float] = {}
        for number in range(rounds or self.scale.rounds):
            if number and self.run.clock() + sum(took.get(name, 0.0) for name in often) > self._until:
                break
            first = number % max(1, len(often))
            for name in [*often[first:], *often[:first], *(() if number else once)]:
                if name in once and self.run.clock() > self._overrun:
                    self.run.results.missing[f"{self.measure}: {name}"] = TIME_OVER
                elif name in turns:
                    self._turn(f"round {number + 1}: {name}", name, turns, took)
            self.rounds = number + 1

    def _turn(self, text: str, name: str, turns: dict[str, Turn], took: dict[str, float]) -> None:
        if self.is_over:
            if name not in took:
                self.run.results.missing[f"{self.measure}: {name}"] = TIME_OVER
            return
        self.run.progress(f"{self.measure}, {text}")
        self.recorded.clear()
        began = self.run.clock()
        try:
            turns[name]()
        except Exception as error:
            del turns[name]
            why = str(error) if isinstance(error, Broken) else traceback.format_exc()
            self.run.results.fault(self.measure, f"{name}: {why}")
            return
        took[name] = self.run.clock() - began
        for figure in self.recorded:
            self.run.results.add(self.measure, *figure)

    @property
    def is_over(self) -> bool:
        """Whether the whole run's time is over."""
        return self.run.clock() > self.run.began + self.scale.total_s

    def record(self, what: str, who: str, unit: str, value: float) -> None:
        """One value of a figure; it counts when its turn is over."""
        self.recorded.append((what, who, unit, value))

    def record_run(self, what: str, who: str, child: Child[Ran]) -> Ran:
        """Follow a child to its end, and record its rate and what it and the server spent on each job."""
        with child:
            child.wait_for(BEGUN)
            before = self.ground.spent()
            child.go_on()
            child.wait_for(SETTLED)
            after = self.ground.spent()
            child.go_on()
            ran = child.result()
        if not ran.jobs:
            raise Broken(f"{who}: not a single job in {ran.seconds:.1f} s")
        self.record(what, who, RATE, ran.jobs / ran.seconds)
        self.record(what, who, CLIENT, ran.cpu_seconds / ran.jobs * 1e6)
        for unit, value in after.items():
            self.record(what, who, unit, (value - before[unit]) / ran.jobs)
        return ran

    def sized(self, name: str, rate: float, drain: Callable[[int], Ran]) -> None:
        """Run `drain` with enough jobs to take the least time; a run that was over too soon is forgotten."""
        seconds = self.scale.drain_s
        jobs = self._sizes.get(name) or fitting(rate, seconds)
        for _ in range(1 if self.scale.quick else TRIES):
            self.recorded.clear()
            ran = drain(jobs)
            self._sizes[name] = jobs
            if ran.seconds >= seconds:
                break
            jobs = max(jobs + 1, fitting(ran.jobs / ran.seconds, seconds))


def fitting(rate: float, seconds: float) -> int:
    """The least step at which a drain of this rate surely takes this time."""
    return STEPS[min(bisect_left(STEPS, rate * seconds * MARGIN), len(STEPS) - 1)]
