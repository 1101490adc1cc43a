"""The peer on PostgreSQL and Node.js: Graphile Worker, as it comes and batched as its page on performance does."""

from __future__ import annotations

from typing import Any

from bench.child import Child
from bench.figures import Ran
from bench.loop import run
from bench.peers import node
from bench.peers.about import About
from bench.pickups import Pickups, one_after_the_other
from bench.postgres.server import Session

ABOUT = About(
    name="graphile",
    package=None,
    settings="graphile-worker with concurrentJobs as there are slots and other defaults; `local queue of 500` with "
    "completeJobBatchDelay and failJobBatchDelay of 0 is the configuration of its own figures, `local queue of 101` "
    "(with a delay of 25 ms) the one it recommends to start from; no named queues, no logging; what is done is deleted",
    guarantee="kept, but locked for 4 hours",
)

SCRIPT = "graphile.mjs"


def missing() -> str | None:
    """Why it cannot be measured."""
    return node.missing()


def options(slots: int, local_queue: int | None, delay_ms: int) -> dict[str, Any]:
    """Of the worker's preset, with a local queue or without."""
    if local_queue is None:
        return {"concurrentJobs": slots}
    delays = {"completeJobBatchDelay": delay_ms, "failJobBatchDelay": delay_ms}
    return {"concurrentJobs": slots, "localQueue": {"size": local_queue}, **delays}


def fill(url: str, jobs: int) -> None:
    """Its tables and so many waiting jobs."""
    with node.start(SCRIPT, "migrate", type(None), url=url) as child:
        child.result()
    with Session(url) as session:
        session.execute(f"select graphile_worker.add_job('noop', '{{}}') from generate_series(1, {jobs})")


def drain(url: str, jobs: int, worker: dict[str, Any]) -> Child[Ran]:
    """One worker runs so many no-op jobs."""
    return node.start(SCRIPT, "drain", Ran, url=url, jobs=jobs, worker=worker)


def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Child[Ran]:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    return node.start(SCRIPT, "enqueue", Ran, url=url, callers=callers, jobs=jobs, seconds=seconds)


def bulk(url: str, size: int, jobs: int, seconds: float) -> Child[Ran]:
    """One caller hands so many jobs in with each call."""
    return node.start(SCRIPT, "bulk", Ran, url=url, size=size, jobs=jobs, seconds=seconds)


def pickup_work(url: str, jobs: int, seconds: float, worker: dict[str, Any]) -> Child[list[int]]:
    """The worker's side: says that it is ready, and when it started each job."""
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
