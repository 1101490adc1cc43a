"""Pickup on PostgreSQL: how soon an idle worker starts what another process enqueued just now."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench.child import READY
from bench.contenders import is_there
from bench.figures import Results, Verdict, judge, percentile, told, values_of
from bench.lab import Lab, Turn
from bench.measures.pickup import CALLED, P50, P99, PATIENCE_S, RETURNED
from bench.ours.pickup import SLOTS
from bench.peers.peer import Peer
from bench.postgres.contenders import OURS, PEERS, PGQUEUER, PLAIN, database, family

NAME = "postgres pickup"


def run(lab: Lab) -> None:
    """Single enqueues at random gaps."""
    asked = [peer for peer in PLAIN if lab.is_wide or peer in (OURS, PGQUEUER)]
    there = {peer.name for peer in asked if is_there(lab, peer)}
    turns: dict[str, Turn] = {peer.name: partial(_pickup, lab, peer) for peer in PEERS if family(peer) in there}
    lab.alternate(turns, seldom={name for name in turns if name != OURS.name})


def _pickup(lab: Lab, peer: Peer, _: Path) -> None:
    jobs = lab.scale.pickups if peer is OURS else lab.scale.peer_pickups
    with database(lab, peer, 0) as url, peer.pickup_work(url, jobs, jobs * 0.5 + PATIENCE_S, SLOTS) as worker:
        worker.wait_for(READY)
        pickups = peer.pickup_enqueue(url, jobs, lab.seed)
        pickups.started = worker.result()
    for since, instants in ((RETURNED, pickups.returned), (CALLED, pickups.called)):
        latencies = pickups.latencies_ms(instants)
        lab.record(since, peer.name, P50, percentile(latencies, 50))
        lab.record(since, peer.name, P99, percentile(latencies, 99))


def verdicts(results: Results) -> list[Verdict]:
    """The median of the idle worker; the rest is reported."""

    def values(who: str, unit: str) -> list[float]:
        return values_of(results.get(NAME, RETURNED, who, unit))

    return [
        judge("idle pickup on PostgreSQL, p50", values(OURS.name, P50), "below", 5, "ms"),
        told("idle pickup on PostgreSQL, p99", values(OURS.name, P99), "ms"),
        *(told(f"{peer.name}'s idle pickup, p50", values(peer.name, P50), "ms") for peer in PLAIN if peer is not OURS),
    ]
