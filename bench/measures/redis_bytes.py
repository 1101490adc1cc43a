"""Bytes on Redis: what a job that waits takes in the server's memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bench.child import run as in_child
from bench.contenders import is_there
from bench.figures import Figure, Results, Verdict, judge, ratios, told
from bench.lab import Lab, Turn
from bench.ours import redis as ours
from bench.peers import bullmq_node_redis as node
from bench.redis.contenders import NODE, OURS, filled

NAME = "redis bytes"
ID_LENGTH = 36
#: A hash without a value above 64 bytes is kept in a smaller form; so there are two payloads.
PAYLOADS: dict[str, dict[str, Any]] = {
    "a small payload": {"to": "ada@example.org"},
    "a payload of 200 B": {"to": "ada@example.org", "subject": "Your invoice", "text": "x" * 141},
}
SMALL, LARGE = PAYLOADS
#: As our jobs have them where nothing is said: Node reads them from the job.
RETRIES = {"attempts": 3, "backoff": {"type": "exponential", "delay": 1_000}}

PLAIN, CUSTOM, ALIKE = f"{NODE.name}, its own ids", f"{NODE.name}, custom ids", f"{NODE.name}, custom ids, our retries"
KEYS, APART, USED = "B/job, all keys", "B/job, without events", "B/job, used_memory"

#: Given url, jobs, payload.
Fill = Callable[[str, int, dict[str, Any]], None]


def _ours(url: str, jobs: int, payload: dict[str, Any]) -> None:
    length = in_child(ours.fill_with, url=url, jobs=jobs, payload=msgspec.json.encode(payload).decode())
    assert length == ID_LENGTH, f"an id of ours has {length} characters"


def _node(options: dict[str, Any], id_length: int | None) -> Fill:
    return lambda url, jobs, payload: node.fill_with(url, jobs, payload, options, id_length)


FILLS: dict[str, Fill] = {
    OURS.name: _ours,
    PLAIN: _node({}, None),
    CUSTOM: _node({}, ID_LENGTH),
    ALIKE: _node(RETRIES, ID_LENGTH),
}


def run(lab: Lab) -> None:
    """The same name and payload each time."""
    is_node_there = is_there(lab, NODE)
    turns: dict[str, Turn] = {
        f"{who}, {what}": partial(_weigh, lab, who, what)
        for who in FILLS
        if who == OURS.name or is_node_there
        for what in PAYLOADS
    }
    lab.alternate(turns, rounds=lab.side_rounds)


def _weigh(lab: Lab, who: str, what: str, _: Path) -> None:
    jobs, server = lab.scale.server_jobs, lab.servers.redis
    with filled(lab, OURS, 0) as url:
        empty = server.weight()
        FILLS[who](url, jobs, PAYLOADS[what])
        full = server.weight()
    lab.record(what, who, KEYS, full.keys / jobs)
    lab.record(what, who, APART, (full.keys - full.streams) / jobs)
    lab.record(what, who, USED, (full.used - empty.used) / jobs)


def verdicts(results: Results) -> list[Verdict]:
    """Against Node's with custom ids, as they come and with the retries that ours have."""

    def figure(who: str, what: str, unit: str) -> Figure | None:
        return results.get(NAME, what, who, unit)

    def against(who: str, what: str, unit: str) -> list[float]:
        return ratios(figure(OURS.name, what, unit), figure(who, what, unit))

    judged = [
        judge(f"bytes of a waiting job with {what}, against Node's {said}", against(who, what, KEYS), "at most", 1, "x")
        for what in PAYLOADS
        for who, said in ((CUSTOM, "with custom ids"), (ALIKE, "with our retries too"))
    ]
    apart = [told(f"the same with {what}, events aside", against(ALIKE, what, APART), "x") for what in PAYLOADS]
    return judged + apart
