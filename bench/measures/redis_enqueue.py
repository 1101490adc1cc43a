"""Enqueue on Redis: a lone caller, a hundred concurrent ones, and many jobs in a call."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.child import Child
from bench.contenders import is_there
from bench.figures import RATE, Ran, Results, Verdict, judge, ratios, told
from bench.lab import Lab, Turn
from bench.metering import CLIENT, SERVER
from bench.peers.peer import Peer
from bench.redis.contenders import NODE, OURS, PEERS, PYTHON, filled
from bench.redis.metered import record_metered
from bench.scale import Scale

NAME = "redis enqueue"
CALLERS = 100
SIZE = 1_000
LONE, CONCURRENT, BULK = "one by one", f"{CALLERS} callers", f"{SIZE:,} a call"

#: Of jobs for two seconds of ours a peer may need ten: it gets no more than this.
LONGEST_S = 1.5


def run(lab: Lab) -> None:
    """Into an empty server each time."""
    turns: dict[str, Turn] = {}
    seldom: set[str] = set()
    for peer in PEERS:
        is_near = peer in (OURS, NODE)
        if not (is_near or lab.is_wide) or not is_there(lab, peer):
            continue
        for what in (LONE, CONCURRENT, BULK):
            if what != BULK or peer.bulk is not None:
                turns[f"{peer.name}, {what}"] = partial(_enqueue, lab, peer, what)
                if not is_near:
                    seldom.add(f"{peer.name}, {what}")
    lab.alternate(turns, seldom=seldom)


def _enqueue(lab: Lab, peer: Peer, what: str, _: Path) -> None:
    with filled(lab, peer, 0) as url:
        record_metered(lab, what, peer.name, _begin(lab.scale, peer, what, url))


def _begin(scale: Scale, peer: Peer, what: str, url: str) -> Child[Ran]:
    seconds = min(LONGEST_S, scale.run_s)
    if what == LONE:
        return peer.enqueue(url, 1, scale.redis_single_jobs, seconds)
    if what == CONCURRENT:
        return peer.enqueue(url, CALLERS, scale.redis_jobs, seconds)
    assert peer.bulk is not None
    return peer.bulk(url, SIZE, scale.redis_jobs * 2, seconds)


def verdicts(results: Results) -> list[Verdict]:
    """Bulk and a hundred callers against Node; the rest is reported."""

    def against(who: str, what: str, unit: str = RATE) -> list[float]:
        return ratios(results.get(NAME, what, OURS.name, unit), results.get(NAME, what, who, unit))

    return [
        judge("bulk enqueue, against Node's addBulk", against(NODE.name, BULK), "at least", 2, "x"),
        judge(f"enqueue from {CALLERS} callers, against Node's", against(NODE.name, CONCURRENT), "at least", 1, "x"),
        told("enqueue one by one, against Node's", against(NODE.name, LONE), "x"),
        told("bulk enqueue, against the port's", against(PYTHON.name, BULK), "x"),
        told(f"enqueue from {CALLERS} callers, against the port's", against(PYTHON.name, CONCURRENT), "x"),
        told("server CPU per job, bulk enqueue, against Node's", against(NODE.name, BULK, SERVER), "x"),
        told("client CPU per job, bulk enqueue, against Node's", against(NODE.name, BULK, CLIENT), "x"),
    ]
