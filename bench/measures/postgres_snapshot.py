"""Snapshot: the rate of a worker while another transaction holds a snapshot open, so that nothing can be cleaned up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.child import start
from bench.figures import RATE, Figure, Results, Verdict, judge, ratios, told
from bench.lab import Lab
from bench.metering import SERVER
from bench.ours import postgres as ours
from bench.postgres.contenders import OURS, database
from bench.postgres.metered import record_metered
from bench.postgres.server import Session

NAME = "postgres snapshot"
SLOTS = 100
HELD, FREE = "a snapshot is held", "none is held"
FLAT = 1.5


def run(lab: Lab) -> None:
    """Only the last jobs of each run are counted: by then what cannot be cleaned up has grown."""
    lab.alternate({HELD: partial(_turn, lab, HELD), FREE: partial(_turn, lab, FREE)})


def _turn(lab: Lab, what: str, _: Path) -> None:
    jobs, counted = lab.scale.snapshot_jobs, lab.scale.snapshot_jobs // 4
    with database(lab, OURS, jobs) as url, _snapshot(url, what):
        child = start(ours.drain, url=url, jobs=jobs, slots=SLOTS, counted=counted)
        record_metered(lab, f"the last {counted:,} of {jobs:,}, {what}", OURS.name, child)


@contextmanager
def _snapshot(url: str, what: str) -> Iterator[None]:
    if what == FREE:
        yield
        return
    with Session(url) as session:
        session.execute("begin isolation level repeatable read; select count(*) from pg_class")
        yield


def verdicts(results: Results) -> list[Verdict]:
    """The time per job with a snapshot against that without, and the server's CPU."""

    def figure(what: str, unit: str) -> Figure | None:
        return next((one for one in results.of(NAME, unit) if one.what.endswith(what)), None)

    slower = ratios(figure(FREE, RATE), figure(HELD, RATE))
    dearer = ratios(figure(HELD, SERVER), figure(FREE, SERVER))
    return [
        judge("time per job while a snapshot is held, against none", slower, "at most", FLAT, "x"),
        told("server CPU per job while a snapshot is held, against none", dearer, "x"),
    ]
