"""Drain on PostgreSQL: how fast one worker process runs no-op jobs, and what that costs it and the server."""

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
from bench.ours import postgres as ours
from bench.peers import pgqueuer_postgres as pgqueuer
from bench.peers.peer import Peer
from bench.postgres.contenders import (
    GRAPHILE_FIRST,
    GRAPHILE_TUNED,
    OURS,
    PEERS,
    PGQUEUER,
    PLAIN,
    PROCRASTINATE,
    database,
    family,
)
from bench.postgres.metered import WAL, record_metered
from bench.rates import rate

NAME = "postgres drain"
SLOTS = (1, 10, 50, 200)
BATCH = JUDGED = 100
ONE, MANY, BATCHED = "1 slots", f"{JUDGED} slots", f"batch {BATCH}"

ON_ASYNCIO = "jobmill, asyncio's loop"
PORT = "jobmill, exchange alone"
UNLIMITED = "pgqueuer, no limit"
BEST = GRAPHILE_TUNED.name
#: At 100 slots our targets name them.
RIVALS = (OURS, PGQUEUER, PROCRASTINATE, GRAPHILE_TUNED)


class Drain(Struct, frozen=True):
    """One row of the table: whose, how, and what to start with a URL and the number of jobs there."""

    peer: Peer
    who: str
    what: str
    slots: int
    start: Callable[[str, int], Child[Ran]]
    #: A target names it: it has a turn in each round.
    is_judged: bool = False
    #: Left out of a quick run.
    is_aside: bool = False

    @property
    def name(self) -> str:
        """Of its turn."""
        return f"{self.who}, {self.what}"


def _drains() -> Iterator[Drain]:
    """Everybody at all numbers of slots, at 100 only who is judged there; in a quick run these, and others at 50."""
    for peer in PEERS:
        for slots in SLOTS if peer not in RIVALS else (*SLOTS, JUDGED):
            is_judged = peer in {1: (OURS, PGQUEUER), JUDGED: RIVALS}.get(slots, ())
            in_quick = is_judged or (slots == 50 and peer not in RIVALS)
            yield Drain(peer, peer.name, f"{slots} slots", slots, _at(peer, slots), is_judged, not in_quick)
    yield Drain(GRAPHILE_FIRST, GRAPHILE_FIRST.name, MANY, JUDGED, _at(GRAPHILE_FIRST, JUDGED), is_aside=True)
    yield Drain(OURS, ON_ASYNCIO, MANY, JUDGED, _on_asyncio, is_aside=True)
    yield Drain(OURS, PORT, BATCHED, BATCH, _port, is_judged=True)
    yield Drain(PGQUEUER, UNLIMITED, BATCHED, BATCH, _without_limit, is_judged=True)


def _at(peer: Peer, slots: int) -> Callable[[str, int], Child[Ran]]:
    return lambda url, jobs: peer.drain(url, jobs, slots)


def _on_asyncio(url: str, jobs: int) -> Child[Ran]:
    return start(ours.drain_on_asyncio, url=url, jobs=jobs, slots=JUDGED)


def _port(url: str, jobs: int) -> Child[Ran]:
    return start(ours.exchange, url=url, batch=BATCH, jobs=jobs, seconds=60)


def _without_limit(url: str, jobs: int) -> Child[Ran]:
    return start(pgqueuer.drain_without_limit, url=url, jobs=jobs, batch=BATCH)


def run(lab: Lab) -> None:
    """All contenders, each with as many jobs as it needs to run for long enough."""
    there = {peer.name for peer in PLAIN if is_there(lab, peer)}
    sizes = Sizes(lab)
    drains = [one for one in _drains() if family(one.peer) in there and not (lab.scale.quick and one.is_aside)]
    turns: dict[str, Turn] = {one.name: partial(_drain, lab, sizes, one) for one in drains}
    lab.alternate(turns, seldom={one.name for one in drains if not one.is_judged})


def _drain(lab: Lab, sizes: Sizes, drain: Drain, _: Path) -> None:
    def run(jobs: int) -> Ran:
        with database(lab, drain.peer, jobs) as url:
            return record_metered(lab, drain.what, drain.who, drain.start(url, jobs))

    sizes.run(drain.name, run, rate=rate("postgres", drain.who, drain.slots))


def verdicts(results: Results) -> list[Verdict]:
    """Against each peer at its best, and what a job costs the server."""

    def measured(who: str, what: str) -> Figure | None:
        return results.get(NAME, what, who, RATE)

    def cost(unit: str) -> list[float]:
        return values_of(results.get(NAME, BATCHED, PORT, unit))

    here = measured(OURS.name, MANY)
    pgqueuer = _best(measured(PGQUEUER.name, MANY), measured(UNLIMITED, BATCHED))
    procrastinate, tuned = measured(PROCRASTINATE.name, MANY), measured(BEST, MANY)
    alone = ratios(measured(OURS.name, ONE), measured(PGQUEUER.name, ONE))
    return [
        judge("drain at 100 slots, against pgqueuer at its best", ratios(here, pgqueuer), "at least", 2, "x"),
        judge("drain at 100 slots, against procrastinate", ratios(here, procrastinate), "at least", 25, "x"),
        judge(f"drain at 100 slots, against {BEST} (an aim)", ratios(here, tuned), "at least", 1, "x"),
        judge("drain at 1 slot, against pgqueuer", alone, "at least", 1, "x"),
        judge("server CPU per job, settle and claim at batch 100 (an aim)", cost(SERVER), "at most", 15, "us"),
        judge("WAL per job, settle and claim at batch 100 (an aim)", cost(WAL), "at most", 900, "B"),
        told("client CPU per job, drain at 100 slots", values_of(results.get(NAME, MANY, OURS.name, CLIENT)), "us"),
    ]


def _best(*figures: Figure | None) -> Figure | None:
    return max((one for one in figures if one is not None), key=lambda figure: figure.median, default=None)
