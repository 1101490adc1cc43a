"""How each store of a crontab is made for the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.crontab.harness import CrontabHarness, MemoryHarness
from tests.stores_under_test import make_url

if TYPE_CHECKING:  # a driver is imported only when its store is under test
    from tests.crontab.harness_mongo import MongoHarness


@pytest.fixture
async def harness(store_name: str, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[CrontabHarness]:
    """The store under test, empty."""
    harness = await _make(store_name, tmp_path, request)
    yield harness
    await harness.close()


@pytest.fixture
async def mongo(mongo_url: str) -> AsyncIterator[MongoHarness]:
    """A new, empty collection."""
    from tests.crontab.harness_mongo import MongoHarness

    made = MongoHarness(mongo_url)
    yield made
    await made.close()


async def _make(store_name: str, folder: Path, request: pytest.FixtureRequest) -> CrontabHarness:
    """A harness; its driver is imported only when its store is under test."""
    match store_name:
        case "memory":
            return MemoryHarness()
        case "sqlite":
            from tests.crontab.harness_sqlite import SqliteHarness

            return SqliteHarness(folder / "jobs.db")
        case "postgres":
            from tests.crontab.harness_postgres import PostgresHarness

            return await PostgresHarness(await make_url(store_name, folder, request)).open()
        case "redis":
            from redis.asyncio import Redis

            from tests.crontab.harness_redis import RedisHarness

            url = await make_url(store_name, folder, request)
            return RedisHarness(url, Redis.from_url(url.partition("?")[0], decode_responses=True))
        case "mongo":
            from tests.crontab.harness_mongo import MongoHarness

            return MongoHarness(str(request.getfixturevalue("mongo_url")))
    raise ValueError(f"no harness for the store {store_name}")
