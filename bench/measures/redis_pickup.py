"""Pickup on Redis: how soon an idle worker starts what another process enqueued just now."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from bench.child import READY, Child, start
from bench.child import run as in_child
from bench.contenders import Contender, is_there
from bench.figures import Results, Verdict, judge, percentile, told, values_of
from bench.lab import Lab, Turn
from bench.measures.pickup import CALLED, P50, P99, PATIENCE_S, RETURNED
from bench.ours import pickup
from bench.ours import redis as ours
from bench.peers import bullmq_node_redis as node
from bench.peers import bullmq_python_redis as python
from bench.pickups import Pickups
from bench.redis.contenders import NODE, OURS, PYTHON, filled

NAME = "redis pickup"
SLOTS = pickup.SLOTS


class Picker(Struct, frozen=True):
    """A worker in a process of its own (given url, jobs, seconds), and who enqueues for it (url, jobs, seed)."""

    contender: Contender
    work: Callable[[str, int, float], Child[list[int]]]
    enqueue: Callable[[str, int, int], Pickups]


PICKERS = (
    Picker(
        OURS,
        lambda url, jobs, seconds: start(ours.pickup_work, url=url, jobs=jobs, seconds=seconds),
        lambda url, jobs, seed: in_child(ours.pickup_enqueue, url=url, jobs=jobs, seed=seed),
    ),
    Picker(
        NODE,
        lambda url, jobs, seconds: node.pickup_work(url, jobs, seconds, SLOTS),
        node.pickup_enqueue,
    ),
    Picker(
        PYTHON,
        lambda url, jobs, seconds: start(python.pickup_work, url=url, jobs=jobs, seconds=seconds, slots=SLOTS),
        lambda url, jobs, seed: in_child(python.pickup_enqueue, url=url, jobs=jobs, seed=seed),
    ),
)


def run(lab: Lab) -> None:
    """Single enqueues at random gaps."""
    turns: dict[str, Turn] = {}
    for one in PICKERS:
        if is_there(lab, one.contender):
            turns[one.contender.name] = partial(_pickup, lab, one)
    lab.alternate(turns)


def _pickup(lab: Lab, one: Picker, _: Path) -> None:
    jobs = lab.scale.pickups
    with filled(lab, one.contender, 0) as url, one.work(url, jobs, jobs * 0.5 + PATIENCE_S) as worker:
        worker.wait_for(READY)
        pickups = one.enqueue(url, jobs, lab.seed)
        pickups.started = worker.result()
    for since, instants in ((RETURNED, pickups.returned), (CALLED, pickups.called)):
        latencies = pickups.latencies_ms(instants)
        lab.record(since, one.contender.name, P50, percentile(latencies, 50))
        lab.record(since, one.contender.name, P99, percentile(latencies, 99))


def verdicts(results: Results) -> list[Verdict]:
    """The median of the idle worker, from the call on: on Redis the job may start before its enqueue returns."""

    def values(who: str, unit: str) -> list[float]:
        return values_of(results.get(NAME, CALLED, who, unit))

    return [
        judge("idle pickup on Redis, p50 since the call", values(OURS.name, P50), "below", 2, "ms"),
        told("idle pickup on Redis, p99 since the call", values(OURS.name, P99), "ms"),
        told("Node's idle pickup, p50 since the call", values(NODE.name, P50), "ms"),
        told("Node's idle pickup, p99 since the call", values(NODE.name, P99), "ms"),
        told("the port's idle pickup, p50 since the call", values(PYTHON.name, P50), "ms"),
    ]
