"""Hints on SQLite: jobs are queried only when others have committed, and no cancel is overlooked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from jobmill.core.changes import Cancel
from jobmill.core.values import Filter
from jobmill.stores.sqlite import SqliteStore
from jobmill.testing.contract.support import put_one, settle, started, succeed
from tests.helpers import until

pytestmark = pytest.mark.stores("sqlite")

FAR_MS = 600_000
SOON_S = 10.0


class Counted(SqliteStore):
    """Counts queries for leases."""

    queries = 0

    async def lease_ends(self, ids: Any) -> Any:
        self.queries += 1
        return await super().lease_ends(ids)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Counted]:
    store = Counted(tmp_path / "jobs.db")
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def other(store: Counted) -> AsyncIterator[SqliteStore]:
    other = SqliteStore(store.path)
    await other.open()
    yield other
    await other.close()


async def test_jobs_are_not_queried_while_nobody_else_commits(store: Counted, other: SqliteStore) -> None:
    claimed = await started(store)
    waiting = asyncio.create_task(store.wait_for_cancel({claimed.job.id}, store.now() + FAR_MS))
    await until(lambda: store.queries)
    await asyncio.sleep(0.2)
    quiet = store.queries
    for _ in range(5):
        await settle(store, succeed(await started(store)))
        await asyncio.sleep(0.06)
    assert store.queries == quiet
    await put_one(other)
    await until(lambda: store.queries > quiet)
    assert not waiting.done()
    await other.change([claimed.job.id], Cancel())
    async with asyncio.timeout(SOON_S):
        await waiting


async def test_a_job_that_is_cancelled_soon_after_its_start_is_found(store: Counted, other: SqliteStore) -> None:
    long = await started(store)
    for _ in range(5):
        ids = {long.job.id}
        waiting = asyncio.create_task(store.wait_for_cancel(ids, store.now() + FAR_MS))
        await asyncio.sleep(0.12)
        claimed = await started(store)
        ids.add(claimed.job.id)
        await other.change([claimed.job.id], Cancel())
        async with asyncio.timeout(SOON_S):
            await waiting


async def test_a_cancel_of_this_store_is_noticed(store: Counted) -> None:
    claimed = await started(store)
    waiting = asyncio.create_task(store.wait_for_cancel({claimed.job.id}, store.now() + FAR_MS))
    await until(lambda: store.queries)
    await asyncio.sleep(0.2)
    await store.change([claimed.job.id], Cancel())
    async with asyncio.timeout(SOON_S):
        await waiting


async def test_short_jobs_are_never_queried(store: Counted, other: SqliteStore) -> None:
    ids: set[str] = set()
    waiting = asyncio.create_task(store.wait_for_cancel(ids, store.now() + FAR_MS))
    for _ in range(20):
        claimed = await started(store)
        ids.add(claimed.job.id)
        await put_one(other)
        await asyncio.sleep(0.01)
        ids.clear()
        await settle(store, succeed(claimed))
        await other.change(Filter(states=("waiting",)), Cancel())
    assert store.queries == 0
    waiting.cancel()
