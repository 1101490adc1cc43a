"""`fsck` on Redis: damage in the keys of lanes is planted on a real server, found, and repaired."""

from __future__ import annotations

import time

import pytest

from jobmill.core.changes import Hold
from jobmill.core.values import after
from jobmill.stores.redis import RedisStore
from jobmill.testing.contract.lanes import laned, rule, run
from jobmill.testing.contract.support import QUEUE, claim, claim_ids, claim_one, new, put, settle, succeed
from tests.stores.redis_planting import Field
from tests.stores.test_redis_fsck import damage, is_repaired
from tests.stores.test_redis_fsck import field as field
from tests.stores.test_redis_fsck import store as store

pytestmark = pytest.mark.stores("redis")


async def put_three(store: RedisStore) -> None:
    await rule(store, 1)
    await put(store, *[laned(id) for id in ("first", "second", "third")], laned("late", due=after(60_000)), new("free"))


async def test_lanes_without_damage(store: RedisStore, field: Field) -> None:
    await put_three(store)
    await store.change(["third"], Hold())
    assert await damage(store) == {}
    claimed = await claim(store)
    assert await damage(store) == {}
    await settle(store, *map(succeed, claimed))
    assert await damage(store) == {}


async def test_lane_slot(store: RedisStore, field: Field) -> None:
    await put_three(store)
    (member,) = field.raw.zrange(f"{field.Q}:jobmill:lanes:slots", 0, -1)
    claimed = [one for one in await claim(store) if one.job.lane]
    assert await settle(store, *map(succeed, claimed)) == ["done"]
    second = await claim_one(store)
    field.raw.zadd(f"{field.Q}:jobmill:lanes:slots", {member: 0})
    assert await damage(store) == {}, "Node may have ended it a moment ago"
    field.raw.hset(field.key("first"), "finishedOn", int(time.time() * 1000) - 11_000)
    field.raw.hset(field.key("first"), "jmj", member[:38])
    await is_repaired(store, field, "lane_slot", f"{QUEUE}:first")
    assert await settle(store, succeed(second)) == ["done"]
    assert await claim_ids(store) == ["third"]


async def test_lane_order(store: RedisStore, field: Field) -> None:
    await put_three(store)
    field.raw.zrem(f"{field.Q}:waiting-children", "second")
    field.raw.delete(field.key("second"))
    await is_repaired(store, field, "lane_order", f"{QUEUE}:second")
    await run(store, "first", "free")
    await run(store, "third")


async def test_lane_lost(store: RedisStore, field: Field) -> None:
    await put_three(store)
    field.raw.delete(f"{field.Q}:jobmill:lane:a")
    await is_repaired(store, field, "lane_lost", *[f"{QUEUE}:{id}" for id in ("second", "third", "late")])
    for ids in (("first", "free"), ("second",), ("third",)):
        await run(store, *ids)
    (lane,) = await store.lanes(QUEUE)
    assert lane.later == 1


async def test_lane_index(store: RedisStore, field: Field) -> None:
    await put_three(store)
    field.raw.delete(f"{field.Q}:jobmill:lanes")
    assert await store.lanes(QUEUE) == []
    await is_repaired(store, field, "lane_index", f"{QUEUE}:a")
    assert [lane.name for lane in await store.lanes(QUEUE)] == ["a"]
