"""The stores under test, made the same way in every folder.

All tests of one PostgreSQL or MongoDB server have one migrated database in turn: emptying it is quicker than making
another. In Redis each has a prefix of its own, and for SQLite a file of its own.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from jobmill.store import Store

if TYPE_CHECKING:  # a driver is imported only when its store is under test
    import asyncpg
    from pymongo import MongoClient

    from tests.kit.postgres import Databases, PostgresServers

_TABLES = (
    *("jobs", "history", "runs", "logs", "queues", "running", "events", "sleepers", "usage"),
    *("workers", "tallies", "audit", "edges", "outbox", "dropped", "steps", "signals", "taken_keys"),
    *("lanes", "lane_marks"),
)
_EMPTY = "; ".join(f"DELETE FROM jobmill.{table}" for table in _TABLES)

# By the name of the server: where its migrated database is, and a connection that empties it between tests. To connect
# takes the server longer than to delete.
_migrated: dict[str, str] = {}
_emptying: dict[str, asyncpg.Connection] = {}
#: By the URL of the server.
_templates: dict[str, str] = {}
_LARGE_INDEX_BYTES = 10 * 8_192


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
    if await _emptying[name].fetchval("SELECT pg_relation_size('jobmill.jobs_line')") > _LARGE_INDEX_BYTES:
        # A claim that has to pass over the jobs of earlier tests returns to the start of its index ranges less often.
        # VACUUM would leave statistics, which some tests must not have.
        await _emptying[name].execute("TRUNCATE jobmill.jobs")
    return _migrated[name]


async def migrated_template(databases: Databases) -> str:
    """The name of a migrated database on this server: to copy one is quicker than to migrate another."""
    from jobmill.stores.postgres import PostgresStore

    server = databases.url()
    if server not in _templates:
        name = await databases.create_database()
        store = PostgresStore(databases.url(name))
        await store.migrate()
        await store.close()
        _templates[server] = name
    return _templates[server]


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

    def filled(self) -> list[str]:
        """The collections that hold something: few, and each deletion is a request."""
        first, *others = self.database.list_collection_names()

        def one_of(name: str) -> list[dict[str, Any]]:
            return [{"$limit": 1}, {"$project": {"_id": {"$literal": name}}}]

        more = [{"$unionWith": {"coll": name, "pipeline": one_of(name)}} for name in others]
        return [found["_id"] for found in self.database[first].aggregate([*one_of(first), *more])]


async def emptied_mongo(lent: InTurn) -> str:
    """The URL of a migrated database without jobs."""
    if not lent.is_migrated:
        await migrated_mongo(lent.url)
        lent.is_migrated = True
    for name in lent.filled():
        lent.database[name].delete_many({})
    return lent.url


@functools.cache
def _migrated_sqlite() -> bytes:
    from jobmill.stores.sqlite.schema import migrate

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "jobs.db"
        migrate(path, "OFF")
        return path.read_bytes()


def copied_sqlite(path: Path) -> Path:
    """The same path, at which a migrated file without jobs now is: to copy one is quicker than to migrate another."""
    path.touch(0o600)
    path.write_bytes(_migrated_sqlite())
    return path


async def make_url(store_name: str, folder: Path, request: pytest.FixtureRequest) -> str:
    """Where an empty store is; for `jobmill.connect`, here or in another process."""
    match store_name:
        case "memory":
            return "memory://"
        case "sqlite":
            return f"sqlite:///{copied_sqlite(folder / 'jobs.db')}"
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
