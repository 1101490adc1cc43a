"""The peer on MongoDB and Node.js: Agenda."""

from __future__ import annotations

import random

from bench.child import Child
from bench.figures import Ran
from bench.peers import node
from bench.peers.about import About
from bench.pickups import Pickups, gaps

ABOUT = About(
    name="agenda, Node.js",
    package=None,
    settings="maxConcurrency and the job's concurrency as there are slots, no limit of locks (its default), "
    "processEvery 10 ms, at 50 slots also 100 ms and its default of 5 s, of which the best counts; pickup: its channel "
    "of change streams; enqueues by now, and has no call for many; every job is kept",
    guarantee="kept: locked for 10 minutes, then any process runs them again",
)

SCRIPT = "agenda.mjs"
#: Each time it looks for jobs it begins to lock one after the other, beside what it began before.
EVERY_MS = 10


def missing() -> str | None:
    """Why it cannot be measured."""
    return node.missing()


def fill(url: str, jobs: int) -> None:
    """Its index and so many waiting jobs."""
    with node.start(SCRIPT, "fill", type(None), url=url, jobs=jobs) as child:
        child.result()


def drain(url: str, jobs: int, slots: int, every_ms: int | None) -> Child[Ran]:
    """One process runs so many no-op jobs; it looks for them so often, or as it does by itself."""
    options = {} if every_ms is None else {"processEvery": every_ms}
    return node.start(SCRIPT, "drain", Ran, url=url, jobs=jobs, slots=slots, options=options)


def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Child[Ran]:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    return node.start(SCRIPT, "enqueue", Ran, url=url, callers=callers, jobs=jobs, seconds=seconds)


def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> Child[list[int]]:
    """The worker's side: says that it is ready, and when it started each job."""
    options = {"isNotified": True}
    return node.start(SCRIPT, "pickup", list[int], url=url, jobs=jobs, seconds=seconds, slots=slots, options=options)


def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    waits = list(gaps(random.Random(seed), jobs))
    with node.start(SCRIPT, "pickupEnqueue", Pickups, url=url, gaps=waits) as child:
        return child.result()
