"""A worker that drains no-op jobs beside one CPU-bound sync handler."""

from __future__ import annotations

import asyncio
import contextlib
import time

from bench.busy import Beside, Spell
from bench.ours.noop import Noops, noops
from jobmill.worker.worker import Worker

SLOTS = 50
#: Shorter than usual, so that a few seconds see several heartbeats: one every half second.
LEASE = 1.5
SAMPLE_S = 0.02


def beside(url: str, busy_s: float, jobs: int) -> Beside:
    """How many jobs a second were run while the busy handler ran, and the latest heartbeat."""
    return asyncio.run(_beside(url, busy_s, jobs))


async def _beside(url: str, busy_s: float, jobs: int) -> Beside:
    async with noops(url, jobs) as ours:
        spell = Spell(busy_s, count=lambda: ours.ran)
        loop = asyncio.get_running_loop()
        over = asyncio.Event()

        @ours.client.handler()
        def busy() -> None:
            spell.run()
            loop.call_soon_threadsafe(over.set)

        worker = Worker(ours.client, concurrency=SLOTS, lease=LEASE)
        async with worker:
            sampling = asyncio.create_task(_sample(worker))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), busy_s + 30)
            latest = await _last(sampling)
        return spell.told(_exhausted(ours), latest)


def _exhausted(ours: Noops) -> float | None:
    return ours.last if ours.enough.is_set() else None


async def _sample(worker: Worker) -> float:
    latest = 0.0
    with contextlib.suppress(asyncio.CancelledError):
        while True:
            latest = max(latest, worker.heartbeat.latest_delay)
            await asyncio.sleep(SAMPLE_S)
    return latest


async def _last(sampling: asyncio.Task[float]) -> float:
    sampling.cancel()
    return await sampling


def alone(url: str, busy_s: float, jobs: int) -> Beside:
    """The same file and the same time without the busy handler."""
    return asyncio.run(_alone(url, busy_s, jobs))


async def _alone(url: str, busy_s: float, jobs: int) -> Beside:
    async with noops(url, jobs) as ours:
        async with Worker(ours.client, concurrency=SLOTS, lease=LEASE) as worker:
            began = time.perf_counter()
            sampling = asyncio.create_task(_sample(worker))
            await ours.wait(busy_s)
            ran, seconds = ours.ran, time.perf_counter() - began
            latest = await _last(sampling)
        return Beside(jobs=ran, seconds=seconds, heartbeat_delay_s=latest)
