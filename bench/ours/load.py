"""How soon a worker starts jobs that another process enqueues all the time, at a rate that it can well keep up with."""

from __future__ import annotations

import asyncio
import time

from bench.child import READY, halt
from bench.loop import run
from bench.ours.pickup import opened
from bench.pickups import Pickups

#: Between two calls, at least.
TICK_S = 0.001


def enqueue(url: str, jobs: int, rate: float) -> Pickups:
    """So many a second: each call hands in what came due since the last one, and a job counts from when it came due.

    A call for each job would take more of the machine than the worker does, and that is measured elsewhere.
    """
    return run(_enqueue(url, jobs, rate))


async def _enqueue(url: str, jobs: int, rate: float) -> Pickups:
    async with opened(url, jobs) as (client, _, pick):
        halt(READY)
        began, begun = time.time_ns(), 0
        told = Pickups(called=[began + int(number / rate * 1e9) for number in range(jobs)])
        while begun < jobs:
            due = min(jobs, int((time.time_ns() - began) / 1e9 * rate) + 1)
            await client.enqueue_many([pick.draft(number) for number in range(begun, due)])
            told.returned += [time.time_ns()] * (due - begun)
            begun = due
            await asyncio.sleep(TICK_S)
    return told
