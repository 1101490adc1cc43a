"""Bad days of a PostgreSQL server and of the way to it: no acknowledged job is lost, workers resume by themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import asyncpg
import pytest

import jobmill
from jobmill.stores.postgres import PostgresStore
from tests.e2e.conftest import Place
from tests.e2e.storms import Storm
from tests.kit.places import port_of
from tests.kit.postgres import PostgresServer, connected
from tests.kit.proxy import Proxy

pytestmark = [pytest.mark.slow, pytest.mark.stores("postgres")]

#: Workers here have a lease of 1 s.
LONGER_THAN_THE_LEASE_S = 2.5


@asynccontextmanager
async def storm(path: Path, url: str, workers: int = 2) -> AsyncIterator[Storm]:
    """A store with workers that work, and somebody who enqueues."""
    store = PostgresStore(url)
    await store.migrate()
    await store.close()
    place = Place(path, url)
    try:
        for _ in range(workers):
            place.worker("--concurrency", "20")
        async with jobmill.connect(url) as jobs:
            made = Storm(jobs, place)
            await made.was_said("concurrency 20")
            async with made.raging():
                yield made
            await made.all_is_well()
    finally:
        place.end()


async def end_all_connections(url: str) -> None:
    """As an administrator would."""
    async with connected(url) as connection:
        await connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'"
        )


@pytest.fixture
async def proxy(local_postgres_url: str) -> AsyncIterator[Proxy]:
    async with Proxy(port_of(local_postgres_url)) as proxy:
        yield proxy


# ---------------------------------------------------------------------------------------------------- the server


async def test_a_server_that_is_killed_and_restarted(tmp_path: Path, own_postgres: PostgresServer) -> None:
    async with storm(tmp_path, own_postgres.url()) as made:
        for _ in range(3):
            await asyncio.to_thread(own_postgres.kill)
            await asyncio.sleep(0.3)
            own_postgres.start()
            await made.resumes()
            await made.moves()
        assert made.refused
        await made.was_said("the postgres store is unavailable")


async def test_connections_that_are_terminated_again_and_again(tmp_path: Path, own_postgres: PostgresServer) -> None:
    async with storm(tmp_path, own_postgres.url()) as made:
        for _ in range(60):
            await end_all_connections(own_postgres.url())
            await asyncio.sleep(0.05)
        await made.resumes()
        assert made.refused
        await made.was_said("the postgres store is unavailable")


async def test_a_server_that_is_paused_for_longer_than_the_lease(tmp_path: Path, own_postgres: PostgresServer) -> None:
    async with storm(tmp_path, own_postgres.url()) as made:
        for _ in range(2):
            own_postgres.pause()
            await asyncio.sleep(LONGER_THAN_THE_LEASE_S)
            own_postgres.resume()
            await made.resumes()
            await made.moves()
        await made.was_said()
    assert made.claimed_again


async def test_a_server_that_takes_no_writes_for_a_while(tmp_path: Path, own_postgres: PostgresServer) -> None:
    async with storm(tmp_path, own_postgres.url()) as made:
        async with connected(own_postgres.url()) as connection:
            for _ in range(2):
                # Sessions that there are learn of it as well.
                await connection.execute("ALTER SYSTEM SET default_transaction_read_only = on")
                await connection.execute("SELECT pg_reload_conf()")
                await asyncio.sleep(LONGER_THAN_THE_LEASE_S)
                await connection.execute("SET default_transaction_read_only = off")
                await connection.execute("ALTER SYSTEM SET default_transaction_read_only = off")
                await connection.execute("SELECT pg_reload_conf()")
                await made.resumes()
                await made.moves()
        assert any("accepts no writes now" in said for said in made.refused)
        await made.was_said("accepts no writes now")
    assert made.claimed_again


async def test_a_server_whose_connections_are_all_taken(tmp_path: Path) -> None:
    with PostgresServer(settings={"max_connections": "24", "superuser_reserved_connections": "0"}) as server:
        async with Proxy(server.port) as proxy, storm(tmp_path, proxy.url(server.url())) as made:
            proxy.refuse()
            proxy.cut()
            async with AsyncExitStack() as others:
                with suppress(asyncpg.TooManyConnectionsError):
                    while True:
                        await others.enter_async_context(connected(server.url()))
                proxy.accept()
                await made.was_said("too many clients already")
            await made.resumes()


# ---------------------------------------------------------------------------------------------------- the way to it


async def test_connections_that_are_cut_again_and_again(tmp_path: Path, proxy: Proxy, local_postgres_url: str) -> None:
    async with storm(tmp_path, proxy.url(local_postgres_url)) as made:
        for _ in range(30):
            proxy.cut()
            await asyncio.sleep(0.1)
        await made.resumes()
        await made.was_said("the postgres store is unavailable")


async def test_a_network_that_stalls_for_longer_than_the_lease(
    tmp_path: Path, proxy: Proxy, local_postgres_url: str
) -> None:
    async with storm(tmp_path, proxy.url(local_postgres_url)) as made:
        for _ in range(2):
            proxy.stall()
            await asyncio.sleep(LONGER_THAN_THE_LEASE_S)
            proxy.go_on()
            await made.resumes()
            await made.moves()
        await made.was_said()
    assert made.claimed_again


async def test_a_server_that_cannot_be_reached_for_a_while(
    tmp_path: Path, proxy: Proxy, local_postgres_url: str
) -> None:
    async with storm(tmp_path, proxy.url(local_postgres_url)) as made:
        proxy.refuse()
        proxy.cut()
        await asyncio.sleep(LONGER_THAN_THE_LEASE_S)
        proxy.accept()
        await made.resumes()
        await made.was_said("the postgres store is unavailable")
    assert made.claimed_again


async def test_a_host_that_vanishes(tmp_path: Path, proxy: Proxy, local_postgres_url: str) -> None:
    async with storm(tmp_path, proxy.url(local_postgres_url)) as made:
        proxy.half_open()
        # Nobody hears of it before a deadline of 10 s; leases end meanwhile, and other connections are made.
        await made.moves(by=200, within=40)
        await made.was_said("did not answer within 10 s")
