"""Load: how soon a worker starts a job while it runs half of what it could, and after a minute without any."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from msgspec import Struct

from bench import shares
from bench.child import READY, Broken, Child, start
from bench.contenders import is_there
from bench.figures import Results, Verdict, percentile, told, values_of
from bench.grounds import GROUNDS, Ground, grounds
from bench.lab import Lab, Turn
from bench.measures.pickup import P50, P99, PATIENCE_S
from bench.ours import load as ours
from bench.peers.peer import Peer

NAME = "load"
SLOTS = 50
SILENCE_S = 60.0
HALF, SILENT = "half load", "after a minute of silence"
REACHED = "enqueued jobs/s"
#: The caller is as silent: its first call may have to connect.
FIRST, COLD = "ms since the return", "ms since the call, of a new client"


def run(lab: Lab) -> None:
    """Ourselves under load; in a full run everybody after a minute."""
    rates: dict[str, float] = {}
    turns: dict[str, Turn] = {
        f"{ground.who(ground.ours)}, {HALF}": partial(_half, lab, rates, ground) for ground in grounds(lab)
    }
    lab.alternate(turns, rounds=lab.side_rounds)
    if not lab.scale.quick:
        lab.alternate({SILENT: partial(_silent, lab)}, rounds=1)


def _half(lab: Lab, rates: dict[str, float], ground: Ground, _: Path) -> None:
    who = ground.who(ground.ours)
    if who not in rates:
        ran = shares.drain(lab, ground, lab.scale.server_jobs, slots=SLOTS).ran
        rates[who] = ran.jobs / ran.seconds
    rate = rates[who] / 2
    jobs = int(rate * lab.scale.load_s)
    with ground.filled(lab, ground.ours, 0) as url, ExitStack() as children:
        worker = children.enter_context(ground.ours.pickup_work(url, jobs, lab.scale.load_s * 5 + PATIENCE_S, SLOTS))
        worker.wait_for(READY)
        caller = children.enter_context(start(ours.enqueue, url=url, jobs=jobs, rate=rate))
        caller.wait_for(READY)
        caller.go_on()
        pickups = caller.result()
        pickups.started = worker.result()
    lab.record(HALF, who, REACHED, jobs * 1e9 / (pickups.returned[-1] - pickups.called[0]))
    latencies = pickups.latencies_ms(pickups.called)
    lab.record(HALF, who, P50, percentile(latencies, 50))
    lab.record(HALF, who, P99, percentile(latencies, 99))


class Waiting(Struct, frozen=True):
    """A worker that waits, and where somebody will enqueue for it."""

    who: str
    peer: Peer
    url: str
    worker: Child[list[int]]


def _silent(lab: Lab, _: Path) -> None:
    """Everybody on all servers at the same time: there is nothing to do but to wait."""
    with ExitStack() as opened:
        waiting = [one for ground in grounds(lab) for one in _waiting(lab, ground, opened)]
        for one in waiting:
            one.worker.wait_for(READY)
        lab.prepare(f"{SILENCE_S:.0f} s of silence, {len(waiting)} contenders")
        time.sleep(SILENCE_S)
        for one in waiting:
            try:
                pickups = one.peer.pickup_enqueue(one.url, 1, lab.seed)
                pickups.started = one.worker.result()
                since_call, since_return = map(pickups.latencies_ms, (pickups.called, pickups.returned))
            except (Broken, ValueError) as error:
                lab.results.fault(NAME, f"{one.who}, {SILENT}: {error}")
                continue
            lab.record(SILENT, one.who, FIRST, since_return[0])
            lab.record(SILENT, one.who, COLD, since_call[0])


def _waiting(lab: Lab, ground: Ground, opened: ExitStack) -> Iterator[Waiting]:
    there = [peer for peer in ground.peers if is_there(lab, peer)]
    for url, peer in opened.enter_context(ground.apart(lab, there)).items():
        slots = SLOTS if peer.most_slots is None else min(SLOTS, peer.most_slots)
        worker = opened.enter_context(peer.pickup_work(url, 1, SILENCE_S * 4, slots))
        yield Waiting(ground.who(peer), peer, url, worker)


def verdicts(results: Results) -> list[Verdict]:
    """No targets."""
    lines = [(HALF, P50, "p50"), (HALF, P99, "p99"), (SILENT, FIRST, "since the return")]
    return [
        told(f"{ground.title}: pickup, {when}, {text}", values, "ms")
        for ground in GROUNDS
        for when, unit, text in lines
        if (values := values_of(results.get(NAME, when, ground.who(ground.ours), unit)))
    ]
