"""The memory store for the contract."""

from __future__ import annotations

from msgspec import Raw

from jobmill.store import Store
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock


class MemoryHarness:
    """Everything is in one object."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store: Store = MemoryStore(clock=self.clock)

    async def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)

    async def another(self) -> Store:
        return self.store

    async def corrupt(self, id: str) -> None:
        assert isinstance(self.store, MemoryStore)
        jobs = self.store._context.jobs
        jobs.write(jobs.by_id[id], payload_json=Raw(b"{garbage"))
