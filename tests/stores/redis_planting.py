"""Jobs planted by hand in a queue of Redis, as programs write them that nobody checked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis

import jobmill
from jobmill import Client, Enqueued
from jobmill.stores.redis.read import SETS
from jobmill.worker.worker import Worker
from tests.helpers import until

#: What Node writes of a job without options.
HASH = {
    "name": "work",
    "data": "{}",
    "opts": '{"attempts":0}',
    "timestamp": 1_700_000_000_000,
    "delay": 0,
    "priority": 0,
}

LISTS = ("active", "wait", "paused")


class Field:
    """One queue, seen from below."""

    def __init__(self, raw: redis.Redis, prefix: str, queue: str = "default") -> None:
        self.raw: Any = raw
        self.Q = f"{prefix}:{queue}"

    def key(self, id: str | bytes) -> bytes:
        """Of a job."""
        return f"{self.Q}:".encode() + (id.encode() if isinstance(id, str) else id)

    def plant(self, id: str | bytes, place: str = "wait", /, **fields: Any) -> None:
        """A job of Node's, but for the fields given; those that are None are left out."""
        self.raw.hset(self.key(id), mapping={k: v for k, v in {**HASH, **fields}.items() if v is not None})
        self.put(id, place)

    def put(self, id: str | bytes, place: str = "wait", score: float = 4_096) -> None:
        """An id into a place, and nothing else."""
        if place in LISTS:
            self.raw.lpush(f"{self.Q}:{place}", id)
        else:
            self.raw.zadd(f"{self.Q}:{place}", {id: score})

    def places(self) -> dict[bytes, list[str]]:
        """Where each id stands."""
        found: dict[bytes, list[str]] = {}
        for place in SETS:
            read = self.raw.lrange if place in LISTS else self.raw.zrange
            for id in read(f"{self.Q}:{place}", 0, -1):
                found.setdefault(id, []).append(place)
        return found

    def failures(self) -> dict[str, str]:
        """Why jobs have failed."""
        ids = self.raw.zrange(f"{self.Q}:failed", 0, -1)
        why = {id.decode(errors="replace"): self.raw.hget(self.key(id), "failedReason") for id in ids}
        return {id: (said or b"").decode() for id, said in why.items()}


class Works:
    """A client with two handlers, and what has run."""

    def __init__(self, url: str) -> None:
        self.jobs = jobmill.connect(url)
        self.runs: Counter[str] = Counter()

        @self.jobs.handler(name="work")
        async def work(context: jobmill.Context) -> int:
            self.runs[context.job.id] += 1
            return 1

        @self.jobs.handler(name="good")
        async def good(n: int) -> int:
            return n

    async def good(self, n: int) -> Enqueued[Any]:
        """A job that nothing is wrong with."""
        return await self.jobs.enqueue("good", {"n": n})


@asynccontextmanager
async def works(url: str) -> AsyncIterator[Works]:
    """Open, closed at the end of the block."""
    made = Works(url)
    try:
        await made.jobs.open()
        yield made
    finally:
        await made.jobs.close()


@asynccontextmanager
async def working(jobs: Client, slots: int = 5) -> AsyncIterator[Worker]:
    """A worker whose leases are short."""
    async with asyncio.timeout(60), Worker(jobs, concurrency=slots, lease="1s") as worker:
        yield worker


def given_back(log: pytest.LogCaptureFixture) -> dict[str, str]:
    """The jobs that a worker has left to Node, and why; it said so once for each."""
    records = [record for record in log.records if " is left to other programs: " in record.getMessage()]
    found = {str(vars(record)["job_id"]): record.getMessage().partition(": ")[2] for record in records}
    assert len(found) == len(records)
    return {id.partition(":")[2]: why for id, why in found.items()}


async def ends(
    field: Field,
    ids: Mapping[str, Any] | set[str] | list[str],
    within: float = 15.0,
    log: pytest.LogCaptureFixture | None = None,
) -> None:
    """Until each of these ids is final or, where the log is passed, was given back."""
    wanted = {id.encode() for id in ids}

    def all_final() -> bool:
        places = field.places()
        left = wanted - ({id.encode() for id in given_back(log)} if log else set())
        return all(places.get(id) in (["completed"], ["failed"]) for id in left)

    try:
        await until(all_final, within)
    except AssertionError:
        left = {id: where for id, where in field.places().items() if where not in (["completed"], ["failed"])}
        raise AssertionError(f"not final: {left}, gone: {wanted - set(field.places())}") from None
