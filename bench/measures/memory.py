"""Memory: what an idle worker process has resident, and what a busy one had at most."""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.child import BEGUN, READY, SETTLED, start
from bench.contenders import is_there
from bench.figures import Results, Verdict, told, values_of
from bench.grounds import GROUNDS, Ground, grounds
from bench.lab import Lab, Turn
from bench.peers.peer import Peer
from bench.resident import MB, nothing, resident

NAME = "memory"
SLOTS = 50
#: An idle worker has settled down after so long.
SETTLES_S = 1.0
UNIT = "MB"
IDLE, BUSY, PLAIN = "idle", "busy, at most", "a process of the harness that does nothing"


def run(lab: Lab) -> None:
    """Everybody once: it differs little from time to time."""
    turns: dict[str, Turn] = {PLAIN: partial(_plain, lab)}
    seldom: set[str] = set()
    for ground in grounds(lab):
        there = [peer for peer in ground.peers if is_there(lab, peer)]
        turns[f"{ground.title}, {IDLE}"] = partial(_idle, lab, ground, there)
        turns |= {ground.who(peer): partial(_busy, lab, ground, peer) for peer in there}
        seldom |= {ground.who(peer) for peer in there if peer is not ground.ours}
    lab.alternate(turns, rounds=1, seldom=seldom)


def _plain(lab: Lab, _: Path) -> None:
    with start(nothing) as child:
        child.wait_for(READY)
        lab.record(IDLE, PLAIN, UNIT, resident(child.pid).now / MB)


def _slots(peer: Peer) -> int:
    return SLOTS if peer.most_slots is None else min(SLOTS, peer.most_slots)


def _idle(lab: Lab, ground: Ground, peers: list[Peer], place: Path) -> None:
    """All at the same time: none has anything to do."""
    with ground.apart(lab, peers) as places, ExitStack() as opened:
        workers = {
            peer: opened.enter_context(peer.work(url, _slots(peer), str(place / "started")))
            for url, peer in places.items()
        }
        for worker in workers.values():
            worker.wait_for(READY)
        time.sleep(SETTLES_S)
        for peer, worker in workers.items():
            lab.record(IDLE, ground.who(peer), UNIT, resident(worker.pid).now / MB)


def _busy(lab: Lab, ground: Ground, peer: Peer, _: Path) -> None:
    jobs = lab.scale.memory_jobs
    with ground.filled(lab, peer, jobs) as url, peer.drain(url, jobs, _slots(peer)) as worker:
        worker.wait_for(BEGUN)
        worker.go_on()
        worker.wait_for(SETTLED)
        lab.record(BUSY, ground.who(peer), UNIT, resident(worker.pid).most / MB)


def verdicts(results: Results) -> list[Verdict]:
    """No targets."""
    return [
        told(f"{ground.title}: resident memory of a worker, {what}", values_of(figure), UNIT)
        for ground in GROUNDS
        for what in (IDLE, BUSY)
        if (figure := results.get(NAME, what, ground.who(ground.ours), UNIT)) is not None
    ]
