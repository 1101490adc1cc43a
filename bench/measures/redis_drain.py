"""Drain on Redis: how fast one worker process runs no-op jobs, and what that costs it and the server."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from msgspec import Struct

from bench.child import Child, start
from bench.contenders import Contender, is_there
from bench.figures import RATE, Figure, Ran, Results, Verdict, judge, ratios
from bench.lab import Lab, Turn
from bench.metering import CLIENT, SERVER
from bench.ours import redis as ours
from bench.peers import bullmq_node_redis as node
from bench.peers import bullmq_python_redis as python
from bench.redis.contenders import NODE, OURS, PYTHON, filled
from bench.redis.metered import record_metered

NAME = "redis drain"
SLOTS = (1, 50, 200)
ON_ASYNCIO = "jobmill, asyncio's loop"
EXCHANGE = "jobmill, exchange alone"


class Drain(Struct, frozen=True):
    """One row of the table: whose, how, and what to start with a URL and the number of jobs there."""

    contender: Contender
    who: str
    what: str
    slots: int
    start: Callable[[str, int], Child[Ran]]
    #: Left out of a quick run.
    is_aside: bool = False


def _what(slots: int) -> str:
    return f"{slots} slots"


def _ours(slots: int) -> Drain:
    return Drain(
        OURS, OURS.name, _what(slots), slots, lambda url, jobs: start(ours.drain, url=url, jobs=jobs, slots=slots)
    )


def _ours_on_asyncio(slots: int) -> Drain:
    def begin(url: str, jobs: int) -> Child[Ran]:
        return start(ours.drain_on_asyncio, url=url, jobs=jobs, slots=slots)

    return Drain(OURS, ON_ASYNCIO, _what(slots), slots, begin, is_aside=True)


def _exchange(batch: int) -> Drain:
    def begin(url: str, jobs: int) -> Child[Ran]:
        return start(ours.exchange, url=url, batch=batch, jobs=jobs, seconds=60)

    return Drain(OURS, EXCHANGE, f"batch {batch}", batch, begin, is_aside=batch == 1)


def _node(slots: int) -> Drain:
    return Drain(NODE, NODE.name, _what(slots), slots, lambda url, jobs: node.drain(url, jobs, slots))


def _python(slots: int) -> Drain:
    def begin(url: str, jobs: int) -> Child[Ran]:
        return start(python.drain, url=url, jobs=jobs, slots=slots)

    return Drain(PYTHON, PYTHON.name, _what(slots), slots, begin)


DRAINS = (
    *map(_ours, SLOTS),
    *map(_ours_on_asyncio, SLOTS),
    *map(_exchange, SLOTS),
    *map(_node, SLOTS),
    *map(_python, SLOTS),
)


def run(lab: Lab) -> None:
    """All contenders, at 1, 50 and 200 slots."""
    there = {contender.name for contender in (OURS, NODE, PYTHON) if is_there(lab, contender)}
    chosen = (one for one in DRAINS if one.contender.name in there and not (lab.scale.quick and one.is_aside))
    turns: dict[str, Turn] = {f"{one.who}, {one.what}": partial(_drain, lab, one) for one in chosen}
    lab.alternate(turns)


def _drain(lab: Lab, drain: Drain, _: Path) -> None:
    scale = lab.scale
    jobs = scale.redis_single_jobs if drain.slots == 1 else scale.redis_jobs
    if drain.contender is PYTHON:
        jobs = scale.redis_slow_jobs
    with filled(lab, drain.contender, jobs) as url:
        record_metered(lab, drain.what, drain.who, drain.start(url, jobs))


def verdicts(results: Results) -> list[Verdict]:
    """Rates against both peers, and what a job costs here and on the server against Node's."""

    def figure(who: str, slots: int, unit: str) -> Figure | None:
        return results.get(NAME, _what(slots), who, unit)

    def against(who: str, slots: int, unit: str) -> list[float]:
        return ratios(figure(OURS.name, slots, unit), figure(who, slots, unit))

    def text(slots: int) -> str:
        return f"at {slots} slot{'s' * (slots > 1)}"

    many = SLOTS[1:]
    return [
        *(
            judge(f"drain {text(slots)}, against Node's{aim}", against(NODE.name, slots, RATE), "at least", bound, "x")
            for bound, aim in ((1, ""), (1.3, " (an aim)"))
            for slots in SLOTS
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
