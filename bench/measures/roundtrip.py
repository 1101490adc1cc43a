"""Round trip: drain and enqueue when every answer of the server comes 2 ms later, as from another machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.calibrating import Sizes
from bench.child import Child
from bench.contenders import is_there
from bench.far import far
from bench.figures import RATE, Figure, Ran, Results, Verdict, percentile, ratios, told, values_of
from bench.grounds import GROUNDS, Ground, servers
from bench.lab import Lab, Turn
from bench.metering import CLIENT, followed
from bench.peers.peer import Peer
from bench.rates import rate

NAME = "roundtrip"
ADDED_S = 0.002
SLOTS = 50
#: A first guess beside a server that is near.
SLOWER = 4
SIZE = 1_000
#: A lone caller, and a bulk call after the other, for so long; so many jobs nobody hands in meanwhile.
ENQUEUES_S = 1.0
MORE_THAN_ENOUGH = 10_000_000
DRAIN, LONE, BULK = f"drain, {SLOTS} slots", "enqueue one by one", f"enqueue {SIZE:,} a call"
PROBE, MS, ASKS = "the harness", "ms a question", 100


def run(lab: Lab) -> None:
    """Everybody's drain once, ourselves and our nearest rivals more often; in a quick run only ourselves."""
    sizes = Sizes(lab)
    there = [
        (ground, peer)
        for ground in servers(lab)
        for peer in (ground.peers if not lab.scale.quick else (ground.ours,))
        if is_there(lab, peer)
    ]
    far_off = [(ground, peer) for ground, peer in there if peer not in (ground.ours, ground.rival)]
    probes: dict[str, Turn] = {f"{PROBE} on {ground.title}": partial(_probe, lab, ground) for ground in servers(lab)}
    seldom = {*probes, *_turns(lab, sizes, far_off)}
    lab.alternate(probes | _turns(lab, sizes, there), rounds=lab.side_rounds, seldom=seldom)


def _turns(lab: Lab, sizes: Sizes, contenders: list[tuple[Ground, Peer]]) -> dict[str, Turn]:
    """Enqueues of ourselves and our nearest rivals only."""
    return {
        f"{ground.who(peer)}, {what}": partial(turn, lab, sizes, ground, peer)
        for ground, peer in contenders
        for what, turn in TURNS.items()
        if what == DRAIN or (peer in (ground.ours, ground.rival) and (what != BULK or peer.bulk is not None))
    }


def _probe(lab: Lab, ground: Ground, _: Path) -> None:
    """What is really added: the proxy needs some time itself. With a job there one answer tells all everywhere."""
    with ground.filled(lab, ground.ours, 1) as near, far(near, ADDED_S) as away:
        for what, url in (("directly", near), ("through the proxy", away)):
            with ground.looking(url) as ask:
                lab.record(what, f"{PROBE} on {ground.title}", MS, percentile([_ms(ask) for _ in range(ASKS)], 50))


def _ms(ask: Callable[[], bool]) -> float:
    began = time.perf_counter()
    ask()
    return (time.perf_counter() - began) * 1e3


def _drain(lab: Lab, sizes: Sizes, ground: Ground, peer: Peer, _: Path) -> None:
    slots = SLOTS if peer.most_slots is None else min(SLOTS, peer.most_slots)

    def drain(jobs: int) -> Ran:
        ran = _through(lab, ground, peer, jobs, lambda url: peer.drain(url, jobs, slots))
        _record(lab, f"drain, {slots} slots", ground.who(peer), ran)
        return ran

    sizes.run(ground.who(peer), drain, rate=rate(ground.store, peer.name, slots) / SLOWER)


def _lone(lab: Lab, _sizes: Sizes, ground: Ground, peer: Peer, _: Path) -> None:
    ran = _through(lab, ground, peer, 0, lambda url: peer.enqueue(url, 1, MORE_THAN_ENOUGH, ENQUEUES_S))
    _record(lab, LONE, ground.who(peer), ran)


def _bulk(lab: Lab, _sizes: Sizes, ground: Ground, peer: Peer, _: Path) -> None:
    bulk = peer.bulk
    assert bulk is not None
    ran = _through(lab, ground, peer, 0, lambda url: bulk(url, SIZE, MORE_THAN_ENOUGH, ENQUEUES_S))
    _record(lab, BULK, ground.who(peer), ran)


TURNS = {DRAIN: _drain, LONE: _lone, BULK: _bulk}


def _through(lab: Lab, ground: Ground, peer: Peer, jobs: int, begin: Callable[[str], Child[Ran]]) -> Ran:
    with ground.filled(lab, peer, jobs) as near, far(near, ADDED_S) as away:
        return followed(begin(away), lambda: None)[0]


def _record(lab: Lab, what: str, who: str, ran: Ran) -> None:
    lab.record(what, who, RATE, ran.jobs / ran.seconds)
    lab.record(what, who, CLIENT, ran.cpu_seconds / ran.jobs * 1e6)


def verdicts(results: Results) -> list[Verdict]:
    """No targets: what it comes to, and against the best of the others."""
    return [one for ground in GROUNDS for what in TURNS for one in _verdicts(results, ground, what)]


def _verdicts(results: Results, ground: Ground, what: str) -> list[Verdict]:
    ours = results.get(NAME, what, ground.who(ground.ours), RATE)
    if ours is None:
        return []
    others = [results.get(NAME, what, ground.who(peer), RATE) for peer in ground.peers if peer is not ground.ours]
    best: Figure | None = max((one for one in others if one is not None), key=lambda one: one.median, default=None)
    text = f"{ground.title}, 2 ms further away: {what}"
    compared = [] if best is None else [told(f"{text}, against {best.who}", ratios(ours, best), "x")]
    return [told(text, values_of(ours), RATE), *compared]
