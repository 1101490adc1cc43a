"""Enqueueing within the caller's own session of pymongo."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pymongo
import pytest
from msgspec import structs
from pymongo.errors import OperationFailure

from jobmill.core.changes import Remove
from jobmill.core.flows import After
from jobmill.core.job import State
from jobmill.core.recurrence import Recurrence
from jobmill.core.unique_policy import UniquePolicy
from jobmill.core.values import EVERYTHING, Filter, QueueChange, Receipt, after
from jobmill.errors import InvalidValue
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.url import MongoUrl
from jobmill.testing.contract.support import (
    QUEUE,
    claim_one,
    enqueue_one,
    find_all,
    look,
    new,
    put_one,
    settle,
    started,
    state_of,
    succeed,
)
from jobmill.testing.contract.unique_policy import CANCEL, FOR_A_MINUTE, REPLACE, debounced, keyed

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


POLICIES = [FOR_A_MINUTE, REPLACE, CANCEL, UniquePolicy(debounce_ms=5_000)]


async def stored(store: MongoStore) -> list[Any]:
    """All jobs and taken keys, as the server has them."""
    here = store.context.here
    return [await collection.find().sort("_id", 1).to_list() for collection in (here.jobs, here.taken_keys, here.edges)]


@pytest.mark.parametrize("policy", POLICIES, ids=["for", "replace", "cancel", "debounce"])
@pytest.mark.parametrize("state", [None, "waiting", "running"])
async def test_policies_are_rolled_back(
    store: MongoStore, client: Client, policy: UniquePolicy, state: State | None
) -> None:
    if state is not None:
        # It is awaited, and has taken its key for a time.
        await store.enqueue([keyed(FOR_A_MINUTE, "a", payload="old")])
        await store.enqueue([structs.replace(new("b"), after=(After("a", "run"),))])
        assert state == "waiting" or (await claim_one(store)).job.id == "a"
    before = await stored(store)
    async with client.start_session() as session:
        await session.start_transaction()
        await store.enqueue_within(session, [keyed(policy, payload="new")])
        await session.abort_transaction()
    assert await stored(store) == before


async def test_a_key_is_taken_within(store: MongoStore, client: Client) -> None:
    async with client.start_session() as session, await session.start_transaction():
        jobs = [keyed(FOR_A_MINUTE, "a"), keyed(FOR_A_MINUTE, "b")]
        receipts = await store.enqueue_within(session, jobs)
        assert receipts == [Receipt("a", "created"), Receipt("a", "duplicate")]
    await settle(store, succeed(await claim_one(store)))
    assert await enqueue_one(store, keyed(FOR_A_MINUTE)) == Receipt("a", "duplicate")
    async with client.start_session() as session, await session.start_transaction():
        assert await store.enqueue_within(session, [keyed(FOR_A_MINUTE)]) == [Receipt("a", "duplicate")]
    await store.change(["a"], Remove())
    assert (await enqueue_one(store, keyed(FOR_A_MINUTE))).created


async def test_a_payload_is_replaced_within(store: MongoStore, client: Client) -> None:
    id = await put_one(store, keyed(REPLACE, payload="old"))
    async with client.start_session() as session, await session.start_transaction():
        assert await store.enqueue_within(session, [keyed(REPLACE, payload=None)]) == [Receipt(id, "updated")]
    assert (await look(store, id)).payload is None


async def test_a_running_job_loses_its_key_within(store: MongoStore, client: Client) -> None:
    running = await started(store, keyed(CANCEL, "a"))
    async with client.start_session() as session, await session.start_transaction():
        (receipt,) = await store.enqueue_within(session, [debounced("new")])
        assert receipt.created
    assert await find_all(store, Filter(unique_key="k")) == [receipt.id]
    assert await settle(store, succeed(running)) == ["done"]


async def test_a_live_job_is_cancelled_within(store: MongoStore, client: Client) -> None:
    """With what a cancel does: its lease, its key, the jobs that wait for it, the feed."""
    await store.configure(QUEUE, QueueChange(feed=True))
    running = await started(store, keyed(FOR_A_MINUTE, "a"))
    await store.enqueue([structs.replace(new("b"), after=(After("a", "run"),))])
    async with client.start_session() as session, await session.start_transaction():
        receipts = await store.enqueue_within(session, [keyed(CANCEL, "c"), keyed(CANCEL, "d")])
        assert receipts == [Receipt("c", "created"), Receipt("d", "created")]
    assert [await state_of(store, id) for id in "acd"] == ["cancelled", "cancelled", "waiting"]
    assert await settle(store, succeed(running)) == ["lost"]
    assert await store.flush_outbox() == 1
    assert [edge.state for edge in await store.dependencies("b")] == ["cancelled"]
    assert await store.context.here.taken_keys.count_documents({}) == 0
    told = [(event.type, event.job_id) for event in await store.events(QUEUE) if event.job_id in "acd"]
    ended = [("enqueued", "c"), ("cancelled", "c"), ("enqueued", "d")]
    assert told[-4:] == [("cancelled", "a"), *ended]


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
