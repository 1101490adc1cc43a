"""Enqueue: a lone caller, fifty concurrent ones, and many jobs in a call."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.child import run as in_child
from bench.contenders import is_there
from bench.figures import RATE, Results, Verdict, judge, ratios, told, values_of
from bench.lab import Lab, Turn, sqlite_url
from bench.metering import followed
from bench.ours import enqueue as ours
from bench.sqlite.contenders import HUEY

NAME = "enqueue"
CALLERS = 50
SIZE = 1_000

OURS = "jobmill"
LONE, CONCURRENT, BULK = "one by one", f"{CALLERS} callers", f"{SIZE:,} a call"


def run(lab: Lab) -> None:
    """Into an empty file each time."""
    if "sqlite" not in lab.stores:
        return
    turns: dict[str, Turn] = {
        f"{OURS}, {LONE}": partial(_one_by_one, lab, LONE, 1, lab.scale.enqueue_jobs),
        f"{OURS}, {CONCURRENT}": partial(_one_by_one, lab, CONCURRENT, CALLERS, lab.scale.bulk_jobs // 2),
        f"{OURS}, {BULK}": partial(_bulk, lab),
    }
    if is_there(lab, HUEY):
        turns[f"{HUEY.name}, {LONE}"] = partial(_huey, lab, LONE, 1)
        if not lab.scale.quick:
            turns[f"{HUEY.name}, {CONCURRENT}"] = partial(_huey, lab, CONCURRENT, CALLERS)
    lab.alternate(turns, seldom={f"{HUEY.name}, {CONCURRENT}"})


def _one_by_one(lab: Lab, what: str, callers: int, jobs: int, place: Path) -> None:
    url = sqlite_url(place / "jobmill.db")
    lab.record_run(what, OURS, in_child(ours.one_by_one, url=url, callers=callers, jobs=jobs, seconds=lab.scale.run_s))


def _bulk(lab: Lab, place: Path) -> None:
    url = sqlite_url(place / "jobmill.db")
    jobs, seconds = lab.scale.bulk_jobs, lab.scale.run_s
    lab.record_run(BULK, OURS, in_child(ours.bulk, url=url, size=SIZE, jobs=jobs, seconds=seconds))


def _huey(lab: Lab, what: str, callers: int, place: Path) -> None:
    child = HUEY.enqueue(str(place / "huey.db"), callers, lab.scale.enqueue_jobs, lab.scale.run_s)
    lab.record_run(what, HUEY.name, followed(child, lambda: None)[0])


def verdicts(results: Results) -> list[Verdict]:
    """What company and bulk bring."""
    lone = results.get(NAME, LONE, OURS, RATE)
    concurrent = results.get(NAME, CONCURRENT, OURS, RATE)
    bulk = results.get(NAME, BULK, OURS, RATE)
    return [
        judge("bulk enqueue, against one by one", ratios(bulk, lone), "at least", 10, "x"),
        judge(f"enqueue from {CALLERS} callers, against a lone one", ratios(concurrent, lone), "at least", 5, "x"),
        told("huey, one by one", values_of(results.get(NAME, LONE, HUEY.name, RATE)), RATE),
    ]
