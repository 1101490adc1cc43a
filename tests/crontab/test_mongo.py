"""The MongoDB store of the crontab, where it differs from others: paths, conditions, types, the index, errors."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pymongo
import pytest
from bson import ObjectId, Timestamp
from bson.codec_options import CodecOptions
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument
from pymongo import AsyncMongoClient, ReadPreference, WriteConcern

from jobmill.core.durations import EPOCH
from jobmill.crontab import Changes, Crontab, CrontabJob, Ending, MongoCrontab
from jobmill.errors import InvalidValue, StoreError, StoreUnavailable
from tests.crontab.harness_mongo import MongoHarness, at, endings, get, put, stages
from tests.helpers import until
from tests.kit.mongo import MongoReplicaSet

pytestmark = pytest.mark.stores("mongo")

FUTURE = 100_000


# ------------------------------------------------------------------------------------------------ fields


DOTTED: dict[str, Any] = {
    "sleep_until": "cron.sleepUntil",
    "interval": "cron.rule.text",
    "repeat_until": "cron.rule.until",
    "auto_remove": "cron.gone",
}


@pytest.mark.parametrize("most", [1, 5])
async def test_paths_with_dots_change_only_their_field(mongo: MongoHarness, most: int) -> None:
    store = MongoCrontab(mongo.collection, clock=mongo.clock, **DOTTED)
    due, until = at(mongo, -1), at(mongo, 99)
    document = {"_id": 1, "cron": {"sleepUntil": due, "rule": {"text": "@daily", "until": until}, "gone": 1}, "n": 3}
    await put(mongo, document, {"_id": 2, "sleepUntil": due})
    (job,) = await store.lock_many(at(mongo, 60), most)
    assert (job.id, job.sleep_until, job.interval, job.repeat_until) == (1, due, "@daily", until)
    assert job.auto_remove is True
    assert job.data == document
    locked = {**document, "cron": {**document["cron"], "sleepUntil": job.locked_until}}  # type: ignore[dict-item]
    assert await get(mongo, 1) == locked
    assert await store.update(1, Changes(sleep_until=None, auto_remove=False, locked_until=job.locked_until))
    locked["cron"] |= {"sleepUntil": None, "gone": False}  # type: ignore[operator]
    assert await get(mongo, 1) == locked


async def test_a_path_can_have_the_index_of_a_list(mongo: MongoHarness) -> None:
    store = MongoCrontab(mongo.collection, sleep_until="plan.1", clock=mongo.clock)
    await put(mongo, {"_id": 1, "plan": ["x", at(mongo)]}, {"_id": 2, "plan": ["x", at(mongo)]})
    jobs = await store.lock_many(at(mongo, 60), 5)
    assert [job.data["plan"] for job in jobs] == [["x", at(mongo)]] * 2
    assert await store.finish_many(endings(jobs)) == [True, True]
    assert (await get(mongo, 1))["plan"] == ["x", None]


@pytest.mark.parametrize("most", [1, 9])
async def test_values_that_are_not_dates_are_ignored(mongo: MongoHarness, most: int) -> None:
    due = at(mongo, -5)
    wrong = [None, "2020-01-01T00:00:00Z", 0, -1.5, True, {"at": due}, [due], [], ObjectId(), Timestamp(1, 1)]
    documents: list[dict[str, Any]] = [{"_id": n, "sleepUntil": value} for n, value in enumerate(wrong)]
    documents += [{"_id": "missing"}, {"_id": "right", "sleepUntil": due}]
    await put(mongo, *documents)
    (job,) = await mongo.store.lock_many(at(mongo, 60), most)
    assert job.id == "right"
    assert await mongo.store.lock_many(at(mongo, 60), most) == []
    for document in documents[:-1]:
        assert await get(mongo, document["_id"]) == document


async def test_a_list_on_the_path_does_not_block_other_documents(mongo: MongoHarness) -> None:
    """It would match, and the server would refuse to write there, again and again."""
    store = MongoCrontab(mongo.collection, sleep_until="cron.sleepUntil", clock=mongo.clock)
    await put(mongo, {"_id": 1, "cron": [{"sleepUntil": at(mongo, -9)}]}, {"_id": 2, "cron": {"sleepUntil": at(mongo)}})
    assert [job.id for job in await store.lock_many(at(mongo, 60), 1)] == [2]
    assert await store.lock_many(at(mongo, 60), 5) == []


async def test_dates_of_any_year_and_other_values_are_read(mongo: MongoHarness) -> None:
    long_ago, far = DatetimeMS(-(10**14)), DatetimeMS(3 * 10**14)
    await put(
        mongo,
        {"_id": 1, "sleepUntil": long_ago, "repeatUntil": far, "interval": ""},
        {"_id": 2, "sleepUntil": datetime(1960, 1, 1, tzinfo=UTC), "repeatUntil": "2030-01-01", "interval": 0},
        {"_id": 3, "sleepUntil": at(mongo), "repeatUntil": 5, "interval": 7},
    )
    one, two, three = await mongo.store.lock_many(at(mongo, 60), 5)
    assert (one.sleep_until, one.interval) == (EPOCH, None)
    assert one.repeat_until is not None
    assert one.repeat_until.year == 9999
    assert (two.sleep_until, two.interval, two.repeat_until) == (EPOCH, None, datetime(2030, 1, 1, tzinfo=UTC))
    assert [three.interval, three.repeat_until] == [7, 5]  # the crontab reports it to on_error


@pytest.mark.parametrize("options", [CodecOptions(tz_aware=False), CodecOptions(document_class=RawBSONDocument)])
async def test_the_codec_of_the_collection_is_used(mongo: MongoHarness, options: Any) -> None:
    store = MongoCrontab(mongo.collection.with_options(codec_options=options), clock=mongo.clock)
    await put(mongo, {"_id": 1, "sleepUntil": at(mongo, -1)}, {"_id": 2, "sleepUntil": at(mongo)})
    jobs = await store.lock_many(at(mongo, 60), 5)
    assert [job.sleep_until for job in jobs] == [at(mongo, -1), at(mongo)]
    assert await store.finish_many(endings(jobs, at(mongo, 9))) == [True, True]


async def test_locked_documents_are_read_from_the_primary(mongo: MongoHarness) -> None:
    """This server has no other member to read from."""
    elsewhere = mongo.collection.with_options(read_preference=ReadPreference.SECONDARY)
    store = MongoCrontab(elsewhere, clock=mongo.clock)
    await put(mongo, {"_id": 1, "sleepUntil": at(mongo)})
    jobs = await store.lock_many(at(mongo, 60), 5)
    assert [job.id for job in jobs] == [1]
    assert await store.finish_many([*endings(jobs), Ending(id=2, locked_until=at(mongo))]) == [True, False]


@pytest.mark.parametrize("id", [ObjectId(), "text", 7, 1.5, True, {"a": [1]}, datetime(2020, 1, 1, tzinfo=UTC)])
async def test_ids_can_have_any_type(mongo: MongoHarness, id: Any) -> None:
    await put(mongo, {"_id": id, "sleepUntil": at(mongo)}, {"_id": 1, "sleepUntil": at(mongo)})
    jobs = await mongo.store.lock_many(at(mongo, 60), 5)
    assert len(jobs) == 2
    assert id in [job.id for job in jobs]
    assert await mongo.store.finish_many(endings(jobs, remove=True)) == [True, True]
    assert await mongo.collection.count_documents({}) == 0


async def test_only_documents_that_match_the_condition_are_jobs(mongo: MongoHarness) -> None:
    condition = {"$or": [{"kind": "mail"}, {"sleepUntil": {"$lt": at(mongo, -100)}}]}
    store = MongoCrontab(mongo.collection, condition=condition, clock=mongo.clock)
    due = at(mongo, -1)
    await put(
        mongo,
        {"_id": 1, "sleepUntil": due, "kind": "mail"},
        {"_id": 2, "sleepUntil": due, "kind": "other"},
        {"_id": 3, "sleepUntil": due},
        {"_id": 4, "sleepUntil": at(mongo, -101)},
    )
    assert [job.id for job in await store.lock_many(at(mongo, 60), 1)] == [4]
    assert [job.id for job in await store.lock_many(at(mongo, 60), 9)] == [1]
    assert await store.lock_next(at(mongo, 60)) is None


# ------------------------------------------------------------------------------------------------ the index


def command(mongo: MongoHarness, store: MongoCrontab) -> dict[str, Any]:
    due = store._due(at(mongo))
    return {"findAndModify": "jobs", "query": due, "sort": {"sleepUntil": 1}, "update": {"$set": {"x": 1}}}


async def test_the_lock_reads_the_sparse_index_in_order(mongo: MongoHarness) -> None:
    store = MongoCrontab(mongo.collection, condition={"kind": "mail"}, clock=mongo.clock)
    await store.migrate()
    indexes = await mongo.collection.index_information()
    assert indexes["sleepUntil_1"]["sparse"] is True
    # Also with another index that the condition would like, and documents that have no date.
    await mongo.collection.create_index("kind")
    await put(mongo, *[{"kind": "mail", "sleepUntil": at(mongo, n - 50)} for n in range(100)])
    await put(mongo, *[{"kind": "mail"} for _ in range(300)])
    plan = await mongo.explain(command(mongo, store))
    names = stages(plan["queryPlanner"]["winningPlan"])
    assert "IXSCAN" in names
    assert not {"SORT", "COLLSCAN"} & set(names)
    assert plan["executionStats"]["totalDocsExamined"] == 1


@pytest.mark.slow
async def test_an_idle_poll_reads_no_document(mongo: MongoHarness) -> None:
    """With 100,000 that sleep; what it costs is in the server's own log of slow commands."""
    await mongo.store.migrate()
    documents = [{"sleepUntil": at(mongo, 60 + n)} for n in range(FUTURE)]
    await mongo.collection.insert_many(documents, ordered=False)
    database = mongo.collection.database
    await database.command("profile", 2)
    for _ in range(20):
        assert await mongo.store.lock_next(at(mongo, 60)) is None
        assert await mongo.store.lock_many(at(mongo, 60), 100) == []
    await database.command("profile", 0)
    seen = [one async for one in database["system.profile"].find({"ns": mongo.collection.full_name})]
    assert len(seen) == 40
    assert {one["docsExamined"] for one in seen} == {0}
    assert max(one["keysExamined"] for one in seen) <= 1
    # The best one: the machine has other things to do.
    assert min(one["millis"] for one in seen) < 2


async def test_an_existing_index_is_used(mongo: MongoHarness) -> None:
    await mongo.collection.create_index("sleepUntil")
    await mongo.store.migrate()
    assert set(await mongo.collection.index_information()) == {"_id_", "sleepUntil_1"}


async def test_a_partial_index_is_not_enough(mongo: MongoHarness) -> None:
    await mongo.collection.create_index("sleepUntil", partialFilterExpression={"kind": "mail"})
    await mongo.store.migrate()
    assert (await mongo.collection.index_information())["sleepUntil_crontab"]["sparse"] is True


# ------------------------------------------------------------------------------------------------ errors


async def test_an_unavailable_server_and_a_refusal_are_different_errors(own_mongo: MongoReplicaSet) -> None:
    mongo = MongoHarness(own_mongo.url("crontab", serverSelectionTimeoutMS="200", retryWrites="false"))
    own_mongo.primary().fail("findAndModify", errorCode=10107)
    with pytest.raises(StoreUnavailable, match="crontab.jobs cannot be used now"):
        await mongo.store.lock_next(at(mongo, 60))
    own_mongo.primary().fail("findAndModify", errorCode=13)
    with pytest.raises(StoreError) as refused:
        await mongo.store.lock_next(at(mongo, 60))
    assert not isinstance(refused.value, StoreUnavailable)
    await mongo.close()


def test_invalid_arguments_are_refused(mongo_url: str) -> None:
    with pymongo.MongoClient[dict[str, Any]](mongo_url) as client:
        blocking: Any = client.get_default_database()["jobs"]
        with pytest.raises(InvalidValue, match="collection: expected a collection of pymongo's AsyncMongoClient"):
            MongoCrontab(blocking)
    collection = AsyncMongoClient[dict[str, Any]](mongo_url, connect=False).get_default_database()["jobs"]
    with pytest.raises(InvalidValue, match="collection: expected a write concern that is acknowledged"):
        MongoCrontab(collection.with_options(write_concern=WriteConcern(w=0)))
    for path in ("", "a..b", ".a", "$a", "a\0", None):
        with pytest.raises(InvalidValue, match="interval: expected the path of a field"):
            MongoCrontab(collection, interval=path)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="condition: expected a filter"):
        MongoCrontab(collection, condition="kind")  # type: ignore[arg-type]


async def test_the_fence_has_a_resolution_of_a_millisecond(mongo: MongoHarness) -> None:
    await put(mongo, {"_id": 1, "sleepUntil": at(mongo)})
    job = await mongo.store.lock_next(at(mongo, 60))
    assert job is not None
    for off in (-1, 1):
        fence = at(mongo, 60) + timedelta(milliseconds=off)
        assert await mongo.store.finish_many([Ending(id=1, locked_until=fence)]) == [False]
    assert (await get(mongo, 1))["sleepUntil"] == at(mongo, 60)


@pytest.mark.slow
async def test_a_crontab_survives_a_killed_server(own_mongo: MongoReplicaSet) -> None:
    """What was locked or written in that moment is found again at the latest when its lock ends."""
    mongo = MongoHarness(own_mongo.url("crontab", serverSelectionTimeoutMS="500"))
    await put(mongo, *[{"_id": n, "sleepUntil": datetime(2020, 1, 1, tzinfo=UTC)} for n in range(400)])
    ran: set[int] = set()
    errors: list[BaseException] = []

    async def on_document(job: CrontabJob) -> None:
        ran.add(job.id)
        await asyncio.sleep(0.005)

    async with Crontab(
        MongoCrontab(mongo.collection),
        on_document=on_document,
        on_error=lambda error, _: errors.append(error),
        concurrency=10,
        lock_duration="2s",
    ):
        await until(lambda: len(ran) > 50)
        own_mongo.primary().kill()
        await until(lambda: errors)
        await asyncio.to_thread(own_mongo.start)
        looking = mongo.connected(serverSelectionTimeoutMS=20_000)

        async def is_over() -> bool:
            return await looking.find_one({"sleepUntil": {"$ne": None}}) is None

        await until(is_over, 30)
    assert ran == set(range(400))
    assert {type(error) for error in errors} == {StoreUnavailable}
    await mongo.close()
