"""Enqueue on PostgreSQL: a lone caller, fifty concurrent ones, and many jobs in a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from bench.child import Child, start
from bench.contenders import Contender, is_there
from bench.figures import RATE, Ran, Results, Verdict, judge, ratios, told, values_of
from bench.lab import Lab, Turn
from bench.metering import SERVER
from bench.ours import postgres as ours
from bench.peers import graphile_postgres as graphile
from bench.peers import pgqueuer_postgres as pgqueuer
from bench.peers import procrastinate_postgres as procrastinate
from bench.postgres.contenders import GRAPHILE, OURS, PGQUEUER, PROCRASTINATE, database
from bench.postgres.metered import WAL, record_metered

NAME = "postgres enqueue"
CALLERS = 50
SIZE = 1_000
LONE, CONCURRENT, BULK = "one by one", f"{CALLERS} callers", f"{SIZE:,} a call"

#: Of jobs for a second of ours a peer may need ten.
LONGEST_S = 4.0

#: Given url, callers or size, jobs, seconds.
Begin = Callable[[str, int, int, float], Child[Ran]]


class Enqueuer(Struct, frozen=True):
    """How a contender enqueues: with so many callers, and so many jobs in a call."""

    contender: Contender
    enqueue: Begin
    bulk: Begin


ENQUEUERS = (
    Enqueuer(
        OURS,
        lambda url, callers, jobs, seconds: start(ours.enqueue, url=url, callers=callers, jobs=jobs, seconds=seconds),
        lambda url, size, jobs, seconds: start(ours.bulk, url=url, size=size, jobs=jobs, seconds=seconds),
    ),
    Enqueuer(
        PGQUEUER,
        lambda url, callers, jobs, seconds: start(
            pgqueuer.enqueue, url=url, callers=callers, jobs=jobs, seconds=seconds
        ),
        lambda url, size, jobs, seconds: start(pgqueuer.bulk, url=url, size=size, jobs=jobs, seconds=seconds),
    ),
    Enqueuer(
        PROCRASTINATE,
        lambda url, callers, jobs, seconds: start(
            procrastinate.enqueue, url=url, callers=callers, jobs=jobs, seconds=seconds
        ),
        lambda url, size, jobs, seconds: start(procrastinate.bulk, url=url, size=size, jobs=jobs, seconds=seconds),
    ),
    Enqueuer(GRAPHILE, graphile.enqueue, graphile.bulk),
)


def run(lab: Lab) -> None:
    """Into empty tables each time."""
    turns: dict[str, Turn] = {}
    for one in ENQUEUERS:
        if is_there(lab, one.contender):
            name = one.contender.name
            for what in (LONE, CONCURRENT, BULK):
                turns[f"{name}, {what}"] = partial(_enqueue, lab, one, what)
    lab.alternate(turns)


def _enqueue(lab: Lab, one: Enqueuer, what: str, _: Path) -> None:
    scale = lab.scale
    begin, number, jobs = {
        LONE: (one.enqueue, 1, scale.enqueue_jobs),
        CONCURRENT: (one.enqueue, CALLERS, scale.bulk_jobs // 2),
        BULK: (one.bulk, SIZE, scale.bulk_jobs),
    }[what]
    with database(lab, one.contender, 0) as url:
        record_metered(lab, what, one.contender.name, begin(url, number, jobs, min(LONGEST_S, scale.run_s)))


def verdicts(results: Results) -> list[Verdict]:
    """Bulk against the peer; the rest is reported."""

    def compared(what: str) -> list[float]:
        return ratios(results.get(NAME, what, OURS.name, RATE), results.get(NAME, what, PGQUEUER.name, RATE))

    def cost(unit: str) -> list[float]:
        return values_of(results.get(NAME, BULK, OURS.name, unit))

    return [
        judge("bulk enqueue on PostgreSQL, against pgqueuer", compared(BULK), "at least", 1, "x"),
        told("bulk enqueue on PostgreSQL", values_of(results.get(NAME, BULK, OURS.name, RATE)), RATE),
        told(f"enqueue from {CALLERS} callers, against pgqueuer", compared(CONCURRENT), "x"),
        told("enqueue one by one, against pgqueuer", compared(LONE), "x"),
        told("server CPU per job, bulk enqueue", cost(SERVER), "us"),
        told("WAL per job, bulk enqueue", cost(WAL), "B"),
    ]
