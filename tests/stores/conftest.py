"""PostgreSQL stores with somebody in between who can spoil their connections."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from tests.stores_under_test import migrated_template

if TYPE_CHECKING:  # a driver is imported only when its store is under test
    from jobmill.stores.postgres import PostgresStore
    from tests.kit.postgres import PostgresServers
    from tests.kit.proxy import Proxy


@pytest.fixture
async def migrated_url(postgres_servers: PostgresServers) -> AsyncIterator[str]:
    """A fresh database with our schema, at a port of loopback."""
    databases = postgres_servers.local()
    async with databases.database(await migrated_template(databases)) as url:
        yield url


@pytest.fixture
async def proxy(migrated_url: str) -> AsyncIterator[Proxy]:
    """A proxy before that database."""
    from tests.kit.places import port_of
    from tests.kit.proxy import Proxy

    async with Proxy(port_of(migrated_url)) as proxy:
        yield proxy


@pytest.fixture
async def proxied(proxy: Proxy, migrated_url: str) -> AsyncIterator[PostgresStore]:
    """A store that is open, through the proxy."""
    from jobmill.stores.postgres import PostgresStore

    store = PostgresStore(proxy.url(migrated_url))
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def direct(migrated_url: str) -> AsyncIterator[PostgresStore]:
    """A store at the same database, past the proxy."""
    from jobmill.stores.postgres import PostgresStore

    store = PostgresStore(migrated_url)
    await store.open()
    yield store
    await store.close()
