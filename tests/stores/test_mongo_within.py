"""Enqueueing within the caller's own session of pymongo."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pymongo
import pytest
from pymongo.errors import OperationFailure

from jobmill.core.recurrence import Recurrence
from jobmill.core.values import EVERYTHING, QueueChange, after
from jobmill.errors import InvalidValue
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.url import MongoUrl
from jobmill.testing.contract.support import QUEUE, find_all, look, new, put_one

pytestmark = pytest.mark.stores("mongo")

Client = pymongo.AsyncMongoClient[dict[str, Any]]


@pytest.fixture
async def store(mongo_url: str) -> AsyncIterator[MongoStore]:
    store = MongoStore(mongo_url)
    await store.migrate()
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def client(mongo_url: str) -> AsyncIterator[Client]:
    async with Client(MongoUrl.read(mongo_url).driver_url) as client:
        yield client


async def test_a_job_is_written_with_what_the_caller_writes(store: MongoStore, client: Client, mongo_url: str) -> None:
    orders = client[MongoUrl.read(mongo_url).database]["orders"]
    async with client.start_session() as session:
        async with await session.start_transaction():
            await orders.insert_one({"_id": 1}, session=session)
            await store.enqueue_within(session, [new("mail-1")])
        await session.start_transaction()
        await orders.insert_one({"_id": 2}, session=session)
        await store.enqueue_within(session, [new("mail-2")])
        await session.abort_transaction()
    assert await find_all(store, EVERYTHING) == ["mail-1"]
    assert await orders.count_documents({}) == 1


def test_a_session_without_a_loop(mongo_url: str) -> None:
    import asyncio

    async def use() -> list[str]:
        store = MongoStore(mongo_url)
        await store.migrate()
        with (
            pymongo.MongoClient[dict[str, Any]](MongoUrl.read(mongo_url).driver_url) as client,
            client.start_session() as s,
        ):
            with s.start_transaction():
                await store.enqueue_within(s, [new("kept", key="k")])
                (again,) = await store.enqueue_within(s, [new("other", key="k")])
                assert again.status == "duplicate"
            s.start_transaction()
            await store.enqueue_within(s, [new("dropped")])
            s.abort_transaction()
        ids = await find_all(store, EVERYTHING)
        await store.close()
        return ids

    assert asyncio.run(use()) == ["kept"]


async def test_a_recurring_job_is_updated_within(store: MongoStore, client: Client) -> None:
    minutely, hourly = (Recurrence(key="k", every_ms=ms) for ms in (60_000, 3_600_000))
    id = await put_one(store, new(key="k", recurrence=minutely, due=after(60_000)))
    async with client.start_session() as session, await session.start_transaction():
        (receipt,) = await store.enqueue_within(session, [new(key="k", recurrence=hourly)])
        assert (receipt.status, receipt.id) == ("updated", id)
        assert (await look(store, id)).recurrence == minutely
    rule = (await look(store, id)).recurrence
    assert rule is not None
    assert (rule.every_ms, rule.revision) == (3_600_000, 1)


async def test_a_conflict_is_told_as_pymongo_tells_it(store: MongoStore, client: Client) -> None:
    async with client.start_session() as first, client.start_session() as last:
        await first.start_transaction()
        await last.start_transaction()
        await store.enqueue_within(first, [new("one", key="k")])
        with pytest.raises(OperationFailure) as caught:
            await store.enqueue_within(last, [new("two", key="k")])
        assert caught.value.has_error_label("TransientTransactionError")
        await first.commit_transaction()


async def test_a_feed_tells_of_what_was_committed(store: MongoStore, client: Client) -> None:
    await store.configure(QUEUE, QueueChange(feed=True))
    async with client.start_session() as session:
        async with await session.start_transaction():
            await store.enqueue_within(session, [new("kept")])
            assert await store.events(QUEUE) == []
        await session.start_transaction()
        await store.enqueue_within(session, [new("dropped")])
        await session.abort_transaction()
    assert [event.job_id for event in await store.events(QUEUE)] == ["kept"]


async def test_what_is_no_transaction_is_refused(store: MongoStore, client: Client) -> None:
    with pytest.raises(InvalidValue, match="within: expected a client session of pymongo, in a transaction"):
        await store.enqueue_within(client, [new()])
    session = client.start_session()
    with pytest.raises(InvalidValue, match="begin one"):
        await store.enqueue_within(session, [new()])
    await session.end_session()
    with pytest.raises(InvalidValue, match="this one has ended"):
        await store.enqueue_within(session, [new()])
    assert await find_all(store, EVERYTHING) == []
