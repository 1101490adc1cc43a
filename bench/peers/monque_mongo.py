"""Monque's own queries on Monque's own indexes, in a loop and by its scheduler; Monque itself cannot be installed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from pymongo import AsyncMongoClient

from bench import callers as drivers
from bench.child import ready
from bench.figures import Ran
from bench.holding import forever, held
from bench.loop import run
from bench.mongo.draining import MONQUE, draining
from bench.peers.about import About
from bench.pickups import Pickups, Starts, one_after_the_other
from tests.interop.monque.monque import Document, Monque
from tests.interop.monque.peer import Peer as Scheduler

ABOUT = About(
    name="find and modify",
    package=None,
    settings="Monque's queries and indexes (its second generation), sent by pymongo's async client from as many tasks "
    "as there are slots, on uvloop, in one process; each claims one job by find-and-modify, runs it and completes it "
    "by an update, without Monque's timers; pickup, idle memory and recovery: Monque's scheduler with its defaults, "
    "which looks each second, and 100 ms after the last of several changes in a row",
    guarantee="repeated: a process that starts takes up what has been locked for 30 minutes",
    tried="told by its source; nobody waited for it",
    docs="https://github.com/ueberBrot/monque",
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


def drain(url: str, jobs: int, slots: int) -> Ran:
    """As many tasks run all jobs."""
    return run(_drain(url, jobs, slots))


async def _drain(url: str, jobs: int, slots: int) -> Ran:
    async with draining(url, MONQUE, jobs) as clock, _monque(url) as monque:

        async def work() -> None:
            while (job := await monque.claim(NAME)) is not None:
                clock.run()
                await monque.complete(job)

        await asyncio.gather(*(work() for _ in range(slots)))
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


class _Process(Scheduler):
    """A process of Monque with all defaults, whose handler is ours."""

    def __init__(self, monque: Monque, handler: Callable[[Document], Awaitable[None]]) -> None:
        super().__init__(monque)
        self._handler = handler

    async def _run(self, job: Document) -> None:
        await self._handler(job)
        await self.monque.complete(job)


@asynccontextmanager
async def _working(
    url: str, name: str, slots: int, handler: Callable[[Document], Awaitable[None]]
) -> AsyncIterator[None]:
    async with _monque(url) as monque:
        process = _Process(monque, handler)
        await process.initialize()
        await process.start(slots, [name])
        ready()
        yield
        await process.stop()


def pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    return run(_pickup_work(url, jobs, seconds, slots))


async def _pickup_work(url: str, jobs: int, seconds: float, slots: int) -> list[int]:
    starts = Starts(jobs)

    async def pick(job: Document) -> None:
        starts.start(job["data"]["number"])

    async with _working(url, "pick", slots, pick):
        await starts.wait(seconds)
    return starts.at


def pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    return run(_pickup_enqueue(url, jobs, seed))


async def _pickup_enqueue(url: str, jobs: int, seed: int) -> Pickups:
    async with _monque(url) as monque:
        return await one_after_the_other(
            lambda number: monque.enqueue(monque.document("pick", {"number": number})), jobs, seed
        )


def hold(url: str) -> None:
    """One job for `work`."""
    run(_hold(url))


async def _hold(url: str) -> None:
    async with _monque(url) as monque:
        await monque.enqueue(monque.document("hold"))


def work(url: str, slots: int, path: str) -> None:
    """A process until it is killed."""
    run(_work(url, slots, path))


async def _work(url: str, slots: int, path: str) -> None:
    async with _working(url, "hold", slots, lambda _: held(path)):
        await forever()
