"""The fixture `server`: a database of each store that a test may torment, with workers of its own.

    @on_each_store
    async def test_something(server: FaultyServer) -> None: ...

    @on_each_fault("kill", "pause")
    async def test_something(server: FaultyServer, operation: Operation) -> None: ...

The servers themselves are shared by all tests of a process: a fault ends when its test ends.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import jobmill
from tests.faults.operations import FaultyServer
from tests.kit.proxy import Proxy

#: A call to MongoDB has 10 s by default, and tries again by itself until then.
CALL_MS = "5000"

if TYPE_CHECKING:  # a driver is imported only when its store is under test
    from tests.kit.mongo import MongoReplicaSet
    from tests.kit.postgres import PostgresServer
    from tests.kit.redis import RedisServer


@pytest.fixture(scope="session")
def faulty_postgres() -> Iterator[PostgresServer]:
    from tests.faults.postgres import SETTINGS
    from tests.kit.postgres import PostgresServer

    with PostgresServer(settings=SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def faulty_redis() -> Iterator[RedisServer]:
    from tests.kit.redis import RedisServer

    with RedisServer(aof=True) as server:
        yield server


@pytest.fixture(scope="session")
def faulty_mongo() -> Iterator[MongoReplicaSet]:
    from tests.kit.mongo import MongoReplicaSet

    with MongoReplicaSet() as group:
        yield group


@pytest.fixture
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[FaultyServer]:
    """The server of the store that the test's parameter names."""
    make = {"sqlite": sqlite_file, "postgres": postgres_server, "redis": redis_server, "mongo": mongo_server}
    async with make[request.param](request, tmp_path) as server:
        jobs = jobmill.connect(server.url)
        await jobs.store.migrate()
        await jobs.close()
        try:
            yield server
        finally:
            server.workers.end()


@contextlib.asynccontextmanager
async def sqlite_file(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[FaultyServer]:
    from tests.faults.sqlite import SqliteFile

    yield SqliteFile(folder)


@contextlib.asynccontextmanager
async def postgres_server(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[FaultyServer]:
    from tests.faults.postgres import FaultyPostgres

    shared: PostgresServer = request.getfixturevalue("faulty_postgres")
    async with shared.database() as url, Proxy(shared.port) as proxy:
        yield FaultyPostgres(shared, proxy, folder, url)


@contextlib.asynccontextmanager
async def redis_server(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[FaultyServer]:
    from tests.faults.redis import FaultyRedis

    shared: RedisServer = request.getfixturevalue("faulty_redis")
    with shared.prefix() as url:
        async with Proxy(shared.port) as proxy:
            yield FaultyRedis(shared, proxy, folder, url)


@contextlib.asynccontextmanager
async def mongo_server(request: pytest.FixtureRequest, folder: Path) -> AsyncIterator[FaultyServer]:
    """Clients are told to use the proxy only: the member itself would name its own port to them."""
    from tests.faults.mongo import FaultyMongo

    shared: MongoReplicaSet = request.getfixturevalue("faulty_mongo")
    with shared.nodes[0].database(timeoutMS=CALL_MS) as url:
        async with Proxy(shared.nodes[0].port) as proxy:
            yield FaultyMongo(shared, proxy, folder, url)
