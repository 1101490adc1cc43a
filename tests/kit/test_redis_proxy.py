"""What the proxy knows of Redis' protocol, shown with a real server and its driver; its other faults ask for none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from tests.helpers import until
from tests.kit.places import port_of
from tests.kit.proxy import Proxy
from tests.kit.respwire import Conversation

pytestmark = pytest.mark.stores("redis")


@asynccontextmanager
async def connected(port: int, protocol: int = 2) -> AsyncIterator[redis.asyncio.Redis]:
    """One connection, which tries nothing again."""
    never = Retry(NoBackoff(), 0)
    async with redis.asyncio.Redis(port=port, protocol=protocol, single_connection_client=True, retry=never) as client:
        yield client


@pytest.fixture
async def proxy(local_redis_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(port_of(local_redis_url)) as proxy:
        yield proxy


@pytest.mark.parametrize("protocol", [2, 3])
async def test_a_command_whose_answer_is_lost_has_happened(proxy: Proxy, own_key: str, protocol: int) -> None:
    async with connected(proxy.target_port) as direct:
        async with connected(proxy.port, protocol) as client:
            assert await client.incr(own_key) == 1
            proxy.drop_answer(lambda command: command.startswith(b"INCRBY " + own_key.encode()))
            with pytest.raises(redis.ConnectionError):
                await client.incr(own_key)
        assert (proxy.dropped_answers, proxy.cuts) == (1, 1)
        assert await direct.get(own_key) == b"2"
        async with connected(proxy.port, protocol) as client:  # only once
            assert await client.incr(own_key) == 3


async def test_a_long_answer_passes_and_a_later_one_is_lost(proxy: Proxy, own_key: str) -> None:
    async with connected(proxy.target_port) as direct, connected(proxy.port) as client:
        await client.rpush(own_key, *(b"x" * 1_000 for _ in range(2_000)))
        proxy.drop_answer(lambda command: command.startswith(b"EVAL") and b"now" in command)
        assert len(await client.lrange(own_key, 0, -1)) == 2_000
        script = "redis.call('DEL', KEYS[1]) return {1, {2, 'three'}, false}"
        with pytest.raises(redis.ConnectionError):
            await client.eval(script, 1, own_key, "now")
        assert not await direct.exists(own_key)


async def test_half_open_leaves_the_client_waiting(proxy: Proxy) -> None:
    async with connected(proxy.port) as client:
        await client.ping()
        proxy.half_open()
        asking = asyncio.ensure_future(client.ping())
        done, _ = await asyncio.wait((asking,), timeout=0.2)
        assert not done
        assert proxy.connections == 1
        proxy.cut()
        with pytest.raises(redis.ConnectionError):
            await asking
    await until(lambda: not proxy.connections)


@pytest.fixture
def own_key(local_redis_url: str) -> str:
    return local_redis_url.rpartition("=")[2] + ":key"


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 1_000])
def test_only_the_answer_of_its_own_command_is_swallowed(size: int) -> None:
    """In a pipeline, where several commands are on their way; and in whatever pieces they come."""
    conversation = Conversation()
    sent = (
        b"*1\r\n$4\r\nPING\r\n" + b"*3\r\n$3\r\nSET\r\n$1\r\na\r\n$4\r\n\r\n*1\r\n" + b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n"
    )
    found = [one for piece in pieces(sent, size) for one in conversation.client_says(piece)]
    assert [statement.text for statement in found] == [b"PING", b"SET a \r\n*1", b"GET a"]
    conversation.swallow(found[2])
    push = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\na\r\n"
    first = b"%1\r\n+a\r\n*2\r\n:1\r\n$-1\r\n" + push + b"-ERR no\r\n"
    passed, is_over = b"", False
    for piece in pieces(first + b"*2\r\n$4\r\n\r\n*1\r\n_\r\n", size):
        assert not is_over
        more, is_over = conversation.server_says(piece)
        passed += more
    assert (passed, is_over) == (first, True)


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]
