"""Written: how many bytes a job costs the disk, on its way in and when it is run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.child import Broken, Child
from bench.contenders import is_there
from bench.figures import Ran, Results, Verdict, ratios, told, values_of
from bench.ground import Unmetered, Written
from bench.grounds import GROUNDS, Ground, grounds
from bench.lab import Lab, Turn
from bench.metering import followed
from bench.peers.peer import Peer

NAME = "written"
UNIT = "written B/job"
SLOTS = 50
SIZE = 1_000
#: Bytes hardly differ from time to time: as many jobs as drown what a server writes anyway.
DRAINED, SINGLE, IN_BULK = 2_000, 500, 10_000
#: The longest that one by one, or in bulk, may take.
ENQUEUES_S = 20.0
DRAIN, LONE, BULK = f"drain, {SLOTS} slots", "enqueue one by one", f"enqueue {SIZE:,} a call"


def run(lab: Lab) -> None:
    """Everybody once."""
    with ExitStack() as counters:
        turns: dict[str, Turn] = {}
        for ground in grounds(lab):
            try:
                written = counters.enter_context(ground.written(lab))
            except Unmetered as error:
                lab.results.missing[f"what {ground.title} writes"] = str(error)
                continue
            there = [peer for peer in ground.peers if is_there(lab, peer)]
            turns |= {name: turn for peer in there for name, turn in _turns(lab, ground, peer, written)}
        ours = tuple(ground.who(ground.ours) for ground in grounds(lab))
        lab.alternate(turns, rounds=1, seldom={name for name in turns if not name.startswith(ours)})


def _turns(lab: Lab, ground: Ground, peer: Peer, written: Written) -> Iterator[tuple[str, Turn]]:
    slots = SLOTS if peer.most_slots is None else min(SLOTS, peer.most_slots)
    drained = f"drain, {slots} slots"

    def turn(what: str, jobs: int, begin: Callable[[str], Child[Ran]]) -> tuple[str, Turn]:
        return f"{ground.who(peer)}, {what}", partial(_run, lab, ground, peer, written, what, jobs, begin)

    yield turn(drained, DRAINED, lambda url: peer.drain(url, DRAINED, slots))
    yield turn(LONE, 0, lambda url: peer.enqueue(url, 1, SINGLE, ENQUEUES_S))
    if (bulk := peer.bulk) is not None:
        yield turn(BULK, 0, lambda url: bulk(url, SIZE, IN_BULK, ENQUEUES_S))


def _run(
    lab: Lab,
    ground: Ground,
    peer: Peer,
    written: Written,
    what: str,
    jobs: int,
    begin: Callable[[str], Child[Ran]],
    _: Path,
) -> None:
    with ground.filled(lab, peer, jobs) as url:
        child = begin(url)
        ran, before, after = followed(child, lambda: written(url, child.pid))
    if not ran.jobs:
        raise Broken(f"not a single job in {ran.seconds:.1f} s")
    lab.record(what, ground.who(peer), UNIT, (after - before) / ran.jobs)


def verdicts(results: Results) -> list[Verdict]:
    """No targets: what it comes to, and against who writes least of the others."""
    return [one for ground in GROUNDS for what in (LONE, BULK, DRAIN) for one in _verdicts(results, ground, what)]


def _verdicts(results: Results, ground: Ground, what: str) -> list[Verdict]:
    ours = results.get(NAME, what, ground.who(ground.ours), UNIT)
    if ours is None:
        return []
    text = f"{ground.title}: bytes written per job, {what}"
    others = {peer: results.get(NAME, what, ground.who(peer), UNIT) for peer in ground.peers if peer is not ground.ours}
    measured = {peer: figure for peer, figure in others.items() if figure is not None}
    compared = []
    if measured:
        least = min(measured, key=lambda peer: measured[peer].median)
        # Who forgets a job before it runs has less to write.
        against = f"{text}, against {least.name} ({least.about.guarantee.partition(':')[0]} after kill -9)"
        compared = [told(against, ratios(ours, measured[least]), "x")]
    return [told(text, values_of(ours), "B"), *compared]
