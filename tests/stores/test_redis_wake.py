"""Workers that wait at a marker: no marker is lost, and a dead connection is not taken for a quiet queue."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

from jobmill.stores.redis import wake
from jobmill.stores.redis.connection import pipelined
from jobmill.stores.redis.context import RedisContext
from jobmill.stores.redis.wake import wait_for_work, watch_of, worker_name
from tests.helpers import until
from tests.kit.places import free_port, port_of
from tests.kit.proxy import Proxy
from tests.kit.redis import RedisServer
from tests.stores.redis_clients import clients, opened, own

pytestmark = pytest.mark.stores("redis")

QUEUE = "mail"
#: On a busy machine; a wait that nobody ends takes 60 s.
SOON_S = 5.0


@pytest.fixture
async def proxy(local_redis_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(port_of(local_redis_url)) as proxy:
        yield proxy


@pytest.fixture
async def proxied(proxy: Proxy, local_redis_url: str) -> AsyncIterator[RedisContext]:
    async with opened(proxy.url(local_redis_url)) as context:
        await context.client.call("x", "PING")
        yield context


@pytest.fixture
async def direct(local_redis_url: str) -> AsyncIterator[RedisContext]:
    async with opened(local_redis_url) as context:
        yield context


def name_of(context: RedisContext) -> str:
    return worker_name(context.url.prefix, QUEUE, "")


def waits(context: RedisContext, seconds: float = 60.0) -> asyncio.Task[None]:
    return asyncio.create_task(wait_for_work(context, (QUEUE,), context.clock.now() + round(seconds * 1000)))


async def marker(context: RedisContext, *command: str | int) -> bytes | int | None:
    """One command at the marker: `marker(context, "ZCARD")`."""
    key = f"{context.key(QUEUE)}:marker"
    answer: bytes | int | None = await context.client.call(key, str(command[0]), key, *command[1:])
    return answer


async def blocked(context: RedisContext) -> None:
    """Until the server has blocked the worker's connection."""

    async def is_blocked() -> bool:
        found = await clients(context.client, name_of(context))
        return [("b" in one["flags"], one["cmd"]) for one in found] == [(True, "bzpopmin")]

    await until(is_blocked, 10)


async def unblocked(context: RedisContext) -> None:
    """Until the worker's connection is there and not blocked."""

    async def is_unblocked() -> bool:
        found = await clients(context.client, name_of(context))
        return bool(found) and all("b" not in one["flags"] for one in found)

    await until(is_unblocked, 10)


async def ends(waiting: asyncio.Task[None]) -> None:
    async with asyncio.timeout(SOON_S):
        await waiting


# ---------------------------------------------------------------------------------------------------- waking


async def test_a_marker_ends_the_wait(redis_url: str, redis_name: str) -> None:
    async with opened(redis_url) as context:
        for _ in range(3):
            waiting = waits(context)
            await blocked(context)
            await marker(context, "ZADD", 0, "0")
            await ends(waiting)
            assert await marker(context, "ZCARD") == 0
        began = time.monotonic()
        waiting = waits(context, 0.3)
        await ends(waiting)
        assert time.monotonic() - began >= 0.29


async def test_the_marker_of_a_delayed_job_ends_the_wait_when_the_job_is_due(redis_url: str) -> None:
    async with opened(redis_url) as context:
        waiting = waits(context)
        await blocked(context)
        due_ms = context.clock.now() + 500
        await marker(context, "ZADD", due_ms, "1")
        await ends(waiting)
        assert context.clock.now() >= due_ms
        # An earlier marker is not missed meanwhile.
        waiting = waits(context)
        await blocked(context)
        await marker(context, "ZADD", context.clock.now() + 60_000, "1")
        await until(lambda: watch_of(context, QUEUE)._due_ms is not None)
        await marker(context, "ZADD", 0, "0")
        await ends(waiting)


def test_a_pop_ends_before_the_deadline_of_a_call() -> None:
    assert wake.POP_SECONDS < pipelined.CALL_SECONDS


async def test_several_waiters_share_one_connection(redis_url: str) -> None:
    async with opened(redis_url) as context:
        waiting = [waits(context) for _ in range(5)]
        await blocked(context)
        waiting[0].cancel()
        await asyncio.sleep(0.05)
        await blocked(context)  # one connection, for those that are left
        await marker(context, "ZADD", 0, "0")
        for one in waiting[1:]:
            await ends(one)


# ---------------------------------------------------------------------------------------------------- giving up


async def test_a_cancelled_wait_is_ended_at_the_server(redis_url: str, redis_name: str) -> None:
    async with opened(redis_url) as context:
        await context.client.call("x", "PING")
        waiting = waits(context)
        await blocked(context)
        waiting.cancel()
        await unblocked(context)
        await marker(context, "ZADD", 0, "0")
        await ends(waits(context))


async def test_a_marker_that_arrives_while_the_wait_is_cancelled_goes_back(
    proxied: RedisContext, proxy: Proxy, direct: RedisContext
) -> None:
    waiting = waits(proxied)
    await blocked(direct)
    proxy.stall()
    await marker(direct, "ZADD", 7, "1")
    await unblocked(direct)
    assert await marker(direct, "ZCARD") == 0
    waiting.cancel()
    await asyncio.wait([waiting])
    proxy.go_on()
    assert await until(lambda: marker(direct, "ZSCORE", "1")) == b"7"
    await ends(waits(proxied))


async def test_a_marker_in_a_reply_that_has_arrived_goes_back(proxied: RedisContext, direct: RedisContext) -> None:
    """The reply is there, and before the waiting task continues somebody cancels it."""
    waiting = waits(proxied)
    await blocked(direct)
    popping = watch_of(proxied, QUEUE)._popping
    assert popping is not None
    popping.add_done_callback(lambda _: waiting.cancel())
    await marker(direct, "ZADD", 0, "0")
    await asyncio.wait([waiting])
    assert waiting.cancelled()
    assert await until(lambda: marker(direct, "ZSCORE", "0")) == b"0"


async def test_a_newer_marker_stays(proxied: RedisContext, proxy: Proxy, direct: RedisContext) -> None:
    waiting = waits(proxied)
    await blocked(direct)
    proxy.stall()
    await marker(direct, "ZADD", 7, "1")
    await unblocked(direct)
    await marker(direct, "ZADD", 5, "1")
    waiting.cancel()
    await asyncio.wait([waiting])
    proxy.go_on()
    watch = watch_of(proxied, QUEUE)
    await until(lambda: watch._putting_back is not None and watch._putting_back.done())
    assert watch._putting_back is not None
    assert watch._putting_back.result() == 0
    assert await marker(direct, "ZSCORE", "1") == b"5"


async def test_no_marker_is_lost_by_cancelling(redis_url: str) -> None:
    """Each ends a wait, or is still there; in whatever moment the wait is cancelled."""
    async with opened(redis_url) as context:
        await ends(waits(context, 0.05))
        for n in range(300):
            waiting = waits(context)
            adding = asyncio.create_task(marker(context, "ZADD", n, "1"))
            for _ in range(n % 12):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting, adding])
            if waiting.cancelled():
                await ends(waits(context))
        await until(lambda: watch_of(context, QUEUE)._popping is None)
        assert await marker(context, "ZCARD") == 0


async def test_closing_loses_no_marker(proxied: RedisContext, proxy: Proxy, direct: RedisContext) -> None:
    waiting = waits(proxied)
    await blocked(direct)
    proxy.stall()
    await marker(direct, "ZADD", 7, "1")
    await unblocked(direct)
    waiting.cancel()
    await asyncio.wait([waiting])
    closing = asyncio.create_task(proxied.client.close())
    await asyncio.sleep(0)
    proxy.go_on()
    await closing
    assert await marker(direct, "ZSCORE", "1") == b"7"


# ---------------------------------------------------------------------------------------------------- breaking


async def test_a_killed_connection_comes_back_under_its_name(redis_url: str) -> None:
    async with opened(redis_url) as context:
        waiting = waits(context)
        await blocked(context)
        (client,) = await clients(context.client, name_of(context))
        await context.client.call("x", "CLIENT", "KILL", "ID", client["id"])
        await ends(waiting)  # the worker's next exchange says what is wrong
        waiting = waits(context)
        await blocked(context)
        (again,) = await clients(context.client, name_of(context))
        assert again["id"] != client["id"]
        await marker(context, "ZADD", 0, "0")
        await ends(waiting)


@pytest.mark.slow
async def test_a_dead_connection_is_not_taken_for_a_quiet_queue(
    proxied: RedisContext, proxy: Proxy, direct: RedisContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wake, "POP_SECONDS", 0.2)
    monkeypatch.setattr(pipelined, "CALL_SECONDS", 0.4)
    waiting = waits(proxied)
    await blocked(direct)
    proxy.half_open()
    await ends(waiting)
    waiting = waits(proxied)
    await blocked(direct)
    await marker(direct, "ZADD", 0, "0")
    await ends(waiting)


async def test_a_server_that_becomes_a_replica_ends_the_wait(own_redis: RedisServer) -> None:
    async with opened(own(own_redis.url())) as context:
        waiting = waits(context)
        await blocked(context)
        own_redis.ask("REPLICAOF", "127.0.0.1", free_port())
        await ends(waiting)
        own_redis.ask("REPLICAOF", "NO", "ONE")
        waiting = waits(context)
        await blocked(context)
        await marker(context, "ZADD", 0, "0")
        await ends(waiting)


@pytest.mark.slow
async def test_a_server_that_is_restarted(own_redis: RedisServer) -> None:
    async with opened(own(own_redis.url())) as context:
        waiting = waits(context)
        await blocked(context)
        own_redis.kill()
        await ends(waiting)
        await ends(waits(context))  # it tells the worker each time, and tries again
        own_redis.start()
        waiting = waits(context)
        while waiting.done():
            waiting = waits(context)
        await until(lambda: _is_blocked_or_restarts(context, waiting), 10)
        await marker(context, "ZADD", 0, "0")
        await ends(waiting)


async def _is_blocked_or_restarts(context: RedisContext, waiting: asyncio.Task[None]) -> bool:
    assert not waiting.done()
    return any("b" in one["flags"] for one in await clients(context.client, name_of(context)))
