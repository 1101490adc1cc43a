"""The peer on Redis and Node.js: BullMQ itself."""

from __future__ import annotations

import random
from typing import Any

from bench.child import Child
from bench.figures import Ran
from bench.peers import node
from bench.peers.about import About
from bench.peers.peer import Peer
from bench.pickups import Pickups, gaps

ABOUT = About(
    name="bullmq, Node.js",
    package=None,
    settings="a Worker with concurrency as there are slots and other defaults, with ioredis; enqueues by add and "
    "addBulk on one connection; every job is kept; no metrics",
    guarantee="kept: another worker takes them up within 60 s after the end of their lock of 30 s",
    tried="it was run again after 59 s",
    docs="https://docs.bullmq.io/guide/workers/concurrency",
)

SCRIPT = "bullmq.mjs"


def missing() -> str | None:
    """Why it cannot be measured."""
    return node.missing()


def fill(url: str, jobs: int) -> None:
    """So many waiting jobs, with ids of its own making."""
    with node.start(SCRIPT, "fill", type(None), url=url, jobs=jobs) as child:
        child.result()


def fill_with(url: str, jobs: int, payload: dict[str, Any], options: dict[str, Any], id_length: int | None) -> None:
    """So many waiting jobs with this payload and these options, and custom ids of this length if one is named."""
    arguments = {"url": url, "jobs": jobs, "data": payload, "opts": options, "idLength": id_length}
    with node.start(SCRIPT, "fillWith", type(None), **arguments) as child:
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
    missing=missing,
    fill=fill,
    drain=drain,
    enqueue=enqueue,
    bulk=bulk,
    pickup_work=pickup_work,
    pickup_enqueue=pickup_enqueue,
    hold=hold,
    work=work,
)
