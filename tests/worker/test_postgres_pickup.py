"""How soon an idle worker in another process begins a job: the server notifies it, and it does not poll."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

import pytest

import jobmill
from jobmill.stores.postgres import PostgresStore
from tests.helpers import until
from tests.kit.measure import best_of
from tests.kit.postgres import connected
from tests.kit.workers import WorkerProcesses

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.stores("postgres")]


async def delays(jobs: jobmill.Client, count: int = 20) -> list[float]:
    """From the end of the enqueue to the begin of the run, in ms, each when the worker is idle again."""
    found: list[float] = []
    for _ in range(count):
        await asyncio.sleep(0.05)
        enqueued = await jobs.enqueue("stamped", {})
        acknowledged = time.time()
        began = await enqueued.result(timeout=20)
        found.append((began - acknowledged) * 1000)
    return sorted(found)


async def sleepers(url: str) -> int:
    async with connected(url) as connection:
        count: int = await connection.fetchval(
            "SELECT count(*) FROM jobmill.sleepers WHERE until_ms > jobmill.now_ms()"
        )
        return count


async def test_an_idle_worker_begins_at_once(tmp_path: Path, postgres_url: str) -> None:
    store = PostgresStore(postgres_url)
    await store.migrate()
    await store.close()
    workers = WorkerProcesses(tmp_path, postgres_url)
    try:
        workers.worker("--lease", "30s")
        await until(lambda: sleepers(postgres_url), 20)
        async with jobmill.connect(postgres_url) as jobs:
            await _is_quick(jobs)
            async with connected(postgres_url) as connection:
                ended = await connection.fetch(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE query LIKE 'LISTEN%' AND datname = current_database()"
                )
                # The worker's, and the one of this process, which has waited for results.
                assert len(ended) == 2

                async def listens() -> bool:
                    return bool(
                        await connection.fetchval(
                            "SELECT count(*) FROM pg_stat_activity "
                            "WHERE query LIKE 'LISTEN%' AND datname = current_database()"
                        )
                    )

                await until(listens)
            await jobs.enqueue("stamped", {})
            await _is_quick(jobs)
    finally:
        workers.end()


async def _is_quick(jobs: jobmill.Client) -> None:

    async def slowness() -> float:
        """How near the median comes to 5 ms, or the third from the end to 20 ms; 1 is too slow."""
        took = await delays(jobs)
        return max(statistics.median(took) / 5, took[-3] / 20)

    assert await best_of(slowness, below=1) < 1
