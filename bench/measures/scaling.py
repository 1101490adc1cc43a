"""Scaling: how fast one, two and four worker processes run the no-op jobs of one queue."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench import shares
from bench.calibrating import Sizes
from bench.figures import RATE, Figure, Ran, Results, Verdict, ratios, told
from bench.grounds import GROUNDS, Ground, grounds
from bench.lab import Lab, Turn
from bench.rates import rate

NAME = "scaling"
PROCESSES = (1, 2, 4)
SLOTS = 50


def run(lab: Lab) -> None:
    """Our own workers, on each server."""
    sizes = Sizes(lab)
    turns: dict[str, Turn] = {
        f"{ground.who(ground.ours)}, {_what(processes)}": partial(_drain, lab, sizes, ground, processes)
        for ground in grounds(lab)
        for processes in PROCESSES
    }
    lab.alternate(turns, rounds=lab.side_rounds)


def _what(processes: int) -> str:
    return f"{processes} processes"


def _drain(lab: Lab, sizes: Sizes, ground: Ground, processes: int, _: Path) -> None:
    who, what = ground.who(ground.ours), _what(processes)

    def drain(jobs: int) -> Ran:
        return shares.record(lab, what, who, shares.drain(lab, ground, jobs, processes=processes, slots=SLOTS))

    sizes.run(f"{who}, {what}", drain, rate=rate(ground.store, ground.ours.name, SLOTS))


def verdicts(results: Results) -> list[Verdict]:
    """No targets."""

    def measured(ground: Ground, processes: int) -> Figure | None:
        return results.get(NAME, _what(processes), ground.who(ground.ours), RATE)

    return [
        told(f"{ground.title}: {more} worker processes, against one", ratios(measured(ground, more), alone), "x")
        for ground in GROUNDS
        if (alone := measured(ground, 1)) is not None
        for more in PROCESSES[1:]
    ]
