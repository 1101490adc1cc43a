"""Drain: how fast one worker process runs no-op jobs, beside the peer and beside the bare statements."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.child import run as in_child
from bench.figures import CPU, RATE, Figure, Results, Verdict, judge, ratios, values_of
from bench.lab import Lab, Turn, copied, sqlite_url
from bench.ours import drain as ours
from bench.ours.fill import fill
from bench.peers import bare_sqlite, huey_sqlite

NAME = "drain"
BATCH = 50
SLOTS = (1, 10, 50, 200)
HUEY_WORKERS = (1, 4, 16)

OURS = "jobmill"
PORT = "jobmill, exchange alone"
MEMORY = "jobmill, memory://"
BARE = "bare loop"
HUEY = "huey"


def run(lab: Lab) -> None:
    """All contenders, at all numbers of slots."""
    turns: dict[str, Turn] = {}
    if "sqlite" in lab.stores:
        turns |= _sqlite(lab)
    if "memory" in lab.stores:
        sizes = (50,) if lab.scale.quick else SLOTS
        turns |= {f"{MEMORY}, {slots} slots": partial(_memory, lab, slots) for slots in sizes}
    lab.alternate(turns)


def _sqlite(lab: Lab) -> dict[str, Turn]:
    jobs = lab.scale.drain_jobs
    file = lab.prepared("jobmill.db", lambda path: in_child(fill, url=sqlite_url(path, "NORMAL"), jobs=jobs))
    theirs = lab.prepared("huey.db", lambda path: in_child(huey_sqlite.fill, path=str(path), jobs=jobs))
    turns: dict[str, Turn] = {f"{OURS}, {slots} slots": partial(_ours, lab, file, slots) for slots in SLOTS}
    turns[PORT] = partial(_port, lab, file)
    turns[BARE] = partial(_bare, lab, file)
    turns |= {f"{HUEY}, {workers} workers": partial(_huey, lab, theirs, workers) for workers in HUEY_WORKERS}
    return turns


def _ours(lab: Lab, file: Path, slots: int, place: Path) -> None:
    url = sqlite_url(copied(file, place))
    ran = in_child(ours.drain, url=url, slots=slots, jobs=lab.scale.drain_jobs, seconds=lab.scale.run_s)
    lab.record_run(f"{slots} slots", OURS, ran)


def _memory(lab: Lab, slots: int, _: Path) -> None:
    jobs, seconds = lab.scale.drain_jobs, lab.scale.run_s
    ran = in_child(ours.drain, url="memory://", slots=slots, jobs=jobs, seconds=seconds, fill_first=True)
    lab.record_run(f"{slots} slots", MEMORY, ran)


def _port(lab: Lab, file: Path, place: Path) -> None:
    url = sqlite_url(copied(file, place))
    ran = in_child(ours.exchange, url=url, batch=BATCH, jobs=lab.scale.drain_jobs, seconds=lab.scale.run_s)
    lab.record_run(f"batch {BATCH}", PORT, ran)


def _bare(lab: Lab, file: Path, place: Path) -> None:
    path = str(copied(file, place))
    ran = in_child(bare_sqlite.drain, path=path, batch=BATCH, jobs=lab.scale.drain_jobs, seconds=lab.scale.run_s)
    lab.record_run(f"batch {BATCH}", BARE, ran)


def _huey(lab: Lab, file: Path, workers: int, place: Path) -> None:
    path = str(copied(file, place))
    ran = in_child(huey_sqlite.drain, path=path, workers=workers, jobs=lab.scale.drain_jobs, seconds=lab.scale.run_s)
    lab.record_run(f"{workers} workers", HUEY, ran)


def verdicts(results: Results) -> list[Verdict]:
    """Against the best of the peer, against the limit, and what a job costs."""
    worker = results.get(NAME, "50 slots", OURS, RATE)
    bare = results.get(NAME, f"batch {BATCH}", BARE, RATE)
    cpu = results.get(NAME, "50 slots", OURS, CPU)
    peer = best_peer(results)
    beaten = "huey" if peer is None else f"huey ({peer.what}, its best)"
    return [
        judge(f"drain at 50 slots, against {beaten}", ratios(worker, peer), "at least", 8, "x"),
        judge("drain at 50 slots, against the bare loop", ratios(worker, bare), "at least", 1 / 3, "x"),
        judge("CPU per job, drain at 50 slots (an aim)", values_of(cpu), "at most", 25, "us"),
    ]


def best_peer(results: Results) -> Figure | None:
    """The peer with the number of workers that suits it best."""
    rates = [figure for figure in results.of(NAME, RATE) if figure.who == HUEY]
    return max(rates, key=lambda figure: figure.median, default=None)
