"""Storms over a Redis store: workers work, somebody enqueues, and in the end every id stands in one place."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import jobmill
from jobmill.stores.redis.connection.client import RedisClient
from jobmill.stores.redis.read import SETS
from jobmill.stores.redis.url import RedisUrl
from tests.e2e.conftest import Place
from tests.e2e.storms import Storm

#: Workers here have a lease of 1 s.
LONGER_THAN_THE_LEASE_S = 2.5

LISTS = ("active", "wait", "paused")


@asynccontextmanager
async def storm(path: Path, url: str, workers: int = 2) -> AsyncIterator[Storm]:
    """A store with workers that work, and somebody who enqueues. At the end all is well."""
    async with workplace(path, url, workers) as (made, place):
        async with made.raging():
            yield made
        await made.all_is_well()
        assert await stands_twice(place.url) == []


@asynccontextmanager
async def workplace(path: Path, url: str, workers: int = 2) -> AsyncIterator[tuple[Storm, Place]]:
    """A store with workers that have started; and a storm that nobody has called up yet."""
    place = Place(path, url)
    try:
        for _ in range(workers):
            place.worker("--concurrency", "20")
        async with jobmill.connect(url) as jobs:
            made = Storm(jobs, place)
            await made.was_said("concurrency 20")
            yield made, place
    finally:
        place.end()


async def stands_twice(url: str, queue: str = "default") -> list[str]:
    """The ids that are in two places of a queue, or twice in one: two final states, say."""
    return [id for id, count in (await standing(url, queue)).items() if count > 1]


async def standing(url: str, queue: str = "default", which: Callable[[str], bool] = bool) -> Counter[str]:
    """How often each id stands in the places of a queue."""
    client = RedisClient(RedisUrl.read(url))
    found: Counter[str] = Counter()
    try:
        for place in filter(which, SETS):
            key = f"{client.url.prefix}:{queue}:{place}"
            ids = await client.call(key, "LRANGE" if place in LISTS else "ZRANGE", key, 0, -1)
            found.update(id.decode() for id in ids)
    finally:
        await client.close()
    return found
