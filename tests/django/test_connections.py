"""How many connections a worker of a Django project has: docs/deployment.md says how to count them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest

from jobmill.stores.postgres.url import POOL_SIZE
from tests.django.test_django import ROOT, database_settings
from tests.helpers import until
from tests.kit.postgres import connected
from tests.kit.processes import launched

CONCURRENCY = 3
#: What a store opens at most: its pool, one for leases, and one for notifications.
MAX_OWN = POOL_SIZE + 2
ENQUEUE = "from tests.django.shop import tasks\nfor _ in range(9): tasks.wait_for_lock.enqueue()"
COUNT = """
    SELECT count(*) FILTER (WHERE wait_event = 'advisory'), count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


@pytest.mark.slow
@pytest.mark.stores("postgres")
async def test_one_for_each_task_that_runs_and_a_few_of_jobmill(store_name: str, store_url: str) -> None:
    await asyncio.to_thread(django(store_url, "shell", "-c", ENQUEUE).wait, 60)
    async with connected(store_url) as connection:

        async def counted() -> tuple[int, int]:
            row = await connection.fetchrow(COUNT)
            assert row is not None
            return row[0], row[1]

        await connection.execute("SELECT pg_advisory_lock(42)")
        _, before = await counted()
        worker = django(store_url, "jobmill", "worker", "-c", str(CONCURRENCY))
        try:

            async def all_wait() -> bool:
                return (await counted())[0] == CONCURRENCY

            await until(all_wait, 60)
            _, now = await counted()
            assert 0 < now - before - CONCURRENCY <= MAX_OWN
        finally:
            await connection.execute("SELECT pg_advisory_unlock(42)")
            worker.terminate()
            assert await asyncio.to_thread(worker.wait, 60) == 0


def django(store_url: str, *arguments: str) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "JOBMILL_TEST_DJANGO": json.dumps(database_settings(store_url)),
        "DJANGO_SETTINGS_MODULE": "tests.django.settings",
    }
    command = launched(None, signal.SIGKILL, [sys.executable, "-m", "django", *arguments])
    return subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
