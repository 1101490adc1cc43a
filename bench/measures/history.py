"""History: how fast a worker runs no-op jobs while none is kept that has finished, and while very many are."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.calibrating import Sizes
from bench.figures import RATE, Figure, Ran, Results, Verdict, ratios, told
from bench.grounds import GROUNDS, Ground, grounds
from bench.lab import Lab, Turn
from bench.rates import rate

NAME = "history"
SLOTS = 50
NONE = 0


def run(lab: Lab) -> None:
    """Our own worker, on each server, the same number of jobs beside both."""
    sizes = Sizes(lab)
    turns: dict[str, Turn] = {
        f"{ground.who(ground.ours)}, {_what(finished)}": partial(_drain, lab, sizes, ground, finished)
        for ground in grounds(lab)
        for finished in (NONE, lab.scale.finished)
    }
    lab.alternate(turns, rounds=lab.side_rounds)


def _what(finished: int) -> str:
    return f"{finished:,} finished"


def _drain(lab: Lab, sizes: Sizes, ground: Ground, finished: int, _: Path) -> None:
    who, ours = ground.who(ground.ours), ground.ours
    with ground.kept(lab, finished) as url:

        def drain(jobs: int) -> Ran:
            ours.fill(url, jobs)
            ground.make_ready(url)
            return ground.record(lab, _what(finished), who, ours.drain(url, jobs, SLOTS))

        sizes.run(who, drain, rate=rate(ground.store, ours.name, SLOTS))


def verdicts(results: Results) -> list[Verdict]:
    """No targets: the rate beside the longer history against that without one."""
    told_of = []
    for ground in GROUNDS:
        rates = [one for one in results.of(NAME, RATE) if one.who == ground.who(ground.ours)]
        none: Figure | None = next((one for one in rates if one.what == _what(NONE)), None)
        told_of += [
            told(f"{ground.title}: drain beside {one.what} jobs, against none", ratios(one, none), "x")
            for one in rates
            if one is not none
        ]
    return told_of
