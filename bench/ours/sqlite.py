"""Jobmill's side of the measures on SQLite in the shape of all stores, on the loop that `jobmill worker` takes."""

from __future__ import annotations

from msgspec import structs

from bench.draining import Draining
from bench.figures import Ran
from bench.loop import run
from bench.ours import about
from bench.ours.alike import bulk, enqueue, hold, pickup_enqueue, pickup_work, work
from bench.ours.noop import noops
from bench.sqlite.files import looking
from jobmill.client.client import connect
from jobmill.worker.worker import Worker

__all__ = [
    "ABOUT",
    "bulk",
    "drain",
    "enqueue",
    "fill",
    "hold",
    "missing",
    "pickup_enqueue",
    "pickup_work",
    "work",
]

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

        async with client, Worker(client, concurrency=slots):
            return await clock.settled()
