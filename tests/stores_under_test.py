"""The stores under test, made the same way in every folder.

All tests of one PostgreSQL or MongoDB server have one migrated database in turn: emptying it is quicker than making
another. In Redis each has a prefix of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from jobmill.store import Store

if TYPE_CHECKING:  # a driver is imported only when its store is under test
    import asyncpg
    from pymongo import MongoClient

    from tests.kit.postgres import PostgresServers

_TABLES = (
    *("jobs", "history", "runs", "logs", "queues", "running", "events", "sleepers", "usage"),
    *("workers", "tallies", "audit", "edges", "outbox", "dropped", "steps", "signals", "taken_keys"),
)
_EMPTY = "; ".join(f"DELETE FROM jobmill.{table}" for table in _TABLES)

# By the name of the server: where its migrated database is, and a connection that empties it between tests. To connect
# takes the server longer than to delete.
_migrated: dict[str, str] = {}
_emptying: dict[str, asyncpg.Connection] = {}


async def emptied_postgres(servers: PostgresServers, name: str | None = None) -> str:
    """The URL of a migrated database without jobs, on the server of this name; without one, on the newest."""
    import asyncpg

    from jobmill.stores.postgres import PostgresStore

    name = name or servers.names()[0]
    if name not in _migrated:
        url = servers[name].url(await servers[name].create_database())
        store = PostgresStore(url)
        await store.migrate()
        await store.close()
        _migrated[name] = url
    try:
        await _emptying[name].execute(_EMPTY)
    except (KeyError, asyncpg.PostgresConnectionError, asyncpg.AdminShutdownError, asyncpg.InterfaceError, OSError):
        # The first time, or a test has ended all connections.
        _emptying[name] = await asyncpg.connect(_migrated[name], timeout=10, command_timeout=20)
        await _emptying[name].execute(_EMPTY)
    return _migrated[name]


def drop_connections() -> None:
    """At the end of all tests."""
    while _emptying:
        with contextlib.suppress(RuntimeError):  # their loop is closed already, and they with it
            _emptying.popitem()[1].terminate()


async def migrated_mongo(url: str) -> str:
    """The same URL, of a database that has its indexes now."""
    from jobmill.stores.mongo import MongoStore

    store = MongoStore(url)
    await store.migrate()
    await store.close()
    return url


class InTurn:
    """A database of a MongoDB, and a client to empty it with."""

    def __init__(self, url: str, client: MongoClient[Any]) -> None:
        self.url = url
        self.database = client[urlsplit(url).path[1:]]
        self.is_migrated = False


async def emptied_mongo(lent: InTurn) -> str:
    """The URL of a migrated database without jobs."""
    if not lent.is_migrated:
        await migrated_mongo(lent.url)
        lent.is_migrated = True
    for name in lent.database.list_collection_names():
        lent.database[name].delete_many({})
    return lent.url


async def make_url(store_name: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """Where an empty store is; for `jobmill.connect`, here or in another process."""
    match store_name:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{folder / 'jobs.db'}"
        case "postgres":
            return await emptied_postgres(request.getfixturevalue("postgres_servers"))
        case "redis":
            return str(request.getfixturevalue("redis_url"))
        case "mongo":
            return await emptied_mongo(request.getfixturevalue("mongo_in_turn"))
    raise ValueError(f"nothing makes the store {store_name} yet")


def make_store(url: str, clock: Callable[[], int] | None = None) -> Store:
    """The store at a URL of `make_url`, not yet opened: quick rather than safe, by a clock of the test's own."""
    if url.startswith(("redis", "unix:")):
        from jobmill.stores.redis import RedisStore

        return RedisStore(url, clock=clock)
    if url.startswith("mongodb"):
        from jobmill.stores.mongo import MongoStore

        return MongoStore(url, clock=clock)
    match url.split(":///"):
        case ["memory://"]:
            from jobmill.stores.memory import MemoryStore

            return MemoryStore(clock=clock)
        case ["sqlite", path]:
            from jobmill.stores.sqlite import SqliteStore

            return SqliteStore(path, clock=clock, synchronous="OFF")
        case _:
            from jobmill.stores.postgres import PostgresStore

            return PostgresStore(url, clock=clock)
