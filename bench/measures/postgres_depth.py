"""Depth on PostgreSQL: the rate of a worker while a thousand others wait, or a million and a million delayed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from bench.child import Child, start
from bench.child import run as in_child
from bench.figures import RATE, Figure, Ran, Results, Verdict, judge, ratios, told
from bench.lab import Lab
from bench.metering import SERVER
from bench.ours import postgres as ours
from bench.postgres.metered import record_metered
from bench.postgres.server import Session

NAME = "postgres depth"
BATCH = SLOTS = 100
SHALLOW = 1_000
WORKER, PORT = "jobmill, 100 slots", "jobmill, exchange alone"
FEW, MANY = "few waiting", "many waiting and delayed"
FLAT = 1.3


def run(lab: Lab) -> None:
    """The same number of jobs at both depths."""
    lab.alternate(
        {
            f"{WORKER}, {FEW}": partial(_turn, lab, FEW, WORKER),
            f"{WORKER}, {MANY}": partial(_turn, lab, MANY, WORKER),
            f"{PORT}, {FEW}": partial(_turn, lab, FEW, PORT),
            f"{PORT}, {MANY}": partial(_turn, lab, MANY, PORT),
        }
    )


def _turn(lab: Lab, depth: str, who: str, _: Path) -> None:
    with {FEW: _shallow, MANY: _deep}[depth](lab) as url:
        record_metered(lab, _told(lab, depth), who, STARTS[who](url, lab.scale.server_jobs))


STARTS: dict[str, Callable[[str, int], Child[Ran]]] = {
    WORKER: lambda url, jobs: start(ours.drain_some, url=url, jobs=jobs, slots=SLOTS),
    PORT: lambda url, jobs: start(ours.exchange, url=url, batch=BATCH, jobs=jobs, seconds=60),
}


def _told(lab: Lab, depth: str) -> str:
    many = f"{lab.scale.deep:,}"
    return f"{SHALLOW:,} waiting" if depth == FEW else f"{many} waiting and {many} delayed"


@contextmanager
def _shallow(lab: Lab) -> Iterator[str]:
    """A database in which a thousand are left when a run ends."""
    waiting = SHALLOW + _taken(lab)
    template = lab.template(
        "jobmill, shallow", lambda url: in_child(ours.fill_deep, url=url, waiting=waiting, delayed=0)
    )
    with lab.servers.postgres.copy(template) as url:
        _made_ready(url)
        yield url


@contextmanager
def _deep(lab: Lab) -> Iterator[str]:
    """One database for all turns, with more than enough for each of them."""
    deep = lab.scale.deep
    waiting = deep + 2 * lab.scale.rounds * _taken(lab)
    template = lab.template(
        "jobmill, deep", lambda url: in_child(ours.fill_deep, url=url, waiting=waiting, delayed=deep)
    )
    url = lab.servers.postgres.url(template)
    _made_ready(url)
    yield url


def _taken(lab: Lab) -> int:
    """By one run: what is counted, and what is claimed or run when the clock has stopped."""
    return lab.scale.server_jobs + 10 * SLOTS


def _made_ready(url: str) -> None:
    """Both begin after a vacuum and a checkpoint, so that pages that a run touches go into the log as a whole."""
    with Session(url) as session:
        session.execute("vacuum analyze jobmill.jobs")
        session.execute("checkpoint")


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
