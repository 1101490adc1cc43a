"""Jobmill's side of the measures on MongoDB, on the loop that `jobmill worker` takes."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from bench.figures import Ran
from bench.loop import run
from bench.mongo.copies import multiply
from bench.mongo.draining import OURS, draining
from bench.ours import about
from bench.ours import drain as draining_port
from bench.ours.alike import bulk, enqueue, hold, pickup_enqueue, pickup_work, work
from bench.ours.noop import noops
from jobmill.client.client import connect
from jobmill.worker.worker import Worker

__all__ = [
    "ABOUT",
    "DAY",
    "bulk",
    "drain",
    "drain_some",
    "enqueue",
    "exchange",
    "fill",
    "fill_deep",
    "hold",
    "missing",
    "pickup_enqueue",
    "pickup_work",
    "top_up",
    "work",
]

#: Of either set of indexes, which the URL names.
ABOUT = about.ON_MONGO
DAY = timedelta(days=1)


def missing() -> str | None:
    """It is always there."""
    return None


def fill(url: str, jobs: int) -> None:
    """Its indexes and so many waiting jobs."""
    run(_fill(url, jobs))


async def _fill(url: str, jobs: int) -> None:
    client = connect(url)
    await client.store.migrate()
    await client.close()
    async with noops(url) as ours:
        await ours.fill(jobs)


def fill_deep(url: str, waiting: int, delayed: int) -> None:
    """So many jobs, of which some are due only tomorrow, and the indexes: copies of one that was enqueued."""
    fill(url, 1)

    def due(one: dict[str, Any]) -> dict[str, Any]:
        return {"nextRunAt": {"$cond": [{"$lt": ["$n", delayed]}, one["nextRunAt"] + DAY, one["nextRunAt"]]}}

    multiply(url, waiting + delayed, due)


def top_up(url: str, waiting: int) -> None:
    """Bring a database (back) to so many waiting jobs."""
    run(_top_up(url, waiting))


async def _top_up(url: str, waiting: int) -> None:
    async with noops(url) as ours:
        there = sum(one.count for one in await ours.client.count(states=["waiting"]))
        await ours.fill(waiting - there)


def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs all jobs."""
    return run(_drain(url, OURS, jobs, slots))


def drain_some(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many jobs of more."""
    return run(_drain(url, None, jobs, slots))


async def _drain(url: str, left: Mapping[str, dict[str, Any]] | None, jobs: int, slots: int) -> Ran:
    client = connect(url)
    async with draining(url, left, jobs) as clock, client:

        @client.handler()
        async def noop() -> None:
            clock.run()

        async with Worker(client, concurrency=slots):
            return await clock.settled()


def exchange(url: str, batch: int, jobs: int, seconds: float) -> Ran:
    """The port's hot verb without a worker."""
    return run(draining_port.exchanging(url, batch, jobs, seconds))
