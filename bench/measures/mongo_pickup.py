"""Pickup on MongoDB: how soon an idle worker starts what another process enqueued just now."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.child import READY
from bench.contenders import is_there
from bench.figures import Results, Verdict, judge, percentile, told, values_of
from bench.lab import Lab, Turn
from bench.measures.pickup import CALLED, P50, P99, PATIENCE_S, RETURNED
from bench.mongo.contenders import AGENDA, FULL, LEAN, MONQUE, PEERS, filled
from bench.ours.pickup import SLOTS
from bench.peers.peer import Peer

NAME = "mongo pickup"
MOST_ROUNDS = 3


def run(lab: Lab) -> None:
    """Single enqueues at random gaps."""
    turns: dict[str, Turn] = {}
    for peer in PEERS:
        if not (lab.scale.quick and peer is FULL) and is_there(lab, peer):
            turns[peer.name] = partial(_pickup, lab, peer)
    rounds = min(lab.scale.rounds, MOST_ROUNDS)
    seldom = {MONQUE.name, AGENDA.name}
    lab.alternate(turns, rounds=rounds, seldom=seldom)


def _pickup(lab: Lab, peer: Peer, _: Path) -> None:
    jobs = lab.scale.pickups if peer in (LEAN, FULL) else lab.scale.peer_pickups
    with filled(lab, peer, 0) as url, peer.pickup_work(url, jobs, jobs * 0.5 + PATIENCE_S, SLOTS) as worker:
        worker.wait_for(READY)
        pickups = peer.pickup_enqueue(url, jobs, lab.seed)
        pickups.started = worker.result()
    for since, instants in ((RETURNED, pickups.returned), (CALLED, pickups.called)):
        latencies = pickups.latencies_ms(instants)
        lab.record(since, peer.name, P50, percentile(latencies, 50))
        lab.record(since, peer.name, P99, percentile(latencies, 99))


def verdicts(results: Results) -> list[Verdict]:
    """The median of the idle worker, from the call on."""

    def values(who: Peer, unit: str) -> list[float]:
        return values_of(results.get(NAME, CALLED, who.name, unit))

    return [
        *(
            judge(f"idle pickup on MongoDB, p50 since the call, {here.name}", values(here, P50), "below", 20, "ms")
            for here in (LEAN, FULL)
        ),
        told(f"idle pickup on MongoDB, p99 since the call, {LEAN.name}", values(LEAN, P99), "ms"),
        told("Monque's idle pickup, p50 since the call", values(MONQUE, P50), "ms"),
        told("agenda's idle pickup, p50 since the call", values(AGENDA, P50), "ms"),
    ]
