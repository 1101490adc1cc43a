"""MongoDB on a server outside a replica set: without change streams and transactions, with the rest of the contract."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import Any

import pymongo
import pytest

from jobmill.errors import InvalidValue
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.codec import date
from jobmill.stores.mongo.url import MongoUrl
from jobmill.testing.contract import ProcessContract, StoreContract
from jobmill.testing.contract.support import claim_ids, claim_one, new, put, settle, succeed
from tests.contract.mongo_harness import MongoHarness
from tests.stores.mongo_killed import waits

pytestmark = pytest.mark.stores("mongo")


@pytest.fixture
async def harness(mongo_standalone_url: str) -> AsyncIterator[MongoHarness]:
    """The store under test, opened and empty."""
    harness = MongoHarness(mongo_standalone_url)
    await harness.store.migrate()
    await harness.store.open()
    yield harness
    await harness.store.close()


@pytest.mark.slow
@pytest.mark.extended  # the same statements as on a replica set
class TestStandalone(StoreContract, ProcessContract):
    """Everything but transactions; long sequences of verbs are the same statements as on a replica set."""

    test_every_long_sequence_of_verbs_follows_the_model = None  # type: ignore[assignment]


async def test_a_missing_replica_set_is_logged_once(
    mongo_standalone_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = MongoStore(mongo_standalone_url)
    await store.migrate()
    with caplog.at_level(logging.WARNING, "jobmill"):
        for _ in range(2):
            await store.open()
            await store.wait_for_work(("mail",), store.now() + 5)
        await store.close()
    (record,) = caplog.records
    assert "is in no replica set" in record.getMessage()


async def test_within_is_refused_without_transactions(harness: MongoHarness) -> None:
    client = pymongo.AsyncMongoClient[dict[str, Any]](MongoUrl.read(harness.url).driver_url)
    async with client, client.start_session() as session:
        assert isinstance(harness.store, MongoStore)
        with pytest.raises(InvalidValue, match="in no replica set: it has no transactions"):
            await harness.store.enqueue_within(session, [new()])


async def test_a_flow_needs_no_replica_set(mongo_standalone_url: str) -> None:
    store = MongoStore(mongo_standalone_url)
    await store.migrate()
    await store.open()
    await put(store, new("first"), waits("then", "first"), waits("last", "then"))
    await settle(store, succeed(await claim_one(store), 1))
    # What Monque completes is found by the next claim, at most every half second.
    ended = {"status": "completed", "updatedAt": date(store.now())}
    await store.context.here.jobs.update_one({"jobmill.id": "then"}, {"$set": ended})
    store.context.claims.rearm_from_ms = 0
    assert await claim_ids(store) == ["last"]
    await store.close()
