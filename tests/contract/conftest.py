"""How each of our stores is made for the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from jobmill.testing.contract import Harness
from tests import stores_under_test


@pytest.fixture
async def harness(
    store_name: str, postgres_name: str, redis_name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[Harness]:
    """The store under test, opened and empty."""
    if store_name == "postgres":
        from tests.contract.postgres_harness import PostgresHarness

        servers = request.getfixturevalue("postgres_servers")
        harness: Harness = PostgresHarness(await stores_under_test.emptied_postgres(servers, postgres_name))
    elif store_name == "redis":
        from tests.contract.redis_harness import RedisHarness

        harness = RedisHarness(request.getfixturevalue("redis_url"))
    elif store_name == "mongo":
        from tests.contract.mongo_harness import MongoHarness

        harness = MongoHarness(await stores_under_test.emptied_mongo(request.getfixturevalue("mongo_in_turn")))
    else:
        harness = make(store_name, tmp_path)
    await harness.store.open()
    yield harness
    await harness.store.close()


def make(store_name: str, folder: Path) -> Harness:
    """A harness; its driver is imported only when its store is under test."""
    match store_name:
        case "memory":
            from tests.contract.memory_harness import MemoryHarness

            return MemoryHarness()
        case "sqlite":
            from tests.contract.sqlite_harness import SqliteHarness

            return SqliteHarness(stores_under_test.copied_sqlite(folder / "jobs.db"))
    raise ValueError(f"no harness for the store {store_name}")
