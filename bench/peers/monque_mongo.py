"""A find-and-modify loop that does Monque's own queries on Monque's own indexes; Monque itself cannot be installed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from pymongo import AsyncMongoClient

from bench import callers as drivers
from bench.figures import Ran
from bench.loop import run
from bench.mongo.draining import MONQUE, draining
from bench.peers.about import About
from tests.interop.monque.monque import Monque

ABOUT = About(
    name="find and modify",
    package=None,
    settings="Monque's queries and indexes (its second generation), sent by pymongo's async client from as many tasks "
    "as there are slots, on uvloop, in one process; each claims one job by find-and-modify, runs it and completes it "
    "by an update, without Monque's timers",
    guarantee="kept: a process that starts claims them when their lock is older than 30 minutes",
)

COLLECTION = "monque_jobs"
NAME = "noop"
AT_ONCE = 1_000


def missing() -> str | None:
    """Why it cannot be measured: it always can."""
    return None


@asynccontextmanager
async def _monque(url: str) -> AsyncIterator[Monque]:
    async with AsyncMongoClient[dict[str, Any]](url, tz_aware=True) as client:
        yield Monque(client.get_default_database()[COLLECTION], 2, "bench")


def fill(url: str, jobs: int) -> None:
    """Its indexes and so many waiting jobs."""
    run(_fill(url, jobs))


async def _fill(url: str, jobs: int) -> None:
    async with _monque(url) as monque:
        await monque.create_indexes()
        for first in range(0, jobs, AT_ONCE):
            await monque.enqueue_many([monque.document(NAME) for _ in range(min(AT_ONCE, jobs - first))])


def drain(url: str, jobs: int, tasks: int) -> Ran:
    """So many tasks run all jobs."""
    return run(_drain(url, jobs, tasks))


async def _drain(url: str, jobs: int, tasks: int) -> Ran:
    async with draining(url, MONQUE, jobs) as clock, _monque(url) as monque:

        async def work() -> None:
            while (job := await monque.claim(NAME)) is not None:
                clock.run()
                await monque.complete(job)

        await asyncio.gather(*(work() for _ in range(tasks)))
        return await clock.settled()


def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    return run(_enqueue(url, callers, jobs, seconds))


async def _enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    async with _monque(url) as monque:
        return await drivers.one_by_one(lambda: monque.enqueue(monque.document(NAME)), callers, jobs, seconds)


def bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    """One caller hands so many jobs in with each call."""
    return run(_bulk(url, size, jobs, seconds))


async def _bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    async with _monque(url) as monque:
        return await drivers.bulk(
            lambda: monque.enqueue_many([monque.document(NAME) for _ in range(size)]), size, jobs, seconds
        )
