"""Limit: how near a worker comes to what the driver and the server allow, told by bare loops of the same statements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import ceiling, rates
from bench.calibrating import Sizes
from bench.child import Child, start
from bench.figures import RATE, Figure, Ran, Results, Verdict, ratios, told
from bench.grounds import GROUNDS, Ground, grounds
from bench.lab import Lab, Turn
from bench.peers import bare_mongo, bare_postgres, bare_redis

NAME = "limit"
#: All hold as many jobs at a time; a worker has two exchanges in flight, each over half of its slots.
SLOTS = 50
FLIGHTS = (1, 2)
ROUNDS = 3
WORKER = f"a worker, {SLOTS} slots"
CEILING = f"{ceiling.NAME} on Redis"
#: So many times as fast as the worker a loop is at a first guess.
AHEAD = 1.25

#: By the name of a store, what drains a URL by so many jobs a call, so many calls in flight.
BARE = {"postgres": bare_postgres.drain, "redis": bare_redis.drain, "mongo": bare_mongo.drain}

#: Given url, jobs.
Begin = Callable[[str, int], Child[Ran]]


def run(lab: Lab) -> None:
    """A worker and the bare loops in turn, on each server, and redis-benchmark on Redis.

    Loops with one call in flight have one turn: a worker has two.
    """
    sizes = Sizes(lab)
    turns: dict[str, Turn] = {}
    seldom: set[str] = set()
    for ground in _limited(grounds(lab)):
        turns[f"{ground.who(ground.ours)}, {WORKER}"] = partial(_drain, lab, sizes, ground, WORKER, _worker(ground))
        for flights in FLIGHTS:
            what = _what(flights)
            turns[name := f"{_bare(ground)}, {what}"] = partial(
                _drain, lab, sizes, ground, what, _loop(ground, flights)
            )
            if flights == 1:
                seldom.add(name)
        if ground.store == "redis":
            turns |= _ceilings(lab)
    lab.alternate(turns, rounds=min(lab.scale.rounds, ROUNDS), seldom=seldom)


def _limited(some: list[Ground]) -> list[Ground]:
    """On SQLite the bare loop is part of the drain."""
    return [ground for ground in some if ground.store in BARE]


def _bare(ground: Ground) -> str:
    return f"bare loop on {ground.title}"


def _what(flights: int) -> str:
    return f"{flights} in flight, {SLOTS // flights} a call"


def _worker(ground: Ground) -> Begin:
    return lambda url, jobs: ground.ours.drain(url, jobs, SLOTS)


def _loop(ground: Ground, flights: int) -> Begin:
    drain = BARE[ground.store]
    return lambda url, _: start(drain, url=url, batch=SLOTS // flights, flights=flights)


def _drain(lab: Lab, sizes: Sizes, ground: Ground, what: str, begin: Begin, _: Path) -> None:
    who = ground.who(ground.ours) if what == WORKER else _bare(ground)

    def drain(jobs: int) -> Ran:
        with ground.filled(lab, ground.ours, jobs) as url:
            return ground.record(lab, what, who, begin(url, jobs))

    guess = rates.rate(ground.store, ground.ours.name, SLOTS) * (1 if what == WORKER else AHEAD)
    sizes.run(f"{who}, {what}", drain, rate=guess)


def _ceilings(lab: Lab) -> dict[str, Turn]:
    """What redis-benchmark reaches with the cheapest commands; where there is none the report says so."""
    program = ceiling.program()
    if program is None:
        lab.results.missing[ceiling.NAME] = ceiling.MISSING
        return {}
    return {
        f"{ceiling.NAME}, {ceiling.what(pipelined)}": partial(_ceiling, lab, program, pipelined)
        for pipelined in ceiling.PIPELINED
    }


def _ceiling(lab: Lab, program: Path, pipelined: int, _: Path) -> None:
    with lab.servers.redis.emptied() as url:
        reached = ceiling.measure(program, url, pipelined)
    lab.record(ceiling.what(pipelined), CEILING, RATE, reached.jobs)
    lab.record(ceiling.what(pipelined), CEILING, ceiling.COMMANDS, reached.pings)


def verdicts(results: Results) -> list[Verdict]:
    """No targets: the worker against the better of the loops, and against the cheapest queue there is."""
    made = []
    for ground in _limited(list(GROUNDS)):
        worker = results.get(NAME, WORKER, ground.who(ground.ours), RATE)
        if worker is None:
            continue
        loops = [results.get(NAME, _what(flights), _bare(ground), RATE) for flights in FLIGHTS]
        best: Figure | None = max((one for one in loops if one), key=lambda one: one.median, default=None)
        how = "" if best is None else f" ({best.what}, its best)"
        made.append(told(f"{ground.title}: {WORKER}, against the bare loop{how}", ratios(worker, best), "x"))
        if ground.store == "redis":
            cheapest = results.get(NAME, ceiling.what(1), CEILING, RATE)
            made.append(
                told(f"Redis: {WORKER}, against LPUSH and RPOP of {ceiling.NAME}", ratios(worker, cheapest), "x")
            )
    return made
