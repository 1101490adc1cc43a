"""Lanes on MongoDB follow the rules of the core: the memory store takes the same steps, in one step each."""

from __future__ import annotations

import pytest

from jobmill.stores.memory import MemoryStore
from tests.stores.lane_twins import take_the_same_steps
from tests.stores.mongo_scene import Scene

pytestmark = [pytest.mark.stores("mongo"), pytest.mark.slow]


@pytest.mark.parametrize("seed", range(7))
async def test_mongo_does_as_the_core(mongo_url: str, seed: int) -> None:
    scene = Scene(mongo_url)
    await scene.open()
    await take_the_same_steps(scene.store, MemoryStore(clock=scene.clock), scene.clock, seed)
    await scene.store.close()
