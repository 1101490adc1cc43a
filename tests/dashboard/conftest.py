"""A store with a clock of its own, a dashboard of it, and a visitor."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

import jobmill
from jobmill import Client, Dashboard
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock
from tests.dashboard.visitor import Visitor


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def jobs(clock: ManualClock) -> AsyncIterator[Client]:
    async with jobmill.connect(store=MemoryStore(clock=clock)) as client:
        yield client


@pytest.fixture
async def dashboard(jobs: Client) -> AsyncIterator[Dashboard]:
    made = Dashboard(jobs, title="shop")
    yield made
    await made.close()


@pytest.fixture
def visitor(dashboard: Dashboard) -> Visitor:
    return Visitor(dashboard)
