"""Enqueue on Redis: a lone caller, a hundred concurrent ones, and many jobs in a call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from bench.child import Child, start
from bench.contenders import Contender, is_there
from bench.figures import RATE, Ran, Results, Verdict, judge, ratios, told
from bench.lab import Lab, Turn
from bench.metering import CLIENT, SERVER
from bench.ours import redis as ours
from bench.peers import bullmq_node_redis as node
from bench.peers import bullmq_python_redis as python
from bench.redis.contenders import NODE, OURS, PYTHON, filled
from bench.redis.metered import record_metered

NAME = "redis enqueue"
CALLERS = 100
SIZE = 1_000
LONE, CONCURRENT, BULK = "one by one", f"{CALLERS} callers", f"{SIZE:,} a call"

#: Of jobs for two seconds of ours a peer may need ten.
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
    Enqueuer(NODE, node.enqueue, node.bulk),
    Enqueuer(
        PYTHON,
        lambda url, callers, jobs, seconds: start(python.enqueue, url=url, callers=callers, jobs=jobs, seconds=seconds),
        lambda url, size, jobs, seconds: start(python.bulk, url=url, size=size, jobs=jobs, seconds=seconds),
    ),
)


def run(lab: Lab) -> None:
    """Into an empty server each time."""
    turns: dict[str, Turn] = {}
    for one in ENQUEUERS:
        if is_there(lab, one.contender):
            for what in (LONE, CONCURRENT, BULK):
                turns[f"{one.contender.name}, {what}"] = partial(_enqueue, lab, one, what)
    lab.alternate(turns)


def _enqueue(lab: Lab, one: Enqueuer, what: str, _: Path) -> None:
    scale = lab.scale
    begin, number, jobs = {
        LONE: (one.enqueue, 1, scale.redis_single_jobs),
        CONCURRENT: (one.enqueue, CALLERS, scale.redis_jobs),
        BULK: (one.bulk, SIZE, scale.redis_jobs * 2),
    }[what]
    with filled(lab, one.contender, 0) as url:
        record_metered(lab, what, one.contender.name, begin(url, number, jobs, min(LONGEST_S, scale.run_s)))


def verdicts(results: Results) -> list[Verdict]:
    """Bulk and a hundred callers against Node; the rest is reported."""

    def against(who: str, what: str, unit: str = RATE) -> list[float]:
        return ratios(results.get(NAME, what, OURS.name, unit), results.get(NAME, what, who, unit))

    return [
        judge("bulk enqueue, against Node's addBulk", against(NODE.name, BULK), "at least", 2, "x"),
        judge(f"enqueue from {CALLERS} callers, against Node's", against(NODE.name, CONCURRENT), "at least", 1, "x"),
        told("enqueue one by one, against Node's", against(NODE.name, LONE), "x"),
        told("bulk enqueue, against the port's", against(PYTHON.name, BULK), "x"),
        told(f"enqueue from {CALLERS} callers, against the port's", against(PYTHON.name, CONCURRENT), "x"),
        told("server CPU per job, bulk enqueue, against Node's", against(NODE.name, BULK, SERVER), "x"),
        told("client CPU per job, bulk enqueue, against Node's", against(NODE.name, BULK, CLIENT), "x"),
    ]
