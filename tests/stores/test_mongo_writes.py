"""What the MongoDB store writes, removes and says, where a review found it wanting."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from bson import ObjectId

from jobmill.core.changes import Cancel
from jobmill.core.values import Receipt, Refused, Report
from jobmill.errors import InvalidValue, StoreError, StoreUnavailable
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.codec import date
from jobmill.testing.contract.support import claim, claim_one, only_refused, settle, started, state_of, succeed, wish
from tests.kit.mongo import MongoReplicaSet
from tests.stores.mongo_scene import HOME, NOT_KEPT, NOT_REPLICATED, Scene, foreign, home, profiled

pytestmark = pytest.mark.stores("mongo")


@pytest.fixture
async def scene(mongo_url: str) -> AsyncIterator[Scene]:
    scene = Scene(mongo_url)
    await scene.open()
    yield scene
    await scene.store.close()


@pytest.fixture
async def own(own_mongo: MongoReplicaSet) -> AsyncIterator[Scene]:
    """On a server that may be told to fail."""
    scene = Scene(own_mongo.url("jobs"))
    await scene.open()
    yield scene
    await scene.store.close()


async def lines(scene: Scene, id: str) -> list[str]:
    return [line.text for line in await scene.store.logs(id)]


# ---------------------------------------------------------------------------------------------------- settle


async def test_a_job_that_cannot_be_forgotten_is_settled_and_left_to_the_janitor(
    own: Scene, own_mongo: MongoReplicaSet
) -> None:
    held = await started(own.store, home("held"))
    await own.put("next")
    own_mongo.nodes[0].fail("delete", times=1, closeConnection=True)
    exchanged = await own.store.exchange([succeed(held, rules=NOT_KEPT)], wish(queues=HOME))
    own_mongo.nodes[0].fail_no_more()
    assert exchanged.settled == ["done"]
    assert [one.lease.id for one in exchanged.claimed] == ["next"]
    assert await state_of(own.store, "held") == "succeeded"
    assert (await own.store.purge()).removed == 1
    assert await state_of(own.store, "held") is None


async def test_a_stale_settlement_leaves_the_log_of_who_holds_the_job(scene: Scene) -> None:
    late = await started(scene.store, home("job"))
    scene.clock.advance(60)
    held = await claim_one(scene.store, queues=HOME)
    await scene.store.report([Report(lease=held.lease, lines=("half done",))])
    assert await settle(scene.store, succeed(late, rules=NOT_KEPT)) == ["lost"]
    assert await lines(scene, "job") == ["half done"]
    assert await settle(scene.store, succeed(held, rules=NOT_KEPT)) == ["done"]
    assert await scene.store.context.here.logs.count_documents({}) == 0


async def test_a_cancel_that_was_refused_leaves_the_log(scene: Scene) -> None:
    # There is no room for what a cancel writes.
    id = str(await scene.insert_nearly_full(jobmill={"v": 1, "options": {"keep_failed": {"last": 0}}}))
    said = {"at": date(scene.clock()), "text": "half done"}
    await scene.store.context.here.logs.insert_one({"_id": ObjectId(id), "lines": [said]})
    only_refused(await scene.store.change([id], Cancel()), id)
    assert await lines(scene, id) == ["half done"]


async def test_a_result_larger_than_any_document_is_refused_alone(scene: Scene) -> None:
    await scene.put("large", "small")
    large, small = await claim(scene.store, queues=HOME)
    too_large, done = await settle(scene.store, succeed(large, "x" * 17 * 1024 * 1024), succeed(small))
    assert isinstance(too_large, Refused)
    assert done == "done"
    assert await state_of(scene.store, "large") == "running"
    assert await settle(scene.store, succeed(large, "short")) == ["done"]


# ---------------------------------------------------------------------------------------------------- other verbs


async def test_a_write_that_no_majority_has_is_not_known_to_be_done(own: Scene, own_mongo: MongoReplicaSet) -> None:
    await own.put("old")
    own_mongo.nodes[0].fail("insert", times=1, writeConcernError=NOT_REPLICATED)
    with pytest.raises(StoreUnavailable):
        await own.store.enqueue([home("new"), home("old")])
    own_mongo.nodes[0].fail_no_more()
    receipts = await own.store.enqueue([home("new"), home("old")])
    assert [receipt.status for receipt in receipts] == ["exists", "exists"]


async def test_refused_jobs_are_looked_at_together(scene: Scene) -> None:
    await scene.store.enqueue([home(f"first-{n}", key=f"key-{n}") for n in range(100)])
    again = [home(f"again-{n}", key=f"key-{n}") for n in range(100)]
    async with profiled(scene.store) as done:
        receipts = await scene.store.enqueue([*again, home("first-7"), home("new", key="new")])
    assert receipts[:100] == [Receipt(f"first-{n}", "duplicate") for n in range(100)]
    assert [receipt.status for receipt in receipts[100:]] == ["exists", "created"]
    assert 0 < sum(one["op"] == "query" for one in done) <= 5


async def test_long_lines_are_cut_by_bytes(scene: Scene) -> None:
    await scene.put("long", "short")
    long, short = await claim(scene.store, queues=HOME)
    for _ in range(2):
        said = [Report(lease=long.lease, lines=("€" * 15_000,) * 400), Report(lease=short.lease, lines=("ok",))]
        assert await scene.store.report(said) == []
    assert await lines(scene, "long") == ["€" * 5_000] * 800
    assert await lines(scene, "short") == ["ok", "ok"]


async def test_a_purge_of_nothing_looks_at_nothing(scene: Scene) -> None:
    later = date(scene.clock() + 10**9)
    waiting = [foreign(scene.clock(), nextRunAt=later, jobmill={"v": 1}) for _ in range(300)]
    await scene.store.context.here.jobs.insert_many(waiting)
    async with profiled(scene.store) as done:
        assert (await scene.store.purge()).removed == 0
    assert "aggregate" in {name for one in done for name in one["command"]}
    assert [one["docsExamined"] for one in done] == [0] * len(done)


# ---------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    "url",
    [
        "mongodb://ada:s3cr\u2100et@db/jobs",
        "mongodb://ada:s3cret?x@db/jobs",
        "mongodb://ada:s3cret/x@db/jobs",
        "mongodb://ada:s3cret@db[x/jobs",
    ],
)
def test_a_password_that_breaks_its_url_is_shown_nowhere(url: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        MongoStore(url)
    assert "s3cr" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_secret_among_the_options_is_shown_nowhere() -> None:
    with pytest.raises(InvalidValue) as caught:
        MongoStore("mongodb://db/jobs?tlsCertificateKeyFilePassword=s3cret@x&nonsense=1")
    assert "s3cret" not in str(caught.value)


async def test_an_error_does_not_show_what_was_to_be_written(scene: Scene) -> None:
    held = await started(scene.store, home("job"))
    (document,) = await scene.store.context.here.jobs.find({}).to_list()
    await scene.store.context.here.logs.insert_one({"_id": document["_id"], "lines": 5})
    with pytest.raises(StoreError) as caught:
        await scene.store.report([Report(lease=held.lease, lines=("hush",))])
    assert "must be an array" in str(caught.value)
    assert "hush" not in str(caught.value)
    assert "$push" not in str(caught.value)
