"""Beside: what one CPU-bound sync handler does to the drain rate and to the heartbeat of its worker."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.busy import Beside
from bench.child import run as in_child
from bench.contenders import is_there
from bench.figures import RATE, Results, Verdict, ratios, told, values_of
from bench.lab import Lab, Turn, copied, sqlite_url
from bench.ours import beside as ours
from bench.ours.fill import fill
from bench.peers import huey_sqlite
from bench.sqlite.contenders import HUEY

NAME = "beside"
DELAY = "latest heartbeat ms"
BUSY, ALONE = "beside a busy handler", "without it"
OURS = "jobmill"
HUEY_WORKERS = 4


def run(lab: Lab) -> None:
    """As many jobs as the worker can take for some seconds."""
    if "sqlite" not in lab.stores:
        return
    turns: dict[str, Turn] = {
        f"{OURS}, {BUSY}": partial(_ours, lab),
        f"{OURS}, {ALONE}": partial(_alone, lab),
    }
    if is_there(lab, HUEY):
        turns[f"{HUEY.name}, {BUSY}"] = partial(_huey, lab)
    lab.alternate(turns)


def _ours(lab: Lab, place: Path) -> None:
    url = sqlite_url(_filled(lab, place, busy=True))
    _record(lab, BUSY, OURS, in_child(ours.beside, url=url, busy_s=lab.scale.busy_s, jobs=lab.scale.beside_jobs))


def _alone(lab: Lab, place: Path) -> None:
    url = sqlite_url(_filled(lab, place, busy=False))
    _record(lab, ALONE, OURS, in_child(ours.alone, url=url, busy_s=lab.scale.busy_s, jobs=lab.scale.beside_jobs))


def _filled(lab: Lab, place: Path, *, busy: bool) -> Path:
    jobs = lab.scale.beside_jobs
    name = "busy.db" if busy else "alone.db"
    return copied(
        lab.prepared(name, lambda path: in_child(fill, url=sqlite_url(path, "NORMAL"), jobs=jobs, busy=busy)), place
    )


def _huey(lab: Lab, place: Path) -> None:
    jobs = lab.scale.beside_jobs
    file = lab.prepared("huey.db", lambda path: in_child(huey_sqlite.fill, url=str(path), jobs=jobs, busy=True))
    path = str(copied(file, place))
    _record(lab, BUSY, HUEY.name, in_child(huey_sqlite.beside, url=path, slots=HUEY_WORKERS, busy_s=lab.scale.busy_s))


def _record(lab: Lab, what: str, who: str, beside: Beside) -> None:
    lab.record(what, who, RATE, beside.jobs / beside.seconds)
    if beside.heartbeat_delay_s is not None:
        lab.record(what, who, DELAY, beside.heartbeat_delay_s * 1000)


def verdicts(results: Results) -> list[Verdict]:
    """No targets."""
    busy, alone = results.get(NAME, BUSY, OURS, RATE), results.get(NAME, ALONE, OURS, RATE)
    theirs = results.get(NAME, BUSY, HUEY.name, RATE)
    delay = results.get(NAME, BUSY, OURS, DELAY)
    return [
        told("drain beside one CPU-bound sync handler", values_of(busy), RATE),
        told("drain beside it, against without", ratios(busy, alone), "x"),
        told("latest heartbeat beside it", values_of(delay), "ms"),
        told("huey's drain beside one CPU-bound task", values_of(theirs), RATE),
    ]
