"""Recovery on Redis: how soon another worker starts a job again whose worker was killed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from bench import recovery
from bench.contenders import is_there
from bench.figures import Results, Verdict
from bench.lab import Lab
from bench.peers.peer import Peer
from bench.redis.contenders import PEERS

NAME = "redis recovery"


def run(lab: Lab) -> None:
    """Once, and only in a full run: it takes a minute whatever comes."""
    if lab.scale.quick:
        return
    there = [peer for peer in PEERS if is_there(lab, peer)]
    lab.alternate({"all": partial(_recover, lab, there)}, rounds=1)


def _recover(lab: Lab, peers: list[Peer], place: Path) -> None:
    server = lab.servers.redis
    with server.emptied():
        recovery.measure(lab, {server.url(number): peer for number, peer in enumerate(peers)}, place)


def verdicts(results: Results) -> list[Verdict]:
    """What is told of each."""
    return recovery.verdicts(NAME, results, PEERS)
