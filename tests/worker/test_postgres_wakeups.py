"""How many exchanges a trickle of single jobs costs idle workers on PostgreSQL."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

import jobmill
from jobmill.core.values import Claim, Exchanged, Settlement
from jobmill.stores.postgres import PostgresStore
from tests.helpers import until

pytestmark = [pytest.mark.slow, pytest.mark.stores("postgres")]

JOBS = 10
#: A worker sleeps if it has not asked the store for this time. It asks every 5 s anyway.
QUIET_S = 0.1


class CountingStore(PostgresStore):
    """Counts exchanges."""

    exchanges = 0
    last = 0.0

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        self.exchanges += 1
        try:
            return await super().exchange(settlements, claim)
        finally:
            self.last = time.monotonic()

    @property
    def is_noted(self) -> bool:
        """Whether its worker is notified of jobs."""
        return bool(self.context.loops.here().notifications.noted_until)


@pytest.mark.parametrize(("workers", "limit"), [(1, 3.5), (4, 6.5)])
async def test_a_trickle_of_single_jobs_costs_few_exchanges(postgres_url: str, workers: int, limit: float) -> None:
    stores, ran = [CountingStore(postgres_url) for _ in range(workers)], asyncio.Event()
    await stores[0].migrate()

    async def run() -> None:
        ran.set()

    async with AsyncExitStack() as stack:
        for store in stores:
            client = jobmill.Client(store)
            client.handler(name="single")(run)
            await stack.enter_async_context(client)
            await stack.enter_async_context(jobmill.Worker(client, concurrency=50))
        producer = await stack.enter_async_context(jobmill.connect(postgres_url))

        async def one() -> None:
            """A job, until all workers sleep again."""
            ran.clear()
            await producer.enqueue("single")
            await ran.wait()
            await until(lambda: time.monotonic() - max(store.last for store in stores) > QUIET_S)

        await until(lambda: all(store.is_noted for store in stores))
        await one()
        before = sum(store.exchanges for store in stores)
        for _ in range(JOBS):
            await one()
        assert (sum(store.exchanges for store in stores) - before) / JOBS <= limit


async def test_more_jobs_than_one_exchanger_has_slots_for_run_at_once(postgres_url: str) -> None:
    """The second exchanger claims as soon as the first one is full."""
    jobs = jobmill.connect(postgres_url)
    await jobs.store.migrate()
    running, release = 0, asyncio.Event()

    @jobs.handler
    async def hold() -> None:
        nonlocal running
        running += 1
        await release.wait()

    async with jobs, jobmill.Worker(jobs, concurrency=10):
        for _ in range(10):  # one by one: no claim is full until the first exchanger has no free slot
            await hold.enqueue()
        await until(lambda: running == 10, 4)
        release.set()
