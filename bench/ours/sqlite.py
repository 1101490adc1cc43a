"""Jobmill's side of the measures on SQLite in the shape of all stores, on the loop that `jobmill worker` takes."""

from __future__ import annotations

from msgspec import structs

from bench.draining import Draining
from bench.figures import Ran
from bench.loop import run
from bench.ours import about, pickup
from bench.ours import enqueue as enqueueing
from bench.ours import hold as holding
from bench.ours.noop import noops
from bench.pickups import Pickups
from bench.sqlite.files import looking
from jobmill.client import connect
from jobmill.worker.worker import Worker

ABOUT = structs.replace(about.ON_SQLITE, name="jobmill")


def missing() -> str | None:
    """It is always there."""
    return None


def fill(url: str, jobs: int) -> None:
    """Its tables and so many waiting jobs."""
    run(_fill(url, jobs))


async def _fill(url: str, jobs: int) -> None:
    async with noops(url) as ours:
        await ours.client.store.migrate()
        await ours.fill(jobs)


def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs all jobs."""
    return run(_drain(url, jobs, slots))


async def _drain(url: str, jobs: int, slots: int) -> Ran:
    client = connect(url)
    with looking(url) as look:

        async def is_left() -> bool:
            return look()

        clock = Draining(is_left, jobs)

        @client.handler()
        async def noop() -> None:
            clock.run()

        async with client, Worker(client, slots=slots):
            return await clock.settled()


def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    return run(enqueueing.singly(url, callers, jobs, seconds))


def bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    """One caller hands so many jobs in with each call."""
    return run(enqueueing.in_bulk(url, size, jobs, seconds))


def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    return run(pickup.working(url, jobs, seconds, slots))


def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    return run(pickup.enqueueing(url, jobs, seed))


def hold(url: str) -> None:
    """One job for `work`."""
    run(holding.enqueueing(url))


def work(url: str, slots: int, path: str) -> None:
    """A worker until it is killed."""
    run(holding.working(url, slots, path))
