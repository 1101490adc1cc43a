"""A client on every store, by the real clock, and what its usage recorders were handed."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest

import jobmill
from jobmill import Client, Usage
from jobmill.store import Store
from tests.stores_under_test import make_store

#: Reads what stands in the table of the store under test.
Kept: TypeAlias = Callable[[], Awaitable[list[Usage]]]


@pytest.fixture
def store(store_url: str) -> Store:
    """Not yet opened: the client does that."""
    return make_store(store_url)


@pytest.fixture
async def jobs(store: Store) -> AsyncIterator[Client]:
    async with jobmill.connect(store=store) as client:
        yield client


@pytest.fixture
def used(jobs: Client) -> list[Usage]:
    """The usage of all runs, as a usage recorder gets it."""
    told: list[Usage] = []

    @jobs.record_usage
    async def note(usage: Usage) -> None:
        told.append(usage)

    return told


@pytest.fixture
async def kept(store: Any, store_name: str, store_url: str) -> Kept:
    """What stands in the table of the store, as plain SQL reads it, in the order in which it was written."""

    async def sqlite() -> list[Usage]:
        return read(store.path)

    async def postgres() -> list[Usage]:
        from tests.kit.postgres import connected

        async with connected(store_url) as connection:
            return [Usage(**row) for row in await connection.fetch("SELECT * FROM jobmill.usage ORDER BY ctid")]

    if store_name == "postgres":
        from tests.kit.postgres import connected

        # Room that rows of other tests have left would be taken in any order.
        async with connected(store_url) as connection:
            await connection.execute("TRUNCATE jobmill.usage")
    return {"sqlite": sqlite, "postgres": postgres}[store_name]


def read(path: Path) -> list[Usage]:
    """The usage in a SQLite file, in the order in which it was written."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [Usage(**row) for row in connection.execute("SELECT * FROM jobmill_usage ORDER BY rowid")]
