"""The foreign peer alone: what it does is Monque's, so that what the other tests show is worth something."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import bson
import pytest
from pymongo import AsyncMongoClient
from pymongo.asynchronous.collection import AsyncCollection
from pymongo.errors import OperationFailure

from tests.helpers import until
from tests.interop.monque.monque import Generation
from tests.interop.monque.process import COLLECTION, MonqueProcess
from tests.kit.node import NodeFailed

pytestmark = [pytest.mark.slow, pytest.mark.extended, pytest.mark.stores("mongo")]

Document = dict[str, Any]
both = pytest.mark.parametrize("generation", [1, 2])

FOR_EVER = 60_000
ALWAYS = {"name", "data", "status", "nextRunAt", "failCount", "createdAt", "updatedAt", "_id"}
CLAIMED = {"lockedAt", "claimedBy", "lastHeartbeat", "heartbeatInterval"}


@pytest.fixture
async def jobs(mongo_url: str) -> AsyncIterator[AsyncCollection[Document]]:
    async with AsyncMongoClient[Document](mongo_url, tz_aware=True) as client:
        yield client.get_default_database()[COLLECTION]


async def status(jobs: AsyncCollection[Document]) -> Counter[str]:
    return Counter([job["status"] async for job in jobs.find()])


async def one(jobs: AsyncCollection[Document], id: str) -> Document:
    job = await jobs.find_one({"_id": bson.ObjectId(id)})
    assert job is not None
    return job


@both
async def test_the_life_of_a_document(mongo_url: str, jobs: AsyncCollection[Document], generation: Generation) -> None:
    always = ALWAYS if generation == 1 else ALWAYS | {"priority"}
    claimed = CLAIMED if generation == 1 else CLAIMED | {"claimId"}
    async with MonqueProcess(mongo_url, generation) as peer:
        made = (await peer.ask("initialize", base_ms=500, max_retries=3))["made"]
        assert len(made) == (10 if generation == 1 else 13)
        assert "name_1_uniqueKey_1" in made
        id = await peer.ask("enqueue", name="work", data={"fails": 1})
        assert (await one(jobs, id)).keys() == always
        long = await peer.ask("enqueue", name="work", data={"peer_ms": FOR_EVER})
        await peer.ask("start")
        await peer.event("run", lambda event: bool(event["job"] == long))
        assert (await one(jobs, long)).keys() == always | claimed
        await peer.event("end")
        failed = await one(jobs, id)
        assert (failed["status"], failed["failCount"], failed["failReason"]) == ("pending", 1, "attempt 1 is no good")
        assert failed.keys() == always | {"failReason", "heartbeatInterval"}
        await peer.event("end", lambda event: bool(event["fails"] == 1))
        done = await one(jobs, id)
        assert done.keys() == always | {"heartbeatInterval"}
        assert (done["status"], done["failCount"]) == ("completed", 1)
        assert peer.complaints() == []


@both
async def test_two_of_them_run_each_job_once(
    mongo_url: str, jobs: AsyncCollection[Document], generation: Generation
) -> None:
    async with MonqueProcess(mongo_url, generation) as peer, MonqueProcess(mongo_url, 2) as other:
        for process in (peer, other):
            await process.ask("initialize")
            await process.ask("start", concurrency=20)
        ids = await peer.ask("bulk", jobs=[{"name": "work", "data": {"ms": 1}} for _ in range(200)])

        async def all_ended() -> bool:
            return await status(jobs) == {"completed": 200}

        await until(all_ended, 30)
        assert peer.runs() + other.runs() == dict.fromkeys(ids, 1)
        assert peer.complaints() + other.complaints() == []


@both
async def test_unique_keys_and_hands(mongo_url: str, jobs: AsyncCollection[Document], generation: Generation) -> None:
    async with MonqueProcess(mongo_url, generation) as peer:
        await peer.ask("initialize")
        first = await peer.ask("enqueue", name="work", unique_key="a")
        assert await peer.ask("enqueue", name="work", unique_key="a") == first
        assert await peer.ask("cancel", job=first)
        assert not await peer.ask("cancel", job=first)
        second = await peer.ask("enqueue", name="work", unique_key="a")
        assert second != first
        with pytest.raises(NodeFailed, match="DuplicateKeyError"):
            await peer.ask("retry", job=first)
        assert await peer.ask("delete", job=second)
        assert await peer.ask("retry", job=first)
        assert await peer.ask("reschedule", job=first, at_ms=time.time() * 1_000 + 60_000)
        assert (await one(jobs, first))["status"] == "pending"


@both
async def test_a_crash_is_found_at_the_next_start(
    mongo_url: str, jobs: AsyncCollection[Document], generation: Generation
) -> None:
    async with MonqueProcess(mongo_url, generation) as victim:
        await victim.ask("initialize")
        await victim.ask("enqueue", name="work", data={"peer_ms": FOR_EVER})
        await victim.ask("start")
        await victim.event("run")
        victim.kill()
    async with MonqueProcess(mongo_url, generation) as peer:
        assert (await peer.ask("initialize"))["recovered"] == 0
        assert (await peer.ask("initialize", lock_timeout_ms=0))["recovered"] == 1
    assert await status(jobs) == {"pending": 1}


async def test_what_it_holds_is_released_when_it_stops(mongo_url: str, jobs: AsyncCollection[Document]) -> None:
    async with MonqueProcess(mongo_url) as peer:
        await peer.ask("initialize")
        id = await peer.ask("enqueue", name="work", data={"peer_ms": FOR_EVER})
        await peer.ask("start")
        await peer.event("run")
        assert await peer.ask("stop", timeout_ms=10) == 1
        assert (await one(jobs, id))["status"] == "pending"
        assert await peer.ask("check") == {}


async def test_a_lease_ends_by_the_servers_clock(mongo_url: str, jobs: AsyncCollection[Document]) -> None:
    async with MonqueProcess(mongo_url) as victim:
        await victim.ask("initialize", lease_ms=300)
        await victim.ask("enqueue", name="work", data={"peer_ms": FOR_EVER})
        await victim.ask("start")
        await victim.event("run")
        victim.kill()
    async with MonqueProcess(mongo_url) as peer:

        async def is_recovered() -> bool:
            return bool((await peer.ask("initialize"))["recovered"])

        await until(is_recovered)
    assert await status(jobs) == {"pending": 1}
    assert await peer_sees_nothing_wrong(mongo_url) == {}


async def peer_sees_nothing_wrong(url: str) -> Any:
    async with MonqueProcess(url) as peer:
        return await peer.ask("check")


async def test_a_recurring_job_is_armed_again(mongo_url: str, jobs: AsyncCollection[Document]) -> None:
    async with MonqueProcess(mongo_url) as peer:
        await peer.ask("initialize")
        id = await peer.ask(
            "enqueue", name="work", cron="*/5 * * * *", timezone="Europe/Berlin", at_ms=time.time() * 1_000 - 1_000
        )
        await peer.ask("start")
        await peer.event("end")
        job = await one(jobs, id)
        assert (job["status"], job["timezone"]) == ("pending", "Europe/Berlin")
        assert datetime.now(UTC) < job["nextRunAt"] <= datetime.now(UTC) + timedelta(minutes=5)


async def test_other_indexes_on_its_keys_make_it_refuse(mongo_url: str, jobs: AsyncCollection[Document]) -> None:
    await jobs.create_index([("status", 1), ("nextRunAt", 1)], name="another")
    async with MonqueProcess(mongo_url) as peer:
        with pytest.raises(NodeFailed, match="Index already exists with a different name"):
            await peer.ask("initialize")
    with pytest.raises(OperationFailure):
        await jobs.create_index([("status", 1), ("nextRunAt", 1)])


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"$set": {"nextRunAt": 1}}, "nextRunAt is 1"),
        ({"$unset": {"failCount": ""}}, "failCount is None"),
        ({"$set": {"uniqueKey": None}}, "uniqueKey is None"),
        ({"$set": {"claimedBy": "a"}}, "claimedBy of a job that is pending"),
        ({"$set": {"status": "sleeping"}}, "status is 'sleeping'"),
        ({"$set": {"repeatInterval": "0 0 * * * *"}}, "repeatInterval is '0 0 * * * *'"),
    ],
)
async def test_it_complains(mongo_url: str, jobs: AsyncCollection[Document], change: Any, what: str) -> None:
    async with MonqueProcess(mongo_url) as peer:
        id = await peer.ask("enqueue", name="work")
        assert await peer.ask("check") == {}
        await jobs.update_one({}, change)
        assert await peer.ask("check") == {id: [what]}
