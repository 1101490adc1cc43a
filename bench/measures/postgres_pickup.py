"""Pickup on PostgreSQL: how soon an idle worker starts what another process enqueued just now."""

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
from bench.ours import postgres as ours
from bench.peers import graphile_postgres as graphile
from bench.peers import pgqueuer_postgres as pgqueuer
from bench.peers import procrastinate_postgres as procrastinate
from bench.pickups import Pickups
from bench.postgres.contenders import GRAPHILE, OURS, PGQUEUER, PROCRASTINATE, database

NAME = "postgres pickup"
SLOTS = pickup.SLOTS
LOCAL_QUEUE = f"graphile, local queue of {SLOTS + 1}"


class Picker(Struct, frozen=True):
    """A worker in a process of its own (given url, jobs, seconds), and who enqueues for it (url, jobs, seed)."""

    contender: Contender
    who: str
    work: Callable[[str, int, float], Child[list[int]]]
    enqueue: Callable[[str, int, int], Pickups]


def _graphile(local_queue: int | None) -> Callable[[str, int, float], Child[list[int]]]:
    worker = graphile.options(SLOTS, local_queue, 25)
    return lambda url, jobs, seconds: graphile.pickup_work(url, jobs, seconds, worker)


def _enqueue_graphile(url: str, jobs: int, seed: int) -> Pickups:
    return in_child(graphile.pickup_enqueue, url=url, jobs=jobs, seed=seed)


PICKERS = (
    Picker(
        OURS,
        OURS.name,
        lambda url, jobs, seconds: start(ours.pickup_work, url=url, jobs=jobs, seconds=seconds),
        lambda url, jobs, seed: in_child(ours.pickup_enqueue, url=url, jobs=jobs, seed=seed),
    ),
    Picker(
        PGQUEUER,
        PGQUEUER.name,
        lambda url, jobs, seconds: start(pgqueuer.pickup_work, url=url, jobs=jobs, seconds=seconds),
        lambda url, jobs, seed: in_child(pgqueuer.pickup_enqueue, url=url, jobs=jobs, seed=seed),
    ),
    Picker(
        PROCRASTINATE,
        PROCRASTINATE.name,
        lambda url, jobs, seconds: start(procrastinate.pickup_work, url=url, jobs=jobs, seconds=seconds, slots=SLOTS),
        lambda url, jobs, seed: in_child(procrastinate.pickup_enqueue, url=url, jobs=jobs, seed=seed),
    ),
    Picker(GRAPHILE, GRAPHILE.name, _graphile(None), _enqueue_graphile),
    Picker(GRAPHILE, LOCAL_QUEUE, _graphile(SLOTS + 1), _enqueue_graphile),
)


def run(lab: Lab) -> None:
    """Single enqueues at random gaps."""
    turns: dict[str, Turn] = {}
    for one in PICKERS:
        if is_there(lab, one.contender):
            turns[one.who] = partial(_pickup, lab, one)
    lab.alternate(turns)


def _pickup(lab: Lab, one: Picker, _: Path) -> None:
    jobs = lab.scale.pickups
    with database(lab, one.contender, 0) as url, one.work(url, jobs, jobs * 0.5 + PATIENCE_S) as worker:
        worker.wait_for(READY)
        pickups = one.enqueue(url, jobs, lab.seed)
        pickups.started = worker.result()
    for since, instants in ((RETURNED, pickups.returned), (CALLED, pickups.called)):
        latencies = pickups.latencies_ms(instants)
        lab.record(since, one.who, P50, percentile(latencies, 50))
        lab.record(since, one.who, P99, percentile(latencies, 99))


def verdicts(results: Results) -> list[Verdict]:
    """The median of the idle worker; the rest is reported."""

    def values(who: str, unit: str) -> list[float]:
        return values_of(results.get(NAME, RETURNED, who, unit))

    return [
        judge("idle pickup on PostgreSQL, p50", values(OURS.name, P50), "below", 5, "ms"),
        told("idle pickup on PostgreSQL, p99", values(OURS.name, P99), "ms"),
        *(
            told(f"{who}'s idle pickup, p50", values(who, P50), "ms")
            for who in ("pgqueuer", "procrastinate", "graphile")
        ),
    ]
