"""Drain: how fast one worker process runs no-op jobs, beside the peer and beside the bare statements."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.calibrating import Sizes
from bench.child import run as in_child
from bench.figures import CPU, RATE, Figure, Ran, Results, Verdict, judge, ratios, values_of
from bench.lab import Lab, Turn, copied, sqlite_url
from bench.metering import followed
from bench.ours import drain as ours
from bench.ours.fill import fill
from bench.peers import bare_sqlite, huey_sqlite
from bench.peers.peer import in_python

NAME = "drain"
BATCH = 50
SLOTS = (1, 10, 50, 200)
HUEY_WORKERS = (1, 4, 16)

OURS = "jobmill"
PORT = "jobmill, exchange alone"
MEMORY = "jobmill, memory://"
BARE = "bare loop"
HUEY = in_python(huey_sqlite)


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
    sizes = Sizes(lab)
    turns: dict[str, Turn] = {f"{OURS}, {slots} slots": partial(_ours, lab, file, slots) for slots in SLOTS}
    turns[PORT] = partial(_port, lab, file)
    turns[BARE] = partial(_bare, lab, file)
    turns |= {f"{HUEY.name}, {workers} workers": partial(_huey, lab, sizes, workers) for workers in HUEY_WORKERS}
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


def _huey(lab: Lab, sizes: Sizes, workers: int, place: Path) -> None:
    jobs = sizes.of(f"{HUEY.name}, {workers} workers", lambda jobs: _drain_huey(lab, jobs, workers, place))
    lab.record_run(f"{workers} workers", HUEY.name, _drain_huey(lab, jobs, workers, place))


def _drain_huey(lab: Lab, jobs: int, workers: int, place: Path) -> Ran:
    file = lab.prepared(f"huey-{jobs}.db", lambda path: HUEY.fill(str(path), jobs))
    # A log that one run left behind would be taken for that of the next copy.
    with TemporaryDirectory(dir=place) as folder:
        return followed(HUEY.drain(str(copied(file, Path(folder))), jobs, workers), lambda: None)[0]


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
    rates = [figure for figure in results.of(NAME, RATE) if figure.who == HUEY.name]
    return max(rates, key=lambda figure: figure.median, default=None)
