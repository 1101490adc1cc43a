"""Drain: how fast one worker process runs no-op jobs, beside the peer and beside the bare statements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.calibrating import Sizes
from bench.child import run as in_child
from bench.contenders import is_there
from bench.figures import CPU, RATE, Figure, Ran, Results, Verdict, judge, ratios, values_of
from bench.lab import Lab, Turn, copied, sqlite_url
from bench.metering import followed
from bench.ours import drain as ours
from bench.ours.fill import fill
from bench.peers import bare_sqlite
from bench.sqlite.contenders import HUEY, filled

NAME = "drain"
BATCH = 50
JUDGED = 50
#: With the rates of an earlier report: a first guess at how many jobs a run needs.
SLOTS = {1: 2_000, 10: 15_000, 50: 35_000, 200: 50_000}
IN_MEMORY = {1: 25_000, 10: 55_000, 50: 65_000, 200: 65_000}
HUEY_WORKERS = {1: 4_000, 4: 3_000, 16: 3_000}
PORT_RATE, BARE_RATE = 45_000, 65_000

OURS = "jobmill"
PORT = "jobmill, exchange alone"
MEMORY = "jobmill, memory://"
BARE = "bare loop"


def run(lab: Lab) -> None:
    """All contenders, at all numbers of slots, each with as many jobs as it needs to run for long enough."""
    sizes = Sizes(lab)
    turns: dict[str, Turn] = {}
    if "sqlite" in lab.stores:
        turns |= _sqlite(lab, sizes)
    if "memory" in lab.stores:
        at = (JUDGED,) if lab.scale.quick else SLOTS
        turns |= {f"{MEMORY}, {slots} slots": partial(_memory, lab, sizes, slots) for slots in at}
    lab.alternate(turns, seldom={PORT, *(f"{MEMORY}, {slots} slots" for slots in SLOTS if slots != JUDGED)})


def _sqlite(lab: Lab, sizes: Sizes) -> dict[str, Turn]:
    turns: dict[str, Turn] = {f"{OURS}, {slots} slots": partial(_ours, lab, sizes, slots) for slots in SLOTS}
    turns[PORT] = partial(_port, lab, sizes)
    turns[BARE] = partial(_bare, lab, sizes)
    if is_there(lab, HUEY):
        for workers in HUEY_WORKERS:
            turns[f"{HUEY.name}, {workers} workers"] = partial(_huey, lab, sizes, workers)
    return turns


@contextmanager
def _filled(lab: Lab, jobs: int, place: Path) -> Iterator[Path]:
    """A copy of a file with so many jobs of ours; one turn may need several."""
    file = lab.prepared(f"jobmill-{jobs}.db", lambda path: in_child(fill, url=sqlite_url(path, "NORMAL"), jobs=jobs))
    # A log that one run left behind would be taken for that of the next copy.
    with TemporaryDirectory(dir=place) as folder:
        yield copied(file, Path(folder))


def _sized(lab: Lab, sizes: Sizes, what: str, who: str, rate: float, drain: Callable[[int], Ran]) -> None:
    """Run it with as many jobs as it needs, and record that."""

    def recorded(jobs: int) -> Ran:
        ran = drain(jobs)
        lab.record_run(what, who, ran)
        return ran

    sizes.run(f"{who}, {what}", recorded, rate=rate)


def _ours(lab: Lab, sizes: Sizes, slots: int, place: Path) -> None:
    def drain(jobs: int) -> Ran:
        with _filled(lab, jobs, place) as file:
            return in_child(ours.drain, url=sqlite_url(file), slots=slots, jobs=jobs, seconds=lab.scale.run_s)

    _sized(lab, sizes, f"{slots} slots", OURS, SLOTS[slots], drain)


def _memory(lab: Lab, sizes: Sizes, slots: int, _: Path) -> None:
    def drain(jobs: int) -> Ran:
        seconds = lab.scale.run_s
        return in_child(ours.drain, url="memory://", slots=slots, jobs=jobs, seconds=seconds, fill_first=True)

    _sized(lab, sizes, f"{slots} slots", MEMORY, IN_MEMORY[slots], drain)


def _port(lab: Lab, sizes: Sizes, place: Path) -> None:
    def drain(jobs: int) -> Ran:
        with _filled(lab, jobs, place) as file:
            return in_child(ours.exchange, url=sqlite_url(file), batch=BATCH, jobs=jobs, seconds=lab.scale.run_s)

    _sized(lab, sizes, f"batch {BATCH}", PORT, PORT_RATE, drain)


def _bare(lab: Lab, sizes: Sizes, place: Path) -> None:
    def drain(jobs: int) -> Ran:
        with _filled(lab, jobs, place) as file:
            return in_child(bare_sqlite.drain, path=str(file), batch=BATCH, jobs=jobs, seconds=lab.scale.run_s)

    _sized(lab, sizes, f"batch {BATCH}", BARE, BARE_RATE, drain)


def _huey(lab: Lab, sizes: Sizes, workers: int, _: Path) -> None:
    def drain(jobs: int) -> Ran:
        with filled(lab, HUEY, jobs) as url:
            return followed(HUEY.drain(url, jobs, workers), lambda: None)[0]

    _sized(lab, sizes, f"{workers} workers", HUEY.name, HUEY_WORKERS[workers], drain)


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
