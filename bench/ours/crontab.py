"""Jobmill's side of the crontab's measures, on the loop that `jobmill crontab` takes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection

from bench.draining import Draining
from bench.figures import Ran
from bench.loop import run
from bench.peers.about import About
from jobmill.crontab import Crontab, CrontabJob, MongoCrontab

ABOUT = About(
    name="jobmill's crontab",
    package="jobmill",
    settings="one Crontab on MongoDB, async no-op handler, uvloop (as `jobmill crontab`) unless it says asyncio; "
    "pymongo's AsyncMongoClient and write concern as they come",
    guarantee="kept: another worker takes them when their lock has ended",
)
COLLECTION = "jobs"

Collection = AsyncCollection[dict[str, Any]]


@asynccontextmanager
async def _collection(url: str) -> AsyncIterator[Collection]:
    async with AsyncMongoClient[dict[str, Any]](url) as client:
        yield client.get_default_database()[COLLECTION]


def fill(url: str, jobs: int, due: bool = True) -> None:
    """So many documents that are due, or due in a day or later; with the sparse index that both sides' docs ask for."""
    run(_fill(url, jobs, due))


async def _fill(url: str, jobs: int, due: bool) -> None:
    first = datetime.now(UTC) + (timedelta(hours=-1) if due else timedelta(days=1))
    async with _collection(url) as collection:
        await MongoCrontab(collection).migrate()
        documents = [{"sleepUntil": first + timedelta(milliseconds=n), "name": f"job {n}"} for n in range(jobs)]
        await collection.insert_many(documents, ordered=False)


def drain(url: str, jobs: int, concurrency: int) -> Ran:
    """One crontab runs all documents."""
    return run(_drain(url, jobs, concurrency))


def drain_on_asyncio(url: str, jobs: int, concurrency: int) -> Ran:
    """The same, on asyncio's own loop."""
    return asyncio.run(_drain(url, jobs, concurrency))


async def _drain(url: str, jobs: int, concurrency: int) -> Ran:
    async with _collection(url) as looking, _collection(url) as collection:

        async def is_left() -> bool:
            return await looking.find_one({"sleepUntil": {"$type": "date"}}) is not None

        await is_left()
        clock = Draining(is_left, jobs)

        async def noop(_: CrontabJob) -> None:
            clock.run()

        async with Crontab(MongoCrontab(collection), on_document=noop, concurrency=concurrency, idle_delay=0.1):
            return await clock.settled()


def poll(url: str, polls: int, many: bool) -> float:
    """What a poll that finds nothing costs, in milliseconds of the server's time."""
    return run(_poll(url, polls, many))


async def _poll(url: str, polls: int, many: bool) -> float:
    async with _collection(url) as collection:
        store = MongoCrontab(collection)
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=10)
        await store.lock_next(until)
        before = await _spent_us(collection)
        for _ in range(polls):
            found = await store.lock_many(until, 100) if many else await store.lock_next(until)
            assert not found
        return (await _spent_us(collection) - before) / polls / 1_000


async def _spent_us(collection: Collection) -> float:
    """How long the server was at work for this collection so far."""
    top = await collection.database.client.admin.command("top")
    return float(top["totals"][collection.full_name]["total"]["time"])
