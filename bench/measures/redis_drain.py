"""Drain on Redis: how fast one worker process runs no-op jobs, and what that costs it and the server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from msgspec import Struct

from bench.calibrating import Sizes
from bench.child import Child, start
from bench.contenders import is_there
from bench.figures import RATE, Figure, Ran, Results, Verdict, judge, ratios
from bench.lab import Lab, Turn
from bench.metering import CLIENT, SERVER
from bench.ours import redis as ours
from bench.peers.peer import Peer
from bench.rates import rate
from bench.redis.contenders import NODE, OURS, PEERS, PYTHON, filled
from bench.redis.metered import record_metered
from bench.scale import Scale

NAME = "redis drain"
SLOTS = (1, 10, 50, 200)
JUDGED = (1, 50, 200)
ON_ASYNCIO = "jobmill, asyncio's loop"
EXCHANGE = "jobmill, exchange alone"


#: Given url, jobs.
Begin = Callable[[str, int], Child[Ran]]


class Drain(Struct, frozen=True):
    """One row of the table: whose, how, and what to start with a URL and the number of jobs there."""

    peer: Peer
    who: str
    what: str
    slots: int
    start: Begin
    #: A target names it: it has a turn in each round.
    is_judged: bool = False
    #: Left out of a quick run.
    is_aside: bool = False

    @property
    def name(self) -> str:
        """Of its turn."""
        return f"{self.who}, {self.what}"


def _what(slots: int) -> str:
    return f"{slots} slots"


def _drains() -> Iterator[Drain]:
    """Everybody at all numbers of slots; in a quick run at 50, and at 1 we and Node."""
    for peer in PEERS:
        for slots in filter(peer.takes, SLOTS):
            is_judged = slots in (JUDGED if peer in (OURS, NODE) else JUDGED[1:] if peer is PYTHON else ())
            in_quick = slots in (50, peer.most_slots) or (slots == 1 and is_judged)
            yield Drain(peer, peer.name, _what(slots), slots, _at(peer, slots), is_judged, is_aside=not in_quick)
    yield Drain(OURS, ON_ASYNCIO, _what(50), 50, _on_asyncio(50), is_aside=True)
    for slots in JUDGED[1:]:
        yield Drain(OURS, EXCHANGE, f"batch {slots}", slots, _exchange(slots), is_aside=slots != 50)


def _at(peer: Peer, slots: int) -> Begin:
    return lambda url, jobs: peer.drain(url, jobs, slots)


def _on_asyncio(slots: int) -> Begin:
    return lambda url, jobs: start(ours.drain_on_asyncio, url=url, jobs=jobs, slots=slots)


def _exchange(batch: int) -> Begin:
    return lambda url, jobs: start(ours.exchange, url=url, batch=batch, jobs=jobs, seconds=60)


def run(lab: Lab) -> None:
    """All contenders, each with as many jobs as it needs to run for long enough."""
    there = {peer.name for peer in PEERS if is_there(lab, peer)}
    sizes = Sizes(lab)
    drains = [one for one in _drains() if one.peer.name in there and not (lab.scale.quick and one.is_aside)]
    turns: dict[str, Turn] = {one.name: partial(_drain, lab, sizes, one) for one in drains}
    lab.alternate(turns, seldom={one.name for one in drains if not one.is_judged})


def _drain(lab: Lab, sizes: Sizes, drain: Drain, _: Path) -> None:
    def run(jobs: int) -> Ran:
        with filled(lab, drain.peer, jobs) as url:
            return record_metered(lab, drain.what, drain.who, drain.start(url, jobs))

    sizes.run(
        drain.name,
        run,
        rate=rate("redis", drain.who, drain.slots),
        least=_least(lab.scale, drain) if drain.is_judged else 0,
    )


def _least(scale: Scale, drain: Drain) -> int:
    """Of those who are judged against each other so many that none is still warming up, as Node does for long."""
    if drain.peer is PYTHON:
        return scale.redis_slow_jobs
    return scale.redis_single_jobs if drain.slots == 1 else scale.redis_jobs


def verdicts(results: Results) -> list[Verdict]:
    """Rates against both peers, and what a job costs here and on the server against Node's."""

    def figure(who: str, slots: int, unit: str) -> Figure | None:
        return results.get(NAME, _what(slots), who, unit)

    def against(who: str, slots: int, unit: str) -> list[float]:
        return ratios(figure(OURS.name, slots, unit), figure(who, slots, unit))

    def text(slots: int) -> str:
        return f"at {slots} slot{'s' * (slots > 1)}"

    many = JUDGED[1:]
    return [
        *(
            judge(f"drain {text(slots)}, against Node's{aim}", against(NODE.name, slots, RATE), "at least", bound, "x")
            for bound, aim in ((1, ""), (1.3, " (an aim)"))
            for slots in JUDGED
        ),
        *(
            judge(f"drain {text(slots)}, against the port", against(PYTHON.name, slots, RATE), "at least", 8, "x")
            for slots in many
        ),
        *(
            judge(f"{whose} CPU {text(slots)}, against Node's", against(NODE.name, slots, unit), "below", 1, "x")
            for whose, unit in (("server", SERVER), ("client", CLIENT))
            for slots in many
        ),
    ]
