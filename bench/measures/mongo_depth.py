"""Depth on MongoDB: the rate of a worker while a thousand others wait, or a million and a million delayed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.child import Child, start
from bench.child import run as in_child
from bench.figures import RATE, Figure, Ran, Results, Verdict, judge, ratios, told
from bench.lab import Lab, Turn
from bench.metering import SERVER
from bench.mongo.contenders import LEAN, OPTIONS
from bench.mongo.metered import record_metered
from bench.ours import mongo as ours

NAME = "mongo depth"
BATCH = SLOTS = 50
SHALLOW = 1_000
WORKER, PORT = f"{LEAN.name}, {SLOTS} slots", f"{LEAN.name}, exchange alone"
FEW, MANY = "few waiting", "many waiting and delayed"
FLAT = 1.5
MOST_ROUNDS = 3


def run(lab: Lab) -> None:
    """The same number of jobs at both depths, from two databases that serve all turns.

    Both, because what was claimed in the last five minutes is still in the way: mongod keeps it for old snapshots.
    """
    deep = lab.scale.deep
    whose = (WORKER,) if lab.scale.quick else (WORKER, PORT)
    rounds = min(lab.scale.rounds, MOST_ROUNDS)
    lab.prepare(f"making {deep:,} waiting and {deep:,} delayed jobs")
    with _database(lab, deep + len(whose) * rounds * _taken(lab), deep) as many, _database(lab, 0, 0) as few:
        turns: dict[str, Turn] = {
            f"{who}, {depth}": partial(_turn, lab, depth, who, url)
            for who in whose
            for depth, url in ((FEW, few), (MANY, many))
        }
        lab.alternate(turns, rounds=rounds)


@contextmanager
def _database(lab: Lab, waiting: int, delayed: int) -> Iterator[str]:
    with lab.servers.mongo.database(**OPTIONS[LEAN.name]) as url:
        in_child(ours.fill_deep, url=url, waiting=waiting, delayed=delayed)
        yield url


def _turn(lab: Lab, depth: str, who: str, url: str, _: Path) -> None:
    if depth == FEW:
        in_child(ours.top_up, url=url, waiting=SHALLOW + _taken(lab))
    lab.servers.mongo.checkpoint()
    record_metered(lab, _told(lab, depth), who, STARTS[who](url, lab.scale.depth_jobs))


STARTS: dict[str, Callable[[str, int], Child[Ran]]] = {
    WORKER: lambda url, jobs: start(ours.drain_some, url=url, jobs=jobs, slots=SLOTS),
    PORT: lambda url, jobs: start(ours.exchange, url=url, batch=BATCH, jobs=jobs, seconds=60),
}


def _told(lab: Lab, depth: str) -> str:
    many = f"{lab.scale.deep:,}"
    return f"{SHALLOW:,} waiting" if depth == FEW else f"{many} waiting and {many} delayed"


def _taken(lab: Lab) -> int:
    """By one run: what is counted, and what is claimed or run when the clock has stopped."""
    return lab.scale.depth_jobs + 10 * SLOTS


def verdicts(results: Results) -> list[Verdict]:
    """The time per job at the greater depth against that at the smaller one, and the server's CPU."""
    return [verdict for who in (WORKER, PORT) for verdict in _flatness(results, who)]


def _flatness(results: Results, who: str) -> list[Verdict]:
    def figure(deep: bool, unit: str) -> Figure | None:
        own = (one for one in results.of(NAME, unit) if one.who == who)
        return next((one for one in own if one.what.endswith("delayed") == deep), None)

    slower = ratios(figure(False, RATE), figure(True, RATE))
    dearer = ratios(figure(True, SERVER), figure(False, SERVER))
    return [
        judge(f"time per job among many, against few ({who})", slower, "at most", FLAT, "x"),
        told(f"server CPU per job among many, against few ({who})", dearer, "x"),
    ]
