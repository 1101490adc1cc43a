"""A frozen database, loaded where the test may change it, and opened by the present code."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import jobmill
from jobmill import Client
from jobmill.store import Store
from jobmill.testing import ManualClock
from tests.stores_under_test import make_store
from tests.upgrade import dumps

HERE = Path(__file__).parent
VERSIONS = sorted(folder.name for folder in HERE.iterdir() if folder.is_dir() and folder.name[0].isdigit())


class Frozen:
    """A database that an older version made, and what that version read from it."""

    def __init__(self, store_name: str, version: str, url: str) -> None:
        text = (HERE / version / f"{store_name}.expected.json").read_text(encoding="utf-8")
        self.expected: dict[str, Any] = json.loads(text)
        self.url = url
        self.clock = ManualClock(self.expected["now"])
        self.store: Store = make_store(url, self.clock)
        self.jobs: Client = jobmill.connect(store=self.store)

    def id(self, label: str) -> str:
        """The id of the job that the scene calls so."""
        return str(self.expected["ids"][label])

    def job(self, label: str) -> dict[str, Any]:
        """What was frozen of it."""
        job: dict[str, Any] = self.expected["jobs"][self.id(label)]
        return job


@pytest.fixture(params=VERSIONS)
def version(request: pytest.FixtureRequest) -> str:
    """Each version that has frozen databases."""
    return str(request.param)


@pytest.fixture
async def frozen(
    store_name: str,
    postgres_name: str,
    redis_name: str,
    version: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> AsyncIterator[Frozen]:
    """Loaded, migrated and opened; its clock stands where it stood."""
    folder = HERE / version
    async with AsyncExitStack() as stack:
        match store_name:
            case "sqlite":
                path = tmp_path / "jobs.db"
                path.write_bytes((folder / "sqlite.sqlite3").read_bytes())
                url = f"sqlite:///{path}"
            case "postgres":
                server = request.getfixturevalue("postgres_servers")[postgres_name]
                url = await stack.enter_async_context(server.database())
                await dumps.load_postgres(dumps.read(folder / "postgres.sql.gz"), url)
            case "mongo":
                server = request.getfixturevalue("mongo_server")
                url = stack.enter_context(server.database())
                with server.client() as client:
                    dumps.load_mongo(dumps.read(folder / "mongo.json.gz"), client[urlsplit(url).path[1:]])
            case _:
                # A database of its own: keys are frozen with their prefix.
                server = request.getfixturevalue("redis_server")
                url = stack.enter_context(server.database())
                with server.client(int(urlsplit(url).path[1:])) as client:
                    dumps.load_redis(dumps.read(folder / "redis.json.gz"), client)
        frozen = Frozen(store_name, version, url)
        stack.push_async_callback(frozen.jobs.close)
        await frozen.store.migrate()
        await frozen.jobs.open()
        yield frozen
