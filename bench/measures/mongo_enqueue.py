"""Enqueue on MongoDB: a lone caller, fifty concurrent ones, and many jobs in a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from bench.child import Child, start
from bench.contenders import Contender, is_there
from bench.figures import RATE, Ran, Results, Verdict, judge, ratios, told
from bench.lab import Lab, Turn
from bench.mongo.contenders import AGENDA, FULL, LEAN, MONQUE, filled
from bench.mongo.metered import record_metered
from bench.ours import mongo as ours
from bench.peers import agenda_mongo as agenda
from bench.peers import monque_mongo as monque

NAME = "mongo enqueue"
CALLERS = 50
SIZE = 1_000
LONE, CONCURRENT, BULK = "one by one", f"{CALLERS} callers", f"{SIZE:,} a call"

LONGEST_S = 4.0

#: Given url, callers or size, jobs, seconds.
Begin = Callable[[str, int, int, float], Child[Ran]]


class Enqueuer(Struct, frozen=True):
    """How a contender enqueues: with so many callers, and so many jobs in a call where it can."""

    contender: Contender
    enqueue: Begin
    bulk: Begin | None


def _ours(contender: Contender) -> Enqueuer:
    return Enqueuer(
        contender,
        lambda url, callers, jobs, seconds: start(ours.enqueue, url=url, callers=callers, jobs=jobs, seconds=seconds),
        lambda url, size, jobs, seconds: start(ours.bulk, url=url, size=size, jobs=jobs, seconds=seconds),
    )


ENQUEUERS = (
    _ours(LEAN),
    _ours(FULL),
    Enqueuer(
        MONQUE,
        lambda url, callers, jobs, seconds: start(monque.enqueue, url=url, callers=callers, jobs=jobs, seconds=seconds),
        lambda url, size, jobs, seconds: start(monque.bulk, url=url, size=size, jobs=jobs, seconds=seconds),
    ),
    Enqueuer(AGENDA, agenda.enqueue, None),
)


def run(lab: Lab) -> None:
    """Into an empty collection with its indexes each time."""
    turns: dict[str, Turn] = {}
    for one in ENQUEUERS:
        if not (lab.scale.quick and one.contender is FULL) and is_there(lab, one.contender):
            for what in (LONE, CONCURRENT, BULK):
                if what != BULK or one.bulk is not None:
                    turns[f"{one.contender.name}, {what}"] = partial(_enqueue, lab, one, what)
    lab.alternate(turns, budget_s=lab.scale.mongo_budget_s)


def _enqueue(lab: Lab, one: Enqueuer, what: str, _: Path) -> None:
    scale = lab.scale
    begin, number, jobs = {
        LONE: (one.enqueue, 1, scale.mongo_single_jobs),
        CONCURRENT: (one.enqueue, CALLERS, scale.mongo_slow_jobs),
        BULK: (one.bulk, SIZE, scale.mongo_jobs),
    }[what]
    assert begin is not None
    with filled(lab, one.contender, 0) as url:
        record_metered(lab, what, one.contender.name, begin(url, number, jobs, min(LONGEST_S, scale.run_s)))


def verdicts(results: Results) -> list[Verdict]:
    """Bulk and fifty callers against the lone one; the rest is reported."""

    def against(here: Contender, who: Contender, what: str, other: str | None = None) -> list[float]:
        return ratios(results.get(NAME, what, here.name, RATE), results.get(NAME, other or what, who.name, RATE))

    def own(here: Contender, what: str) -> list[float]:
        return against(here, here, what, LONE)

    return [
        *(
            judge(f"bulk enqueue against one by one, {here.name}", own(here, BULK), "at least", 10, "x")
            for here in (LEAN, FULL)
        ),
        *(
            told(f"{CALLERS} callers against one by one, {here.name}", own(here, CONCURRENT), "x")
            for here in (LEAN, FULL)
        ),
        *(
            told(f"enqueue, {what}, {FULL.name}, against Monque's way", against(FULL, MONQUE, what), "x")
            for what in (LONE, CONCURRENT, BULK)
        ),
        *(
            told(f"enqueue, {what}, {LEAN.name}, against agenda", against(LEAN, AGENDA, what), "x")
            for what in (LONE, CONCURRENT)
        ),
    ]
