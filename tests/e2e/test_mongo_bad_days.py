"""Bad days of MongoDB, alone and as a set of three: no acknowledged job is lost, workers resume by themselves."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pymongo
import pytest

import jobmill
from jobmill import StoreUnavailable
from jobmill.core.values import Claim, Claimed, NewJob
from jobmill.stores.mongo import MongoStore
from tests.e2e.conftest import Place
from tests.e2e.storms import Storm
from tests.helpers import until
from tests.kit.mongo import MongoReplicaSet
from tests.stores_under_test import migrated_mongo

pytestmark = [pytest.mark.slow, pytest.mark.stores("mongo")]

AWAY = "the mongo store is away"

#: Workers here have a lease of 1 s.
LONGER_THAN_THE_LEASE_S = 2.5
GONE_S = 30.0

PRODUCERS = 32
KEYS = 100
ROUNDS = 1


@asynccontextmanager
async def storm(path: Path, url: str, workers: int = 2) -> AsyncIterator[Storm]:
    """A store with workers that work, and somebody who enqueues. At the end all is well."""
    await migrated_mongo(url)
    place = Place(path, url)
    try:
        for _ in range(workers):
            place.worker("--concurrency", "20")
        async with jobmill.connect(url) as jobs:
            made = Storm(jobs, place)
            await made.was_said("concurrency 20")
            async with made.raging():
                yield made
            await made.all_is_well()
    finally:
        place.end()


# ---------------------------------------------------------------------------------------------------- a set of three


@pytest.mark.extended
async def test_a_primary_that_steps_down_ten_times(tmp_path: Path, mongo_replica_set: MongoReplicaSet) -> None:
    async with storm(tmp_path, mongo_replica_set.url("jobs")) as made:
        for _ in range(10):
            await asyncio.to_thread(mongo_replica_set.step_down)
            await made.resumes()
            await made.moves()
        await made.was_said()


@pytest.mark.extended
async def test_a_primary_that_is_killed_three_times(tmp_path: Path, mongo_replica_set: MongoReplicaSet) -> None:
    async with storm(tmp_path, mongo_replica_set.url("jobs")) as made:
        for _ in range(3):
            dead = await asyncio.to_thread(mongo_replica_set.primary)
            await asyncio.to_thread(dead.kill)
            await asyncio.to_thread(mongo_replica_set.await_primary)
            await made.resumes()
            await made.moves()
            mongo_replica_set.start()  # in this thread, with which it would end
            await made.moves()
        await made.was_said()


@pytest.mark.parametrize("which", ["the primary", "a secondary"])
async def test_a_member_that_is_paused(tmp_path: Path, mongo_replica_set: MongoReplicaSet, which: str) -> None:
    group = mongo_replica_set
    async with storm(tmp_path, group.url("jobs")) as made:
        for _ in range(2):
            primary = await asyncio.to_thread(group.primary)
            frozen = primary if which == "the primary" else (await asyncio.to_thread(group.secondaries))[0]
            frozen.pause()
            await asyncio.sleep(LONGER_THAN_THE_LEASE_S)
            assert await asyncio.to_thread(group.await_primary) is not frozen
            await made.moves(within=40)
            frozen.resume()
            await asyncio.to_thread(group.await_primary)
            await made.resumes()
            await made.moves()
        await made.was_said()


async def test_a_claim_that_only_a_dead_primary_knew_of(mongo_replica_set: MongoReplicaSet) -> None:
    """Its number, the fence, is never given to another claim: a resource that orders by it would take both."""
    group = mongo_replica_set
    store = MongoStore(await migrated_mongo(group.url("jobs")))
    await store.open()
    try:
        await store.enqueue([NewJob(id="job", name="work", queue="default", payload_json=b"{}")])
        primary, others = group.primary(), group.secondaries()
        for node in others:
            node.follow(False)
        fences = await claims(store, "a" * 32)
        primary.kill()
        for node in others:
            node.follow(True)
        await asyncio.to_thread(group.await_primary)
        fences += await until(lambda: claims(store, "b" * 32), 30)
        assert len(fences) == len(set(fences))
    finally:
        await store.close()


async def claims(store: MongoStore, token: str) -> list[int]:
    """The fences of what this claim is given; nothing where the store is away."""
    claim = Claim(queues=("default",), names={"work": 1}, n=1, lease_ms=100, token=token, worker="w")
    try:
        exchanged = await store.exchange([], claim)
    except StoreUnavailable:
        return []
    return [one.job.claims for one in exchanged.claimed if isinstance(one, Claimed)]


# ---------------------------------------------------------------------------------------------------- one server


@pytest.mark.extended
async def test_a_server_that_is_gone_for_half_a_minute(tmp_path: Path, own_mongo: MongoReplicaSet) -> None:
    async with storm(tmp_path, own_mongo.url("jobs")) as made:
        await asyncio.to_thread(own_mongo.nodes[0].kill)
        await asyncio.sleep(GONE_S)
        await made.was_said(AWAY)
        own_mongo.start()
        await made.resumes()
        await made.moves()
        assert all("cannot be used now" in said for said in made.refused)
        assert made.refused
    assert made.claimed_again


async def test_a_server_that_is_killed_and_restarted(tmp_path: Path, own_mongo: MongoReplicaSet) -> None:
    async with storm(tmp_path, own_mongo.url("jobs")) as made:
        for _ in range(3):
            await asyncio.to_thread(own_mongo.nodes[0].kill)
            await asyncio.sleep(0.3)
            own_mongo.start()
            await made.resumes()
            await made.moves()
        await made.was_said()


async def test_a_server_that_is_paused_for_longer_than_the_lease(tmp_path: Path, own_mongo: MongoReplicaSet) -> None:
    async with storm(tmp_path, own_mongo.url("jobs")) as made:
        for _ in range(2):
            own_mongo.nodes[0].pause()
            await asyncio.sleep(LONGER_THAN_THE_LEASE_S)
            own_mongo.nodes[0].resume()
            await made.resumes()
            await made.moves()
        await made.was_said()
    assert made.claimed_again


async def test_a_server_that_refuses_writes_now_and_then(tmp_path: Path, own_mongo: MongoReplicaSet) -> None:
    """As a primary that steps down does, in the middle of whatever."""
    node = own_mongo.nodes[0]
    async with storm(tmp_path, own_mongo.url("jobs")) as made:
        for code in (10107, 189, 11602, 91):  # not primary, stepped down, interrupted by that, shutting down
            for _ in range(5):
                node.fail("insert", "update", "findAndModify", "bulkWrite", times=3, errorCode=code)
                await asyncio.sleep(0.1)
            node.fail_no_more()
            await made.resumes()
        for _ in range(20):
            node.fail("insert", "update", "findAndModify", "find", "aggregate", times=2, closeConnection=True)
            await asyncio.sleep(0.05)
        node.fail_no_more()
        await made.resumes()
        await made.was_said()


# ---------------------------------------------------------------------------------------------------- unique keys


async def producing(jobs: jobmill.Client, producer: int, answers: list[Counter[str]]) -> None:
    for n in range(ROUNDS * KEYS):
        key = (n * 7 + producer) % KEYS
        answers[key][(await jobs.enqueue("short", {"n": key}, unique_key=f"key-{key}")).id] += 1


@pytest.mark.extended
async def test_a_storm_over_a_hundred_unique_keys(mongo_url: str) -> None:
    """Nobody works, so that what is live stays so: each key has one job, and everybody was told the same."""
    await migrated_mongo(mongo_url)
    answers: list[Counter[str]] = [Counter() for _ in range(KEYS)]
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(jobmill.connect(mongo_url)) for _ in range(PRODUCERS)]
        await asyncio.gather(*(producing(jobs, n, answers) for n, jobs in enumerate(clients)))
    assert [len(ids) for ids in answers] == [1] * KEYS
    assert sum(ids.total() for ids in answers) == PRODUCERS * KEYS * ROUNDS
    assert live_keys(mongo_url) == {f"key-{n}": 1 for n in range(KEYS)}


@pytest.mark.extended
async def test_a_storm_over_unique_keys_that_are_worked(tmp_path: Path, mongo_url: str) -> None:
    """A key is free again when its job has ended, and never has two that are live: the server says so by its index."""
    await migrated_mongo(mongo_url)
    place = Place(tmp_path, mongo_url)
    answers: list[Counter[str]] = [Counter() for _ in range(KEYS)]
    try:
        place.worker("--concurrency", "20")
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(jobmill.connect(mongo_url)) for _ in range(PRODUCERS)]
            working = asyncio.gather(*(producing(jobs, n, answers) for n, jobs in enumerate(clients)))
            while not working.done():
                assert set(live_keys(mongo_url).values()) <= {1}
                await asyncio.sleep(0.05)
            await working
            jobs = clients[0]

            async def all_ended() -> bool:
                return {one.state for one in await jobs.count()} == {"succeeded"}

            await until(all_ended, 30)
            ended = [job.id async for job in jobs.find_all()]
    finally:
        place.end()
    assert Counter(ended) == dict.fromkeys({id for ids in answers for id in ids}, 1)
    runs = Counter(id for word, id, _, _ in place.notes() if word == "run")
    assert runs == dict.fromkeys(ended, 1)


def live_keys(url: str) -> Counter[str]:
    with pymongo.MongoClient[dict[str, Any]](url) as client:
        documents = client.get_default_database().monque_jobs.find({"status": {"$in": ["pending", "processing"]}})
        return Counter(document["uniqueKey"] for document in documents)
