"""A frozen database, loaded where the test may change it, and opened by the present code."""

from __future__ import annotations

import json
import shutil
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
async def empty_url(
    store_name: str, postgres_name: str, redis_name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[str]:
    """A database of its own, where nothing has been migrated yet. Keys of Redis are frozen with their prefix."""
    async with AsyncExitStack() as stack:
        match store_name:
            case "sqlite":
                yield f"sqlite:///{tmp_path / 'jobs.db'}"
            case "postgres":
                server = request.getfixturevalue("postgres_servers")[postgres_name]
                yield await stack.enter_async_context(server.database())
            case name:
                yield stack.enter_context(request.getfixturevalue(f"{name}_server").database())


@pytest.fixture
async def frozen(
    store_name: str, version: str, empty_url: str, request: pytest.FixtureRequest
) -> AsyncIterator[Frozen]:
    """Loaded, migrated and opened; its clock stands where it stood."""
    folder = HERE / version
    match store_name:
        case "sqlite":
            shutil.copy(folder / "sqlite.sqlite3", empty_url.removeprefix("sqlite:///"))
        case "postgres":
            await dumps.load_postgres(dumps.read(folder / "postgres.sql.gz"), empty_url)
        case "mongo":
            with request.getfixturevalue("mongo_server").client() as client:
                dumps.load_mongo(dumps.read(folder / "mongo.json.gz"), client[urlsplit(empty_url).path[1:]])
        case _:
            with request.getfixturevalue("redis_server").client(int(urlsplit(empty_url).path[1:])) as client:
                dumps.load_redis(dumps.read(folder / "redis.json.gz"), client)
    frozen = Frozen(store_name, version, empty_url)
    await frozen.store.migrate()
    async with frozen.jobs:
        yield frozen
