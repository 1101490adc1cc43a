"""The peer on PostgreSQL and Node.js: Graphile Worker, as it comes and batched as its page on performance does."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import structs

from bench.child import Child
from bench.child import run as in_child
from bench.figures import Ran
from bench.loop import run
from bench.peers import node
from bench.peers.about import About
from bench.peers.peer import Peer
from bench.pickups import Pickups, one_after_the_other
from bench.postgres.server import Session

ABOUT = About(
    name="graphile",
    package=None,
    settings="graphile-worker with concurrentJobs as there are slots and other defaults; `local queue of 500` with "
    "completeJobBatchDelay and failJobBatchDelay of 0 is the configuration of its own figures, `local queue of slots "
    "+ 1` (with a delay of 25 ms) the one it recommends to start from; no named queues, no logging; what is done is "
    "deleted",
    guarantee="repeated: another worker takes up what has been locked for 4 hours",
    tried="told by its source; nobody waited for it",
    docs="https://worker.graphile.org/docs/performance",
)

SCRIPT = "graphile.mjs"


def options(slots: int, local_queue: int | None, delay_ms: int) -> dict[str, Any]:
    """Of the worker's preset, with a local queue or without."""
    if local_queue is None:
        return {"concurrentJobs": slots}
    delays = {"completeJobBatchDelay": delay_ms, "failJobBatchDelay": delay_ms}
    return {"concurrentJobs": slots, "localQueue": {"size": local_queue}, **delays}


def fill(url: str, jobs: int) -> None:
    """Its tables and so many waiting jobs."""
    with node.start(SCRIPT, "fill", type(None), url=url, jobs=jobs) as child:
        child.result()


def drain(local_queue: int | None, delay_ms: int, url: str, jobs: int, slots: int) -> Child[Ran]:
    """One worker runs so many no-op jobs."""
    return node.start(SCRIPT, "drain", Ran, url=url, jobs=jobs, worker=options(slots, local_queue, delay_ms))


def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Child[Ran]:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    return node.start(SCRIPT, "enqueue", Ran, url=url, callers=callers, jobs=jobs, seconds=seconds)


def bulk(url: str, size: int, jobs: int, seconds: float) -> Child[Ran]:
    """One caller hands so many jobs in with each call."""
    return node.start(SCRIPT, "bulk", Ran, url=url, size=size, jobs=jobs, seconds=seconds)


def pickup_work(
    local_queue: int | None, delay_ms: int, url: str, jobs: int, seconds: float, slots: int
) -> Child[list[int]]:
    """The worker's side: says that it is ready, and when it started each job."""
    worker = options(slots, local_queue, delay_ms)
    return node.start(SCRIPT, "pickup", list[int], url=url, jobs=jobs, seconds=seconds, worker=worker)


def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side, in SQL: when each enqueue was called, and when it returned."""
    return run(_pickup_enqueue(url, jobs, seed))


async def _pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    import asyncpg

    add = "select graphile_worker.add_job('pick', json_build_object('number', $1::integer))"
    connection = await asyncpg.connect(url)
    try:
        return await one_after_the_other(lambda number: connection.fetchval(add, number), jobs, seed)
    finally:
        await connection.close()


def hold(url: str) -> None:
    """One job for `work`."""
    with Session(url) as session:
        session.execute("select graphile_worker.add_job('hold', '{}')")


def work(url: str, slots: int, path: str) -> Child[None]:
    """A worker until it is killed."""
    return node.start(SCRIPT, "work", type(None), url=url, path=path, worker=options(slots, None, 0))


PEER = Peer(
    about=ABOUT,
    missing=node.missing,
    fill=fill,
    drain=partial(drain, None, 0),
    enqueue=enqueue,
    bulk=bulk,
    pickup_work=partial(pickup_work, None, 0),
    pickup_enqueue=lambda url, jobs, seed: in_child(pickup_enqueue, url=url, jobs=jobs, seed=seed),
    hold=hold,
    work=work,
)


def with_local_queue(name: str, size: int | None, delay_ms: int) -> Peer:
    """The same, fetching so many at a time (None: one more than slots) before they run, and completing in batches."""
    return structs.replace(
        PEER,
        about=structs.replace(ABOUT, name=name),
        drain=lambda url, jobs, slots: drain(size or slots + 1, delay_ms, url, jobs, slots),
        pickup_work=lambda url, jobs, seconds, slots: pickup_work(
            size or slots + 1, delay_ms, url, jobs, seconds, slots
        ),
    )


FIRST = with_local_queue("graphile, local queue of slots + 1", None, 25)
TUNED = with_local_queue("graphile, local queue of 500", 500, 0)
