"""`--store NAME` (repeatable): which stores are under test. Without it everything runs, on every store that is known.

A test that uses the fixture `store_name` runs once per store; `@pytest.mark.stores("sqlite")` says that a test is only
for some. With `--store`, whatever is not for one of the stores named is left out.

PostgreSQL servers are started when a test first asks for one: `postgres_url` is a fresh, empty database on the newest.
A test that uses `postgres_name` runs once per version that the machine has; with `store_name` as well, that holds for
the store `postgres`, and for the others the name is empty.

So it is with Redis: `redis_url` is a prefix without keys on the first server, or on that of `redis_name`, for each
version that the machine has. `redis_cluster` is shared; `own_redis`, `own_redis_cluster` and `redis_sentinel` are one
test's own, and may be killed.

`mongo_url` is a database of its own in a replica set of one member that all tests share (`mongo_server`), without its
indexes, for which tests that run on every store do not wait: those have one database in turn. And
`mongo_standalone_url` one in a server that is in no set. `own_mongo` (one member) and `mongo_replica_set` (three) are
one test's own, and may be killed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import making

if TYPE_CHECKING:  # a driver is imported only when its store is under test
    from tests.servers.mongo import MongoDatabases, MongoReplicaSet, MongoServer
    from tests.servers.node import Packages
    from tests.servers.postgres import Databases, PostgresServer, PostgresServers
    from tests.servers.redis import RedisServer, RedisServers, Rooms
    from tests.servers.redis_groups import RedisCluster, RedisSentinel

SERVERS = ("postgres", "redis", "mongo")
STORES = ("memory", "sqlite", *SERVERS)

#: Tests that take long on servers, by parts of their ids.
MODEL = "_sequence_of_verbs_"
LONG = (
    MODEL,
    "test_refused_jobs_do_not_keep_a_requeue_from_the_others",
    "tests/usage/test_outcomes.py",
    "::test_threads_",
)

#: Fixtures that name a version, and the store whose server it is.
VERSIONS = {"postgres_name": "postgres", "redis_name": "redis"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store",
        action="append",
        metavar="NAME",
        help=f"only the tests of this store ({', '.join(STORES)}); may be given more than once",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "stores(*names): only for these stores")
    for name in config.getoption("--store") or ():
        if name not in STORES:
            raise pytest.UsageError(f"--store {name}: there is no such store; known are {', '.join(STORES)}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    versions = [name for name in VERSIONS if name in metafunc.fixturenames]
    if "store_name" in metafunc.fixturenames:
        meant = _meant(metafunc.definition)
        chosen = metafunc.config.getoption("--store") or STORES
        # Never an empty set, which would show as a skip: what is not chosen is left out below.
        names = [name for name in meant if name in chosen] or meant
        rows = [(name, *row) for name in names for row in _rows(name, versions)]
        metafunc.parametrize(["store_name", *versions], rows, ids=["".join(row[1:]) or row[0] for row in rows])
    else:
        for version in versions:
            metafunc.parametrize(version, _versions(VERSIONS[version]))


def _rows(store_name: str, versions: Sequence[str]) -> list[list[str]]:
    """For each version of this store's server a row of names, empty where they are another store's."""
    mine = next((version for version in versions if VERSIONS[version] == store_name), None)
    names = _versions(store_name) if mine else [""]
    return [[name if version == mine else "" for version in versions] for name in names]


def _is_older(fixture: str, value: object) -> bool:
    return fixture in VERSIONS and value not in ("", _versions(VERSIONS[fixture])[0])


def _versions(store_name: str) -> Sequence[str]:
    if store_name == "redis":
        from tests.servers.redis import RedisServers

        return RedisServers.names()
    from tests.servers.postgres import PostgresServers

    return PostgresServers.names()


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out: set[pytest.Item] = set()
    for item in items:
        # What holds on the newest version of a server holds on the others as a rule: those are for the whole run, as is
        # what makes many round trips.
        params = callspec.params if (callspec := getattr(item, "callspec", None)) is not None else {}
        is_older = any(_is_older(fixture, value) for fixture, value in params.items())
        if is_older or (params.get("store_name") in SERVERS and any(part in item.nodeid for part in LONG)):
            item.add_marker(pytest.mark.slow)
        if is_older and MODEL in item.name:
            left_out.add(item)  # the statements are the same, and it is the longest of all
    chosen = config.getoption("--store")
    if chosen:
        left_out.update(item for item in items if not _is_for(item, chosen))
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _is_for(item: pytest.Item, chosen: Sequence[str]) -> bool:
    callspec = getattr(item, "callspec", None)
    if callspec is not None and "store_name" in callspec.params:
        return callspec.params["store_name"] in chosen
    return item.get_closest_marker("stores") is not None and any(name in chosen for name in _meant(item))


def _meant(item: pytest.Item) -> Sequence[str]:
    mark = item.get_closest_marker("stores")
    return STORES if mark is None else mark.args


@pytest.fixture
async def store_url(store_name: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where the store under test is, without jobs; `making.make_store` makes it, or `jobmill.connect`."""
    return await making.make_url(store_name, tmp_path, request)


@pytest.fixture(scope="session")
def postgres_servers() -> Iterator[PostgresServers]:
    """`postgres_servers[postgres_name]`: a server that all tests share; nothing runs until asked for."""
    from tests.servers.postgres import PostgresServers

    with PostgresServers() as servers:
        yield servers


@pytest.fixture(scope="session")
def postgres_server(postgres_servers: PostgresServers) -> Databases:
    """The newest version's, shared by all tests: not to be stopped."""
    return postgres_servers.newest()


@pytest.fixture
async def postgres_url(postgres_server: Databases) -> AsyncIterator[str]:
    """A fresh, empty database."""
    async with postgres_server.database() as url:
        yield url


@pytest.fixture
async def local_postgres_url(postgres_servers: PostgresServers) -> AsyncIterator[str]:
    """A fresh, empty database at a port of loopback, for a proxy to stand before; else use `postgres_url`."""
    async with postgres_servers.local().database() as url:
        yield url


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A server that this test may kill, pause and restart."""
    from tests.servers.postgres import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_servers() -> Iterator[RedisServers]:
    """`redis_servers[redis_name]`: a server that all tests share; nothing runs until asked for."""
    from tests.servers.redis import RedisServers

    with RedisServers() as servers:
        yield servers


@pytest.fixture
def redis_server(redis_servers: RedisServers, request: pytest.FixtureRequest) -> Rooms:
    """The first version's, or that of `redis_name`; shared by all tests: not to be stopped."""
    name = request.getfixturevalue("redis_name") if "redis_name" in request.fixturenames else ""
    return redis_servers[name] if name else redis_servers.first()


@pytest.fixture
def redis_url(redis_server: Rooms) -> Iterator[str]:
    """A prefix of its own, without keys, in a database that other tests use too."""
    with redis_server.prefix() as url:
        yield url


@pytest.fixture
def redis_database_url(redis_server: Rooms) -> Iterator[str]:
    """An empty database of its own."""
    with redis_server.database() as url:
        yield url


@pytest.fixture
def local_redis_url(redis_servers: RedisServers) -> Iterator[str]:
    """A prefix of its own at a port of loopback, for a proxy to stand before; else use `redis_url`."""
    with redis_servers.local().prefix() as url:
        yield url


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A server that this test may kill, pause and restart; it keeps all that it acknowledged."""
    from tests.servers.redis import RedisServer

    with RedisServer(aof=True) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Three primaries that all tests share: not to be stopped."""
    from tests.servers.redis_groups import RedisCluster

    with RedisCluster() as cluster:
        yield cluster


@pytest.fixture
def redis_cluster_url(redis_cluster: RedisCluster) -> Iterator[str]:
    """The shared cluster, empty, under a prefix that is a hash tag."""
    with redis_cluster.prefix() as url:
        yield url


@pytest.fixture
def own_redis_cluster() -> Iterator[RedisCluster]:
    """Three primaries with a replica each, which this test may kill."""
    from tests.servers.redis_groups import RedisCluster

    with RedisCluster(replicas=1) as cluster:
        yield cluster


@pytest.fixture
def redis_sentinel() -> Iterator[RedisSentinel]:
    """A primary, a replica and sentinels that watch them, which this test may kill."""
    from tests.servers.redis_groups import RedisSentinel

    with RedisSentinel() as group:
        yield group


@pytest.fixture(scope="session")
def mongo_server() -> Iterator[MongoDatabases]:
    """A replica set of one member that all tests share: not to be stopped."""
    from tests.servers.mongo import shared

    with shared() as databases:
        yield databases


@pytest.fixture
def mongo_url(mongo_server: MongoDatabases) -> Iterator[str]:
    """A database of its own, empty."""
    with mongo_server.database() as url:
        yield url


@pytest.fixture(scope="session")
def mongo_in_turn(mongo_server: MongoDatabases) -> Iterator[making.InTurn]:
    """A migrated database that tests have in turn."""
    with mongo_server.database() as url, mongo_server.client() as client:
        yield making.InTurn(url, client)


@pytest.fixture(scope="session")
def mongo_standalone() -> Iterator[MongoServer]:
    """A server that is in no replica set, so without change streams and transactions; shared: not to be stopped."""
    from tests.servers.mongo import MongoServer

    with MongoServer() as server:
        yield server


@pytest.fixture
def mongo_standalone_url(mongo_standalone: MongoServer) -> Iterator[str]:
    """A database of its own in it, empty."""
    with mongo_standalone.database() as url:
        yield url


@pytest.fixture
def own_mongo() -> Iterator[MongoReplicaSet]:
    """A replica set of one member, which this test may kill, pause and restart."""
    from tests.servers.mongo import MongoReplicaSet

    with MongoReplicaSet() as group:
        yield group


@pytest.fixture
def mongo_replica_set() -> Iterator[MongoReplicaSet]:
    """Three members, of which this test may kill, pause and restart any, and have the primary step down."""
    from tests.servers.mongo import MongoReplicaSet

    with MongoReplicaSet(3) as group:
        yield group


@pytest.fixture(scope="session")
def node_packages() -> Packages:
    """BullMQ, its dashboard and mongodb-cron, installed: `NodeProcess(node_packages, "peer.mjs", ...)`."""
    from tests.servers.node import Packages

    packages = Packages()
    packages.install()
    return packages
