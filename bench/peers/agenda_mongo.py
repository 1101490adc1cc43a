"""The peer on MongoDB and Node.js: Agenda."""

from __future__ import annotations

import random
from functools import partial

from msgspec import structs

from bench.child import Child
from bench.figures import Ran
from bench.peers import node
from bench.peers.about import About
from bench.peers.peer import Peer
from bench.pickups import Pickups, gaps

ABOUT = About(
    name="agenda, Node.js",
    package=None,
    settings="maxConcurrency and the job's concurrency as there are slots, no limit of locks (its default), "
    "processEvery 100 ms, at 50 slots also 10 ms and its default of 5 s; pickup: its channel of change streams; idle "
    "memory and recovery: neither; enqueues by now, and has no call for many; every job is kept",
    guarantee="repeated: another process takes up what has been locked for 10 minutes",
    tried="told by its source; nobody waited for it",
    docs="https://github.com/agenda/agenda#readme",
)

SCRIPT = "agenda.mjs"
#: Each time it looks for jobs it begins to lock one after the other, beside what it began before.
EVERY_MS, OFTEN_MS = 100, 10


def fill(url: str, jobs: int) -> None:
    """Its index and so many waiting jobs."""
    with node.start(SCRIPT, "fill", type(None), url=url, jobs=jobs) as child:
        child.result()


def drain(every_ms: int | None, url: str, jobs: int, slots: int) -> Child[Ran]:
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


def hold(url: str) -> None:
    """One job for `work`."""
    with node.start(SCRIPT, "hold", type(None), url=url) as child:
        child.result()


def work(url: str, slots: int, path: str) -> Child[None]:
    """A process until it is killed."""
    return node.start(SCRIPT, "work", type(None), url=url, slots=slots, path=path)


PEER = Peer(
    about=ABOUT,
    missing=node.missing,
    fill=fill,
    drain=partial(drain, EVERY_MS),
    enqueue=enqueue,
    bulk=None,
    pickup_work=pickup_work,
    pickup_enqueue=pickup_enqueue,
    hold=hold,
    work=work,
)


def _that_looks(how: str, every_ms: int | None) -> Peer:
    about = structs.replace(ABOUT, name=f"{ABOUT.name}, {how}")
    return structs.replace(PEER, about=about, drain=partial(drain, every_ms))


#: Which of the three is its best depends on the machine, and on how busy that is.
OFTEN, AS_IT_COMES = _that_looks(f"each {OFTEN_MS} ms", OFTEN_MS), _that_looks("as it comes", None)
