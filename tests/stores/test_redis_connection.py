"""Single connections of the Redis store: how they are made, shared, broken off and replaced."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis
from redis.asyncio.connection import Connection

from jobmill.core.values import EVERYTHING
from jobmill.errors import LoginRefused, StoreError, StoreUnavailable
from jobmill.stores.redis.connection import connect, pipelined, pool
from jobmill.stores.redis.connection.client import RedisClient
from jobmill.stores.redis.connection.connect import take_stream
from jobmill.stores.redis.connection.pipelined import PipelinedConnection, pack
from jobmill.stores.redis.store import RedisStore
from jobmill.stores.redis.url import Address, RedisUrl
from tests.helpers import until
from tests.kit.places import free_port, port_of
from tests.kit.proxy import Proxy
from tests.kit.redis import RedisServer, Rooms
from tests.stores.redis_clients import clients, connected, main_name, own

pytestmark = pytest.mark.stores("redis")

CERTIFICATE = Path(__file__).parents[1] / "kit" / "tls" / "localhost.pem"


@pytest.fixture
async def proxy(local_redis_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(port_of(local_redis_url)) as proxy:
        yield proxy


@pytest.fixture
async def proxied(proxy: Proxy, local_redis_url: str) -> AsyncIterator[RedisClient]:
    async with connected(proxy.url(local_redis_url)) as client:
        yield client


# ---------------------------------------------------------------------------------------------------- making


async def test_redis_py_keeps_its_stream_where_we_take_it_from(redis_url: str) -> None:
    """Fails when another version of redis-py keeps it elsewhere: see connect.py for what to change."""
    url = RedisUrl.read(redis_url)
    connection = Connection(host=url.hosts[0].host, port=url.hosts[0].port, protocol=2)
    with pytest.raises(StoreError, match=f"redis-py {redis.__version__} does not keep its stream"):
        take_stream(connection)
    await connection.connect()  # type: ignore[no-untyped-call]
    writer = take_stream(connection)
    assert isinstance(writer, asyncio.StreamWriter)
    assert not connection.is_connected, "redis-py would close what it has given away"
    there = PipelinedConnection(writer, url.text)
    assert await there.send(pack(("PING",))) == b"PONG"
    there.end("over")
    await there.lost()


async def test_it_has_a_name_that_no_worker_has_and_watches_over_its_connection(redis_url: str) -> None:
    async with connected(own(redis_url.partition("?")[0])) as client:
        await client.call("x", "PING")
        assert len(await clients(client, main_name(client))) == 1
        found = client.here().known("x")
        assert found is not None
        underneath = found._transport.get_extra_info("socket")
        assert underneath.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert underneath.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30
        assert underneath.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1


async def test_a_name_that_a_server_would_refuse(redis_url: str) -> None:
    async with connected(f"{redis_url.partition('?')[0]}?prefix=%C3%A4") as client:
        assert await client.call("x", "CLIENT", "GETNAME") == b"_:jobmill"


async def test_each_database_has_its_own_keys(redis_database_url: str, redis_server: Rooms) -> None:
    async with connected(redis_database_url) as client:
        await client.call("a", "SET", "a", "1")
        with redis_server.client(client.url.options["db"]) as raw:
            assert raw.get("a") == b"1"


async def test_through_a_unix_socket(own_redis: RedisServer) -> None:
    async with connected(own_redis.socket_url(5)) as client:
        assert await client.call("a", "SET", "a", "1") == b"OK"
        with own_redis.client(5) as raw:
            assert raw.get("a") == b"1"


async def test_users_and_passwords() -> None:
    with RedisServer(password="p@ss:w/rd") as server:
        async with connected(server.url()) as client:
            assert await client.call("a", "PING") == b"PONG"
            await client.call("a", "ACL", "SETUSER", "ada", "on", ">secret", "~*", "+ping", "+client|setname")
        async with connected(f"redis://ada:secret@127.0.0.1:{server.port}") as client:
            assert await client.call("a", "PING") == b"PONG"
            with pytest.raises(StoreError, match="its ACL does not allow this user what Jobmill needs.*NOPERM") as no:
                await client.call("a", "GET", "a")
            assert not isinstance(no.value, StoreUnavailable)
        for user, said in (
            ("ada:wrong@", "does not know this user with this password"),
            ("", "it requires a password"),
        ):
            async with connected(f"redis://{user}127.0.0.1:{server.port}") as client:
                with pytest.raises(LoginRefused, match=said) as no:
                    await client.call("a", "PING")
                assert "wrong" not in str(no.value)


async def test_over_tls(own_redis: RedisServer) -> None:
    """The wheels' servers have no TLS: it ends in front of them, as with stunnel."""

    async def forward(client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", own_redis.port)

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(1 << 16):
                writer.write(data)
            writer.close()

        await asyncio.gather(pump(client, to_server), pump(server, to_client), return_exceptions=True)

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATE)
    port = free_port()
    async with await asyncio.start_server(forward, "127.0.0.1", port, ssl=context):
        async with connected(f"rediss://localhost:{port}?ssl_ca_certs={CERTIFICATE}") as client:
            big = b"x" * 300_000
            assert await client.many("a", [("SET", "a", big), ("GET", "a")]) == [b"OK", big]
        async with connected(f"rediss://localhost:{port}") as client:
            with pytest.raises(StoreUnavailable, match="certificate verify failed"):
                await client.call("a", "PING")


async def test_nobody_listens() -> None:
    port = free_port()
    async with connected(f"redis://ada:secret@127.0.0.1:{port}") as client:
        with pytest.raises(
            StoreUnavailable, match=rf"Redis at redis://ada@127.0.0.1:{port}/0 cannot be reached"
        ) as away:
            await client.call("a", "PING")
        assert "secret" not in str(away.value)


async def test_something_listens_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "CONNECT_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with connected(f"redis://127.0.0.1:{silent.getsockname()[1]}") as client:
            with pytest.raises(StoreUnavailable, match="could not be reached within 0.1 s"):
                await client.call("a", "PING")


async def test_something_answers_that_is_not_redis() -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    port = free_port()
    async with await asyncio.start_server(answer, "127.0.0.1", port), connected(f"redis://127.0.0.1:{port}") as client:
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await client.call("a", "PING")


async def test_a_reply_that_nobody_asked_for_ends_the_connection() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1_000):
            writer.write(b"+OK\r\n" * data.count(b"*") + b"+PONG\r\n" * data.count(b"PING"))
        writer.close()

    port = free_port()
    async with await asyncio.start_server(answer, "127.0.0.1", port), connected(f"redis://127.0.0.1:{port}") as client:
        await client.call("a", "PING")
        connections = client.here()
        await until(lambda: connections.known("a") is None)
        assert "are not those of a Redis server" in str(connections._connections[None].ended)


@pytest.mark.slow
async def test_a_server_that_reads_its_data_is_not_open_yet() -> None:
    """It accepts connections and answers INFO and TIME before that."""
    with RedisServer(aof=True) as server:
        with server.client() as client, client.pipeline(transaction=False) as pipeline:
            for number in range(30_000):
                pipeline.set(f"key {number}", 1)
            pipeline.execute()
        server.kill()
        server.settings["key-load-delay"] = "50"  # microseconds for each key
        starts = asyncio.create_task(asyncio.to_thread(server.start))
        store = RedisStore(server.url())
        refusals = set()
        async with asyncio.timeout(20):
            while not starts.done():
                try:
                    await store.open()
                except StoreUnavailable as error:
                    refusals.add("reads its data" in str(error))
                else:
                    await store.find(EVERYTHING, None, 1)
                await asyncio.sleep(0.01)
        await starts
        assert True in refusals
        await store.open()
        await store.close()


# ---------------------------------------------------------------------------------------------------- sharing


async def test_many_callers_share_one_connection_and_one_attempt(proxied: RedisClient, proxy: Proxy) -> None:
    answers = await asyncio.gather(*(proxied.call("a", "ECHO", n) for n in range(500)))
    assert answers == [str(n).encode() for n in range(500)]
    assert proxy.accepted == 1


async def test_many_callers_share_one_failure(
    proxied: RedisClient, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = 0
    make = connect.connect

    async def counted(url: RedisUrl, address: Address | None, name: str) -> PipelinedConnection:
        nonlocal made
        made += 1
        return await make(url, address, name)

    monkeypatch.setattr(pool, "connect", counted)
    proxy.refuse()
    answers = await asyncio.gather(*(proxied.call("a", "PING") for _ in range(50)), return_exceptions=True)
    assert {type(one) for one in answers} == {StoreUnavailable}
    assert len({id(one) for one in answers}) == 50, "an error collects the traceback of whoever raises it"
    assert made == 1
    proxy.accept()
    assert await proxied.call("a", "PING") == b"PONG"


async def test_a_caller_who_gives_up_does_not_end_the_attempt_for_others(proxied: RedisClient, proxy: Proxy) -> None:
    proxy.stall()
    first = asyncio.create_task(proxied.call("a", "ECHO", "first"))
    second = asyncio.create_task(proxied.call("a", "ECHO", "second"))
    await until(lambda: proxy.held)
    first.cancel()
    await asyncio.wait([first])
    proxy.go_on()
    assert await second == b"second"
    assert first.cancelled()
    assert proxy.accepted == 1


async def test_callers_who_give_up_leave_the_replies_of_others_in_order(proxied: RedisClient, proxy: Proxy) -> None:
    await proxied.call("a", "PING")
    proxy.stall()
    tasks = [asyncio.create_task(proxied.call("a", "ECHO", n)) for n in range(300)]
    several = [asyncio.create_task(proxied.many("a", [("ECHO", n), ("ECHO", -n)])) for n in range(300)]
    await until(lambda: proxy.held)
    for task in (*tasks[::3], *several[::2]):
        task.cancel()
    await asyncio.wait([*tasks[::3], *several[::2]])
    proxy.go_on()
    assert [await task for n, task in enumerate(tasks) if n % 3] == [b"%d" % n for n in range(300) if n % 3]
    assert [await task for task in several[1::2]] == [[b"%d" % n, b"%d" % -n] for n in range(1, 300, 2)]
    assert proxy.accepted == 1


async def test_replies_of_any_size_in_any_pieces(proxied: RedisClient, local_redis_url: str) -> None:
    key = f"{proxied.url.prefix}:x"
    sizes = [0, 1, 65_535, 65_536, 65_537, 5_000_000, 3]
    values = [b"v" * size for size in sizes]
    replies = await asyncio.gather(
        *(proxied.many(key, [("SET", f"{key}{n}", value), ("GET", f"{key}{n}")]) for n, value in enumerate(values))
    )
    assert replies == [[b"OK", value] for value in values]


# ---------------------------------------------------------------------------------------------------- breaking


async def test_a_connection_that_is_cut_fails_only_what_is_in_flight(proxied: RedisClient, proxy: Proxy) -> None:
    await proxied.call("a", "PING")
    proxy.stall()
    tasks = [asyncio.create_task(proxied.call("a", "PING")) for _ in range(20)]
    await until(lambda: proxy.held)
    proxy.cut()
    for answer in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(answer, StoreUnavailable)
        assert "closed the connection" in str(answer)
    proxy.go_on()
    assert await proxied.call("a", "PING") == b"PONG"
    assert proxy.accepted == 2


async def test_a_killed_client_is_replaced_under_its_name(redis_url: str) -> None:
    async with connected(redis_url) as client, connected(redis_url.partition("?")[0]) as other:
        for _ in range(20):
            calls = [asyncio.create_task(client.call("a", "PING")) for _ in range(50)]
            await calls[0]
            (ours,) = await clients(other, main_name(client))
            await other.call("a", "CLIENT", "KILL", "ID", ours["id"])
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert all(one == b"PONG" or isinstance(one, StoreUnavailable) for one in answers)
            found = client.here()
            await until(lambda here=found: here.known("a") is None)  # type: ignore[misc]
            assert await client.call("a", "PING") == b"PONG"
        assert len(await clients(other, main_name(client))) == 1


async def test_a_server_that_was_killed_and_restarted(own_redis: RedisServer) -> None:
    async with connected(own(own_redis.url())) as client:
        assert await client.call("a", "SET", "a", "1") == b"OK"
        calls = asyncio.create_task(_call_for_ever(client))
        await asyncio.sleep(0)
        own_redis.kill()
        with pytest.raises(StoreUnavailable):
            await calls
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            await client.call("a", "PING")
        own_redis.start()
        assert await client.call("a", "GET", "a") == b"1"
        assert len(await clients(client, main_name(client))) == 1


async def _call_for_ever(client: RedisClient) -> None:
    while True:
        await client.call("a", "INCR", "n")


async def test_a_server_that_stands_still_is_given_up(own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = asyncio.get_running_loop().time
    async with connected(own_redis.url()) as client:
        with monkeypatch.context() as impatient:
            impatient.setattr(pipelined, "CALL_SECONDS", 1.0)
            impatient.setattr(connect, "CONNECT_SECONDS", 1.0)
            await client.call("a", "PING")
            own_redis.pause()
            began = clock()
            answers = await asyncio.gather(*(client.call("a", "PING") for _ in range(100)), return_exceptions=True)
            assert {str(one) for one in answers} == {f"Redis at {client.url.text} did not answer within 1 s"}
            assert 0.9 < clock() - began < 9, "100 s if each waited for the one before"
            with pytest.raises(StoreUnavailable, match="could not be reached within 1 s"):
                await client.call("a", "PING")
        own_redis.resume()
        assert await client.call("a", "PING") == b"PONG"


@pytest.mark.slow
async def test_one_whose_calls_are_answered_in_time_is_not(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelined, "CALL_SECONDS", 1.0)
    async with connected(redis_url) as client:
        await client.call("a", "PING")
        first = client.here().known("a")
        assert first is not None
        end = asyncio.get_running_loop().time() + 2.1
        while asyncio.get_running_loop().time() < end:
            await client.call("a", "PING")
        # The timer of the last call runs out, with nothing to wait for.
        await until(lambda: first._watchdog is None)
        assert client.here().known("a") is first


@pytest.mark.parametrize("loops", ["asyncio", "uvloop"] if find_spec("uvloop") else ["asyncio"])
async def test_a_process_that_stood_still_itself_blames_nobody(
    redis_url: str, loops: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipelined, "CALL_SECONDS", 0.5)
    block = time.sleep

    async def stand_still() -> list[bytes]:
        async with connected(redis_url) as client:
            await client.call("a", "PING")
            before = asyncio.create_task(client.call("a", "ECHO", "before"))
            await asyncio.sleep(0)
            block(1.0)
            return [await client.call("a", "ECHO", "after"), await before]

    def elsewhere() -> list[bytes]:
        with asyncio.Runner(loop_factory=import_module(loops).new_event_loop) as runner:
            return runner.run(stand_still())

    assert await asyncio.to_thread(elsewhere) == [b"after", b"before"]


@pytest.mark.slow
async def test_half_open(proxied: RedisClient, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as impatient:
        impatient.setattr(pipelined, "CALL_SECONDS", 1.0)
        await proxied.call("a", "PING")
        proxy.half_open()
        with pytest.raises(StoreUnavailable, match="did not answer within 1 s"):
            await proxied.call("a", "PING")
    assert await proxied.call("a", "PING") == b"PONG"


async def test_a_replica_is_left(own_redis: RedisServer) -> None:
    """A failover made the connected server a replica: the new primary must be found."""
    async with connected(own_redis.url()) as client:
        await client.call("a", "SET", "a", "1")
        first = client.here().known("a")
        own_redis.ask("REPLICAOF", "127.0.0.1", free_port())
        with pytest.raises(StoreUnavailable, match="this server is a replica and takes no writes.*READONLY"):
            await client.call("a", "SET", "a", "2")
        assert client.here().known("a") is None
        own_redis.ask("REPLICAOF", "NO", "ONE")
        assert await client.call("a", "SET", "a", "3") == b"OK"
        assert client.here().known("a") is not first
