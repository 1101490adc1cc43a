"""The rules of lanes in Lua are those of the core: the memory store, which asks the core, takes the same steps."""

from __future__ import annotations

import pytest

from jobmill.stores.memory import MemoryStore
from jobmill.stores.redis import RedisStore
from jobmill.testing import ManualClock
from tests.stores.lane_twins import take_the_same_steps

pytestmark = pytest.mark.stores("redis")


@pytest.mark.parametrize("seed", range(10))
async def test_lua_decides_as_the_core(redis_url: str, seed: int) -> None:
    clock = ManualClock()
    ours = RedisStore(redis_url, clock=clock)
    await ours.open()
    await take_the_same_steps(ours, MemoryStore(clock=clock), clock, seed)
    await ours.close()
