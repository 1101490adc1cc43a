"""Idle of a crontab: what a poll that finds nothing costs the server while many documents sleep."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.child import run as in_child
from bench.contenders import is_there
from bench.crontab.contenders import NODE, OURS
from bench.figures import Results, Verdict, judge, told, values_of
from bench.lab import Lab, Turn
from bench.ours import crontab as ours
from bench.peers import mongodb_cron as node

NAME = "crontab idle"
SLEEPING = 100_000
#: The peer's costs a tenth of a second each.
POLLS, THEIR_POLLS = 200, 10
MS = "server ms/poll"
ONE, MANY = "for one document", "for up to 100"


def run(lab: Lab) -> None:
    """On one collection, which no poll changes."""
    with lab.servers.mongo.database() as url:
        lab.prepare(f"making {SLEEPING:,} documents that sleep")
        in_child(ours.fill, url=url, jobs=SLEEPING, due=False)
        turns: dict[str, Turn] = {f"{OURS.name}, {what}": partial(_ours, lab, url, what) for what in (ONE, MANY)}
        if is_there(lab, NODE):
            turns[NODE.name] = partial(_theirs, lab, url)
        lab.alternate(turns)


def _ours(lab: Lab, url: str, what: str, _: Path) -> None:
    lab.record(what, OURS.name, MS, in_child(ours.poll, url=url, polls=POLLS, many=what == MANY))


def _theirs(lab: Lab, url: str, _: Path) -> None:
    lab.record(ONE, NODE.name, MS, node.poll(url, THEIR_POLLS))


def verdicts(results: Results) -> list[Verdict]:
    """Of ours; the peer's for comparison."""

    def values(what: str, who: str) -> list[float]:
        return values_of(results.get(NAME, what, who, MS))

    text = "an idle poll while 100,000 documents sleep"
    return [
        judge(f"{text}, {ONE}", values(ONE, OURS.name), "below", 2, "ms of server time"),
        judge(f"{text}, {MANY}", values(MANY, OURS.name), "below", 2, "ms of server time"),
        told(f"{text}, mongodb-cron's", values(ONE, NODE.name), "ms of server time"),
    ]
