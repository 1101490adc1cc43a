"""Racers: functions that run at the same time in several threads or processes, and how they are started."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from msgspec import Struct

from jobmill.core.values import Filter
from jobmill.store import Store
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import QUEUE, new, readable, second, succeed, turns, wish

T = TypeVar("T")
Racer = Callable[[Store, int], Awaitable[T]]

RACERS = 4
# Longer than any race, also by the real clock of other processes.
LEASE_MS = 3_600_000


class Drained(Struct):
    """The jobs that one racer claimed, and the answers to its settlements."""

    claimed: list[str] = []
    settled: list[str] = []
    #: The maximum number of running jobs that it saw in the queue, including its own.
    max_running: int = 0


async def drain(store: Store, number: int) -> Drained:
    """Claim and settle until no job waits."""
    seen = Drained([], [])
    batch = readable([])
    for _ in turns(100_000):
        settlements = [succeed(one, number) for one in batch]
        exchanged = await store.exchange(settlements, wish(5, lease_ms=LEASE_MS, worker=f"racer-{number}"))
        seen.settled += map(str, exchanged.settled)
        batch = readable(exchanged.claimed)
        seen.claimed += [one.job.id for one in batch]
        counts = {one.state: one.count for one in await store.count(Filter(queue=QUEUE))}
        seen.max_running = max(seen.max_running, counts.get("running", 0))
        if not batch and not counts.get("waiting", 0):
            break
    return seen


async def claim_what_there_is(store: Store, number: int) -> list[str]:
    """Claim until a claim returns no job."""
    ids: list[str] = []
    for _ in turns():
        claimed = (await store.exchange([], wish(3, lease_ms=LEASE_MS, worker=f"racer-{number}"))).claimed
        if not claimed:
            break
        ids += [one.lease.id for one in claimed]
    return ids


async def enqueue_keys(store: Store, number: int) -> list[str]:
    """Enqueue a job for each of 30 unique keys, one call each. Returns the statuses."""
    return [(await store.enqueue([new(f"racer-{number}-{key}", key=f"key-{key}")]))[0].status for key in range(30)]


async def enqueue_ids(store: Store, number: int) -> list[str]:
    """Enqueue 30 jobs whose ids all racers use. Returns the statuses."""
    return [(await store.enqueue([new(f"same-{id}", payload=number)]))[0].status for id in range(30)]


async def in_threads(harness: Harness, racer: Racer[T]) -> list[T]:
    """Start racers in threads at the same moment, each with its own event loop and connection."""
    start = threading.Barrier(RACERS, timeout=30)

    async def race(number: int) -> T:
        async with second(harness) as store:
            start.wait()
            return await racer(store, number)

    return await asyncio.gather(*[asyncio.to_thread(asyncio.run, race(number)) for number in range(RACERS)])


async def in_processes(pool: ProcessPoolExecutor, opener: Callable[[], Store], racer: Racer[T]) -> list[T]:
    """Start racers in other processes, each with its own connection."""
    loop = asyncio.get_running_loop()
    # Processes start slowly; the race begins when all of them run.
    await asyncio.gather(*[loop.run_in_executor(pool, _start_process) for _ in range(RACERS)])
    return await asyncio.gather(*[loop.run_in_executor(pool, _race, opener, racer, number) for number in range(RACERS)])


def _start_process() -> None:
    """Does nothing, but makes the pool start a process."""


def _race(opener: Callable[[], Store], racer: Racer[T], number: int) -> T:
    async def race() -> T:
        store = opener()
        await store.open()
        try:
            return await racer(store, number)
        finally:
            await store.close()

    return asyncio.run(race())
