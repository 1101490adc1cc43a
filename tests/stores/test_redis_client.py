"""The client of the Redis store: commands, scripts, what servers refuse, and event loops."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from jobmill.errors import StoreError, StoreUnavailable
from jobmill.stores.common import per_loop
from jobmill.stores.redis.connection.client import RedisClient
from jobmill.stores.redis.connection.errors import Moved, NoScript, failure
from jobmill.stores.redis.context import RedisContext
from jobmill.stores.redis.scripts import Script
from jobmill.stores.redis.url import Address, RedisUrl
from jobmill.stores.redis.wake import wait_for_work, worker_name
from tests.helpers import until
from tests.kit.redis import Installation, RedisServer, Rooms, installations
from tests.stores.redis_clients import clients, connected, main_name, opened

pytestmark = pytest.mark.stores("redis")

ROOT = Path(__file__).parents[2]
NAMES = Script("return {KEYS[1], ARGV[1], ARGV[2], redis.call('INCR', KEYS[1])}")
URL = "redis://host:6379/0"


# ---------------------------------------------------------------------------------------------------- commands


async def test_replies_are_bytes_as_they_came(redis_url: str, redis_name: str) -> None:
    async with connected(redis_url) as client:
        key = f"{client.url.prefix}:a"
        assert await client.call(key, "HSET", key, "ä", b"\xff\x00", "n", 7) == 2
        assert await client.call(key, "HGETALL", key) == ["ä".encode(), b"\xff\x00", b"n", b"7"]
        assert await client.call(key, "HGET", key, "gone") is None


async def test_many_at_once(redis_url: str) -> None:
    async with connected(redis_url) as client:
        key = f"{client.url.prefix}:a"
        assert await client.many(key, []) == []
        assert await client.many(key, [["INCR", key]] * 1_000) == list(range(1, 1_001))
        with pytest.raises(StoreError, match="WRONGTYPE"):
            await client.many(key, [("INCR", key), ("LPUSH", key, "x"), ("INCR", key)])
        assert await client.call(key, "GET", key) == b"1002"


async def test_a_script_that_the_server_does_not_know_is_sent(redis_url: str, redis_name: str) -> None:
    async with connected(redis_url) as client:
        key = f"{client.url.prefix}:a"
        unknown = Script(f"return redis.call('INCRBY', KEYS[1], ARGV[1]) -- {key}")
        assert await client.call(key, "SCRIPT", "EXISTS", unknown.sha) == [0]
        assert await client.run(unknown, key, [2]) == 2
        assert await client.call(key, "SCRIPT", "EXISTS", unknown.sha) == [1]
        assert await client.run(unknown, key, [3]) == 5
        assert await client.run(NAMES, key, ["ä", b"\xff"]) == [key.encode(), "ä".encode(), b"\xff", 6]


async def test_scripts_work_while_somebody_flushes_them(own_redis: RedisServer) -> None:
    async with connected(own_redis.url()) as client, connected(own_redis.url()) as other:
        running = True

        async def flush() -> int:
            times = 0
            while running:
                await other.call("a", "SCRIPT", "FLUSH")
                times += 1
            return times

        flushing = asyncio.create_task(flush())
        await asyncio.gather(*(client.run(NAMES, "n", ["", ""]) for _ in range(1_000)))
        running = False
        assert await flushing > 0
        assert await client.call("n", "GET", "n") == b"1000", "each ran once"


async def test_scripts_are_sent_again_after_a_restart(own_redis: RedisServer) -> None:
    async with connected(own_redis.url()) as client:
        await client.run(NAMES, "n", ["", ""])
        own_redis.restart()
        connections = client.here()
        await until(lambda: connections.known("n") is None)
        assert (await client.run(NAMES, "n", ["", ""]))[3] == 2


async def test_what_a_script_raises_is_reported(redis_url: str, redis_name: str) -> None:
    async with connected(redis_url) as client:
        key = f"{client.url.prefix}:a"
        await client.call(key, "SET", key, "text")
        with pytest.raises(StoreError, match="value is not an integer") as error:
            await client.run(NAMES, key, ["", ""])
        assert type(error.value) is StoreError
        with pytest.raises(StoreError, match="a key under this prefix is not what BullMQ keeps there"):
            await client.run(Script("return redis.call('LPUSH', KEYS[1], 'x')"), key, [])


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("installation", installations(), ids=lambda one: one.name)
async def test_a_full_server_is_away_and_says_what_to_do(installation: Installation) -> None:
    with RedisServer(installation, maxmemory="3mb") as server:
        async with connected(server.url()) as client:
            with pytest.raises(
                StoreUnavailable, match="maxmemory is reached; raise maxmemory, or let retention remove jobs"
            ):
                await client.many("a", [("SET", n, "x" * 10_000) for n in range(1_000)])
            fill = Script("for n = 1, 1000 do redis.call('SET', KEYS[1] .. n, string.rep('x', 10000)) end")
            with pytest.raises(StoreUnavailable, match="maxmemory is reached"):
                # Before Redis 7 a script that has begun to write may go on: then the second is refused.
                await asyncio.gather(client.run(fill, "n", []), client.run(fill, "n", []))
            assert await client.call("a", "GET", 0) == b"x" * 10_000, "the connection is as good as before"


async def test_a_server_that_is_busy_with_a_script_is_away(own_redis: RedisServer) -> None:
    own_redis.ask("CONFIG", "SET", "lua-time-limit", "1")
    async with connected(own_redis.url()) as client, connected(own_redis.url()) as other:
        await other.call("a", "PING")
        running = asyncio.create_task(client.run(Script("while true do end"), "a", []))

        async def said() -> StoreError | None:
            try:
                await other.call("a", "GET", "a")
            except StoreError as error:
                return error
            return None

        busy = await until(said)
        assert isinstance(busy, StoreUnavailable)
        assert "SCRIPT KILL ends it" in str(busy)
        await other.call("a", "SCRIPT", "KILL")
        with pytest.raises(StoreError, match="killed"):
            await running
        assert await client.call("a", "PING") == b"PONG"


async def test_a_server_without_enough_replicas_is_away(own_redis: RedisServer) -> None:
    own_redis.ask("CONFIG", "SET", "min-replicas-to-write", "1")
    async with connected(own_redis.url()) as client:
        with pytest.raises(StoreUnavailable, match="too few replicas are connected"):
            await client.call("a", "SET", "a", "1")


@pytest.mark.parametrize(
    ("reply", "kind", "told"),
    [
        ("LOADING Redis is loading the dataset in memory", StoreUnavailable, "it is starting and reads its data"),
        ("MASTERDOWN RedisClient with MASTER is down", StoreUnavailable, "this replica has lost its primary"),
        ("CLUSTERDOWN The cluster is down", StoreUnavailable, "the cluster has lost nodes"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", StoreUnavailable, "moving to another node"),
        (
            "ERR Script attempted to access a non local key in a cluster node",
            StoreUnavailable,
            "moving to another node",
        ),
        ("UNBLOCKED force unblock from blocking operation", StoreUnavailable, "the server became a replica"),
        (
            "ERR Error running script (call to f_1): @user_script:1: @user_script: 1: -OOM no",
            StoreUnavailable,
            "maxmemory",
        ),
        ("ERR Error running script (call to f_1): @user_script:1: WRONGTYPE no", StoreError, "another prefix is meant"),
        ("ERR Error running script (call to f_1): @user_script:1: user's OOM no", StoreError, "replied: ERR Error"),
        ("MISCONF Errors writing to the AOF file", StoreError, "cannot save its data"),
        ("CROSSSLOT Keys in request don't hash to the same slot", StoreError, "a hash tag, such as {mail}"),
        ("ERR unknown command", StoreError, "replied: ERR unknown command"),
        ("NOSCRIPT No matching script", NoScript, "NOSCRIPT"),
    ],
)
def test_error_replies_that_tests_cannot_provoke(reply: str, kind: type[StoreError], told: str) -> None:
    error = failure(reply, URL)
    assert type(error) is kind
    assert told in str(error)
    assert kind is NoScript or (reply in str(error) and URL in str(error))


def test_where_a_key_has_gone() -> None:
    for said, address, ask in (
        ("MOVED 3999 127.0.0.1:6381", Address("127.0.0.1", 6381), False),
        ("ASK 3999 ::1:6381", Address("::1", 6381), True),
        ("MOVED 3999 :6381", Address("asked", 6381), False),
    ):
        moved = failure(said, URL, "asked")
        assert isinstance(moved, Moved)
        assert (moved.slot, moved.address, moved.ask) == (3999, address, ask)


# ---------------------------------------------------------------------------------------------------- per_loop


async def nobody(server: Rooms, name: str) -> None:
    """Until no connection has this name."""
    await until(lambda: f"name={name} " not in str(server.ask("CLIENT", "LIST")), 5)


def _is_blocked(server: Rooms, name: str) -> bool:
    return re.search(rf"name={name} .*flags=b", server.ask("CLIENT", "LIST").decode()) is not None


async def test_two_loops_use_one_client_at_the_same_time(redis_url: str, redis_server: Rooms) -> None:
    async with connected(redis_url) as client:
        key = f"{client.url.prefix}:n"

        async def count() -> None:
            await asyncio.gather(*(client.call(key, "INCR", key) for _ in range(500)))

        there = asyncio.create_task(asyncio.to_thread(lambda: asyncio.run(count())))
        await count()
        await there
        assert await client.call(key, "GET", key) == b"1000"
        assert len(await clients(client, main_name(client))) == 1, "a loop that has ended leaves nothing behind"
    await nobody(redis_server, main_name(client))


async def test_closing_reaches_the_loops_of_other_threads(redis_url: str, redis_server: Rooms) -> None:
    context = RedisContext(redis_url)
    client = context.client
    called, over = threading.Event(), threading.Event()
    ended: list[object] = []
    worker = worker_name(client.url.prefix, "mail", "")

    async def there() -> None:
        await client.call("x", "PING")
        waiting = asyncio.create_task(wait_for_work(context, ("mail",), context.clock.now() + 60_000))
        await until(lambda: _is_blocked(redis_server, worker))
        calling = asyncio.create_task(client.call("x", "BLPOP", f"{client.url.prefix}:none", 60))
        await until(lambda: _is_blocked(redis_server, main_name(client)))
        called.set()
        ended.extend(await asyncio.gather(waiting, calling, return_exceptions=True))
        await asyncio.to_thread(over.wait)

    thread = threading.Thread(target=lambda: asyncio.run(there()))
    thread.start()
    await asyncio.to_thread(called.wait)
    await client.call("x", "PING")
    async with asyncio.timeout(20):
        await client.close()
    await nobody(redis_server, main_name(client))
    await nobody(redis_server, worker)
    over.set()
    await asyncio.to_thread(thread.join)
    assert [str(one) for one in ended] == ["None", "the store was closed"]


async def test_a_loop_that_is_blocked_is_not_waited_for_long(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_loop, "ELSEWHERE_SECONDS", 0.3)
    async with connected(redis_url) as client:
        await client.call("x", "PING")
        began = time.monotonic()
        # This very thread is the loop that the client's connection belongs to.
        await_here = threading.Thread(target=lambda: asyncio.run(client.close()))
        await_here.start()
        await_here.join()
        assert time.monotonic() - began < 10, "without a limit it would wait for ever"


async def test_closing_twice_and_using_it_again(redis_url: str) -> None:
    client = RedisClient(RedisUrl.read(redis_url))
    await client.close()
    assert await client.call("x", "PING") == b"PONG"
    await client.close()
    await client.close()
    assert await client.call("x", "PING") == b"PONG"
    await client.close()


async def test_closing_ends_what_is_in_flight(redis_url: str, redis_server: Rooms) -> None:
    async with opened(redis_url) as context:
        client = context.client
        await client.call("x", "PING")
        calling = asyncio.create_task(client.call("x", "BLPOP", f"{client.url.prefix}:none", 60))
        waiting = asyncio.create_task(wait_for_work(context, ("mail",), context.clock.now() + 60_000))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(StoreUnavailable, match="the store was closed"):
            await calling
        await waiting
        await nobody(redis_server, main_name(client))
        await nobody(redis_server, worker_name(client.url.prefix, "mail", ""))


async def test_a_client_that_is_forgotten_leaves_nothing_behind(redis_url: str, redis_server: Rooms) -> None:
    client = RedisClient(RedisUrl.read(redis_url))
    await client.call("x", "PING")
    name = main_name(client)
    del client
    gc.collect()
    await nobody(redis_server, name)


async def run(url: str, program: str) -> str:
    """A program in a process of its own, which must end well and complain of nothing; what it printed."""
    opening = (
        "import asyncio, os, sys, threading\n"
        "from jobmill.stores.redis.context import RedisContext\n"
        "from jobmill.stores.redis.wake import wait_for_work\n"
        "context = RedisContext(os.environ['JOBMILL_URL'])\n"
        "client = context.client\n"
    )
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", opening + program),
        env={**os.environ, "JOBMILL_URL": url},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        printed, said = await process.communicate()
    assert (process.returncode, said.decode()) == (0, "")
    return printed.decode()


async def test_it_outlives_loops_that_end_without_closing_it(redis_url: str) -> None:
    program = """
async def main():
    asyncio.create_task(wait_for_work(context, ("mail",), context.clock.now() + 60_000))
    await asyncio.gather(*(client.call("x", "PING") for _ in range(3)))
    return await client.call("x", "PING")
print(asyncio.run(main()), asyncio.run(main()))
"""
    assert await run(redis_url, program) == "b'PONG' b'PONG'\n"


async def test_the_loop_of_a_thread_that_goes_on_to_the_end(redis_url: str, redis_server: Rooms) -> None:
    program = """
async def main():
    await client.call("x", "PING")
    print("called", flush=True)
    called.set()
    await asyncio.sleep(60)
called = threading.Event()
threading.Thread(target=lambda: asyncio.run(main()), daemon=True).start()
called.wait()
"""
    assert await run(redis_url, program) == "called\n"
    await nobody(redis_server, f"{RedisUrl.read(redis_url).prefix}:jobmill")


async def test_a_loop_that_was_closed_without_asyncio_run(redis_url: str) -> None:
    program = """
loop = asyncio.new_event_loop()
loop.run_until_complete(client.call("x", "PING"))
loop.run_until_complete(client.close())
loop.close()
print(asyncio.run(client.call("x", "PING")))
"""
    assert await run(redis_url, program) == "b'PONG'\n"


async def test_a_forked_process_has_connections_of_its_own(redis_url: str) -> None:
    program = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)
async def child():
    async with asyncio.timeout(20):  # the loop of the parent does not run here
        await client.close()
    answer = await client.call("x", "ECHO", "child")
    await client.close()
    return 0 if answer == b"child" else 1
async def main():
    await client.call("x", "PING")
    pid = os.fork()
    if not pid:
        asyncio._set_running_loop(None)
        os._exit(asyncio.run(child()))
    _, status = await asyncio.to_thread(os.waitpid, pid, 0)
    print(status, await client.call("x", "ECHO", "parent"))
asyncio.run(main())
"""
    assert await run(redis_url, program) == "0 b'parent'\n"
