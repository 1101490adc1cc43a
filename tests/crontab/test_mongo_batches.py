"""The MongoDB store of the crontab: batches, which only their lock distinguishes from batches of other workers."""

from __future__ import annotations

import asyncio
import os
from datetime import datetime, timedelta
from typing import Any

import bson
import pytest
from bson.raw_bson import RawBSONDocument

from jobmill.crontab import Changes, MongoCrontab
from jobmill.errors import StoreUnavailable
from tests.crontab.harness_mongo import MongoHarness, at, endings, put
from tests.kit.mongo import MongoReplicaSet

pytestmark = pytest.mark.stores("mongo")


def marked(mongo: MongoHarness, mark: int) -> MongoCrontab:
    """A store whose batches have this mark."""
    return MongoCrontab(mongo.collection, clock=mongo.clock, chance=lambda: mark / 1_000_000)


@pytest.mark.parametrize("seconds", [0.5, 2, 60, 600])
def test_batches_of_two_workers_never_have_the_same_lock(mongo: MongoHarness, seconds: float) -> None:
    one, other = marked(mongo, 17), marked(mongo, 18)
    ours, theirs = set(), set()
    for _ in range(500):
        lock = at(mongo, seconds)
        ours.add(one._marked_lock(lock, at(mongo)))
        theirs.add(other._marked_lock(lock, at(mongo)))
        # mongodb-cron's, of the same length in the same moment, is `lock` or a little later.
        for found in (one, other):
            longer = found._marked_lock(lock, at(mongo)) - lock
            assert timedelta(seconds=min(seconds / 10, 1)) / 25 <= longer < timedelta(seconds=min(seconds / 10, 1))
        mongo.clock.advance(0.003)
    assert not ours & theirs


async def test_a_very_short_lock_is_not_extended(mongo: MongoHarness) -> None:
    await put(mongo, {"_id": 1, "sleepUntil": at(mongo)})
    (job,) = await mongo.store.lock_many(at(mongo, 0.005), 2)
    assert job.locked_until == at(mongo, 0.005)


async def test_documents_that_others_lock_meanwhile_are_skipped(
    mongo: MongoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(mongo, *[{"_id": n, "sleepUntil": at(mongo, n - 9)} for n in range(4)])
    await between(mongo, monkeypatch, [0, 2], at(mongo, 77))
    jobs = await mongo.store.lock_many(at(mongo, 60), 9)
    assert [job.id for job in jobs] == [1, 3]
    assert [job.data["sleepUntil"] for job in jobs] == [at(mongo, -8), at(mongo, -6)]


async def test_a_batch_that_others_locked_is_followed_by_another_query(
    mongo: MongoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(mongo, *[{"_id": n, "sleepUntil": at(mongo, n - 9)} for n in range(4)])
    await between(mongo, monkeypatch, [0, 1], at(mongo, 77))
    assert [job.id for job in await mongo.store.lock_many(at(mongo, 60), 2)] == [2]


async def test_documents_locked_twice_in_one_millisecond_do_not_run(
    mongo: MongoHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    marks = iter([0.5, 0.25])
    store = MongoCrontab(mongo.collection, clock=mongo.clock, chance=lambda: next(marks))
    mongo.store = store
    lock = at(mongo, 5)
    same = store._marked_lock(lock, at(mongo))
    await put(mongo, *[{"_id": n, "sleepUntil": at(mongo, n - 9)} for n in range(4)])
    await between(mongo, monkeypatch, [1], same)
    assert await store.lock_many(lock, 3) == []
    # Then one by one for a while, which cannot be mistaken, and under another mark.
    assert [job.id for job in await store.lock_many(lock, 3)] == [3]
    assert store._marked_lock(lock, at(mongo)) != same
    assert await store.lock_many(lock, 3) == []
    mongo.clock.advance(6)
    taken = [await store.lock_many(at(mongo, 5), 3) for _ in range(4)]
    assert sorted(job.id for jobs in taken for job in jobs) == [0, 1, 2, 3]


async def between(mongo: MongoHarness, monkeypatch: pytest.MonkeyPatch, ids: list[int], lock: datetime) -> None:
    """Other workers lock these documents once, after our query and before our lock."""
    collection = mongo.store._collection  # type: ignore[attr-defined]
    ours = collection.update_many

    async def update_many(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        await mongo.collection.update_many({"_id": {"$in": ids}}, {"$set": {"sleepUntil": lock}})
        return await ours(*args, **options)

    monkeypatch.setattr(collection, "update_many", update_many)


async def test_equal_endings_share_one_update(mongo: MongoHarness) -> None:
    await put(mongo, *[{"_id": n, "sleepUntil": at(mongo, n - 50)} for n in range(50)])
    jobs = await mongo.store.lock_many(at(mongo, 60), 50)
    before = await operations(mongo)
    written = endings(jobs[:20]) + endings(jobs[20:40], at(mongo, 9)) + endings(jobs[40:], remove=True)
    assert await mongo.store.finish_many(written) == [True] * 50
    assert await operations(mongo) - before == 3
    found = [one async for one in mongo.collection.find({}, sort={"_id": 1})]
    assert [one["sleepUntil"] for one in found] == [None] * 20 + [at(mongo, 9)] * 20


async def operations(mongo: MongoHarness) -> int:
    """How many updates and deletes the server has done, as it counts statements."""
    status = await mongo.collection.database.command("serverStatus")
    return int(status["opcounters"]["update"] + status["opcounters"]["delete"])


async def test_an_ending_that_another_worker_wrote_is_lost(mongo: MongoHarness) -> None:
    await put(mongo, {"_id": 1, "sleepUntil": at(mongo)})
    jobs = await mongo.store.lock_many(at(mongo, 60), 5)
    await mongo.collection.update_one({"_id": 1}, {"$set": {"sleepUntil": None}})
    assert await mongo.store.finish_many(endings(jobs)) == [False]
    assert await mongo.store.finish_many(endings(jobs, remove=True)) == [False]


async def test_an_unanswered_ending_is_not_lost(own_mongo: MongoReplicaSet) -> None:
    mongo = MongoHarness(own_mongo.url("crontab"))
    await put(mongo, *[{"_id": n, "sleepUntil": at(mongo, n - 9)} for n in range(4)])
    jobs = await mongo.store.lock_many(at(mongo, 60), 4)
    written = endings(jobs[:2], at(mongo, 9)) + endings(jobs[2:], remove=True)
    # The server does it, and says that most members do not know of it yet.
    broken = {"writeConcernError": {"code": 91, "errmsg": "going down"}}
    own_mongo.primary().fail("update", "delete", times=None, **broken)
    with pytest.raises(StoreUnavailable, match="crontab.jobs cannot be used now"):
        await mongo.store.finish_many(written)
    with pytest.raises(StoreUnavailable):
        await mongo.store.finish_many(written[2:])
    own_mongo.primary().fail_no_more()
    # As the crontab retries: one alone, then the others.
    assert await mongo.store.update(0, Changes(sleep_until=at(mongo, 9), locked_until=written[0].locked_until)) is True
    assert await mongo.store.remove(2, locked_until=written[2].locked_until) is True
    assert await mongo.store.finish_many([written[1], written[3]]) == [True] * 2
    assert await mongo.store.finish_many(written) == [False] * 4
    await mongo.close()


# ------------------------------------------------------------------------------------------------ regressions


async def test_crontabs_that_share_a_store_do_not_mix_up_their_batches(mongo: MongoHarness) -> None:
    await put(mongo, *[{"_id": n, "sleepUntil": at(mongo, n - 99)} for n in range(40)])
    taken = await asyncio.gather(*[mongo.store.lock_many(at(mongo, 60), 10) for _ in range(4)])
    assert sorted(job.id for jobs in taken for job in jobs) == list(range(40))


def test_a_forked_process_has_another_mark(mongo: MongoHarness) -> None:
    store = MongoCrontab(mongo.collection, clock=mongo.clock)
    ours = store._marked_lock(at(mongo, 60), at(mongo))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            before = store._mark
            store._marked_lock(at(mongo, 60), at(mongo))
            os.write(writing, b"same" if store._mark == before else b"other")
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reading, 99)
    os.close(reading)
    os.close(writing)
    assert said == b"other"
    assert store._marked_lock(at(mongo, 60), at(mongo)) == ours


async def test_a_locked_batch_that_could_not_be_read_is_read_in_the_next_turn(own_mongo: MongoReplicaSet) -> None:
    mongo = MongoHarness(own_mongo.url("crontab", retryReads="false"))
    await put(mongo, *[{"_id": n, "sleepUntil": at(mongo, n - 9)} for n in range(4)])
    for passes in (True, False):
        await fail_second_find(mongo)
        with pytest.raises(StoreUnavailable):
            await mongo.store.lock_many(at(mongo, 60), 4)
        own_mongo.primary().fail_no_more()
        if passes:
            # Others' turns have no room for it.
            assert await mongo.store.lock_many(at(mongo, 60), 3) == []
            jobs = await mongo.store.lock_many(at(mongo, 60), 4)
            assert [(job.id, job.sleep_until) for job in jobs] == [(n, at(mongo, n - 9)) for n in range(4)]
            assert await mongo.store.finish_many(endings(jobs, at(mongo))) == [True] * 4
        else:
            mongo.clock.advance(40)  # too little is left of the lock
            assert await mongo.store.lock_many(at(mongo, 60), 4) == []
            mongo.clock.advance(30)
            assert len(await mongo.store.lock_many(at(mongo, 60), 4)) == 4
    await mongo.close()


async def fail_second_find(mongo: MongoHarness) -> None:
    """The first query is answered, reading the locked documents is not."""
    await mongo.collection.database.client.admin.command(
        "configureFailPoint", "failCommand", mode={"skip": 1}, data={"failCommands": ["find"], "errorCode": 10107}
    )


async def test_invalid_text_does_not_block_other_documents(mongo: MongoHarness) -> None:
    raw = bson.encode({"_id": 2, "sleepUntil": at(mongo, -5), "note": "AAAA"}).replace(b"AAAA", b"b\xff\xfec")
    await put(mongo, {"_id": 1, "sleepUntil": at(mongo, -9)}, {"_id": 3, "sleepUntil": at(mongo, -1)})
    await mongo.collection.insert_one(RawBSONDocument(raw))
    jobs = await mongo.store.lock_many(at(mongo, 60), 5)
    assert [job.id for job in jobs] == [1, 2, 3]
    assert jobs[1].data["note"] == "b\ufffd\ufffdc"


async def test_a_single_unanswered_ending_is_not_lost(own_mongo: MongoReplicaSet) -> None:
    mongo = MongoHarness(own_mongo.url("crontab", retryWrites="false", heartbeatFrequencyMS="500"))
    await put(mongo, *[{"_id": n, "sleepUntil": at(mongo, n - 9)} for n in range(2)])
    fence = at(mongo, 60)
    for _ in range(2):
        await mongo.store.lock_next(fence)
    broken = {"writeConcernError": {"code": 91, "errmsg": "going down"}}
    own_mongo.primary().fail("update", "delete", times=None, **broken)
    changes = Changes(sleep_until=at(mongo, 9), locked_until=fence)
    with pytest.raises(StoreUnavailable):
        await mongo.store.update(0, changes)
    with pytest.raises(StoreUnavailable):
        await mongo.store.remove(1, locked_until=fence)
    own_mongo.primary().fail_no_more()
    assert await mongo.store.update(0, changes) is True
    assert await mongo.store.remove(1, locked_until=fence) is True
    assert await mongo.store.update(0, changes) is False
    await mongo.close()


async def test_updates_before_a_failed_removal_are_not_lost(own_mongo: MongoReplicaSet) -> None:
    mongo = MongoHarness(own_mongo.url("crontab", retryWrites="false"))
    await put(mongo, *[{"_id": n, "sleepUntil": at(mongo, n - 9)} for n in range(2)])
    jobs = await mongo.store.lock_many(at(mongo, 60), 2)
    written = endings(jobs[:1], at(mongo, 9)) + endings(jobs[1:], remove=True)
    own_mongo.primary().fail("delete", errorCode=10107)
    with pytest.raises(StoreUnavailable):
        await mongo.store.finish_many(written)
    own_mongo.primary().fail_no_more()
    assert await mongo.store.finish_many(written) == [True, True]
    await mongo.close()
