"""Enqueueing within the caller's own sqlite3 transaction: what only SQLite does."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from jobmill.core.values import EVERYTHING
from jobmill.errors import InvalidValue, StoreBusy
from jobmill.stores.sqlite import SqliteStore
from jobmill.stores.sqlite.codec import LARGE_PAYLOAD
from jobmill.stores.sqlite.connection.connect import BUSY_SECONDS
from jobmill.testing.contract.support import look, new, put_one, state_of

pytestmark = pytest.mark.stores("sqlite")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def connection(store: SqliteStore, path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(path)
    yield connection
    connection.close()


async def test_a_transaction_is_begun_if_there_is_none(store: SqliteStore, connection: sqlite3.Connection) -> None:
    (receipt,) = await store.enqueue_within(connection, [new()])
    assert connection.in_transaction
    assert await state_of(store, receipt.id) is None
    connection.commit()
    assert await state_of(store, receipt.id) == "waiting"


async def test_a_connection_that_commits_by_itself_waits_for_the_caller_too(store: SqliteStore, path: Path) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    (receipt,) = await store.enqueue_within(connection, [new()])
    connection.execute("ROLLBACK")
    connection.close()
    assert await state_of(store, receipt.id) is None


async def test_the_callers_own_writes_are_in_the_same_transaction(
    store: SqliteStore, connection: sqlite3.Connection
) -> None:
    connection.execute("CREATE TABLE orders (id)")
    connection.execute("INSERT INTO orders VALUES (1)")
    (receipt,) = await store.enqueue_within(connection, [new()])
    connection.rollback()
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)
    assert await state_of(store, receipt.id) is None


async def test_factories_of_the_caller_are_respected(store: SqliteStore, connection: sqlite3.Connection) -> None:
    connection.row_factory = sqlite3.Row
    connection.text_factory = bytes
    await put_one(store, new("there"))
    receipts = await store.enqueue_within(connection, [new("there"), new("large", payload="x" * LARGE_PAYLOAD)])
    connection.commit()
    assert [(receipt.id, receipt.status) for receipt in receipts] == [("there", "exists"), ("large", "created")]
    assert connection.row_factory is sqlite3.Row
    assert connection.text_factory is bytes
    assert (await look(store, "large")).payload == "x" * LARGE_PAYLOAD


async def test_an_attached_database_is_accepted(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "application.db")
    connection.execute("ATTACH ? AS jobs", (str(path),))
    (receipt,) = await store.enqueue_within(connection, [new()])
    connection.commit()
    connection.close()
    assert await state_of(store, receipt.id) == "waiting"


async def test_another_database_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "application.db")
    with pytest.raises(InvalidValue, match="a connection to the database of the store"):
        await store.enqueue_within(connection, [new()])
    connection.close()
    with pytest.raises(InvalidValue, match="a connection of sqlite3 or Django"):
        await store.enqueue_within("a connection", [new()])


async def test_awaiting_a_write_before_the_commit_is_an_error_not_a_deadlock(
    store: SqliteStore, connection: sqlite3.Connection
) -> None:
    (receipt,) = await store.enqueue_within(connection, [new()])
    async with asyncio.timeout(BUSY_SECONDS - 1):
        with pytest.raises(StoreBusy, match="commit or roll it back first"):
            await store.enqueue([new()])
        with pytest.raises(StoreBusy, match="commit or roll it back first"):
            await asyncio.create_task(_enqueue(store))
        # Looking needs no lock.
        assert await store.count(EVERYTHING) == []
    connection.commit()
    await store.enqueue([new()])
    assert await state_of(store, receipt.id) == "waiting"


async def test_others_wait_for_the_callers_commit(store: SqliteStore, connection: sqlite3.Connection) -> None:
    told = asyncio.Event()

    async def caller() -> None:
        await store.enqueue_within(connection, [new("within")])
        told.set()
        await asyncio.sleep(0.02)
        connection.commit()

    calling = asyncio.create_task(caller())
    await told.wait()
    await put_one(store, new("beside"))
    await calling
    assert all(await store.get(["within", "beside"]))


async def test_a_later_transaction_of_the_connection_does_not_refuse_writes(
    store: SqliteStore, connection: sqlite3.Connection
) -> None:
    await store.enqueue_within(connection, [new()])
    connection.commit()
    await put_one(store)
    connection.execute("BEGIN")
    connection.execute("SELECT * FROM jobmill_queues").fetchall()
    await put_one(store)
    connection.rollback()


async def test_a_connection_that_was_closed_is_forgotten(store: SqliteStore, path: Path) -> None:
    connection = sqlite3.connect(path)
    await store.enqueue_within(connection, [new()])
    connection.close()
    await put_one(store)


async def test_a_call_that_fails_leaves_nothing_behind(store: SqliteStore, connection: sqlite3.Connection) -> None:
    jobs = [new("good"), new("large", payload="x" * LARGE_PAYLOAD), new("bad", priority=1 << 70)]
    with pytest.raises(OverflowError):
        await store.enqueue_within(connection, [*[new() for _ in range(100)], *jobs])
    connection.commit()
    assert await store.count(EVERYTHING) == []


async def _enqueue(store: SqliteStore) -> None:
    await store.enqueue([new()])
