"""Bad days of a Redis server and of the way to it: no acknowledged job is lost, workers resume by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.e2e.redis_storms import LONGER_THAN_THE_LEASE_S, storm
from tests.kit.places import port_of
from tests.kit.proxy import Proxy
from tests.kit.redis import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.stores("redis")]

AWAY = "the redis store is unavailable"


@pytest.fixture
async def proxy(local_redis_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(port_of(local_redis_url)) as proxy:
        yield proxy


# ---------------------------------------------------------------------------------------------------- the server


async def test_a_server_that_is_killed_and_restarted(tmp_path: Path, own_redis: RedisServer) -> None:
    # It writes each command to its file and waits for the disk before it answers (appendfsync always).
    async with storm(tmp_path, own_redis.url()) as made:
        for _ in range(3):
            await asyncio.to_thread(own_redis.kill)
            await asyncio.sleep(0.3)
            own_redis.start()
            await made.resumes()
            await made.moves()
        assert made.refused
        await made.was_said(AWAY)


async def test_clients_that_are_killed_again_and_again(tmp_path: Path, own_redis: RedisServer) -> None:
    killed = 0
    async with storm(tmp_path, own_redis.url()) as made:
        with own_redis.client() as administrator:
            for _ in range(60):
                killed += administrator.client_kill_filter(_type="normal", skipme=True)
                await asyncio.sleep(0.05)
        await made.resumes()
        assert killed > 60
        assert made.refused
        await made.was_said(AWAY)


async def test_scripts_that_are_forgotten_again_and_again(tmp_path: Path, own_redis: RedisServer) -> None:
    async with storm(tmp_path, own_redis.url()) as made:
        with own_redis.client() as administrator:
            for _ in range(150):
                administrator.script_flush()
                await asyncio.sleep(0.02)
            told = administrator.info("commandstats")["cmdstat_eval"]["calls"]
        await made.resumes()
        # Nobody noticed: the scripts were told to it anew.
        assert told > 100
        assert made.refused == []
        await made.was_said()
    assert made.claimed_again == 0


async def test_a_server_that_is_paused_for_longer_than_the_lease(tmp_path: Path, own_redis: RedisServer) -> None:
    async with storm(tmp_path, own_redis.url()) as made:
        for _ in range(2):
            own_redis.pause()
            await asyncio.sleep(LONGER_THAN_THE_LEASE_S)
            own_redis.resume()
            await made.resumes()
            await made.moves()
        await made.was_said()
    assert made.claimed_again


async def test_a_server_that_takes_no_writes_for_a_while(tmp_path: Path, own_redis: RedisServer) -> None:
    async with storm(tmp_path, own_redis.url()) as made:
        for _ in range(2):
            # As if another were the primary now: what it is told is refused, and connections are not trusted any more.
            own_redis.ask("REPLICAOF", "127.0.0.1", "1")
            await asyncio.sleep(LONGER_THAN_THE_LEASE_S)
            own_redis.ask("REPLICAOF", "NO", "ONE")
            await made.resumes()
            await made.moves()
        assert any("takes no writes" in said for said in made.refused)
        await made.was_said("takes no writes")
    assert made.claimed_again


async def test_a_server_whose_connections_are_all_taken(tmp_path: Path, own_redis: RedisServer) -> None:
    async with storm(tmp_path, own_redis.url()) as made:
        with own_redis.client() as administrator:
            administrator.config_set("maxclients", 1)
            administrator.client_kill_filter(_type="normal", skipme=True)
            await made.was_said("max number of clients reached")
            administrator.config_set("maxclients", 1_000)
        await made.resumes()


# ---------------------------------------------------------------------------------------------------- the way to it


async def test_connections_that_are_cut_again_and_again(tmp_path: Path, proxy: Proxy, local_redis_url: str) -> None:
    async with storm(tmp_path, proxy.url(local_redis_url)) as made:
        for _ in range(30):
            proxy.cut()
            await asyncio.sleep(0.1)
        await made.resumes()
        await made.was_said(AWAY)


async def test_a_network_that_stalls_for_longer_than_the_lease(
    tmp_path: Path, proxy: Proxy, local_redis_url: str
) -> None:
    async with storm(tmp_path, proxy.url(local_redis_url)) as made:
        for _ in range(2):
            proxy.stall()
            await asyncio.sleep(LONGER_THAN_THE_LEASE_S)
            proxy.go_on()
            await made.resumes()
            await made.moves()
        await made.was_said()
    assert made.claimed_again


async def test_a_server_that_cannot_be_reached_for_a_while(tmp_path: Path, proxy: Proxy, local_redis_url: str) -> None:
    async with storm(tmp_path, proxy.url(local_redis_url)) as made:
        proxy.refuse()
        proxy.cut()
        await asyncio.sleep(LONGER_THAN_THE_LEASE_S)
        proxy.accept()
        await made.resumes()
        await made.was_said(AWAY)
    assert made.claimed_again


async def test_a_host_that_vanishes(tmp_path: Path, proxy: Proxy, local_redis_url: str) -> None:
    async with storm(tmp_path, proxy.url(local_redis_url)) as made:
        proxy.half_open()
        # Nobody hears of it before a deadline of 10 s; leases end meanwhile, and other connections are made.
        await made.moves(by=200, within=40)
        await made.was_said("did not answer within 10 s")
