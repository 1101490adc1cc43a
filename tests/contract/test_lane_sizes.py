"""Lanes at full size: a flood in one lane, and a job in each of a thousand others."""

from __future__ import annotations

import math

import pytest

from jobmill.core.values import Settlement
from jobmill.testing.contract import Harness
from jobmill.testing.contract.lanes import laned, rule
from jobmill.testing.contract.support import put, readable, settle, succeed, wish

pytestmark = [pytest.mark.extended, pytest.mark.slow]

LIMIT = 2
#: MongoDB takes long to insert more.
FLOOD = {"mongo": 100_000}
JOBS, OTHERS, AT_ONCE = 300_000, 1_000, 10_000


async def test_a_flood_in_one_lane_delays_no_other(harness: Harness, store_name: str) -> None:
    """The others have begun after ceil(lanes / n) + 2 claims of n jobs each, whatever is in the flooded lane.

    The time moves between the claims: a job that gets its slot later is due later.
    """
    store = harness.store
    await rule(store, LIMIT)
    for _ in range(0, FLOOD.get(store_name, JOBS), AT_ONCE):
        await put(store, *[laned(lane="hot") for _ in range(AT_ONCE)])
    for n in (10, 50, 100):
        await harness.advance(1)
        await put(store, *[laned(f"{n}-{number}", f"lane-{number}") for number in range(OTHERS)])
        waiting = {f"{n}-{number}" for number in range(OTHERS)}
        done: list[Settlement] = []
        claims = 0
        while waiting:
            claims += 1
            assert claims <= math.ceil((OTHERS + 1) / n) + 2, f"{len(waiting)} have not begun"
            exchanged = await store.exchange(done, wish(n))
            claimed = readable(exchanged.claimed)
            waiting -= {one.job.id for one in claimed}
            done = [succeed(one) for one in claimed]
            if store_name != "redis":  # where this reads all keys, and the order does not depend on it
                await harness.advance(0.001)
        assert await settle(store, *done) == ["done"] * len(done)
        print(f"{claims} claims of {n} jobs")
