"""What becomes of a job whose worker is killed with kill -9, while another worker stands by."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from bench.child import READY, Broken
from bench.figures import Results, Verdict, spread
from bench.lab import Lab
from bench.peers.peer import Peer

#: After so long nobody waits any more.
LONGEST_S = 60.0
#: How long the job has run when its worker is killed: what is sent at its start has arrived.
RUNS_S = 1.0
#: An idle worker starts a job within this time, also on a busy machine.
STARTS_WITHIN_S = 30.0
SLOTS = 10
LOOK_S = 0.01

WHAT = "after kill -9"
AGAIN, SECONDS = f"started again within {LONGEST_S:.0f} s (1) or not (0)", "s until it started again"


def again(peer: Peer, url: str, file: Path, seconds: float) -> float | None:
    """How long after the kill another worker, with all defaults, starts the job again; None: not in so many seconds."""
    file.touch()
    slots = SLOTS if peer.most_slots is None else min(SLOTS, peer.most_slots)
    with ExitStack() as workers:
        first = workers.enter_context(peer.work(url, slots, str(file)))
        first.wait_for(READY)
        peer.hold(url)
        if not _has_started(file, 1, STARTS_WITHIN_S):
            raise Broken(f"its worker did not start the job within {STARTS_WITHIN_S:.0f} s")
        second = workers.enter_context(peer.work(url, slots, str(file)))
        second.wait_for(READY)
        time.sleep(RUNS_S)
        first.kill()
        killed = time.monotonic()
        return time.monotonic() - killed if _has_started(file, 2, seconds) else None


def _has_started(file: Path, times: int, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while len(file.read_text("utf-8").splitlines()) < times:
        if time.monotonic() > until:
            return False
        time.sleep(LOOK_S)
    return True


def measure(lab: Lab, peers: Mapping[str, Peer], place: Path) -> None:
    """All at the same time, each at a URL of its own: there is nothing to do but to wait."""
    lab.prepare(f"{len(peers)} contenders, at most {LONGEST_S:.0f} s")
    with ThreadPoolExecutor(max(1, len(peers))) as pool:
        waits = {
            peer: pool.submit(again, peer, url, place / f"{number}.txt", LONGEST_S)
            for number, (url, peer) in enumerate(peers.items())
        }
    for peer, wait in waits.items():
        try:
            seconds = wait.result()
        except Broken as error:
            lab.results.fault(lab.measure, f"{peer.name}: {error}")
            continue
        lab.record(WHAT, peer.name, AGAIN, 0 if seconds is None else 1)
        if seconds is not None:
            lab.record(WHAT, peer.name, SECONDS, seconds)


def verdicts(measure: str, results: Results, peers: Sequence[Peer]) -> list[Verdict]:
    """Of each what it came to, in words; there is no target."""
    told = []
    for peer in peers:
        started = results.get(measure, WHAT, peer.name, AGAIN)
        if started is None:
            continue
        seconds = results.get(measure, WHAT, peer.name, SECONDS)
        measured = f"never within {LONGEST_S:.0f} s" if seconds is None else f"{spread(seconds.values)} s"
        told.append(
            Verdict(what=f"{peer.name}: a killed worker's job starts again", target="–", measured=measured, met=None)
        )
    return told
