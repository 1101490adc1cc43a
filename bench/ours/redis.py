"""Jobmill's side of the measures on Redis, on the loop that `jobmill worker` takes."""

from __future__ import annotations

import asyncio

from msgspec import structs

from bench.figures import Ran
from bench.loop import run
from bench.ours import about
from bench.ours import drain as draining_port
from bench.ours.alike import bulk, enqueue, hold, pickup_enqueue, pickup_work, work
from bench.ours.noop import noops
from bench.redis.draining import draining
from jobmill.client.client import connect
from jobmill.handlers.handler import Draft
from jobmill.handlers.options import NO_OPTIONS_GIVEN
from jobmill.worker.worker import Worker

__all__ = [
    "ABOUT",
    "bulk",
    "drain",
    "drain_on_asyncio",
    "enqueue",
    "exchange",
    "fill",
    "fill_with",
    "hold",
    "missing",
    "pickup_enqueue",
    "pickup_work",
    "work",
]

ABOUT = structs.replace(about.ON_REDIS, name="jobmill")


def missing() -> str | None:
    """It is always there."""
    return None


def fill(url: str, jobs: int) -> None:
    """So many waiting jobs."""
    run(_fill(url, jobs))


async def _fill(url: str, jobs: int) -> None:
    async with noops(url) as ours:
        await ours.fill(jobs)


def fill_with(url: str, jobs: int, payload: str) -> int:
    """So many waiting jobs with this payload, in JSON; how long their ids are."""
    return run(_fill_with(url, jobs, payload))


async def _fill_with(url: str, jobs: int, payload: str) -> int:
    draft = Draft("noop", payload.encode(), NO_OPTIONS_GIVEN)
    async with connect(url) as client:
        receipts = await client.enqueue_many([draft] * jobs)
    return len(receipts[0].id)


def drain(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs all jobs."""
    return run(_drain(url, jobs, slots))


def drain_on_asyncio(url: str, jobs: int, slots: int) -> Ran:
    """The same, on asyncio's own loop."""
    return asyncio.run(_drain(url, jobs, slots))


async def _drain(url: str, jobs: int, slots: int) -> Ran:
    client = connect(url)
    async with draining(url, jobs) as clock, client:

        @client.handler()
        async def noop() -> None:
            clock.run()

        async with Worker(client, concurrency=slots):
            return await clock.settled()


def exchange(url: str, batch: int, jobs: int, seconds: float) -> Ran:
    """The port's hot verb without a worker."""
    return run(draining_port.exchanging(url, batch, jobs, seconds))
