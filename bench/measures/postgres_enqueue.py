"""Enqueue on PostgreSQL: a lone caller, fifty concurrent ones, and many jobs in a call."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.child import Child
from bench.contenders import is_there
from bench.figures import RATE, Ran, Results, Verdict, judge, ratios, told, values_of
from bench.lab import Lab, Turn
from bench.metering import SERVER
from bench.peers.peer import Peer
from bench.postgres.contenders import OURS, PGQUEUER, PLAIN, database
from bench.postgres.metered import WAL, record_metered
from bench.scale import Scale

NAME = "postgres enqueue"
CALLERS = 50
SIZE = 1_000
LONE, CONCURRENT, BULK = "one by one", f"{CALLERS} callers", f"{SIZE:,} a call"

#: Of jobs for a second of ours a peer may need ten: it gets no more than this.
LONGEST_S = 1.5


def run(lab: Lab) -> None:
    """Into empty tables each time."""
    turns: dict[str, Turn] = {}
    seldom: set[str] = set()
    for peer in PLAIN:
        is_near = peer in (OURS, PGQUEUER)
        if not (is_near or lab.is_wide) or not is_there(lab, peer):
            continue
        for what in (LONE, CONCURRENT, BULK):
            if what != BULK or peer.bulk is not None:
                turns[f"{peer.name}, {what}"] = partial(_enqueue, lab, peer, what)
                if not is_near:
                    seldom.add(f"{peer.name}, {what}")
    lab.alternate(turns, seldom=seldom)


def _enqueue(lab: Lab, peer: Peer, what: str, _: Path) -> None:
    with database(lab, peer, 0) as url:
        record_metered(lab, what, peer.name, _begin(lab.scale, peer, what, url))


def _begin(scale: Scale, peer: Peer, what: str, url: str) -> Child[Ran]:
    seconds = min(LONGEST_S, scale.run_s)
    if what == LONE:
        return peer.enqueue(url, 1, scale.enqueue_jobs, seconds)
    if what == CONCURRENT:
        return peer.enqueue(url, CALLERS, scale.bulk_jobs // 2, seconds)
    assert peer.bulk is not None
    return peer.bulk(url, SIZE, scale.bulk_jobs, seconds)


def verdicts(results: Results) -> list[Verdict]:
    """Bulk against the peer; the rest is reported."""

    def compared(what: str) -> list[float]:
        return ratios(results.get(NAME, what, OURS.name, RATE), results.get(NAME, what, PGQUEUER.name, RATE))

    def cost(unit: str) -> list[float]:
        return values_of(results.get(NAME, BULK, OURS.name, unit))

    return [
        judge("bulk enqueue on PostgreSQL, against pgqueuer", compared(BULK), "at least", 1, "x"),
        told("bulk enqueue on PostgreSQL", values_of(results.get(NAME, BULK, OURS.name, RATE)), RATE),
        told(f"enqueue from {CALLERS} callers, against pgqueuer", compared(CONCURRENT), "x"),
        told("enqueue one by one, against pgqueuer", compared(LONE), "x"),
        told("server CPU per job, bulk enqueue", cost(SERVER), "us"),
        told("WAL per job, bulk enqueue", cost(WAL), "B"),
    ]
