"""Enqueue on MongoDB: a lone caller, fifty concurrent ones, and many jobs in a call."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.child import Child
from bench.contenders import is_there
from bench.figures import RATE, Ran, Results, Verdict, judge, ratios, told
from bench.lab import Lab, Turn
from bench.mongo.contenders import AGENDA, FULL, LEAN, MONQUE, PEERS, filled
from bench.mongo.metered import record_metered
from bench.peers.peer import Peer

NAME = "mongo enqueue"
CALLERS = 50
SIZE = 1_000
LONE, CONCURRENT, BULK = "one by one", f"{CALLERS} callers", f"{SIZE:,} a call"

#: A run lasts so long; so many jobs nobody hands in meanwhile.
LONGEST_S = 2.0
MORE_THAN_ENOUGH = 10_000_000
MOST_ROUNDS = 3


def run(lab: Lab) -> None:
    """Into an empty collection with its indexes each time."""
    turns: dict[str, Turn] = {}
    seldom: set[str] = set()
    for peer in PEERS:
        if (lab.scale.quick and peer is FULL) or not is_there(lab, peer):
            continue
        for what in (LONE, CONCURRENT, BULK):
            if what != BULK or peer.bulk is not None:
                turns[name := f"{peer.name}, {what}"] = partial(_enqueue, lab, peer, what)
                if peer not in (LEAN, FULL) or what == CONCURRENT:
                    seldom.add(name)
    rounds = min(lab.scale.rounds, MOST_ROUNDS)
    lab.alternate(turns, rounds=rounds, seldom=seldom)


def _enqueue(lab: Lab, peer: Peer, what: str, _: Path) -> None:
    with filled(lab, peer, 0) as url:
        record_metered(lab, what, peer.name, _begin(peer, what, url, min(LONGEST_S, lab.scale.run_s)))


def _begin(peer: Peer, what: str, url: str, seconds: float) -> Child[Ran]:
    if what == BULK:
        assert peer.bulk is not None
        return peer.bulk(url, SIZE, MORE_THAN_ENOUGH, seconds)
    return peer.enqueue(url, 1 if what == LONE else CALLERS, MORE_THAN_ENOUGH, seconds)


def verdicts(results: Results) -> list[Verdict]:
    """Bulk and fifty callers against the lone one; the rest is reported."""

    def against(here: Peer, who: Peer, what: str, other: str | None = None) -> list[float]:
        return ratios(results.get(NAME, what, here.name, RATE), results.get(NAME, other or what, who.name, RATE))

    def own(here: Peer, what: str) -> list[float]:
        return against(here, here, what, LONE)

    return [
        *(
            judge(f"bulk enqueue against one by one, {here.name}", own(here, BULK), "at least", 10, "x")
            for here in (LEAN, FULL)
        ),
        *(
            told(f"{CALLERS} callers against one by one, {here.name}", own(here, CONCURRENT), "x")
            for here in (LEAN, FULL)
        ),
        *(
            told(f"enqueue, {what}, {FULL.name}, against Monque's way", against(FULL, MONQUE, what), "x")
            for what in (LONE, CONCURRENT, BULK)
        ),
        *(
            told(f"enqueue, {what}, {LEAN.name}, against agenda", against(LEAN, AGENDA, what), "x")
            for what in (LONE, CONCURRENT)
        ),
    ]
