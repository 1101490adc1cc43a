"""The link of the Redis store to a cluster: each key on its node, slots that move, nodes that die."""

from __future__ import annotations

import asyncio

import pytest

from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.redis.connection import connect as connecting
from jobmill.stores.redis.connection import pipelined as line
from jobmill.stores.redis.connection.client import Link
from jobmill.stores.redis.connection.cluster import ClusterLines
from jobmill.stores.redis.script import Script
from jobmill.stores.redis.url import slot_of
from tests.helpers import until
from tests.servers.redis import RedisServer
from tests.servers.redis_groups import RedisCluster
from tests.stores.redis_links import clients, linked

pytestmark = pytest.mark.stores("redis")

COUNT = Script("return redis.call('INCR', KEYS[1])")


def key_on(cluster: RedisCluster, node: RedisServer) -> str:
    """A key that a node has."""
    return next(key for n in range(1_000) if cluster.primary_of(key := f"{{tag{n}}}:n") is node)


async def retried(link: Link, key: str) -> int:
    """What a worker does: it tries until the cluster is there again."""

    async def once() -> int | None:
        try:
            answer: int = await link.run(COUNT, key, [])
        except StoreUnavailable:
            return None
        return answer

    answer: int = await until(once, 30)
    return answer


async def test_each_key_is_on_its_node(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    async with linked(redis_cluster_url) as link:
        for node in redis_cluster.primaries():
            key = key_on(redis_cluster, node)
            assert await link.call(key, "SET", key, "1") == b"OK"
            assert await link.many(key, [("INCR", key), ("GET", key)]) == [2, b"2"]
            assert await link.run(COUNT, key, []) == 3
            assert node.ask("GET", key) == b"3"
        assert await link.everywhere("DBSIZE") == [1, 1, 1]


async def test_any_node_knows_the_others(redis_cluster: RedisCluster) -> None:
    node = redis_cluster.nodes[2]
    async with linked(f"redis+cluster://127.0.0.1:1,127.0.0.1:{node.port}?prefix={{t}}") as link:
        for primary in redis_cluster.primaries():
            key = key_on(redis_cluster, primary)
            assert await link.call(key, "EXISTS", key) == 0
        assert len(await clients(link, "{t}:jobmill")) == 3


async def test_many_callers_share_the_question_who_has_what(
    redis_cluster_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0
    ask = ClusterLines._ask_all

    async def counted(self: ClusterLines) -> None:
        nonlocal asked
        asked += 1
        await ask(self)

    monkeypatch.setattr(ClusterLines, "_ask_all", counted)
    async with linked(redis_cluster_url) as link:
        await asyncio.gather(*(link.call(f"k{n}", "EXISTS", f"k{n}") for n in range(200)))
        assert len(await link.everywhere("PING")) == 3
    assert asked == 1


async def test_keys_of_several_slots(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    async with linked(redis_cluster_url) as link:
        with pytest.raises(StoreError, match="its name or the prefix needs a hash tag, such as {mail}; .*CROSSSLOT"):
            await link.call("a", "MGET", "a", "b")


async def test_the_wrong_scheme_is_told(redis_cluster: RedisCluster, own_redis: RedisServer) -> None:
    first, second, _ = redis_cluster.primaries()
    async with linked(first.url()) as link:
        key = key_on(redis_cluster, second)
        with pytest.raises(StoreError, match=r"is a node of a cluster: write redis\+cluster://…; it said: MOVED"):
            await link.call(key, "GET", key)
        blocking = await link.blocking(key, "w")
        with pytest.raises(StoreError, match=r"write redis\+cluster://"):
            await blocking.pop(key, 1)
    async with linked(f"redis+cluster://127.0.0.1:{own_redis.port}") as link:
        with pytest.raises(StoreError, match="is no cluster: write redis://…; .*cluster support disabled"):
            await link.call("a", "GET", "a")


async def test_nobody_is_there() -> None:
    async with linked("redis+cluster://127.0.0.1:1,127.0.0.1:2") as link:
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await link.call("a", "GET", "a")
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await link.everywhere("PING")


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
    async with linked(redis_cluster_url) as link:
        assert await link.run(COUNT, key, []) == 1
        move.begin()
        assert await link.run(COUNT, key, []) == 2, "it is there still"
        move.carry()
        assert await link.run(COUNT, key, []) == 3, "the target must be asked; it does not know the script"
        assert await link.many(key, [("INCR", key), ("GET", key), ("INCR", key)]) == [4, b"4", 5]
        move.end()
        assert await link.run(COUNT, key, []) == 6
        assert await link.many(key, [("INCR", key), ("GET", key)]) == [7, b"7"]
        assert move.target.ask("GET", key) == b"7"


async def test_sleep_follows_a_slot_that_moves(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    key = "{moving}:marker"
    move = Move(redis_cluster, key)
    async with linked(redis_cluster_url) as link:
        blocking = await link.blocking(key, "sleeper")
        task = asyncio.create_task(blocking.pop(key, 30))
        await until(lambda: b"cmd=bzpopmin" in move.source.ask("CLIENT", "LIST"))
        move.begin()
        move.end()
        await until(lambda: b"cmd=bzpopmin" in move.target.ask("CLIENT", "LIST"))
        move.target.ask("ZADD", key, 0, "0")
        assert await task == (b"0", 0.0)
        assert b"name=sleeper" in move.target.ask("CLIENT", "LIST")
        await until(lambda: b"name=sleeper" not in move.source.ask("CLIENT", "LIST"))


# ---------------------------------------------------------------------------------------------------- nodes that die


@pytest.mark.slow
async def test_a_replica_takes_over(own_redis_cluster: RedisCluster) -> None:
    key = "{mail}:n"
    dead = own_redis_cluster.primary_of(key)
    other = key_on(own_redis_cluster, next(node for node in own_redis_cluster.primaries() if node is not dead))
    async with linked(own_redis_cluster.url()) as link:
        assert await link.run(COUNT, key, []) == 1
        assert await link.run(COUNT, other, []) == 1
        blocking = await link.blocking(key, "sleeper")
        task = asyncio.create_task(blocking.pop("{mail}:marker", 30))
        await until(lambda: b"cmd=bzpopmin" in dead.ask("CLIENT", "LIST"))
        dead.ask("WAIT", 1, 5_000)
        dead.kill()
        with pytest.raises(StoreUnavailable):
            await task
        with pytest.raises(StoreUnavailable):
            await link.run(COUNT, key, [])
        await asyncio.to_thread(own_redis_cluster.await_failover, dead)
        assert await retried(link, key) >= 2
        assert await retried(link, other) >= 2
        assert len(await link.everywhere("PING")) == 3
        assert await blocking.pop("{mail}:marker", 0.01) is None
        assert b"name=sleeper" in own_redis_cluster.primary_of(key).ask("CLIENT", "LIST")


@pytest.mark.slow
async def test_a_node_that_stands_still(own_redis_cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line, "CALL_SECONDS", 0.5)
    monkeypatch.setattr(connecting, "CONNECT_SECONDS", 0.5)
    key = "{mail}:n"
    paused = own_redis_cluster.primary_of(key)
    async with linked(own_redis_cluster.url()) as link:
        assert await link.run(COUNT, key, []) == 1
        paused.pause()
        assert await retried(link, key) == 2
        paused.resume()
        assert await retried(link, key) == 3
