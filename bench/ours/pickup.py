"""How soon an idle worker starts a job that was enqueued just now, in another process or in its own."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

from bench.child import ready
from bench.pickups import Pickups, gaps
from jobmill.client import connect
from jobmill.handlers import Handler
from jobmill.worker.worker import Worker

SLOTS = 50


class _Starts:
    """A client whose handler writes down when it started, by the number of the job."""

    def __init__(self, url: str, jobs: int) -> None:
        self.client = connect(url)
        self.at: list[int] = [0] * jobs
        self.all = asyncio.Event()
        left = jobs

        async def pick(number: int) -> None:
            nonlocal left
            self.at[number] = time.time_ns()
            left -= 1
            if not left:
                self.all.set()

        self.pick: Handler[[int], object] = self.client.handler()(pick)


def work(url: str, jobs: int, seconds: float) -> list[int]:
    """The worker's side: says that it is ready, and when it started each job."""
    return asyncio.run(_work(url, jobs, seconds))


async def _work(url: str, jobs: int, seconds: float) -> list[int]:
    starts = _Starts(url, jobs)
    async with starts.client, Worker(starts.client, slots=SLOTS):
        ready()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(starts.all.wait(), seconds)
    return starts.at


def enqueue(url: str, jobs: int, seed: int) -> Pickups:
    """The client's side: when each enqueue was called, and when it returned."""
    return asyncio.run(_enqueue(url, jobs, seed))


async def _enqueue(url: str, jobs: int, seed: int) -> Pickups:
    starts = _Starts(url, jobs)
    async with starts.client:
        return await _one_after_the_other(starts, jobs, seed)


async def _one_after_the_other(starts: _Starts, jobs: int, seed: int) -> Pickups:
    told = Pickups()
    for number, gap in enumerate(gaps(random.Random(seed), jobs)):
        await asyncio.sleep(gap)
        told.called.append(time.time_ns())
        await starts.pick.enqueue(number)
        told.returned.append(time.time_ns())
    return told


def here(url: str, jobs: int, seed: int, seconds: float) -> Pickups:
    """Client and worker in one process."""
    return asyncio.run(_here(url, jobs, seed, seconds))


async def _here(url: str, jobs: int, seed: int, seconds: float) -> Pickups:
    starts = _Starts(url, jobs)
    async with starts.client, Worker(starts.client, slots=SLOTS):
        told = await _one_after_the_other(starts, jobs, seed)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(starts.all.wait(), seconds)
    told.started.extend(starts.at)
    return told
