"""Pickup on MongoDB: how soon an idle worker starts what another process enqueued just now."""

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
from bench.mongo.contenders import AGENDA, FULL, LEAN, filled
from bench.ours import mongo as ours
from bench.ours import pickup
from bench.peers import agenda_mongo as agenda
from bench.pickups import Pickups

NAME = "mongo pickup"
SLOTS = pickup.SLOTS


class Picker(Struct, frozen=True):
    """A worker in a process of its own (given url, jobs, seconds), and who enqueues for it (url, jobs, seed)."""

    contender: Contender
    work: Callable[[str, int, float], Child[list[int]]]
    enqueue: Callable[[str, int, int], Pickups]


def _ours(contender: Contender) -> Picker:
    return Picker(
        contender,
        lambda url, jobs, seconds: start(ours.pickup_work, url=url, jobs=jobs, seconds=seconds),
        lambda url, jobs, seed: in_child(ours.pickup_enqueue, url=url, jobs=jobs, seed=seed),
    )


PICKERS = (
    _ours(LEAN),
    _ours(FULL),
    Picker(AGENDA, lambda url, jobs, seconds: agenda.pickup_work(url, jobs, seconds, SLOTS), agenda.pickup_enqueue),
)


def run(lab: Lab) -> None:
    """Single enqueues at random gaps."""
    turns: dict[str, Turn] = {}
    for one in PICKERS:
        if not (lab.scale.quick and one.contender is FULL) and is_there(lab, one.contender):
            turns[one.contender.name] = partial(_pickup, lab, one)
    lab.alternate(turns, budget_s=lab.scale.mongo_budget_s)


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
    """The median of the idle worker, from the call on."""

    def values(who: str, unit: str) -> list[float]:
        return values_of(results.get(NAME, CALLED, who, unit))

    return [
        *(
            judge(f"idle pickup on MongoDB, p50 since the call, {here.name}", values(here.name, P50), "below", 20, "ms")
            for here in (LEAN, FULL)
        ),
        told(f"idle pickup on MongoDB, p99 since the call, {LEAN.name}", values(LEAN.name, P99), "ms"),
        told("agenda's idle pickup, p50 since the call", values(AGENDA.name, P50), "ms"),
    ]
