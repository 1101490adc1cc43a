"""Drain on MongoDB: how fast one worker process runs no-op jobs, and what that costs it and the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct

from bench.calibrating import Sizes
from bench.child import Child, start
from bench.contenders import is_there
from bench.figures import RATE, Figure, Ran, Results, Verdict, judge, ratios, told, values_of
from bench.lab import Lab, Turn
from bench.metering import CLIENT, SERVER
from bench.mongo.contenders import AGENDA, AGENDA_AS_IT_COMES, AGENDA_OFTEN, FULL, LEAN, MONQUE, PEERS, filled
from bench.mongo.metered import metered, record, record_metered
from bench.ours import mongo as ours
from bench.peers.peer import Peer

NAME = "mongo drain"
MANY = 50
OTHERS = (1, 10, 200)
EXCHANGE = f"{LEAN.name}, exchange alone"
#: So few that nobody is slowed much by what it has claimed.
FEW = f"{MANY} slots, few jobs"
#: First guesses of jobs per second by slots: ours, and the peers' when there are few.
RATES = {1: (350, 280), 10: (1_600, 500), 50: (4_300, 600), 200: (8_000, 650)}
#: Each takes a minute, most of it the loop's.
MOST_ROUNDS = 3
#: Of so many runs of ours in a round the median counts.
RUNS = 3

#: Given url, jobs.
Begin = Callable[[str, int], Child[Ran]]


class Drain(Struct, frozen=True):
    """One row of the table: whose, how, and what to start with a URL and the number of jobs there."""

    peer: Peer
    who: str
    what: str
    slots: int
    start: Begin
    #: Compared at the same number of jobs: whoever looks for one at a time is slowed by all that it has claimed.
    is_judged: bool = False
    #: Not worth a quick run's time.
    is_aside: bool = False

    @property
    def name(self) -> str:
        """As it stands in the progress."""
        return f"{self.who}, {self.what}"


def _what(slots: int) -> str:
    return f"{slots} slots"


def _drains() -> Iterator[Drain]:
    """Who is judged, and then, as time allows, the others: everybody but our second set of indexes at all slots."""
    for peer in PEERS:
        yield Drain(peer, peer.name, _what(MANY), MANY, _at(peer, MANY), is_judged=True)
    for peer in (LEAN, MONQUE, AGENDA):
        for slots in OTHERS:
            aside = slots == 10 or peer is not LEAN
            yield Drain(peer, peer.name, _what(slots), slots, _at(peer, slots), is_aside=aside)
    yield Drain(LEAN, EXCHANGE, f"batch {MANY}", MANY, _exchange)
    for peer in (AGENDA, AGENDA_OFTEN, AGENDA_AS_IT_COMES):
        yield Drain(AGENDA, peer.name, FEW, MANY, _at(peer, MANY), is_aside=True)


def _at(peer: Peer, slots: int) -> Begin:
    return lambda url, jobs: peer.drain(url, jobs, slots)


def _exchange(url: str, jobs: int) -> Child[Ran]:
    return start(ours.exchange, url=url, batch=MANY, jobs=jobs, seconds=60)


def run(lab: Lab) -> None:
    """Everybody once; we and the loop, which is nearest to a target, in each round where that is judged."""
    there = {peer.name for peer in PEERS if is_there(lab, peer)}
    drains = [one for one in _drains() if one.peer.name in there and not (lab.scale.quick and one.is_aside)]
    sizes = Sizes(lab)
    turns: dict[str, Turn] = {one.name: partial(_drain, lab, sizes, one) for one in drains}
    seldom = {one.name for one in drains if not one.is_judged or one.peer not in (LEAN, MONQUE)}
    rounds = min(lab.scale.rounds, MOST_ROUNDS)
    lab.alternate(turns, rounds=rounds, seldom=seldom)


def _drain(lab: Lab, sizes: Sizes, drain: Drain, _: Path) -> None:
    """Where it is judged as many jobs as the scale says, of the peers fewer in a quick run; else enough of them."""
    is_peer = drain.peer in (MONQUE, AGENDA)

    def run(jobs: int) -> Ran:
        with filled(lab, drain.peer, jobs) as url:
            return record_metered(lab, drain.what, drain.who, drain.start(url, jobs))

    if drain.is_judged and drain.peer is LEAN and not lab.scale.quick:
        _drain_often(lab, drain)
    elif drain.is_judged:
        run(lab.scale.mongo_slow_jobs if is_peer else lab.scale.mongo_jobs)
    else:
        sizes.run(drain.name, run, rate=RATES[drain.slots][is_peer])


def _drain_often(lab: Lab, drain: Drain) -> None:
    """Ours is over in seconds, and this machine may be slow just then; the loop takes most of a minute."""
    runs = []
    for _ in range(RUNS):
        with filled(lab, drain.peer, lab.scale.mongo_jobs) as url:
            runs.append(metered(lab, drain.start(url, lab.scale.mongo_jobs)))
    ran, server_s = sorted(runs, key=lambda one: one[0].seconds)[RUNS // 2]
    record(lab, drain.what, drain.who, ran, server_s)


def verdicts(results: Results) -> list[Verdict]:
    """Rates against both peers, judged with our own indexes, and what a job costs."""

    def figure(who: Peer, slots: int, unit: str = RATE) -> Figure | None:
        return results.get(NAME, _what(slots), who.name, unit)

    def against(here: Peer, who: Peer, slots: int) -> list[float]:
        return ratios(figure(here, slots), figure(who, slots))

    def text(here: Peer, slots: int, peer: str) -> str:
        return f"drain at {slots} slot{'s' * (slots > 1)}, {here.name}, against {peer}"

    targets = ((MONQUE, "a find-and-modify loop", 10), (AGENDA, "agenda", 8))
    return [
        *(
            judge(text(LEAN, MANY, peer), against(LEAN, who, MANY), "at least", bound, "x")
            for who, peer, bound in targets
        ),
        # Monque's twelve indexes cost us what they cost the loop: each changes with each of the two updates of a job.
        *(told(text(FULL, MANY, peer), against(FULL, who, MANY), "x") for who, peer, _ in targets),
        *(
            told(text(LEAN, slots, peer), against(LEAN, who, slots), "x")
            for slots in OTHERS
            for who, peer, _ in targets
        ),
        *(
            told(f"{whose} CPU per job at {MANY} slots, {here.name}", values_of(figure(here, MANY, unit)), "us")
            for whose, unit in (("server", SERVER), ("client", CLIENT))
            for here in (LEAN, FULL)
        ),
    ]
