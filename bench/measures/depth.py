"""Depth: what a job costs while a thousand or a million others wait, or are delayed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.child import run as in_child
from bench.contenders import is_there
from bench.figures import CPU, Figure, Results, Verdict, judge, ratios
from bench.lab import Lab, Turn, copied, sqlite_url
from bench.ours import drain as ours
from bench.ours.fill import top_up
from bench.peers import huey_sqlite
from bench.sqlite import contenders

NAME = "depth"
BATCH = SLOTS = 50
WORKER, PORT, HUEY = "jobmill, 50 slots", "jobmill, exchange alone", "huey, 1 worker"
WAITING, DELAYED = "waiting", "delayed"
#: Beside delayed jobs, so many due ones are left when a run ends.
SPARE = 1_000
FLAT = 1.3


def run(lab: Lab) -> None:
    """The same number of jobs at each depth. A file is used again, after it was brought back to its depth."""
    if "sqlite" not in lab.stores:
        return
    turns: dict[str, Turn] = {}
    has_huey = not lab.scale.quick and is_there(lab, contenders.HUEY)
    for depth in lab.scale.depths:
        for kind in (WAITING, DELAYED):
            turns[f"{WORKER}, {depth:,} {kind}"] = partial(_worker, lab, depth, kind)
            turns[f"{PORT}, {depth:,} {kind}"] = partial(_port, lab, depth, kind)
        if has_huey:
            turns[f"{HUEY}, {depth:,} {WAITING}"] = partial(_huey, lab, depth)
    for depth in lab.scale.depths:
        for kind in (WAITING, DELAYED):
            _at_depth(lab, depth, kind)
    lab.alternate(turns)


def _at_depth(lab: Lab, depth: int, kind: str) -> str:
    """The URL of a file in which, after so many jobs were taken, `depth` others still wait or are delayed."""
    jobs = lab.scale.depth_jobs + BATCH
    due, delayed = (jobs + depth, 0) if kind == WAITING else (jobs + SPARE, depth)

    def fill(path: Path) -> None:
        in_child(top_up, url=sqlite_url(path, "NORMAL"), due=due, delayed=delayed)

    path = lab.prepared(f"{depth}-{kind}.db", fill)
    fill(path)
    return sqlite_url(path)


def _worker(lab: Lab, depth: int, kind: str, _: Path) -> None:
    url = _at_depth(lab, depth, kind)
    ran = in_child(ours.drain, url=url, slots=SLOTS, jobs=lab.scale.depth_jobs, seconds=lab.scale.run_s)
    lab.record_run(f"{depth:,} {kind}", WORKER, ran)


def _port(lab: Lab, depth: int, kind: str, _: Path) -> None:
    url = _at_depth(lab, depth, kind)
    ran = in_child(ours.exchange, url=url, batch=BATCH, jobs=lab.scale.depth_jobs, seconds=lab.scale.run_s)
    lab.record_run(f"{depth:,} {kind}", PORT, ran)


def _huey(lab: Lab, depth: int, place: Path) -> None:
    jobs = lab.scale.depth_jobs
    file = lab.prepared(f"{depth}-huey.db", lambda path: in_child(huey_sqlite.fill, url=str(path), jobs=jobs + depth))
    path = str(copied(file, place))
    ran = in_child(huey_sqlite.drain_some, url=path, slots=1, jobs=jobs, seconds=lab.scale.run_s)
    lab.record_run(f"{depth:,} {WAITING}", HUEY, ran)


def verdicts(results: Results) -> list[Verdict]:
    """CPU per job at the greatest depth against that at the least."""
    return [_flatness(results, who, kind) for kind in (WAITING, DELAYED) for who in (WORKER, PORT)]


def _flatness(results: Results, who: str, kind: str) -> Verdict:
    figures = [one for one in results.of(NAME, CPU) if one.who == who and one.what.endswith(kind)]
    figures.sort(key=_depth)
    if len(figures) < 2:
        return judge(f"cost per job against depth, {who}, {kind}", [], "at most", FLAT, "x")
    least, most = figures[0], figures[-1]
    what = f"cost per job from {_depth(least):,} to {_depth(most):,} {kind} ({who})"
    return judge(what, ratios(most, least), "at most", FLAT, "x")


def _depth(figure: Figure) -> int:
    return int(figure.what.split(" ")[0].replace(",", ""))
