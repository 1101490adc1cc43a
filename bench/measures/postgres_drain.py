"""Drain on PostgreSQL: how fast one worker process runs no-op jobs, and what that costs it and the server."""

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
from bench.ours import postgres as ours
from bench.peers import graphile_postgres as graphile
from bench.peers import pgqueuer_postgres as pgqueuer
from bench.peers import procrastinate_postgres as procrastinate
from bench.postgres.contenders import GRAPHILE, OURS, PGQUEUER, PROCRASTINATE, database
from bench.postgres.metered import WAL, record_metered

NAME = "postgres drain"
BATCH = SLOTS = 100
ONE, MANY, BATCHED = "1 slots", f"{SLOTS} slots", f"batch {BATCH}"

ON_ASYNCIO = "jobmill, asyncio's loop"
PORT = "jobmill, exchange alone"
UNLIMITED = "pgqueuer, no limit"
FIRST, BEST = f"graphile, local queue of {SLOTS + 1}", "graphile, local queue of 500"


class Drain(Struct, frozen=True):
    """One row of the table: whose, how, and what to start with a URL and the number of jobs there."""

    contender: Contender
    who: str
    what: str
    start: Callable[[str, int], Child[Ran]]
    #: Left out of a quick run.
    is_aside: bool = False


def _ours(slots: int) -> Callable[[str, int], Child[Ran]]:
    return lambda url, jobs: start(ours.drain, url=url, jobs=jobs, slots=slots)


def _ours_on_asyncio(url: str, jobs: int) -> Child[Ran]:
    return start(ours.drain_on_asyncio, url=url, jobs=jobs, slots=SLOTS)


def _pgqueuer(batch: int, most: int | None) -> Callable[[str, int], Child[Ran]]:
    return lambda url, jobs: start(pgqueuer.drain, url=url, jobs=jobs, batch=batch, most=most)


def _procrastinate(slots: int) -> Callable[[str, int], Child[Ran]]:
    return lambda url, jobs: start(procrastinate.drain, url=url, jobs=jobs, slots=slots)


def _graphile(slots: int, local_queue: int | None = None, delay_ms: int = 0) -> Callable[[str, int], Child[Ran]]:
    return lambda url, jobs: graphile.drain(url, jobs, graphile.options(slots, local_queue, delay_ms))


DRAINS = (
    Drain(OURS, OURS.name, ONE, _ours(1)),
    Drain(OURS, OURS.name, MANY, _ours(SLOTS)),
    Drain(OURS, ON_ASYNCIO, MANY, _ours_on_asyncio, is_aside=True),
    Drain(OURS, PORT, BATCHED, lambda url, jobs: start(ours.exchange, url=url, batch=BATCH, jobs=jobs, seconds=60)),
    Drain(PGQUEUER, PGQUEUER.name, ONE, _pgqueuer(1, None)),
    Drain(PGQUEUER, PGQUEUER.name, MANY, _pgqueuer(SLOTS // 2, SLOTS)),
    Drain(PGQUEUER, UNLIMITED, BATCHED, _pgqueuer(BATCH, None)),
    Drain(PROCRASTINATE, PROCRASTINATE.name, ONE, _procrastinate(1), is_aside=True),
    Drain(PROCRASTINATE, PROCRASTINATE.name, MANY, _procrastinate(SLOTS)),
    Drain(GRAPHILE, GRAPHILE.name, ONE, _graphile(1), is_aside=True),
    Drain(GRAPHILE, GRAPHILE.name, MANY, _graphile(SLOTS), is_aside=True),
    Drain(GRAPHILE, FIRST, MANY, _graphile(SLOTS, SLOTS + 1, 25), is_aside=True),
    Drain(GRAPHILE, BEST, ONE, _graphile(1, 500), is_aside=True),
    Drain(GRAPHILE, BEST, MANY, _graphile(SLOTS, 500)),
)


def run(lab: Lab) -> None:
    """All contenders, at 1 and at 100 slots."""
    turns: dict[str, Turn] = {}
    for contender in (OURS, PGQUEUER, PROCRASTINATE, GRAPHILE):
        if is_there(lab, contender):
            own = (one for one in DRAINS if one.contender is contender and not (lab.scale.quick and one.is_aside))
            turns |= {f"{one.who}, {one.what}": partial(_drain, lab, one) for one in own}
    lab.alternate(turns)


def _drain(lab: Lab, drain: Drain, _: Path) -> None:
    jobs = lab.scale.single_jobs if drain.what == ONE else lab.scale.server_jobs
    with database(lab, drain.contender, jobs) as url:
        record_metered(lab, drain.what, drain.who, drain.start(url, jobs))


def verdicts(results: Results) -> list[Verdict]:
    """Against each peer at its best, and what a job costs the server."""

    def rate(who: str, what: str) -> Figure | None:
        return results.get(NAME, what, who, RATE)

    def cost(unit: str) -> list[float]:
        return values_of(results.get(NAME, BATCHED, PORT, unit))

    here = rate(OURS.name, MANY)
    pgqueuer = _best(rate(PGQUEUER.name, MANY), rate(UNLIMITED, BATCHED))
    procrastinate, tuned = rate(PROCRASTINATE.name, MANY), rate(BEST, MANY)
    alone = ratios(rate(OURS.name, ONE), rate(PGQUEUER.name, ONE))
    return [
        judge("drain at 100 slots, against pgqueuer at its best", ratios(here, pgqueuer), "at least", 2, "x"),
        judge("drain at 100 slots, against procrastinate", ratios(here, procrastinate), "at least", 25, "x"),
        judge(f"drain at 100 slots, against {BEST} (an aim)", ratios(here, tuned), "at least", 1, "x"),
        judge("drain at 1 slot, against pgqueuer", alone, "at least", 1, "x"),
        judge("server CPU per job, settle and claim at batch 100 (an aim)", cost(SERVER), "at most", 15, "us"),
        judge("WAL per job, settle and claim at batch 100 (an aim)", cost(WAL), "at most", 900, "B"),
        told("client CPU per job, drain at 100 slots", values_of(results.get(NAME, MANY, OURS.name, CLIENT)), "us"),
    ]


def _best(*figures: Figure | None) -> Figure | None:
    return max((one for one in figures if one is not None), key=lambda figure: figure.median, default=None)
