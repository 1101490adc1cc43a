"""A client on every store, by a clock that only tests move."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import jobmill
from jobmill import Client
from jobmill.store import Store
from jobmill.testing import ManualClock
from tests.stores_under_test import make_store


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(store_url: str, clock: ManualClock) -> Store:
    """Not yet opened: the client does that."""
    return make_store(store_url, clock)


@pytest.fixture
async def jobs(store: Store) -> AsyncIterator[Client]:
    async with jobmill.connect(store=store) as client:
        yield client
