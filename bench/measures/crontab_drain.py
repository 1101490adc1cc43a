"""Drain of a crontab: how fast due no-op documents of a MongoDB collection are run, and what that costs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from bench.child import Child, start
from bench.contenders import is_there
from bench.crontab.contenders import NODE, OURS, filled
from bench.figures import RATE, Ran, Results, Verdict, judge, ratios
from bench.lab import Lab, Turn
from bench.metering import CLIENT, SERVER, followed
from bench.ours import crontab as ours
from bench.peers import mongodb_cron as node

NAME = "crontab drain"
TARGETS = {1: 1.3, 100: 3.0}
ON_ASYNCIO = f"{OURS.name}, asyncio's loop"


class Drain(Struct, frozen=True):
    """One row of the table: whose, how, and what to start with a URL and the number of documents there."""

    who: str
    slots: int
    start: Callable[[str, int], Child[Ran]]

    @property
    def what(self) -> str:
        """As it stands in the table."""
        return _what(self.slots)


def _what(slots: int) -> str:
    return f"concurrency {slots}"


def _ours(slots: int) -> Drain:
    return Drain(OURS.name, slots, lambda url, jobs: start(ours.drain, url=url, jobs=jobs, concurrency=slots))


def _ours_on_asyncio(slots: int) -> Drain:
    def begin(url: str, jobs: int) -> Child[Ran]:
        return start(ours.drain_on_asyncio, url=url, jobs=jobs, concurrency=slots)

    return Drain(ON_ASYNCIO, slots, begin)


def _node(slots: int) -> Drain:
    return Drain(NODE.name, slots, lambda url, jobs: node.drain(url, jobs, slots))


def run(lab: Lab) -> None:
    """All contenders, one document at a time and a hundred."""
    drains = [*map(_ours, TARGETS), *(() if lab.scale.quick else map(_ours_on_asyncio, TARGETS))]
    if is_there(lab, NODE):
        drains += map(_node, TARGETS)
    turns: dict[str, Turn] = {f"{one.who}, {one.what}": partial(_drain, lab, one) for one in drains}
    lab.alternate(turns, seldom={f"{one.who}, {one.what}" for one in drains if one.who == ON_ASYNCIO})


def _drain(lab: Lab, drain: Drain, _: Path) -> None:
    jobs = lab.scale.documents
    with filled(lab, jobs) as url:
        ran, before, after = followed(drain.start(url, jobs), lab.servers.mongo.cpu_seconds)
    lab.record(drain.what, drain.who, RATE, ran.jobs / ran.seconds)
    lab.record(drain.what, drain.who, CLIENT, ran.cpu_seconds / ran.jobs * 1e6)
    lab.record(drain.what, drain.who, SERVER, (after - before) / ran.jobs * 1e6)


def verdicts(results: Results) -> list[Verdict]:
    """Rates against as many schedulers of the peer."""
    return [
        judge(
            f"drain at concurrency {slots}, against {slots} scheduler{'s' * (slots > 1)} of mongodb-cron",
            ratios(results.get(NAME, _what(slots), OURS.name, RATE), results.get(NAME, _what(slots), NODE.name, RATE)),
            "at least",
            bound,
            "x",
        )
        for slots, bound in TARGETS.items()
    ]
