"""Lanes in the memory store: how many jobs one call gives slots."""

from __future__ import annotations

import pytest

from jobmill.core.queue_settings import LaneChange, RateLimit
from jobmill.core.values import QueueChange
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock
from jobmill.testing.contract.lanes import laned, rule, run
from jobmill.testing.contract.support import QUEUE, claim, put

pytestmark = pytest.mark.stores("memory")


async def test_a_lane_without_limits_releases_many_jobs_in_steps() -> None:
    store = MemoryStore()
    await rule(store, 1)
    await put(store, *[laned() for _ in range(2_500)])
    await store.configure(QUEUE, QueueChange(lanes=None))
    assert len(await claim(store, 5_000)) == 2_001
    assert len(await claim(store, 5_000)) == 499


async def test_a_purge_forgets_lanes_without_settings() -> None:
    clock = ManualClock()
    store = MemoryStore(clock=clock)
    await rule(store, rate=RateLimit(1, 1_000))
    await put(store, laned("a"), laned("b"))
    await store.configure_lane(QUEUE, "kept", LaneChange(running=3))
    await run(store, "a")
    clock.advance(1)
    await run(store, "b")
    await store.purge()
    assert {lane for _, lane in store._context.lanes} == {"a", "kept"}
    clock.advance(1)
    await store.purge()
    assert {lane for _, lane in store._context.lanes} == {"kept"}
