"""Drain on MongoDB: how fast one worker process runs no-op jobs, and what that costs it and the server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from bench.child import Child, start
from bench.contenders import Contender, is_there
from bench.figures import RATE, Figure, Ran, Results, Verdict, judge, ratios, told, values_of
from bench.lab import Lab, Turn
from bench.metering import CLIENT, SERVER
from bench.mongo.contenders import AGENDA, FULL, LEAN, MONQUE, filled
from bench.mongo.metered import record_metered
from bench.ours import mongo as ours
from bench.peers import agenda_mongo as agenda
from bench.peers import monque_mongo as monque

NAME = "mongo drain"
SLOTS = (1, 50, 200)
MANY = 50
ON_ASYNCIO = f"{LEAN.name}, asyncio's loop"
#: Which of these is its best depends on the machine, and on how busy that is.
AS_IT_COMES, SELDOM = f"{AGENDA.name}, as it comes", f"{AGENDA.name}, each 100 ms"


class Drain(Struct, frozen=True):
    """One row of the table: whose, how, and what to start with a URL and the number of jobs there."""

    contender: Contender
    who: str
    what: str
    slots: int
    start: Callable[[str, int], Child[Ran]]
    #: Left out of a quick run.
    is_aside: bool = False


def _what(slots: int) -> str:
    return f"{slots} slots"


def _exchanger(contender: Contender) -> str:
    return f"{contender.name}, exchange alone"


def _ours(contender: Contender, slots: int) -> Drain:
    def begin(url: str, jobs: int) -> Child[Ran]:
        return start(ours.drain, url=url, jobs=jobs, slots=slots)

    return Drain(contender, contender.name, _what(slots), slots, begin, is_aside=contender is FULL and slots != MANY)


def _ours_on_asyncio(slots: int) -> Drain:
    def begin(url: str, jobs: int) -> Child[Ran]:
        return start(ours.drain_on_asyncio, url=url, jobs=jobs, slots=slots)

    return Drain(LEAN, ON_ASYNCIO, _what(slots), slots, begin, is_aside=True)


def _exchange(contender: Contender, batch: int) -> Drain:
    def begin(url: str, jobs: int) -> Child[Ran]:
        return start(ours.exchange, url=url, batch=batch, jobs=jobs, seconds=60)

    aside = contender is FULL or batch != MANY
    return Drain(contender, _exchanger(contender), f"batch {batch}", batch, begin, is_aside=aside)


def _monque(slots: int) -> Drain:
    def begin(url: str, jobs: int) -> Child[Ran]:
        return start(monque.drain, url=url, jobs=jobs, tasks=slots)

    return Drain(MONQUE, MONQUE.name, _what(slots), slots, begin, is_aside=slots != MANY)


def _agenda(who: str, slots: int, every_ms: int | None) -> Drain:
    def begin(url: str, jobs: int) -> Child[Ran]:
        return agenda.drain(url, jobs, slots, every_ms)

    return Drain(AGENDA, who, _what(slots), slots, begin, is_aside=who == AS_IT_COMES or slots != MANY)


DRAINS = (
    *(_ours(LEAN, slots) for slots in SLOTS),
    *(_ours(FULL, slots) for slots in SLOTS),
    _ours_on_asyncio(MANY),
    *(_exchange(LEAN, batch) for batch in SLOTS),
    _exchange(FULL, MANY),
    *(_monque(slots) for slots in SLOTS),
    *(_agenda(AGENDA.name, slots, agenda.EVERY_MS) for slots in SLOTS),
    _agenda(SELDOM, MANY, 100),
    _agenda(AS_IT_COMES, MANY, None),
)


def run(lab: Lab) -> None:
    """All contenders, at 1, 50 and 200 slots."""
    there = {contender.name for contender in (LEAN, FULL, MONQUE, AGENDA) if is_there(lab, contender)}
    chosen = (one for one in DRAINS if one.contender.name in there and not (lab.scale.quick and one.is_aside))
    turns: dict[str, Turn] = {f"{one.who}, {one.what}": partial(_drain, lab, one) for one in chosen}
    lab.alternate(turns, budget_s=lab.scale.mongo_budget_s)


def _drain(lab: Lab, drain: Drain, _: Path) -> None:
    scale = lab.scale
    # What is compared runs the same number: whoever looks for one job at a time is slowed by all that it has claimed.
    is_compared = drain.slots == MANY and not scale.quick
    is_slow = drain.contender in (MONQUE, AGENDA)
    jobs = scale.mongo_slow_jobs if is_slow and not is_compared else scale.mongo_jobs
    if drain.slots == 1:
        jobs = scale.mongo_single_jobs
    with filled(lab, drain.contender, jobs) as url:
        record_metered(lab, drain.what, drain.who, drain.start(url, jobs))


def verdicts(results: Results) -> list[Verdict]:
    """Rates against both peers, with both sets of indexes, and what a job costs."""

    def figure(who: str, slots: int, unit: str = RATE) -> Figure | None:
        return results.get(NAME, _what(slots), who, unit)

    def best(who: str, slots: int) -> Figure | None:
        names = (who, SELDOM, AS_IT_COMES) if who == AGENDA.name else (who,)
        there = [one for name in names if (one := figure(name, slots)) is not None]
        return max(there, key=lambda one: one.median, default=None)

    def against(here: Contender, who: str, slots: int) -> list[float]:
        return ratios(figure(here.name, slots), best(who, slots))

    def text(here: Contender, slots: int, peer: str) -> str:
        return f"drain at {slots} slot{'s' * (slots > 1)}, {here.name}, against {peer}"

    targets = ((MONQUE.name, "a find-and-modify loop", 10), (AGENDA.name, "agenda at its best", 8))
    return [
        *(
            judge(text(here, MANY, peer), against(here, who, MANY), "at least", bound, "x")
            for here in (LEAN, FULL)
            for who, peer, bound in targets
        ),
        *(
            told(text(LEAN, slots, peer), against(LEAN, who, slots), "x")
            for slots in (1, 200)
            for who, peer, _ in targets
        ),
        *(
            told(f"{whose} CPU per job at {MANY} slots, {here.name}", values_of(figure(here.name, MANY, unit)), "us")
            for whose, unit in (("server", SERVER), ("client", CLIENT))
            for here in (LEAN, FULL)
        ),
    ]
