"""All faults, one after the other and at random: in the end every job was done, under the last of its claims."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from tests.faults.load import working
from tests.faults.operations import FaultyServer, Operation
from tests.faults.parameters import on_each_store

pytestmark = [pytest.mark.slow, pytest.mark.extended]

FOR_S = 20.0

#: How long a fault lasts: some longer than the lease.
LONGEST_S = 1.5

WORKERS = 3


class Storm:
    """Faults of the server, and workers that are killed, in an order that follows from a seed."""

    def __init__(self, server: FaultyServer, seed: int) -> None:
        self._server = server
        self._random = random.Random(seed)
        self.done: list[str] = []

    async def rage(self, seconds: float) -> None:
        """Until the time is over. Then no fault is left, and workers run."""
        faults: list[Operation | None] = [None, *sorted(self._server.faults)]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            fault = self._random.choice(faults)
            self.done.append(fault or "kill a worker")
            if fault is None:
                self.replace_workers()
            else:
                async with self._server.faults[fault]():
                    await asyncio.sleep(self._random.uniform(0.1, LONGEST_S))
            await asyncio.sleep(self._random.uniform(0, 0.6))
        self.replace_workers()

    def replace_workers(self) -> None:
        """Kill a worker, and start as many as are missing: some ended because the server was away at their start."""
        workers = self._server.workers
        if running := workers.running():
            victim = self._random.choice(running)
            victim.kill()
            victim.wait(10)
        for _ in range(WORKERS - len(workers.running())):
            workers.worker("--concurrency", "20")


@on_each_store
async def test_every_job_ends_once_in_a_storm(server: FaultyServer) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown when it fails
    storm = Storm(server, seed)
    async with working(server.workers) as load:
        async with load.enqueued():
            await storm.rage(FOR_S)
            await load.resumes()
        await load.check()
    assert await server.duplicates() == []
    assert "Traceback" not in "".join(map(server.workers.output, server.workers.processes))
    assert load.claimed_again
    print(len(load.acknowledged), load.claimed_again, len(load.refused), storm.done)
