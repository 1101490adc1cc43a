"""A MongoDB replica set of three members that loses its primary: workers resume under the next one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import jobmill
from jobmill import StoreUnavailable
from jobmill.core.values import Claim, Claimed, NewJob
from jobmill.store import Store
from tests.faults.load import LONGER_THAN_THE_LEASE_S, Load, working
from tests.helpers import until
from tests.kit.mongo import MongoReplicaSet
from tests.kit.workers import WorkerProcesses
from tests.stores_under_test import migrated_mongo

pytestmark = [pytest.mark.slow, pytest.mark.stores("mongo")]

#: A call has 10 s by default, and tries again by itself until then.
CALL_MS = "5000"

#: How a primary refuses writes: not primary, stepped down, interrupted by that, shutting down.
REFUSALS = (10_107, 189, 11_602, 91)


@asynccontextmanager
async def loaded(folder: Path, group: MongoReplicaSet) -> AsyncIterator[Load]:
    """Two workers work, and jobs are enqueued as long as the block lasts. Afterwards every promise was kept."""
    workers = WorkerProcesses(folder, await migrated_mongo(group.url("jobs", timeoutMS=CALL_MS)))
    try:
        async with working(workers) as load:
            async with load.enqueued():
                yield load
                load.check_workers()
            await load.check()
    finally:
        workers.end()


@pytest.mark.extended
async def test_a_primary_that_steps_down_ten_times(tmp_path: Path, mongo_replica_set: MongoReplicaSet) -> None:
    async with loaded(tmp_path, mongo_replica_set) as load:
        for _ in range(10):
            await asyncio.to_thread(mongo_replica_set.step_down)
            await load.resumes()
            await load.moves()


@pytest.mark.extended
async def test_a_primary_that_is_killed_three_times(tmp_path: Path, mongo_replica_set: MongoReplicaSet) -> None:
    async with loaded(tmp_path, mongo_replica_set) as load:
        for _ in range(3):
            dead = await asyncio.to_thread(mongo_replica_set.primary)
            await asyncio.to_thread(dead.kill)
            await asyncio.to_thread(mongo_replica_set.await_primary)
            await load.resumes()
            await load.moves()
            mongo_replica_set.start()  # in this thread: it ends with the thread that started it
            await load.moves()


@pytest.mark.parametrize("which", ["the primary", pytest.param("a secondary", marks=pytest.mark.extended)])
async def test_a_member_that_is_paused(tmp_path: Path, mongo_replica_set: MongoReplicaSet, which: str) -> None:
    group = mongo_replica_set
    async with loaded(tmp_path, group) as load:
        primary = await asyncio.to_thread(group.primary)
        frozen = primary if which == "the primary" else (await asyncio.to_thread(group.secondaries))[0]
        frozen.pause()
        await asyncio.sleep(LONGER_THAN_THE_LEASE_S)
        assert await asyncio.to_thread(group.await_primary) is not frozen
        await load.moves()
        frozen.resume()
        await asyncio.to_thread(group.await_primary)
        await load.resumes()
        await load.moves()


@pytest.mark.extended
async def test_a_server_that_refuses_writes_now_and_then(tmp_path: Path, own_mongo: MongoReplicaSet) -> None:
    """As a primary that steps down does, in the middle of any command."""
    node = own_mongo.nodes[0]
    async with loaded(tmp_path, own_mongo) as load:
        for code in REFUSALS:
            for _ in range(5):
                node.fail("insert", "update", "findAndModify", "bulkWrite", times=3, errorCode=code)
                await asyncio.sleep(0.1)
            node.fail_no_more()
            await load.resumes()


@pytest.mark.extended
async def test_a_server_that_is_gone_for_half_a_minute(tmp_path: Path, own_mongo: MongoReplicaSet) -> None:
    """Much longer than a call may take."""
    async with loaded(tmp_path, own_mongo) as load:
        await asyncio.to_thread(own_mongo.nodes[0].kill)
        await asyncio.sleep(30)
        await load.is_noticed()
        own_mongo.start()
        await load.resumes()
        await load.moves()
        assert load.refused
    assert load.claimed_again


async def test_a_fence_that_only_a_dead_primary_knew_is_not_given_again(mongo_replica_set: MongoReplicaSet) -> None:
    """A resource that orders by it would accept both claims."""
    group = mongo_replica_set
    async with jobmill.connect(await migrated_mongo(group.url("jobs", timeoutMS=CALL_MS))) as jobs:
        await jobs.store.enqueue([NewJob(id="job", name="work", queue="default", payload_json=b"{}")])
        primary, others = group.primary(), group.secondaries()
        for node in others:
            node.follow(False)
        fences = await claims(jobs.store, "a" * 32)
        primary.kill()
        for node in others:
            node.follow(True)
        await asyncio.to_thread(group.await_primary)
        fences += await until(lambda: claims(jobs.store, "b" * 32), 30)
        assert len(fences) == len(set(fences))


async def claims(store: Store, token: str) -> list[int]:
    """The fences of what this claim is given; nothing where the store is unavailable."""
    claim = Claim(queues=("default",), names={"work": 1}, n=1, lease_ms=100, token=token, worker="w")
    try:
        exchanged = await store.exchange([], claim)
    except StoreUnavailable:
        return []
    return [one.job.claims for one in exchanged.claimed if isinstance(one, Claimed)]
