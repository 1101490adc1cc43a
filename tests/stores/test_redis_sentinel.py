"""The client of the Redis store and the server that sentinels name."""

from __future__ import annotations

import asyncio
import contextlib

import pytest
import redis

from jobmill.errors import StoreUnavailable
from jobmill.stores.redis.connection.client import RedisClient
from jobmill.stores.redis.scripts import Script
from jobmill.stores.redis.wake import wait_for_work, worker_name
from tests.helpers import until
from tests.kit.redis_groups import SERVICE, RedisSentinel
from tests.stores.redis_clients import clients, connected, opened

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]

COUNT = Script("return redis.call('INCR', KEYS[1])")


async def retried(client: RedisClient) -> int:
    async def once() -> int | None:
        try:
            answer: int = await client.run(COUNT, "n", [])
        except StoreUnavailable:
            return None
        return answer

    answer: int = await until(once, 30)
    return answer


async def test_the_primary_is_found_and_found_again(redis_sentinel: RedisSentinel) -> None:
    first = redis_sentinel.primary()
    async with opened(redis_sentinel.url(prefix="t")) as context:
        client, name = context.client, worker_name("t", "mail", "")
        assert await client.run(COUNT, "n", []) == 1
        assert first.ask("GET", "n") == b"1"
        waiting = asyncio.create_task(wait_for_work(context, ("mail",), context.clock.now() + 30_000))
        await until(lambda: f"name={name} ".encode() in first.ask("CLIENT", "LIST"))
        first.ask("WAIT", 1, 5_000)
        first.kill()
        with pytest.raises(StoreUnavailable):
            await client.run(COUNT, "n", [])
        await asyncio.to_thread(redis_sentinel.await_failover, first)
        assert await retried(client) == 2
        second = redis_sentinel.primary()
        assert second is not first
        assert second.ask("GET", "n") == b"2"
        await waiting  # it was woken when its connection broke
        waiting = asyncio.create_task(wait_for_work(context, ("mail",), context.clock.now() + 30_000))
        await until(lambda: f"name={name} ".encode() in second.ask("CLIENT", "LIST"), 10)
        assert len(await clients(client, "t:jobmill")) == len(await clients(client, name)) == 1
        waiting.cancel()


async def test_a_failover_that_somebody_asked_for(redis_sentinel: RedisSentinel) -> None:
    first = redis_sentinel.primary()
    async with connected(redis_sentinel.url()) as client:
        assert await client.run(COUNT, "n", []) == 1
        first.ask("WAIT", 1, 5_000)
        await until(lambda: _is_begun(redis_sentinel))
        await asyncio.to_thread(redis_sentinel.await_failover, first)
        # The sentinel does this as well, but only 10 to 20 s later.
        first.ask("REPLICAOF", "127.0.0.1", redis_sentinel.primary().port)
        # Nobody tells us but the server that we are connected to: it takes no more writes.
        with pytest.raises(StoreUnavailable, match="READONLY"):
            await client.run(COUNT, "n", [])
        assert await retried(client) == 2
        assert redis_sentinel.primary().ask("GET", "n") == b"2"


def _is_begun(group: RedisSentinel) -> bool:
    """A sentinel refuses until it has heard of the replica a second time."""
    with contextlib.suppress(redis.ResponseError):
        return bool(group.sentinels[0].ask("SENTINEL", "FAILOVER", SERVICE))
    return False


async def test_no_sentinel_knows(redis_sentinel: RedisSentinel) -> None:
    unknown = redis_sentinel.url().replace(f"/{SERVICE}/", "/other/")
    async with connected(unknown) as client:
        with pytest.raises(StoreUnavailable, match="the sentinels of .*/other/0 know of no primary that works"):
            await client.call("a", "PING")
    for sentinel in redis_sentinel.sentinels:
        sentinel.kill()
    async with connected(redis_sentinel.url()) as client:
        with pytest.raises(StoreUnavailable, match="know of no primary that works"):
            await client.call("a", "PING")
