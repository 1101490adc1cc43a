"""`--store NAME` (repeatable): which stores are under test. Without it everything runs, on every store that is known.

A test that uses the fixture `store_name` runs once per store; `@pytest.mark.stores("sqlite")` says that a test is only
for some. With `--store`, whatever is not for one of the stores named is left out.

PostgreSQL servers are started when a test first asks for one: `postgres_url` is a fresh, empty database on the newest.
A test that uses `postgres_name` runs once per version that the machine has; with `store_name` as well, that holds for
the store `postgres`, and for the others the name is empty.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests import making

if TYPE_CHECKING:  # a driver is imported only when its store is under test
    from tests.servers.postgres import Databases, PostgresServer, PostgresServers

STORES = ("memory", "sqlite", "postgres")


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
    if "store_name" in metafunc.fixturenames:
        meant = _meant(metafunc.definition)
        chosen = metafunc.config.getoption("--store") or STORES
        # Never an empty set, which would show as a skip: what is not chosen is left out below.
        names = [name for name in meant if name in chosen] or meant
        if "postgres_name" not in metafunc.fixturenames:
            metafunc.parametrize("store_name", names)
            return
        pairs = [(name, version) for name in names for version in _versions(name)]
        metafunc.parametrize("store_name, postgres_name", pairs, ids=[version or name for name, version in pairs])
    elif "postgres_name" in metafunc.fixturenames:
        metafunc.parametrize("postgres_name", _versions("postgres"))


def _versions(store_name: str) -> Sequence[str]:
    if store_name != "postgres":
        return ("",)
    from tests.servers.postgres import PostgresServers

    return PostgresServers.names()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = config.getoption("--store")
    if not chosen:
        return
    left_out = [item for item in items if not _is_for(item, chosen)]
    config.hook.pytest_deselected(items=left_out)
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
