"""The golden comparison can fail: Node against Node is the same, and each kind of meddling shows."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

import pytest
from redis.asyncio import Redis

from jobmill.testing import ManualClock
from tests.interop.golden import by_job, differences, dump
from tests.interop.node_side import NodeSide
from tests.kit.node import NodeProcess

if TYPE_CHECKING:
    from tests.kit.redis import Rooms

pytestmark = pytest.mark.stores("redis")

Q = "bull:mail"
Meddling = Callable[[Redis, str], Awaitable[object]]


@pytest.fixture
async def sides(node_ops: NodeProcess, redis_server: Rooms) -> AsyncIterator[list[NodeSide]]:
    """Two places at which Node has done the same, under other prefixes."""
    clock = ManualClock(1_800_000_000_000)
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for _ in range(2):
            url = stack.enter_context(redis_server.database())
            redis = await stack.enter_async_context(Redis.from_url(url))
            side = NodeSide(node_ops, redis, url, f"t{uuid.uuid4().hex[:12]}", clock)
            await side.add("a")
            await side.add("b", delay=1_000)
            await side.add("c", priority=3)
            await side.add("d")
            await side.claim()
            await side.log("a", "a line")
            await side.flow({"name": "p", "queueName": "mail", "opts": {"jobId": "p"}, "children": [CHILD]})
            made.append(side)
        yield made
        for side in made:
            await node_ops.ask("forget", prefix=side.prefix)


CHILD = {"name": "child", "queueName": "mail", "opts": {"jobId": "child"}}

SHOWS: dict[str, tuple[Meddling, str]] = {
    "field": (lambda redis, q: redis.hset(f"{q}:a", "atm", 1), f"{Q}:a"),
    "missing field": (lambda redis, q: redis.hdel(f"{q}:a", "pb"), f"{Q}:a"),
    "opts": (lambda redis, q: redis.hset(f"{q}:d", "opts", "{}"), f"{Q}:d"),
    "due": (lambda redis, q: redis.zincrby(f"{q}:delayed", 4096, "b"), f"{Q}:delayed"),
    "sequence": (lambda redis, q: redis.zincrby(f"{q}:delayed", 1, "b"), f"{Q}:delayed"),
    "priority": (lambda redis, q: redis.zincrby(f"{q}:prioritized", 1, "c"), f"{Q}:prioritized"),
    "place": (lambda redis, q: redis.rpush(f"{q}:wait", "x"), f"{Q}:wait"),
    "marker": (lambda redis, q: redis.delete(f"{q}:marker"), f"{Q}:marker"),
    "lock": (lambda redis, q: redis.delete(f"{q}:a:lock"), f"{Q}:a:lock"),
    "token": (lambda redis, q: redis.set(f"{q}:a:lock", "x", keepttl=True), f"{Q}:a:lock"),
    "time to live": (lambda redis, q: redis.pexpire(f"{q}:a:lock", 90_000), f"{Q}:a:lock"),
    "no time to live": (lambda redis, q: redis.persist(f"{q}:a:lock"), f"{Q}:a:lock"),
    "log": (lambda redis, q: redis.rpush(f"{q}:a:logs", "x"), f"{Q}:a:logs"),
    "counter": (lambda redis, q: redis.incr(f"{q}:id"), f"{Q}:id"),
    "event": (lambda redis, q: redis.xadd(f"{q}:events", {"event": "drained"}), f"{Q}:events"),
    "dependency": (lambda redis, q: redis.sadd(f"{q}:p:dependencies", "x"), f"{Q}:p:dependencies"),
    "foreign key": (lambda redis, q: redis.set(f"{q}:stuff", "x"), f"{Q}:stuff"),
    "setting": (lambda redis, q: redis.hset(f"{q}:meta", "paused", 1), f"{Q}:meta"),
}

HIDDEN: dict[str, Meddling] = {
    "own field": lambda redis, q: redis.hset(f"{q}:a", "jmo", "{}"),
    "own key": lambda redis, q: redis.set(f"{q}:jobmill:stuff", "x"),
    "own setting": lambda redis, q: redis.hset(f"{q}:meta", "jmfeed", 1),
    "nodes version": lambda redis, q: redis.hset(f"{q}:meta", "version", "bullmq:7"),
    "own lock": lambda redis, q: redis.set(f"{q}:a:lock", "jm:token-1:1800000015000", keepttl=True),
}


async def found(sides: list[NodeSide]) -> dict[str, list[str]]:
    node, ours = [await dump(side.redis, side.prefix) for side in sides]
    return differences(node, ours)


async def test_node_is_like_node(sides: list[NodeSide]) -> None:
    assert await found(sides) == {}


@pytest.mark.parametrize("what", SHOWS)
async def test_what_differs_shows(sides: list[NodeSide], what: str) -> None:
    meddle, key = SHOWS[what]
    await meddle(sides[1].redis, f"{sides[1].prefix}:mail")
    assert list(await found(sides)) == [key]


@pytest.mark.parametrize("what", HIDDEN)
async def test_what_is_ours_alone_does_not(sides: list[NodeSide], what: str) -> None:
    await HIDDEN[what](sides[1].redis, f"{sides[1].prefix}:mail")
    assert await found(sides) == {}


async def test_events_in_the_order_of_each_job(sides: list[NodeSide]) -> None:
    for side, order in zip(sides, ("xy", "yx"), strict=True):
        for id in order:
            await side.redis.xadd(f"{side.prefix}:mail:events", {"event": "stalled", "jobId": id})
    assert list(await found(sides)) == [f"{Q}:events"]
    node, ours = [by_job(await dump(side.redis, side.prefix)) for side in sides]
    assert differences(node, ours) == {}
