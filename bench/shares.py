"""A drain by any number of our worker processes: the parent asks the server when no job is live any more."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

from msgspec import Struct

from bench.child import BEGUN, READY, Broken, start
from bench.draining import PATIENCE_S
from bench.figures import RATE, Ran
from bench.grounds import Ground
from bench.lab import Lab
from bench.metering import CLIENT, SERVER
from bench.ours.share import ASYNC, share

#: Between two looks at the server goes such a part of the time that has gone so far: what a look costs, and by how much
#: it comes late, is nothing beside the run.
LOOK_PART, LEAST_LOOK_S = 0.003, 0.002


class Shared(Struct, frozen=True):
    """What a drain came to, and the CPU of the server meanwhile, if there is one."""

    ran: Ran
    server_s: float | None


def drain(lab: Lab, ground: Ground, jobs: int, *, processes: int = 1, slots: int, kind: str = ASYNC) -> Shared:
    """From the first run of a handler in any process until no job is live."""
    with (
        ground.filled(lab, ground.ours, jobs) as url,
        ground.looking(url) as is_left,
        ExitStack() as workers,
    ):
        children = [workers.enter_context(start(share, url=url, slots=slots, kind=kind)) for _ in range(processes)]
        for child in children:
            child.wait_for(READY)
        before = None if ground.cpu_seconds is None else ground.cpu_seconds(lab)
        for child in children:
            child.go_on()
        for child in children:
            child.wait_for(BEGUN)
        ended_ns = _ended_ns(is_left)
        server_s = None if ground.cpu_seconds is None or before is None else ground.cpu_seconds(lab) - before
        for child in children:
            child.go_on()
        told = [child.result() for child in children]
    began_ns = min(one.began_ns for one in told if one.began_ns)
    cpu_seconds = sum(one.cpu_seconds for one in told)
    return Shared(Ran(jobs=jobs, seconds=(ended_ns - began_ns) / 1e9, cpu_seconds=cpu_seconds), server_s)


def _ended_ns(is_left: Callable[[], bool]) -> int:
    began = time.monotonic()
    while is_left():
        gone = time.monotonic() - began
        if gone > PATIENCE_S:
            raise Broken(f"jobs are left after {PATIENCE_S:.0f} s")
        time.sleep(max(LEAST_LOOK_S, gone * LOOK_PART))
    return time.time_ns()


def record(lab: Lab, what: str, who: str, shared: Shared) -> Ran:
    """Record rate and cost of both sides, and tell what it came to."""
    ran = shared.ran
    lab.record(what, who, RATE, ran.jobs / ran.seconds)
    lab.record(what, who, CLIENT, ran.cpu_seconds / ran.jobs * 1e6)
    if shared.server_s is not None:
        lab.record(what, who, SERVER, shared.server_s / ran.jobs * 1e6)
    return ran
