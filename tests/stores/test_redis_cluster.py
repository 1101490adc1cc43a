"""The client of the Redis store on a cluster: each key on its node, slots that move, nodes that die."""

from __future__ import annotations

import asyncio

import pytest

from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.redis.connection import connect, pipelined
from jobmill.stores.redis.connection.client import RedisClient
from jobmill.stores.redis.connection.cluster import ClusterConnections
from jobmill.stores.redis.scripts import Script
from jobmill.stores.redis.url import slot_of
from jobmill.stores.redis.wake import wait_for_work, worker_name
from tests.helpers import until
from tests.kit.redis import RedisServer
from tests.kit.redis_groups import RedisCluster
from tests.stores.redis_clients import clients, connected, everywhere, opened

pytestmark = pytest.mark.stores("redis")

COUNT = Script("return redis.call('INCR', KEYS[1])")


def key_on(cluster: RedisCluster, node: RedisServer) -> str:
    """A key that a node has."""
    return next(key for n in range(1_000) if cluster.primary_of(key := f"{{tag{n}}}:n") is node)


async def retried(client: RedisClient, key: str) -> int:
    """What a worker does: it tries until the cluster is there again."""

    async def once() -> int | None:
        try:
            answer: int = await client.run(COUNT, key, [])
        except StoreUnavailable:
            return None
        return answer

    answer: int = await until(once, 30)
    return answer


async def test_each_key_is_on_its_node(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    async with connected(redis_cluster_url) as client:
        for node in redis_cluster.primaries():
            key = key_on(redis_cluster, node)
            assert await client.call(key, "SET", key, "1") == b"OK"
            assert await client.many(key, [("INCR", key), ("GET", key)]) == [2, b"2"]
            assert await client.run(COUNT, key, []) == 3
            assert node.ask("GET", key) == b"3"
        assert await everywhere(client, "DBSIZE") == [1, 1, 1]


async def test_any_node_knows_the_others(redis_cluster: RedisCluster) -> None:
    node = redis_cluster.nodes[2]
    async with connected(f"redis+cluster://127.0.0.1:1,127.0.0.1:{node.port}?prefix={{t}}") as client:
        for primary in redis_cluster.primaries():
            key = key_on(redis_cluster, primary)
            assert await client.call(key, "EXISTS", key) == 0
        assert len(await clients(client, "{t}:jobmill")) == 3


async def test_many_callers_share_the_question_who_has_what(
    redis_cluster_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    ask = ClusterConnections._load_map

    async def counted(self: ClusterConnections) -> None:
        nonlocal asked
        asked += 1
        await ask(self)

    monkeypatch.setattr(ClusterConnections, "_load_map", counted)
    async with connected(redis_cluster_url) as client:
        await asyncio.gather(*(client.call(f"k{n}", "EXISTS", f"k{n}") for n in range(200)))
        assert len(await everywhere(client, "PING")) == 3
    assert asked == 1


async def test_keys_of_several_slots(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    async with connected(redis_cluster_url) as client:
        with pytest.raises(StoreError, match="its name or the prefix needs a hash tag, such as {mail}; .*CROSSSLOT"):
            await client.call("a", "MGET", "a", "b")


async def test_the_wrong_scheme_is_reported(redis_cluster: RedisCluster, own_redis: RedisServer) -> None:
    first, second, _ = redis_cluster.primaries()
    async with connected(first.url()) as client:
        key = key_on(redis_cluster, second)
        with pytest.raises(StoreError, match=r"is a node of a cluster: write redis\+cluster://…; it replied: MOVED"):
            await client.call(key, "GET", key)
    async with connected(f"redis+cluster://127.0.0.1:{own_redis.port}") as client:
        with pytest.raises(StoreError, match="is no cluster: write redis://…; .*cluster support disabled"):
            await client.call("a", "GET", "a")


async def test_nobody_is_there() -> None:
    async with connected("redis+cluster://127.0.0.1:1,127.0.0.1:2") as client:
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await client.call("a", "GET", "a")
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await everywhere(client, "PING")


# ---------------------------------------------------------------------------------------------------- moves


def node_id(node: RedisServer) -> str:
    answer: bytes = node.ask("CLUSTER", "MYID")
    return answer.decode()


class Move:
    """The slot of a key on its way from its node to another."""

    def __init__(self, cluster: RedisCluster, key: str) -> None:
        self.cluster, self.key, self.slot = cluster, key, slot_of(key)
        self.source = cluster.primary_of(key)
        self.target = next(node for node in cluster.primaries() if node is not self.source)

    def begin(self) -> None:
        self.target.ask("CLUSTER", "SETSLOT", self.slot, "IMPORTING", node_id(self.source))
        self.source.ask("CLUSTER", "SETSLOT", self.slot, "MIGRATING", node_id(self.target))

    def carry(self) -> None:
        self.source.ask("MIGRATE", "127.0.0.1", self.target.port, self.key, 0, 5_000)

    def end(self) -> None:
        for node in (self.target, self.source, *self.cluster.primaries()):
            node.ask("CLUSTER", "SETSLOT", self.slot, "NODE", node_id(self.target))


async def test_a_slot_moves(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    key = "{moving}:n"
    move = Move(redis_cluster, key)
    async with connected(redis_cluster_url) as client:
        assert await client.run(COUNT, key, []) == 1
        move.begin()
        assert await client.run(COUNT, key, []) == 2, "it is there still"
        move.carry()
        assert await client.run(COUNT, key, []) == 3, "the target must be asked; it does not know the script"
        assert await client.many(key, [("INCR", key), ("GET", key), ("INCR", key)]) == [4, b"4", 5]
        move.end()
        assert await client.run(COUNT, key, []) == 6
        assert await client.many(key, [("INCR", key), ("GET", key)]) == [7, b"7"]
        assert move.target.ask("GET", key) == b"7"


async def test_a_waiting_worker_follows_a_slot_that_moves(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    async with opened(redis_cluster_url) as context:
        name = worker_name(context.url.prefix, "{moving}", "").encode()
        key = f"{context.key('{moving}')}:marker"
        move = Move(redis_cluster, key)
        waiting = asyncio.create_task(wait_for_work(context, ("{moving}",), context.clock.now() + 30_000))
        await until(lambda: b"cmd=bzpopmin" in move.source.ask("CLIENT", "LIST"))
        move.begin()
        move.end()
        await until(lambda: b"cmd=bzpopmin" in move.target.ask("CLIENT", "LIST"))
        move.target.ask("ZADD", key, 0, "0")
        async with asyncio.timeout(20):
            await waiting
        assert b"name=" + name in move.target.ask("CLIENT", "LIST")
        await until(lambda: b"name=" + name not in move.source.ask("CLIENT", "LIST"))


# ---------------------------------------------------------------------------------------------------- nodes that die


@pytest.mark.slow
async def test_a_replica_takes_over(own_redis_cluster: RedisCluster) -> None:
    key = "{mail}:n"
    dead = own_redis_cluster.primary_of(key)
    other = key_on(own_redis_cluster, next(node for node in own_redis_cluster.primaries() if node is not dead))
    async with opened(own_redis_cluster.url()) as context:
        client, name = context.client, worker_name(context.url.prefix, "{mail}", "").encode()
        assert await client.run(COUNT, key, []) == 1
        assert await client.run(COUNT, other, []) == 1
        waiting = asyncio.create_task(wait_for_work(context, ("{mail}",), context.clock.now() + 30_000))
        await until(lambda: b"cmd=bzpopmin" in dead.ask("CLIENT", "LIST"))
        dead.ask("WAIT", 1, 5_000)
        dead.kill()
        await waiting  # it wakes, and its next exchange says what is wrong
        with pytest.raises(StoreUnavailable):
            await client.run(COUNT, key, [])
        await asyncio.to_thread(own_redis_cluster.await_failover, dead)
        assert await retried(client, key) >= 2
        assert await retried(client, other) >= 2
        assert len(await everywhere(client, "PING")) == 3
        waiting = asyncio.create_task(wait_for_work(context, ("{mail}",), context.clock.now() + 30_000))
        await until(lambda: b"name=" + name in own_redis_cluster.primary_of(key).ask("CLIENT", "LIST"))
        waiting.cancel()


@pytest.mark.slow
async def test_a_node_that_stands_still(own_redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelined, "CALL_SECONDS", 1.5)
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 1.5)
    key = "{mail}:n"
    paused = own_redis_cluster.primary_of(key)
    async with connected(own_redis_cluster.url()) as client:
        assert await client.run(COUNT, key, []) == 1
        paused.pause()
        assert await retried(client, key) == 2
        paused.resume()
        assert await retried(client, key) == 3
