"""The peer on PostgreSQL and Node.js: pg-boss, which fetches and completes in batches."""

from __future__ import annotations

import random

from bench.child import Child
from bench.figures import Ran
from bench.peers import node
from bench.peers.about import About
from bench.peers.peer import Peer
from bench.pickups import Pickups, gaps

ABOUT = About(
    name="pg-boss",
    package=None,
    settings="pg-boss with a worker whose batchSize is the number of slots, burstWhenBatchFull and "
    "burstWhenReadyExceeds=1 (at 1 slot a full batch does not count, so that it is the statistics of `supervise` that "
    "keep it fetching), queues with notify and useListenNotify; a batch is completed as one, before the next is "
    "fetched; other defaults: what is done is kept for 7 days",
    guarantee="repeated: every minute what has run for longer than 15 minutes is retried, up to 2 times",
    tried="told by its source; nobody waited for it",
    docs="https://pgboss.io/api/workers",
)

SCRIPT = "pgboss.mjs"


def fill(url: str, jobs: int) -> None:
    """Its tables and so many waiting jobs."""
    with node.start(SCRIPT, "fill", type(None), url=url, jobs=jobs) as child:
        child.result()


def drain(url: str, jobs: int, slots: int) -> Child[Ran]:
    """One worker runs so many no-op jobs."""
    return node.start(SCRIPT, "drain", Ran, url=url, jobs=jobs, slots=slots)


def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Child[Ran]:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    return node.start(SCRIPT, "enqueue", Ran, url=url, callers=callers, jobs=jobs, seconds=seconds)


def bulk(url: str, size: int, jobs: int, seconds: float) -> Child[Ran]:
    """One caller hands so many jobs in with each call."""
    return node.start(SCRIPT, "bulk", Ran, url=url, size=size, jobs=jobs, seconds=seconds)


def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> Child[list[int]]:
    """The worker's side: says that it is ready, and when it started each job."""
    return node.start(SCRIPT, "pickup", list[int], url=url, jobs=jobs, seconds=seconds, slots=slots)


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
    """A worker until it is killed."""
    return node.start(SCRIPT, "work", type(None), url=url, slots=slots, path=path)


PEER = Peer(
    about=ABOUT,
    missing=node.missing,
    fill=fill,
    drain=drain,
    enqueue=enqueue,
    bulk=bulk,
    pickup_work=pickup_work,
    pickup_enqueue=pickup_enqueue,
    hold=hold,
    work=work,
)
