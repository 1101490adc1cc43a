"""Connections that sleep at the server: no marker is lost, and no silence is taken for sleep."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest

from jobmill.errors import StoreUnavailable
from jobmill.stores.redis.connection import blocking as blocking_module
from jobmill.stores.redis.connection.blocking import Blocking
from jobmill.stores.redis.connection.client import Link
from tests.helpers import until
from tests.servers.places import free_port, port_of
from tests.servers.proxy import Proxy
from tests.servers.redis import RedisServer
from tests.stores.redis_links import clients, linked, own

pytestmark = pytest.mark.stores("redis")


@pytest.fixture
async def proxy(local_redis_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(port_of(local_redis_url)) as proxy:
        yield proxy


@pytest.fixture
async def proxied(proxy: Proxy, local_redis_url: str) -> AsyncIterator[Link]:
    async with linked(proxy.url(local_redis_url)) as link:
        yield link


@pytest.fixture
async def direct(local_redis_url: str) -> AsyncIterator[Link]:
    async with linked(local_redis_url) as link:
        yield link


def worker_name(link: Link) -> str:
    """As BullMQ names them."""
    return f"{link.place.prefix}:{base64.b64encode(b'mail').decode()}:w:one"


def marker(link: Link) -> str:
    return f"{link.place.prefix}:mail:marker"


async def asleep(link: Link) -> None:
    """Until the server has put the worker to sleep."""

    async def is_asleep() -> bool:
        found = await clients(link, worker_name(link))
        return [("b" in one["flags"], one["cmd"]) for one in found] == [(True, "bzpopmin")]

    await until(is_asleep)


async def awake(link: Link) -> None:
    """Until it sleeps no more."""

    async def is_awake() -> bool:
        return all("b" not in one["flags"] for one in await clients(link, worker_name(link)))

    await until(is_awake)


async def popping(link: Link, seconds: float = 30) -> tuple[Blocking, asyncio.Task[tuple[bytes, float] | None]]:
    """A worker that is asleep."""
    blocking = await link.blocking(marker(link), worker_name(link))
    task = asyncio.create_task(blocking.pop(marker(link), seconds))
    return blocking, task


# ---------------------------------------------------------------------------------------------------- popping


async def test_a_marker_wakes_it_or_it_sleeps_on_until_its_time(redis_url: str, redis_name: str) -> None:
    async with linked(redis_url) as link:
        blocking, task = await popping(link)
        await asleep(link)
        await link.call("x", "ZADD", marker(link), 1_700_000_000_123, "1")
        assert await task == (b"1", 1_700_000_000_123.0)
        assert await blocking.pop(marker(link), 0.01) is None
        assert await blocking.pop(marker(link), 0) is None, "zero is not for ever"
        await link.call("x", "ZADD", marker(link), 0, "0")
        assert await blocking.pop(marker(link), 5) == (b"0", 0.0)
        await blocking.close()
        await until(lambda: _gone(link))


async def _gone(link: Link) -> bool:
    return await clients(link, worker_name(link)) == []


async def test_it_can_sleep_for_longer_than_other_calls_may_take(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmill.stores.redis.connection.pipelined.CALL_SECONDS", 0.1)
    async with linked(redis_url) as link:
        blocking = await link.blocking(marker(link), worker_name(link))
        began = asyncio.get_running_loop().time()
        assert await blocking.pop(marker(link), 0.4) is None
        assert asyncio.get_running_loop().time() - began >= 0.4


# ---------------------------------------------------------------------------------------------------- giving up


async def test_a_cancelled_pop_is_ended_at_the_server(redis_url: str, redis_name: str) -> None:
    async with linked(redis_url) as link:
        blocking, task = await popping(link)
        await asleep(link)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        await awake(link)
        await link.call("x", "ZADD", marker(link), 0, "0")
        assert await blocking.pop(marker(link), 5) == (b"0", 0.0)


async def test_a_marker_that_comes_while_the_pop_is_cancelled_is_put_back(
    proxied: Link, proxy: Proxy, direct: Link
) -> None:
    blocking, task = await popping(proxied)
    await asleep(direct)
    proxy.stall()
    await direct.call("x", "ZADD", marker(direct), 7, "1")
    await awake(direct)
    assert await direct.call("x", "ZCARD", marker(direct)) == 0
    task.cancel()
    await asyncio.wait([task])
    proxy.go_on()
    assert await until(lambda: direct.call("x", "ZSCORE", marker(direct), "1")) == b"7"
    assert await blocking.pop(marker(proxied), 5) == (b"1", 7.0)


async def test_one_that_is_in_the_reply_already_is_put_back(proxied: Link, direct: Link) -> None:
    """The reply has come, and before its task goes on somebody cancels it."""
    _, task = await popping(proxied)
    await asleep(direct)
    future = next(iter(proxied._lines.here().blocking))._popping
    assert future is not None
    future.add_done_callback(lambda _: task.cancel())
    await direct.call("x", "ZADD", marker(direct), 0, "0")
    await asyncio.wait([task])
    assert task.cancelled()
    assert await until(lambda: direct.call("x", "ZSCORE", marker(direct), "0")) == b"0"


async def test_a_newer_marker_is_kept(proxied: Link, proxy: Proxy, direct: Link) -> None:
    blocking, task = await popping(proxied)
    await asleep(direct)
    proxy.stall()
    await direct.call("x", "ZADD", marker(direct), 7, "1")
    await awake(direct)
    await direct.call("x", "ZADD", marker(direct), 5, "1")
    task.cancel()
    await asyncio.wait([task])
    proxy.go_on()
    await until(lambda: blocking._putting_back is not None)
    assert blocking._putting_back is not None
    assert await blocking._putting_back == 0
    assert await direct.call("x", "ZSCORE", marker(direct), "1") == b"5"


async def test_a_timeout_of_the_caller_is_a_cancellation(redis_url: str) -> None:
    async with linked(redis_url) as link:
        blocking = await link.blocking(marker(link), worker_name(link))
        await link.call("x", "PING")
        for _ in range(50):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.001):
                    await blocking.pop(marker(link), 30)
        await awake(link)
        await link.call("x", "ZADD", marker(link), 0, "0")
        assert await blocking.pop(marker(link), 5) == (b"0", 0.0)


async def test_no_marker_is_lost_by_cancelling(redis_url: str) -> None:
    """Each is popped, or still there; whatever the moment in which the call is given up."""
    async with linked(redis_url) as link:
        blocking = await link.blocking(marker(link), worker_name(link))
        popped = 0
        for n in range(300):
            task = asyncio.create_task(blocking.pop(marker(link), 30))
            adding = asyncio.create_task(link.call("x", "ZADD", marker(link), n, "1"))
            for _ in range(n % 12):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task, adding])
            if not task.cancelled():
                popped += 1
                continue
            assert await blocking.pop(marker(link), 5) == (b"1", float(n))
        assert await link.call("x", "ZCARD", marker(link)) == 0
        assert await blocking.pop(marker(link), 0.01) is None


async def test_closing_does_not_lose_a_marker(proxied: Link, proxy: Proxy, direct: Link) -> None:
    blocking, task = await popping(proxied)
    await asleep(direct)
    proxy.stall()
    await direct.call("x", "ZADD", marker(direct), 7, "1")
    await awake(direct)
    task.cancel()
    await asyncio.wait([task])
    closing = asyncio.create_task(proxied.close())
    await asyncio.sleep(0)
    proxy.go_on()
    await closing
    assert blocking._putting_back is not None
    assert await blocking._putting_back == 1
    assert await direct.call("x", "ZSCORE", marker(direct), "1") == b"7"


# ---------------------------------------------------------------------------------------------------- breaking


async def test_a_killed_one_comes_back_under_its_name(redis_url: str) -> None:
    async with linked(redis_url) as link:
        blocking, task = await popping(link)
        await asleep(link)
        (client,) = await clients(link, worker_name(link))
        await link.call("x", "CLIENT", "KILL", "ID", client["id"])
        with pytest.raises(StoreUnavailable, match="closed the connection"):
            await task
        assert await blocking.pop(marker(link), 0.01) is None
        (again,) = await clients(link, worker_name(link))
        assert again["id"] != client["id"]


async def test_a_dead_connection_is_not_taken_for_sleep(
    proxied: Link, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_module, "GRACE_SECONDS", 0.2)
    blocking = await proxied.blocking(marker(proxied), worker_name(proxied))
    assert await blocking.pop(marker(proxied), 0.01) is None
    proxy.half_open()
    with pytest.raises(StoreUnavailable, match="did not answer within 0.3 s"):
        await blocking.pop(marker(proxied), 0.1)
    assert await blocking.pop(marker(proxied), 0.01) is None


async def test_a_short_sleep_after_a_long_one_is_watched_over_too(
    proxied: Link, proxy: Proxy, direct: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocking_module, "GRACE_SECONDS", 0.2)
    blocking, task = await popping(proxied, 60)
    await asleep(direct)
    await direct.call("x", "ZADD", marker(direct), 0, "0")
    await task
    proxy.half_open()
    began = asyncio.get_running_loop().time()
    with pytest.raises(StoreUnavailable, match="did not answer"):
        await blocking.pop(marker(proxied), 0.01)
    assert asyncio.get_running_loop().time() - began < 3


async def test_a_server_that_becomes_a_replica_ends_the_sleep(own_redis: RedisServer) -> None:
    async with linked(own(own_redis.url())) as link:
        blocking, task = await popping(link)
        await asleep(link)
        own_redis.ask("REPLICAOF", "127.0.0.1", free_port())
        with pytest.raises(StoreUnavailable, match="replica"):
            await task
        own_redis.ask("REPLICAOF", "NO", "ONE")
        assert await blocking.pop(marker(link), 0.01) is None


async def test_a_server_that_is_restarted(own_redis: RedisServer) -> None:
    async with linked(own(own_redis.url())) as link:
        blocking, task = await popping(link)
        await asleep(link)
        own_redis.kill()
        with pytest.raises(StoreUnavailable, match="closed the connection"):
            await task
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await blocking.pop(marker(link), 0.01)
        own_redis.start()
        task = asyncio.create_task(blocking.pop(marker(link), 30))
        await asleep(link)
        await link.call("x", "ZADD", marker(link), 0, "0")
        assert await task == (b"0", 0.0)
