"""In the child: the clock of a drain on MongoDB, where two queries tell whether any job is left."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from pymongo import AsyncMongoClient, MongoClient

from bench.draining import Draining
from jobmill.stores.mongo.url import MongoUrl

#: By the index that finds it, what a job matches that waits or runs: of ours, and of Monque's.
OURS: Mapping[str, dict[str, Any]] = {
    "jobmill_claim": {"status": "pending"},
    "jobmill_lease": {"status": "processing"},
}
MONQUE: Mapping[str, dict[str, Any]] = {"status_1_nextRunAt_1": {"status": {"$in": ["pending", "processing"]}}}


@asynccontextmanager
async def draining(url: str, left: Mapping[str, dict[str, Any]] | None, jobs: int) -> AsyncIterator[Draining]:
    """The clock of so many jobs; without `left` it stops in the last handler."""
    place = MongoUrl.read(url)
    async with AsyncMongoClient[dict[str, Any]](place.driver_url) as client:
        documents = client[place.database][place.collection]

        async def is_left() -> bool:
            for index, query in (left or {}).items():
                if await documents.find_one(query, {"_id": 1}, hint=index) is not None:
                    return True
            return False

        await is_left()
        yield Draining(is_left if left else None, jobs)


@contextmanager
def looking(url: str) -> Iterator[Callable[[], bool]]:
    """The same question about jobs of ours, for somebody without an event loop."""
    place = MongoUrl.read(url)
    with MongoClient[dict[str, Any]](place.driver_url) as client:
        documents = client[place.database][place.collection]
        yield lambda: any(documents.find_one(query, {"_id": 1}, hint=index) for index, query in OURS.items())
