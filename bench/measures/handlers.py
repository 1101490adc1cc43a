"""Handlers: how fast one worker process runs no-op handlers on its loop, in threads, and in processes of their own."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench import shares
from bench.calibrating import Sizes
from bench.figures import RATE, Figure, Ran, Results, Verdict, told, values_of
from bench.grounds import GROUNDS, Ground, grounds
from bench.lab import Lab, Turn
from bench.ours.share import ASYNC, ISOLATED, SYNC
from bench.rates import rate

NAME = "handlers"
#: More processes at once than this only wait for each other's cores.
SLOTS = {ASYNC: 50, SYNC: 50, ISOLATED: 10}
#: A first guess for handlers in threads.
SLOWER = 3


def run(lab: Lab) -> None:
    """Our own workers, on each server."""
    sizes = Sizes(lab)
    turns: dict[str, Turn] = {
        f"{ground.who(ground.ours)}, {kind}": partial(_drain, lab, sizes, ground, kind)
        for ground in grounds(lab)
        for kind in SLOTS
    }
    lab.alternate(turns, rounds=lab.side_rounds)


def _what(kind: str) -> str:
    return f"{kind}, {SLOTS[kind]} slots"


def _drain(lab: Lab, sizes: Sizes, ground: Ground, kind: str, _: Path) -> None:
    who = ground.who(ground.ours)

    def drain(jobs: int) -> Ran:
        return shares.record(lab, _what(kind), who, shares.drain(lab, ground, jobs, slots=SLOTS[kind], kind=kind))

    if kind == ISOLATED:
        drain(lab.scale.isolated_jobs)
    else:
        guess = rate(ground.store, ground.ours.name, SLOTS[kind]) / (SLOWER if kind == SYNC else 1)
        sizes.run(f"{who}, {kind}", drain, rate=guess)


def verdicts(results: Results) -> list[Verdict]:
    """No targets."""

    def measured(ground: Ground, kind: str) -> Figure | None:
        return results.get(NAME, _what(kind), ground.who(ground.ours), RATE)

    return [
        told(
            f"{ground.title}: drain of {kind} handlers at {SLOTS[kind]} slots", values_of(measured(ground, kind)), RATE
        )
        for ground in GROUNDS
        for kind in SLOTS
        if measured(ground, kind) is not None
    ]
