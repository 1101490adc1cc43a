"""A client on every store, by a clock that only tests move."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import jobmill
from jobmill import Client
from jobmill.store import Store
from jobmill.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(store_name: str, tmp_path: Path, clock: ManualClock) -> Store:
    """Not yet opened: the client does that."""
    match store_name:
        case "memory":
            from jobmill.stores.memory import MemoryStore

            return MemoryStore(clock=clock)
        case "sqlite":
            from jobmill.stores.sqlite import SqliteStore

            return SqliteStore(tmp_path / "jobs.db", clock=clock, synchronous="OFF")
    raise ValueError(f"no fixture for the store {store_name}")


@pytest.fixture
async def jobs(store: Store) -> AsyncIterator[Client]:
    async with jobmill.connect(store=store) as client:
        yield client
