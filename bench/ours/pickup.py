"""How soon an idle worker starts a job that was enqueued just now, in another process or in its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.child import ready
from bench.pickups import Pickups, Starts, one_after_the_other
from jobmill.client.client import Client, connect
from jobmill.handlers.handler import Handler
from jobmill.worker.worker import Worker

SLOTS = 50


def _handled(client: Client, starts: Starts) -> Handler[[int], object]:
    """A handler that writes down when it started, by the number of the job."""

    async def pick(number: int) -> None:
        starts.start(number)

    return client.handler()(pick)


def work(url: str, jobs: int, seconds: float) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    return asyncio.run(working(url, jobs, seconds))


async def working(url: str, jobs: int, seconds: float, slots: int = SLOTS) -> list[int]:
    """The same, on a loop that runs."""
    async with opened(url, jobs) as (client, starts, _), Worker(client, concurrency=slots):
        ready()
        await starts.wait(seconds)
    return starts.at


@asynccontextmanager
async def opened(url: str, jobs: int) -> AsyncIterator[tuple[Client, Starts, Handler[[int], object]]]:
    """A client with that handler, its starts, and the handler; closed at the end."""
    client, starts = connect(url), Starts(jobs)
    pick = _handled(client, starts)
    async with client:
        yield client, starts, pick


def enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    return asyncio.run(enqueueing(url, jobs, seed))


async def enqueueing(url: str, jobs: int, seed: int) -> Pickups:
    """The same, on a loop that runs."""
    async with opened(url, jobs) as (_, _, pick):
        return await one_after_the_other(pick.enqueue, jobs, seed)


def here(url: str, jobs: int, seed: int, seconds: float) -> Pickups:
    """Client and worker in one process."""
    return asyncio.run(_here(url, jobs, seed, seconds))


async def _here(url: str, jobs: int, seed: int, seconds: float) -> Pickups:
    async with opened(url, jobs) as (client, starts, pick), Worker(client, concurrency=SLOTS):
        told = await one_after_the_other(pick.enqueue, jobs, seed)
        await starts.wait(seconds)
    told.started.extend(starts.at)
    return told
