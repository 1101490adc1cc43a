"""A worker, or the port alone, against a file of waiting jobs."""

from __future__ import annotations

import asyncio
import secrets

from bench.figures import Ran
from bench.ours.noop import Noops, noops
from bench.stopwatch import Stopwatch, metering
from jobmill.core.lifecycle import DEFAULT_POLICY, Succeeded, settle
from jobmill.core.values import Broken, Claim, Exchanged, Settlement
from jobmill.store import Store
from jobmill.worker.worker import Worker


def drain(url: str, slots: int, jobs: int, seconds: float, fill_first: bool = False) -> Ran:
    """One worker runs so many no-op jobs, each settled when the clock stops."""
    return asyncio.run(_drain(url, slots, jobs, seconds, fill_first))


async def _drain(url: str, slots: int, jobs: int, seconds: float, fill_first: bool) -> Ran:
    async with noops(url, jobs) as ours:
        if fill_first:
            await ours.fill(jobs)
        return await _work(ours, slots, seconds)


async def _work(ours: Noops, slots: int, seconds: float) -> Ran:
    worker = Worker(ours.client, concurrency=slots)
    watch = Stopwatch()
    await worker.start()
    try:
        await ours.wait(seconds)
    finally:
        await worker.stop()
    return watch.ran(ours.ran)


def exchange(url: str, batch: int, jobs: int, seconds: float) -> Ran:
    """The port's hot verb without a worker: settle what the last call claimed, and claim as many."""
    return asyncio.run(exchanging(url, batch, jobs, seconds))


async def exchanging(url: str, batch: int, jobs: int, seconds: float) -> Ran:
    """The same, on a loop that runs."""
    async with noops(url) as ours:
        store = ours.client.store
        answer = await store.exchange([], _claim(batch))
        done = 0
        with metering() as watch:
            while answer.claimed and done < jobs and watch.seconds < seconds:
                settlements = _settlements(store, answer)
                answer = await store.exchange(settlements, _claim(batch))
                done += len(settlements)
            ran = watch.ran(done)
        await store.exchange(_settlements(store, answer), None)
        return ran


def _claim(batch: int) -> Claim:
    return Claim(
        queues=("default",),
        names={"noop": batch},
        n=batch,
        lease_ms=15_000,
        worker="bench",
        token=secrets.token_hex(16),
    )


def _settlements(store: Store, answer: Exchanged) -> list[Settlement]:
    now_ms = store.now()
    return [
        settle(claimed, Succeeded(), DEFAULT_POLICY, now_ms)
        for claimed in answer.claimed
        if not isinstance(claimed, Broken)
    ]
