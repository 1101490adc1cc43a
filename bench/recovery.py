"""What becomes of a job whose worker is killed with kill -9, while another worker stands by."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from contextlib import ExitStack
from pathlib import Path
from threading import Event

from msgspec import Struct

from bench.child import READY, Broken
from bench.figures import Results, Verdict, spread
from bench.lab import Lab
from bench.peers.peer import Peer

#: After so long nobody waits any more.
LONGEST_S = 90.0
#: How long the job has run when its worker is killed: what is sent at its start has arrived.
RUNS_S = 1.0
#: An idle worker starts a job within this time, also on a busy machine.
STARTS_WITHIN_S = 30.0
SLOTS = 10
LOOK_S = 0.01

WHAT = "after kill -9"
AGAIN, SECONDS = f"started again within {LONGEST_S:.0f} s (1) or not (0)", "s until it started again"


class Standing(Struct, frozen=True):
    """Who is looked at, under which name, and where its jobs are."""

    who: str
    peer: Peer
    url: str


def again(peer: Peer, url: str, file: Path, seconds: float, given_up: Event | None = None) -> float | None:
    """How long after the kill another worker, with all defaults, starts the job again; None: not in so many seconds."""
    file.touch()
    given_up = given_up or Event()
    slots = SLOTS if peer.most_slots is None else min(SLOTS, peer.most_slots)
    with ExitStack() as workers:
        first = workers.enter_context(peer.work(url, slots, str(file)))
        first.wait_for(READY)
        peer.hold(url)
        if not _has_started(file, 1, STARTS_WITHIN_S, given_up):
            raise Broken(f"its worker did not start the job within {STARTS_WITHIN_S:.0f} s")
        second = workers.enter_context(peer.work(url, slots, str(file)))
        second.wait_for(READY)
        given_up.wait(RUNS_S)
        first.kill()
        killed = time.monotonic()
        return time.monotonic() - killed if _has_started(file, 2, seconds, given_up) else None


def _has_started(file: Path, times: int, seconds: float, given_up: Event) -> bool:
    until = time.monotonic() + seconds
    while len(file.read_text("utf-8").splitlines()) < times:
        if time.monotonic() > until or given_up.wait(LOOK_S):
            return False
    return True


def measure(lab: Lab, standing: Sequence[Standing], place: Path) -> None:
    """All at the same time, each at a URL of its own: there is nothing to do but to wait."""
    lab.prepare(f"{len(standing)} contenders, at most {LONGEST_S:.0f} s")
    given_up = Event()
    with ThreadPoolExecutor(max(1, len(standing))) as pool:
        waits = {
            one.who: pool.submit(again, one.peer, one.url, place / f"{number}.txt", LONGEST_S, given_up)
            for number, one in enumerate(standing)
        }
        try:
            wait_for_all(waits.values())
        finally:  # Somebody interrupts, and the threads would not know.
            given_up.set()
    for who, wait in waits.items():
        try:
            seconds = wait.result()
        except Broken as error:
            lab.results.fault(lab.measure, f"{who}: {error}")
            continue
        lab.record(WHAT, who, AGAIN, 0 if seconds is None else 1)
        if seconds is not None:
            lab.record(WHAT, who, SECONDS, seconds)


def verdicts(measure: str, results: Results, names: Sequence[str]) -> list[Verdict]:
    """Of each what it came to, in words; there is no target."""
    told = []
    for who in names:
        started = results.get(measure, WHAT, who, AGAIN)
        if started is None:
            continue
        seconds = results.get(measure, WHAT, who, SECONDS)
        measured = f"never within {LONGEST_S:.0f} s" if seconds is None else f"{spread(seconds.values)} s"
        told.append(Verdict(what=f"{who}: a killed worker's job starts again", target="–", measured=measured, met=None))
    return told
