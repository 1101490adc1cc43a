"""Stores for tests, by name: empty, and with the clock of the test."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from jobmill.core.changes import Cancel, Remove
from jobmill.core.values import EVERYTHING, NewJob, QueueChange, Receipt
from jobmill.errors import InvalidValue
from jobmill.store import Store
from jobmill.stores.common.url import scheme_of, without_credentials
from jobmill.stores.memory import MemoryStore

#: Where a test finds a server, by the name of its store.
URL_VARIABLES = {
    "postgres": "JOBMILL_TEST_POSTGRES",
    "redis": "JOBMILL_TEST_REDIS",
    "mongo": "JOBMILL_TEST_MONGO",
}
NAMES = ("memory", "sqlite", *URL_VARIABLES)
#: The PostgreSQL schema, the prefix of Redis keys and the MongoDB collection of tests. Nothing else is touched.
ROOM = "jobmill_test"


class MemoryStoreForTests(MemoryStore):
    """A memory store that accepts `within=`. It has no transactions: it enqueues at once, as if they had committed."""

    async def enqueue_within(self, connection: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """Enqueue at once."""
        return await self.enqueue(new_jobs)

    def check_unlocked(self) -> None:
        """Nothing is locked."""


def make_store(which: str, clock: Callable[[], int], folder: Path, room: str = ROOM) -> Store:
    """A store by its name or by a URL, not yet opened. A new SQLite file is in this folder."""
    if which == "memory":
        return MemoryStoreForTests(clock=clock)
    if which == "sqlite":
        from jobmill.stores.sqlite import SqliteStore

        return SqliteStore(folder / "jobs.db", clock=clock, synchronous="OFF")
    url = which
    if which in URL_VARIABLES:
        url = os.environ.get(URL_VARIABLES[which], "")
        if not url:
            raise InvalidValue(
                "store", f"the URL of a server in the environment variable {URL_VARIABLES[which]}", which
            )
    elif "://" not in which:
        raise InvalidValue("store", f"one of {', '.join(NAMES)}, or a URL", which)
    scheme = scheme_of(url, "postgresql://…, redis://… or mongodb://…").partition("+")[0]
    if scheme in ("postgres", "postgresql"):
        from jobmill.stores.postgres import PostgresStore

        return PostgresStore(url, schema=room, clock=clock)
    if scheme in ("redis", "rediss", "valkey", "valkeys", "unix"):
        from jobmill.stores.redis import RedisStore

        return RedisStore(_with_option(url, "prefix", room), clock=clock)
    if scheme == "mongodb":
        from jobmill.stores.mongo import MongoStore

        return MongoStore(_with_option(url, "collection", room), clock=clock)
    raise InvalidValue("store", f"one of {', '.join(NAMES)}, or a URL of a server", without_credentials(url))


def _with_option(url: str, name: str, value: str) -> str:
    parts = urlsplit(url)
    options = [(key, given) for key, given in parse_qsl(parts.query) if key != name]
    return urlunsplit(parts._replace(query=urlencode([*options, (name, value)])))


async def prepare(store: Store) -> None:
    """Migrate a store and remove its jobs, and the settings of its queues."""
    await store.migrate()
    await store.open()
    for change in (Cancel(), Remove()):
        while (await store.change(EVERYTHING, change)).more:
            pass
    for queue in await store.settings():
        nothing = QueueChange(paused=False, rate_limit=None, running_limit=None, feed=False)
        await store.configure(queue, nothing)
