"""Pickup: how soon an idle worker starts what was enqueued just now."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.child import READY, start
from bench.child import run as in_child
from bench.contenders import is_there
from bench.figures import Results, Verdict, judge, percentile, told, values_of
from bench.lab import Lab, Turn, sqlite_url
from bench.ours import pickup as ours
from bench.pickups import Pickups
from bench.sqlite.contenders import HUEY

NAME = "pickup"
P50, P99 = "p50 ms", "p99 ms"
OURS = "jobmill"
ANOTHER, SAME = "another process", "the same process"
#: From when the enqueue returned, by which time it is on the disk; and from when it was called.
RETURNED, CALLED = "since the return", "since the call"
#: How long the last job may take.
PATIENCE_S = 15.0
HUEY_WORKERS = 4


def run(lab: Lab) -> None:
    """Single enqueues at random gaps."""
    if "sqlite" not in lab.stores:
        return
    turns: dict[str, Turn] = {
        f"{OURS}, {ANOTHER}": partial(_ours_apart, lab),
        f"{OURS}, {SAME}": partial(_ours_here, lab),
    }
    if is_there(lab, HUEY):
        turns[f"{HUEY.name}, {ANOTHER}"] = partial(_huey_apart, lab)
    lab.alternate(turns)


def _seconds(lab: Lab) -> float:
    """How long the enqueues take at most, and the last pickup."""
    return lab.scale.pickups * 0.5 + PATIENCE_S


def _ours_apart(lab: Lab, place: Path) -> None:
    url = sqlite_url(place / "jobmill.db")
    with start(ours.work, url=url, jobs=lab.scale.pickups, seconds=_seconds(lab)) as worker:
        worker.wait_for(READY)
        pickups = in_child(ours.enqueue, url=url, jobs=lab.scale.pickups, seed=lab.seed)
        pickups.started = worker.result()
    _record(lab, ANOTHER, OURS, pickups)


def _ours_here(lab: Lab, place: Path) -> None:
    url = sqlite_url(place / "jobmill.db")
    pickups = in_child(ours.here, url=url, jobs=lab.scale.pickups, seed=lab.seed, seconds=PATIENCE_S)
    _record(lab, SAME, OURS, pickups)


def _huey_apart(lab: Lab, place: Path) -> None:
    url, jobs = str(place / "huey.db"), lab.scale.pickups
    with HUEY.pickup_work(url, jobs, _seconds(lab), HUEY_WORKERS) as worker:
        worker.wait_for(READY)
        pickups = HUEY.pickup_enqueue(url, jobs, lab.seed)
        pickups.started = worker.result()
    _record(lab, ANOTHER, HUEY.name, pickups)


def _record(lab: Lab, where: str, who: str, pickups: Pickups) -> None:
    for since, instants in ((RETURNED, pickups.returned), (CALLED, pickups.called)):
        latencies = pickups.latencies_ms(instants)
        lab.record(f"{where}, {since}", who, P50, percentile(latencies, 50))
        lab.record(f"{where}, {since}", who, P99, percentile(latencies, 99))


def verdicts(results: Results) -> list[Verdict]:
    """The median of the idle worker in another process; the rest is reported."""

    def values(where: str, who: str, unit: str) -> list[float]:
        return values_of(results.get(NAME, f"{where}, {RETURNED}", who, unit))

    return [
        judge("idle pickup in another process, p50", values(ANOTHER, OURS, P50), "below", 5, "ms"),
        told("idle pickup in another process, p99", values(ANOTHER, OURS, P99), "ms"),
        told("idle pickup in the same process, p50", values(SAME, OURS, P50), "ms"),
        told("huey's idle pickup, p50", values(ANOTHER, HUEY.name, P50), "ms"),
    ]
