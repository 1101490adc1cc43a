"""Jobmill's side of the measures on MongoDB, on the loop that `jobmill worker` takes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pymongo import MongoClient

from bench.figures import Ran
from bench.loop import run
from bench.mongo.draining import OURS, draining
from bench.ours import drain as draining_port
from bench.ours import enqueue as enqueueing
from bench.ours import pickup
from bench.ours.noop import noops
from bench.pickups import Pickups
from jobmill.client import connect
from jobmill.stores.mongo.indexes import models
from jobmill.stores.mongo.places import Place
from jobmill.worker.worker import Worker

DAY = timedelta(days=1)


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
    """So many jobs, of which some are due only tomorrow, and the indexes: a million in seconds.

    The server makes them itself, as copies of one that was enqueued; a zero-padded number makes an id.
    """
    fill(url, 1)
    place = Place.read(url)
    with MongoClient[dict[str, Any]](place.address) as client:
        database = client[place.database]
        one = database[place.collection].find_one_and_delete({})
        assert one is not None
        database[place.collection].drop()
        number = {"$substrCP": [{"$toString": {"$add": ["$n", 10**12]}}, 1, 12]}
        id = {"$toObjectId": {"$concat": [str(one["_id"])[:12], number]}}
        due = {"$cond": [{"$lt": ["$n", delayed]}, one["nextRunAt"] + DAY, one["nextRunAt"]]}
        copy = {name: {"$literal": value} for name, value in one.items()} | {"_id": id, "nextRunAt": due}
        numbers = {"$map": {"input": {"$range": [0, 1_000]}, "in": {"$add": ["$n", "$$this"]}}}
        total = waiting + delayed
        database.aggregate(
            [
                {"$documents": [{"n": first} for first in range(0, total, 1_000)]},
                {"$project": {"n": numbers}},
                {"$unwind": "$n"},
                {"$match": {"n": {"$lt": total}}},
                {"$replaceWith": copy},
                {"$out": place.collection},
            ]
        )
        # Not by `migrate`: many indexes of a million jobs take longer than a call of the store may.
        database[place.collection].create_indexes(models(place.indexes))


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


def drain_on_asyncio(url: str, jobs: int, slots: int) -> Ran:
    """The same, on asyncio's own loop."""
    return asyncio.run(_drain(url, OURS, jobs, slots))


def drain_some(url: str, jobs: int, slots: int) -> Ran:
    """One worker runs so many jobs of more."""
    return run(_drain(url, None, jobs, slots))


async def _drain(url: str, left: Mapping[str, dict[str, Any]] | None, jobs: int, slots: int) -> Ran:
    client = connect(url)
    async with draining(url, left, jobs) as clock, client:

        @client.handler()
        async def noop() -> None:
            clock.run()

        async with Worker(client, slots=slots):
            return await clock.settled()


def exchange(url: str, batch: int, jobs: int, seconds: float) -> Ran:
    """The port's hot verb without a worker."""
    return run(draining_port.exchanging(url, batch, jobs, seconds))


def enqueue(url: str, callers: int, jobs: int, seconds: float) -> Ran:
    """Each caller enqueues one job, awaits the answer, and enqueues the next."""
    return run(enqueueing.singly(url, callers, jobs, seconds))


def bulk(url: str, size: int, jobs: int, seconds: float) -> Ran:
    """One caller hands so many jobs in with each call."""
    return run(enqueueing.in_bulk(url, size, jobs, seconds))


def pickup_work(url: str, jobs: int, seconds: float) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    return run(pickup.working(url, jobs, seconds))


def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    return run(pickup.enqueueing(url, jobs, seed))
