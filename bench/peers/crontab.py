"""In the child: Jobmill's crontab on a MongoDB collection, which mongodb-cron can share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import uvloop
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection

from bench.clocks import Draining, Ran, looking
from bench.queues import About
from jobmill.crontab import Crontab, CrontabJob, MongoCrontab

ABOUT = About(
    name="jobmill's crontab",
    settings="one Crontab on MongoDB, async no-op handler, uvloop (as `jobmill crontab`), pymongo's AsyncMongoClient "
    "and its default write concern",
    guarantee="kept: another worker takes them when their lock has ended",
)
COLLECTION = "jobs"
LEFT = (COLLECTION, {"": {"sleepUntil": {"$type": "date"}}})

Collection = AsyncCollection[dict[str, Any]]


@asynccontextmanager
async def _collection(url: str) -> AsyncIterator[Collection]:
    async with AsyncMongoClient[dict[str, Any]](url) as client:
        yield client.get_default_database()[COLLECTION]


def fill(url: str, jobs: int, due: bool = True) -> None:
    """Documents that are due, or due in a day or later; with the sparse index that both sides' docs ask for."""

    async def fill() -> None:
        first = datetime.now(UTC) + (timedelta(hours=-1) if due else timedelta(days=1))
        async with _collection(url) as collection:
            await MongoCrontab(collection).migrate()
            documents = [{"sleepUntil": first + timedelta(milliseconds=n), "name": f"job {n}"} for n in range(jobs)]
            await collection.insert_many(documents, ordered=False)

    uvloop.run(fill())


def drain(url: str, jobs: int, slots: int) -> Ran:
    """One crontab runs all documents."""
    clock = Draining(looking(url, LEFT), jobs)

    async def noop(_: CrontabJob) -> None:
        clock.run()

    async def work() -> Ran:
        async with (
            _collection(url) as collection,
            Crontab(MongoCrontab(collection), on_document=noop, concurrency=slots, idle_delay=0.1),
        ):
            return await asyncio.to_thread(clock.settled)

    return uvloop.run(work())


def poll(url: str, polls: int) -> float:
    """What a poll that finds nothing costs, in milliseconds of the server's time."""

    async def spent_us(collection: Collection) -> float:
        top = await collection.database.client.admin.command("top")
        return float(top["totals"][collection.full_name]["total"]["time"])

    async def poll() -> float:
        async with _collection(url) as collection:
            store = MongoCrontab(collection)
            until = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=10)
            await store.lock_next(until)
            before = await spent_us(collection)
            for _ in range(polls):
                assert not await store.lock_many(until, 100)
            return (await spent_us(collection) - before) / polls / 1_000

    return uvloop.run(poll())
