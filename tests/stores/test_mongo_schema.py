"""Indexes of MongoDB: what `migrate` makes, beside a Monque that makes its own, and what the claim does with them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pymongo import IndexModel

from jobmill.core.job import LIVE
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import Filter, NewJob, after
from jobmill.errors import SchemaTooOld, StoreError
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.claim import ORDER
from jobmill.stores.mongo.codec import date
from jobmill.stores.mongo.schema import models
from jobmill.testing.contract.support import claim, new, put, put_one
from tests.stores.mongo_scene import profiled

pytestmark = pytest.mark.stores("mongo")

#: As the driver names what Monque makes.
MONQUE = {
    "status_1_nextRunAt_1",
    "name_1_uniqueKey_1",
    "name_1_status_1",
    "createdAt_-1__id_-1",
    "updatedAt_-1__id_-1",
    "nextRunAt_-1__id_-1",
    "claimedBy_1_status_1",
    "lastHeartbeat_1_status_1",
    "name_1_status_1_nextRunAt_1_claimedBy_1",
    "status_1_lockedAt_1_lastHeartbeat_1",
    "name_1_status_1_priority_-1_nextRunAt_1__id_1",
    "name_1_createdAt_-1__id_-1",
    "status_1_createdAt_-1__id_-1",
}


def said(url: str, **options: str) -> str:
    more = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{url}{'&' if '?' in url else '?'}{more}"


async def names(store: MongoStore) -> set[str]:
    cursor = await store.context.here.jobs.list_indexes()
    return {str(one["name"]) for one in await cursor.to_list()} - {"_id_"}


@pytest.fixture
async def store(mongo_url: str) -> AsyncIterator[MongoStore]:
    store = MongoStore(mongo_url)
    await store.migrate()
    yield store
    await store.close()


async def test_indexes_of_monque_are_as_monque_makes_them(mongo_url: str) -> None:
    store = MongoStore(said(mongo_url, indexes="monque"))
    await store.migrate()
    made = await (await store.context.here.jobs.list_indexes()).to_list()
    assert {one["name"] for one in made if one.get("background") is True} == MONQUE
    await store.close()


async def test_lean_makes_what_the_store_needs(store: MongoStore) -> None:
    made = await names(store)
    assert made & MONQUE == {"name_1_uniqueKey_1"}
    assert all(name.startswith("jobmill_") for name in made - MONQUE)
    assert await store.migrate() == []


async def test_monque_makes_what_monque_expects_as_well(mongo_url: str) -> None:
    store = MongoStore(said(mongo_url, indexes="monque"))
    ran = await store.migrate()
    assert await names(store) >= MONQUE
    elsewhere = {"jobmill_audit", "jobmill_edges_of", "jobmill_edges_to", "jobmill_steps_of", "jobmill_taken_until"}
    elsewhere |= {"jobmill_lanes_again"}
    assert set(ran) == await names(store) | elsewhere, "which are in collections of their own"
    await store.close()


async def test_ours_are_on_keys_that_monque_does_not_use() -> None:
    keys = [tuple(one.document["key"].items()) for one in models("monque")]
    assert len(set(keys)) == len(keys)


async def test_none_makes_none_and_asks_for_none(mongo_url: str) -> None:
    store = MongoStore(said(mongo_url, indexes="none"))
    assert await store.migrate() == []
    await store.open()
    ids = await put(store, new(), new())
    assert [one.job.id for one in await claim(store)] == ids
    await store.close()


async def test_a_collection_without_indexes_is_refused(mongo_url: str) -> None:
    store = MongoStore(mongo_url)
    with pytest.raises(SchemaTooOld, match="jobmill migrate"):
        await store.open()
    await store.migrate()
    await store.open()
    await store.close()


async def test_an_index_of_another_program_is_reported(mongo_url: str) -> None:
    store = MongoStore(said(mongo_url, indexes="monque"))
    await store.context.here.jobs.create_indexes([IndexModel([("status", 1), ("nextRunAt", 1)], name="mine")])
    with pytest.raises(StoreError, match="already has another index on the same keys"):
        await store.migrate()
    await store.close()


async def test_a_store_goes_on_when_an_index_is_dropped(store: MongoStore) -> None:
    await store.open()
    ids = await put(store, new(), new())
    for name in ("jobmill_claim", "jobmill_waiting", "jobmill_lease", "jobmill_far"):
        await store.context.here.jobs.drop_index(name)
    assert [one.job.id for one in await claim(store)] == ids


def keys_examined(plan: Any) -> int:
    """By all stages of a plan that was run."""
    if isinstance(plan, dict):
        below = sum(keys_examined(value) for name, value in plan.items() if name != "keysExamined")
        return below + int(plan.get("keysExamined", 0))
    return sum(map(keys_examined, plan)) if isinstance(plan, list) else 0


@pytest.mark.parametrize("indexes", ["lean", "monque"])
async def test_a_claim_looks_at_no_more_than_it_takes(mongo_url: str, indexes: str) -> None:
    store = MongoStore(said(mongo_url, indexes=indexes))
    await store.migrate()
    await store.open()
    for priority in (0, 1, 2):
        await store.enqueue([new(priority=priority, queue="default", due=after(10**9)) for _ in range(300)])
    await store.enqueue([new(queue="default") for _ in range(300)])
    await store.enqueue([new(queue="other") for _ in range(300)])
    query = {"jobmill.queue": None, "status": "pending", "name": {"$in": ["send", "b"]}}
    command = {
        "find": store.context.here.jobs.name,
        "filter": query | {"nextRunAt": {"$lte": date(store.now())}},
        "sort": dict(ORDER),
        "limit": 10,
        "hint": "jobmill_claim",
    }
    told = await store.context.here.database.command({"explain": command, "verbosity": "executionStats"})
    assert told["executionStats"]["nReturned"] == 10
    assert keys_examined(told["executionStats"]["executionStages"]) < 40
    assert told["executionStats"]["totalDocsExamined"] <= 12
    await store.close()


async def test_declared_recurrences_come_from_an_index(store: MongoStore) -> None:
    await store.open()
    await put(
        store, *[new(key=f"{number}", recurrence=Recurrence(key=f"{number}", every_ms=1)) for number in range(300)]
    )
    await put(store, *[new() for _ in range(300)])
    id = await put_one(store, new(key="x", recurrence=Recurrence(key="x", every_ms=1, declared=True)))
    wanted = Filter(declared=True, states=LIVE)
    async with profiled(store) as done:
        assert [job.id for job in (await store.find(wanted)).jobs] == [id]
    assert {one["planSummary"].partition(" ")[0] for one in done} == {"IXSCAN"}
    assert sum(one["docsExamined"] for one in done) == 1


async def test_own_ids_are_object_ids_in_order(store: MongoStore) -> None:
    ids = [store.new_id() for _ in range(100_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    receipts = await store.enqueue([NewJob(id=ids[0], name="send", queue="default", payload_json=b"1")])
    assert receipts[0].id == ids[0]
