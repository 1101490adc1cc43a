"""Options of this suite: `--store NAME` (repeatable), `--all` and `--shuffle SEED`; and the servers that tests use.

Without `--store` the tests of all stores run. Without `--all` two kinds of tests are left out: those marked `extended`
(test servers, benchmark, long runs, faults on most stores, the browser on servers) and those of older versions of a
server. A file that the command line names runs whole, but for older versions; a test that it names with its parameters
runs in any case.

On a server only the first case of a parametrised test is not `slow`, if memory or SQLite has all its cases; and none of
the contract on PostgreSQL and MongoDB.

Tests marked `alone` measure time. While one runs, the other test processes wait; so they come last.

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

`tmp_path` is in memory where there is room: a disk lets SQLite wait for each commit.

`serving(app)` is the address of an ASGI app, `proxying(...)` that of an nginx before it, and `tabs.open(url)` a page of
a real browser. The test fails if anything went wrong in one of its pages; see tests/kit/browser.py.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import random
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from tests import stores_under_test

if TYPE_CHECKING:  # a driver is imported only when its store is under test
    from tests.kit.browser import Browser, Tabs
    from tests.kit.mongo import MongoDatabases, MongoReplicaSet, MongoServer
    from tests.kit.node import Packages
    from tests.kit.postgres import Databases, PostgresServer, PostgresServers
    from tests.kit.redis import RedisServer, RedisServers, Rooms
    from tests.kit.redis_groups import RedisCluster, RedisSentinel
    from tests.kit.turns import Turns

# For tests of the pytest plugin.
pytest_plugins = ["pytester"]

HERE = Path(__file__).parent
SERVERS = ("postgres", "redis", "mongo")
STORES = ("memory", "sqlite", *SERVERS)

#: Tests that take long on servers, by parts of their ids.
MODEL = "_sequence_of_verbs_"
LONG = (
    MODEL,
    "test_refused_jobs_do_not_keep_a_requeue_from_the_others",
    "tests/usage/test_outcomes.py",
    "::test_threads_",
    "::test_the_kit_on_every_store",
)
#: Where the contract takes several times as long as on the others: each test makes new connections.
LONG_CONTRACTS = ("postgres", "mongo")

#: One that takes long on SQLite as well.
LONG_MODEL = "test_every_long_sequence_of_verbs_"

#: Tests of the contract that take long on the example store, which reads all jobs for each search.
LONG_ON_EXAMPLE = (
    "test_the_first_page_of_a_large_queue_behind_newer_jobs_is_full",
    "test_many_to_one",
    "test_one_to_many",
    "test_a_search_through_more_jobs_than_one_page_examines",
)

#: If a call is cancelled while pymongo connects, pymongo leaves the socket to Python, which closes it at once and warns
#: (`_async_create_connection` of 4.19 closes it after an OSError only).
CANCELLED_CONNECTS = r"ignore:unclosed <socket\.socket .* proto=6:ResourceWarning"

#: Hypothesis: examples of the model, and of properties that give no number. `--all` has Hypothesis' own default.
FEW_EXAMPLES = 30

#: Folders of tests that only `--all` runs: the test servers themselves, and the benchmark.
EXTENDED_FOLDERS = ("kit", "bench")

#: Fixtures that name a version, and the store whose server it is.
VERSIONS = {"postgres_name": "postgres", "redis_name": "redis"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--store",
        action="append",
        metavar="NAME",
        help=f"only the tests of this store ({', '.join(STORES)}); may be given more than once",
    )
    parser.addoption(
        "--all", action="store_true", help="also tests marked `extended`, and those of older versions of servers"
    )
    parser.addoption("--shuffle", type=int, metavar="SEED", help="run the tests in a random order, the same for a seed")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: measures time; no other test runs meanwhile")
    config.addinivalue_line("markers", "extended(*names): only `--all` runs it; with names, only on these stores")
    config.addinivalue_line("markers", "stores(*names): only for these stores")
    for name in config.getoption("--store") or ():
        if name not in STORES:
            raise pytest.UsageError(f"--store {name}: there is no such store; known are {', '.join(STORES)}")

    if sys.platform == "linux":
        _write_to_memory()
    if not config.getoption("--all"):
        hypothesis.settings.register_profile("few", max_examples=FEW_EXAMPLES)
        hypothesis.settings.load_profile("few")


def _write_to_memory() -> None:
    """Have `tmp_path` in memory, unless tests could not run the programs that they write there."""
    from tests.kit.places import MEMORY, has_room_in_memory

    if has_room_in_memory() and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """No garbage is collected meanwhile, nor later among the many objects that are made here and live to the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@functools.cache
def _turns() -> Turns:
    from tests.kit.turns import Turns

    return Turns(Path(sys.prefix) / "turns")


def pytest_unconfigure() -> None:
    if _turns.cache_info().currsize:
        _turns().close()
        _turns.cache_clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    if not hasattr(item.config, "workerinput"):  # there is no other process
        return (yield)
    with _turns().held(alone=item.get_closest_marker("alone") is not None):
        return (yield)


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


@functools.cache
def _versions(store_name: str) -> Sequence[str]:
    if store_name == "redis":
        from tests.kit.redis import RedisServers

        return RedisServers.names()
    from tests.kit.postgres import PostgresServers

    return PostgresServers.names()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Not even to be imported without `--all`, unless the command line names something in these folders."""
    if config.getoption("--all") or collection_path.parent != HERE or collection_path.name not in EXTENDED_FOLDERS:
        return None
    named = (Path(argument.partition("::")[0]).resolve() for argument in config.args)
    return None if any(one.is_relative_to(collection_path) for one in named) else True


@pytest.hookimpl(tryfirst=True)  # before pytest looks at the marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    begun: set[tuple[str, str]] = set()
    for item in items:
        _mark(item)
        if _repeats(item, begun):
            item.add_marker(pytest.mark.slow)
    kept = items
    if chosen := config.getoption("--store"):
        kept = [item for item in kept if _is_for(item, chosen)]
    if not config.getoption("--all"):
        files = {Path(argument.partition("::")[0]).resolve() for argument in config.args}
        kept = [item for item in kept if not _is_left_out(item, config.args, files)]
    if len(kept) < len(items):
        config.hook.pytest_deselected(items=list(set(items).difference(kept)))
        items[:] = kept
    if (seed := config.getoption("--shuffle")) is not None:
        random.Random(seed).shuffle(items)
    items.sort(key=lambda item: item.get_closest_marker("alone") is not None)


def _mark(item: pytest.Item) -> None:
    folder = item.path.relative_to(HERE).parts[0]
    if folder in EXTENDED_FOLDERS or (MODEL in item.name and folder != "contract"):
        item.add_marker(pytest.mark.extended)
    if folder == "browser":
        item.add_marker(pytest.mark.slow)  # the browser's start alone takes long
        if _params(item).get("store_name") in SERVERS:
            item.add_marker(pytest.mark.extended)
    if _params(item).get("store_name") == "mongo":
        item.add_marker(pytest.mark.filterwarnings(CANCELLED_CONNECTS))
    takes_long = any(part in item.nodeid for part in LONG) and _params(item).get("store_name") in SERVERS
    if folder == "contract" and _params(item).get("store_name") in LONG_CONTRACTS:
        takes_long = True
    if LONG_MODEL in item.name and _params(item).get("store_name") == "sqlite":
        takes_long = True
    if item.path.name == "test_writing_a_store.py":
        takes_long = item.name.startswith(LONG_ON_EXAMPLE)
    if takes_long or _is_of_older_version(item):
        item.add_marker(pytest.mark.slow)


def _repeats(item: pytest.Item, begun: set[tuple[str, str]]) -> bool:
    """Whether this is another case of a test that has one on this server already; memory or SQLite has all its cases.

    `begun`: the tests so far, each with its server.
    """
    store_name = str(_params(item).get("store_name"))
    if store_name not in SERVERS or not {"memory", "sqlite"} & set(_meant(item)) or _is_of_older_version(item):
        return False
    if item.path.is_relative_to(HERE / "upgrade"):  # what an older version wrote differs from store to store
        return False
    case = (item.nodeid.partition("[")[0], store_name)
    is_another = case in begun
    begun.add(case)
    return is_another


def _is_left_out(item: pytest.Item, arguments: Sequence[str], files: Set[Path]) -> bool:
    """Whether only `--all` runs a test that the command line does not name."""
    if _is_of_older_version(item):
        return item.nodeid not in arguments
    return _is_extended(item) and item.path not in files


def _is_extended(item: pytest.Item) -> bool:
    store_name = _params(item).get("store_name")
    return any(not mark.args or store_name in mark.args for mark in item.iter_markers("extended"))


def _is_of_older_version(item: pytest.Item) -> bool:
    """What holds on the newest version of a server holds on the others as a rule."""
    return any(
        # An empty name is another store's, whose servers and drivers a machine need not have.
        fixture in VERSIONS and value != "" and value != _versions(VERSIONS[fixture])[0]
        for fixture, value in _params(item).items()
    )


def _params(item: pytest.Item) -> Mapping[str, object]:
    callspec = getattr(item, "callspec", None)
    return {} if callspec is None else callspec.params


def _is_for(item: pytest.Item, chosen: Sequence[str]) -> bool:
    if (name := _params(item).get("store_name")) is not None:
        return name in chosen
    return item.get_closest_marker("stores") is not None and any(name in chosen for name in _meant(item))


def _meant(item: pytest.Item) -> Sequence[str]:
    mark = item.get_closest_marker("stores")
    return STORES if mark is None else mark.args


@pytest.fixture
async def store_url(store_name: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    """Where the store under test is, without jobs; `stores_under_test.make_store` makes it, or `jobmill.connect`."""
    return await stores_under_test.make_url(store_name, tmp_path, request)


@pytest.fixture(scope="session")
def postgres_servers() -> Iterator[PostgresServers]:
    """`postgres_servers[postgres_name]`: a server that all tests share; nothing runs until asked for."""
    from tests.kit.postgres import PostgresServers

    with PostgresServers() as servers:
        yield servers
        stores_under_test.drop_connections()


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
    from tests.kit.postgres import PostgresServer

    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_servers() -> Iterator[RedisServers]:
    """`redis_servers[redis_name]`: a server that all tests share; nothing runs until asked for."""
    from tests.kit.redis import RedisServers

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
    from tests.kit.redis import RedisServer

    with RedisServer(aof=True) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[RedisCluster]:
    """Three primaries that all tests share: not to be stopped."""
    from tests.kit.redis_groups import RedisCluster

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
    from tests.kit.redis_groups import RedisCluster

    with RedisCluster(replicas=1) as cluster:
        yield cluster


@pytest.fixture
def redis_sentinel() -> Iterator[RedisSentinel]:
    """A primary, a replica and sentinels that watch them, which this test may kill."""
    from tests.kit.redis_groups import RedisSentinel

    with RedisSentinel() as group:
        yield group


@pytest.fixture(scope="session")
def mongo_server() -> Iterator[MongoDatabases]:
    """A replica set of one member that all tests share: not to be stopped."""
    from tests.kit.mongo import shared

    with shared() as databases:
        yield databases


@pytest.fixture
def mongo_url(mongo_server: MongoDatabases) -> Iterator[str]:
    """A database of its own, empty."""
    with mongo_server.database() as url:
        yield url


@pytest.fixture(scope="session")
def mongo_in_turn(mongo_server: MongoDatabases) -> Iterator[stores_under_test.InTurn]:
    """A migrated database that tests have in turn."""
    with mongo_server.database() as url, mongo_server.client() as client:
        yield stores_under_test.InTurn(url, client)


@pytest.fixture(scope="session")
def mongo_standalone() -> Iterator[MongoServer]:
    """A server that is in no replica set, so without change streams and transactions; shared: not to be stopped."""
    from tests.kit.mongo import MongoServer

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
    from tests.kit.mongo import MongoReplicaSet

    with MongoReplicaSet() as group:
        yield group


@pytest.fixture
def mongo_replica_set() -> Iterator[MongoReplicaSet]:
    """Three members, of which this test may kill, pause and restart any, and have the primary step down."""
    from tests.kit.mongo import MongoReplicaSet

    with MongoReplicaSet(3) as group:
        yield group


@pytest.fixture(scope="session")
def node_packages() -> Packages:
    """BullMQ, its dashboard and mongodb-cron, installed: `NodeProcess(node_packages, "peer.mjs", ...)`."""
    from tests.kit.node import Packages

    packages = Packages()
    packages.install()
    return packages


@pytest.fixture(scope="session")
async def browser() -> AsyncIterator[Browser]:
    """One for all tests of this process: not to be closed."""
    from tests.kit.browser import Browser

    async with Browser() as browser:
        yield browser


@pytest.fixture
async def serving() -> AsyncIterator[Callable[..., Awaitable[str]]]:
    """`await serving(app, root_path="")`: the address of an ASGI app, which uvicorn serves until the test ends."""
    from tests.kit.serve import serve

    async with contextlib.AsyncExitStack() as apps:

        async def serving(app: object, **options: Any) -> str:
            return await apps.enter_async_context(serve(app, **options))

        yield serving


@pytest.fixture
def proxying() -> Iterator[Callable[[str], str]]:
    """`proxying(reverse_proxy("/jobs", url, strips=True))`: the address of an nginx with these directives."""
    from tests.kit.nginx import Nginx

    with contextlib.ExitStack() as proxies:
        yield lambda directives: proxies.enter_context(Nginx(directives)).url


@pytest.fixture
async def tabs(browser: Browser, serving: object, proxying: object) -> AsyncIterator[Tabs]:
    """Pages of this test. They close before apps and proxies do, because a server that is gone is a problem."""
    async with browser.tabs() as tabs:
        yield tabs
