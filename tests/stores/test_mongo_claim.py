"""Claims of the MongoDB store where a review found them wanting."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime

import pytest
from bson import ObjectId

from jobmill.core.values import QueueChange
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.codec import CODEC, date
from jobmill.testing.contract.support import (
    claim,
    claim_ids,
    claim_one,
    put_one,
    retry,
    settle,
    started,
    state_of,
    succeed,
    wish,
)
from tests.kit.mongo import MongoReplicaSet
from tests.stores.mongo_scene import (
    HOME,
    LOCK_TIMEOUT_S,
    NOT_REPLICATED,
    RATE,
    Document,
    Scene,
    examined,
    foreign,
    home,
    left,
    profiled,
)

pytestmark = pytest.mark.stores("mongo")

PATIENCE_S = 20
FAR_MS = 600_000
LOST_ANSWER = {"code": 91, "codeName": "ShutdownInProgress", "errmsg": "the answer is lost"}


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


@pytest.fixture
async def store(mongo_url: str) -> AsyncIterator[MongoStore]:
    """One that has its time from the server."""
    store = MongoStore(mongo_url)
    await store.migrate()
    await store.open()
    yield store
    await store.close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "jobmill" and one.levelname == "WARNING"]


# ---------------------------------------------------------------------------------------------------- documents


async def test_a_document_that_is_full_keeps_no_other_from_being_claimed(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    ids = [f"good-{n}" for n in range(5)]
    await scene.put(*ids)
    full = await scene.insert_nearly_full()
    claimed = await claim(scene.store, queues=HOME)
    assert [(one.job.id, one.job.crashes) for one in claimed] == [(id, 0) for id in ids]
    for _ in range(2):
        exchanged = await scene.store.exchange([], wish(queues=HOME))
        assert (exchanged.claimed, exchanged.next_due_ms) == ([], claimed[0].lease.until_ms)
    (told,) = warnings(caplog)
    assert told.startswith(f"the job {full} in ")
    assert "will never run: it cannot be claimed: " in told


SPOILT: list[tuple[str, Document]] = [
    ("no sub-document on a stale claim", {"jobmill": None, **left(0)}),
    ("a number of claims that is none", {"jobmill": {"claims": "x"}}),
    ("a document as its _id", {"_id": {"a": 1}}),
]


@pytest.mark.parametrize("spoilt", [one for _, one in SPOILT], ids=[name for name, _ in SPOILT])
@pytest.mark.parametrize("others", [0, 2])
async def test_a_document_that_no_claim_fits_keeps_no_other_from_being_claimed(
    scene: Scene, spoilt: Document, others: int
) -> None:
    scene.clock.advance(2 * LOCK_TIMEOUT_S)
    await scene.put(*["before"][:others])
    await scene.insert(**spoilt)
    await scene.put(*["behind"][:others])
    claimed = await claim(scene.store, queues=HOME)
    assert [(one.job.id, one.job.crashes) for one in claimed] == [("before", 0), ("behind", 0)][:others]
    scene.clock.advance(60)
    assert [one.job.crashes for one in await claim(scene.store, queues=HOME)] == [1, 1][:others]


@pytest.mark.parametrize("field", ["tracebacks", "attempts"])
async def test_attempts_that_cannot_be_read_are_no_attempts(scene: Scene, field: str) -> None:
    id = await scene.insert(jobmill={field: 5})
    await scene.put("good")
    claimed = {one.job.id: one.job for one in await claim(scene.store, queues=HOME)}
    assert claimed.keys() == {str(id), "good"}
    assert claimed[str(id)].attempts == ()


# The server takes them in the order of their _ids, and stops at the one that it refuses.
PLACES = [
    pytest.param("f" * 24, id="behind"),
    pytest.param("0" * 24, id="before"),
]


@pytest.mark.parametrize("claims", [None, "x"])
@pytest.mark.parametrize("place", PLACES)
async def test_a_document_that_no_claim_fits_keeps_no_settlement_from_being_told(
    scene: Scene, claims: object, place: str
) -> None:
    held = await started(scene.store, home("held"))
    await scene.put("good")
    await scene.insert(_id=ObjectId(place), jobmill={"claims": claims})
    exchanged = await scene.store.exchange([succeed(held)], wish(queues=HOME))
    assert exchanged.settled == ["done"]
    assert await state_of(scene.store, "held") == "succeeded"
    assert [one.lease.id for one in exchanged.claimed] == ["good"]


# ---------------------------------------------------------------------------------------------------- leases


async def test_a_claim_whose_answer_was_lost_is_made_once(own: Scene, own_mongo: MongoReplicaSet) -> None:
    ids = [f"job-{n:02}" for n in range(20)]
    await own.put(*ids)
    own_mongo.nodes[0].fail("update", times=1, writeConcernError=LOST_ANSWER)
    claimed = await claim(own.store, queues=HOME)
    assert [(one.job.id, one.job.crashes) for one in claimed] == [(id, 0) for id in ids]
    assert await own.store.context.here.jobs.distinct("jobmill.claims") == [1]
    assert await settle(own.store, *map(succeed, claimed)) == ["done"] * 20


async def test_a_claim_of_one_job_whose_answer_was_lost_is_made_once(own: Scene, own_mongo: MongoReplicaSet) -> None:
    await own.put("job")
    own_mongo.nodes[0].fail("update", times=1, writeConcernError=NOT_REPLICATED)
    assert await claim_ids(own.store, queues=HOME) == ["job"]


@pytest.mark.parametrize("indexes", ["lean", "monque", "none"])
@pytest.mark.parametrize("n", [1, 2, 5, 50])
async def test_a_job_without_a_priority_has_the_priority_0(mongo_url: str, indexes: str, n: int) -> None:
    """Monque's first generation writes none; however many jobs are claimed at once, all are claimed in one order."""
    scene = Scene(f"{mongo_url}&indexes={indexes}")
    await scene.open()
    expected = []
    for number in range(24):
        id, priority = ObjectId(f"{number:024x}"), (None, 0, -3, 2)[number % 4]
        about = {"priority": priority} if priority is not None else {}
        document = {**foreign(scene.clock(), _id=id, name=("send", "bake")[number % 3 % 2]), **about}
        if priority is None:
            del document["priority"]
        await scene.store.context.here.jobs.insert_one(document)
        expected.append((-(priority or 0), scene.clock(), str(id)))
        scene.clock.advance(0.002 if number % 2 else 0)
    found = []
    while ids := await claim_ids(scene.store, n, queues=HOME, names=("send", "bake"), lease_ms=FAR_MS):
        found += ids
    assert found == [id for *_, id in sorted(expected)]
    await scene.store.close()


async def test_a_claim_that_is_not_full_does_not_look_for_jobs_without_a_priority(scene: Scene) -> None:
    await scene.put("a", "b")
    await scene.insert()
    async with profiled(scene.store) as done:
        assert len(await claim_ids(scene.store, 5, queues=HOME)) == 3
    assert not [one for one in done if "priority" in str(one.get("command", {}).get("filter", {}))]


@pytest.mark.parametrize("held", [False, True], ids=["waiting", "held by a process that died"])
@pytest.mark.parametrize("cron", ["@weekdays", "H * * * *", "30 4 * *", "rubbish"])
async def test_a_recurring_job_whose_cron_we_cannot_read_is_left_to_monque(
    scene: Scene, caplog: pytest.LogCaptureFixture, cron: str, held: bool
) -> None:
    """cron-parser reads more than Jobmill; to fail the job would end the recurrence."""
    claimed = left(scene.clock() - 2 * LOCK_TIMEOUT_S * 1_000) if held else {}
    ids = [await scene.insert(repeatInterval=cron, **claimed) for _ in range(3)]
    before = await scene.store.context.here.jobs.find({"_id": {"$in": ids}}).to_list()
    await scene.put("ours", "another")
    found: list[str] = []
    due_ms: int | None = 0
    while due_ms is not None and due_ms <= scene.clock():  # a worker claims again at once
        exchanged = await scene.store.exchange([], wish(1, queues=HOME, lease_ms=FAR_MS))
        found, due_ms = found + [one.lease.id for one in exchanged.claimed], exchanged.next_due_ms
    assert found == ["ours", "another"]
    assert await scene.store.context.here.jobs.find({"_id": {"$in": ids}}).to_list() == before
    about = [one for one in warnings(caplog) if "is left to Monque: its repeatInterval cannot be read" in one]
    assert sorted(one.split()[2] for one in about) == sorted(map(str, ids))


# cron, nextRunAt, and whether that is an occurrence in another timezone than UTC. 2023-11-14 is a Tuesday.
OCCURRENCES = [
    ("0 9 * * *", "2023-11-14T09:00:00Z", False),
    ("0 9 * * *", "2023-11-14T14:00:00Z", True),  # New York
    ("0 9 * * *", "2023-11-14T03:15:00Z", True),  # Kathmandu
    ("0 9 * * 2", "2023-11-13T19:00:00Z", True),  # Kiritimati
    ("*/15 * * * *", "2023-11-14T03:15:00Z", False),
    ("0 0 1 * *", "2023-10-31T23:00:00Z", True),  # Berlin
    ("0 9 * * *", "2023-11-14T14:00:07Z", False),  # rescheduled, or retried
    ("0 0 29 2 *", "2023-11-14T14:00:00Z", False),
]


@pytest.mark.parametrize("more", [{}, {"priority": 0}, {"timezone": "UTC"}], ids=["first", "second", "timezone"])
@pytest.mark.parametrize(("cron", "at", "is_elsewhere"), OCCURRENCES)
async def test_a_recurring_job_of_another_timezone_is_left_to_monque(
    scene: Scene, cron: str, at: str, is_elsewhere: bool, more: Document
) -> None:
    """Monque's first generation uses the timezone of its process, which no document contains."""
    due_ms = round(datetime.fromisoformat(at).timestamp() * 1_000)
    id = await scene.insert(repeatInterval=cron, nextRunAt=date(due_ms), **more)
    expected = [] if is_elsewhere and "timezone" not in more else [str(id)]
    assert await claim_ids(scene.store, 1, queues=HOME) == expected


async def test_a_retry_of_a_recurring_job_keeps_its_occurrence(scene: Scene) -> None:
    """Its due time fits another timezone by chance."""
    noon_ms = round(datetime.fromisoformat("2023-11-14T12:00:00Z").timestamp() * 1_000)
    id = await scene.insert(repeatInterval="0 12 * * *", nextRunAt=date(noon_ms))
    claimed = await claim_one(scene.store, queues=HOME)
    await settle(scene.store, retry(claimed, 3_600_000 - scene.clock() % 3_600_000, "oops"))
    scene.clock.advance(3_600)
    assert await claim_ids(scene.store, 1, queues=HOME) == [str(id)]


async def test_ended_leases_of_a_queue_are_found_behind_one_that_is_idle(scene: Scene) -> None:
    await scene.put("dead", queue="busy")
    async with scene.another() as other:
        assert await claim_ids(other, queues=("busy",)) == ["dead"]
    scene.clock.advance(60)
    await scene.put(*(f"job-{n}" for n in range(50)), queue="busy")
    assert "dead" in await claim_ids(scene.store, 5, queues=("idle", "busy"))


async def test_a_clock_that_was_set_steals_no_job(store: MongoStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await put_one(store)
    real = time.time
    with monkeypatch.context() as patched:
        held = await claim_one(store)
        patched.setattr(time, "time", lambda: real() + 60)
        assert await claim(store) == []
    assert await settle(store, succeed(held)) == ["done"]


@pytest.mark.parametrize("verb", ["open", "extend", "purge"])
async def test_the_clock_is_measured(store: MongoStore, verb: str) -> None:
    held = await started(store)
    clock = store.context.clock
    clock.learn(store.now() + 60_000, clock.start())
    match verb:
        case "open":
            await store.open()
        case "extend":
            await store.extend([held.lease], 15_000)
        case "purge":
            await store.purge()
    said = await store.context.here.database.command("hello", codec_options=CODEC)
    assert abs(store.now() - int(said["localTime"])) < 5_000


async def test_ended_leases_of_names_that_nobody_works_are_not_looked_at(scene: Scene) -> None:
    ended = {"status": "processing", "claimedBy": "jobmill:gone", "claimId": "x", "lockedAt": date(scene.clock())}
    ours = {"v": 1, "leaseUntil": date(scene.clock())}
    retired = [foreign(scene.clock(), name="retired", **ended, jobmill=ours) for _ in range(300)]
    await scene.store.context.here.jobs.insert_many(retired)
    scene.clock.advance(60)
    async with profiled(scene.store) as done:
        assert await claim(scene.store, queues=HOME) == []
    assert done
    assert examined(done) < 20


# ---------------------------------------------------------------------------------------------------- what comes when


async def test_a_window_of_a_rate_limit_is_opened_once(scene: Scene) -> None:
    await scene.store.configure("default", QueueChange(rate_limit=RATE))
    # One of those that are found cannot be had, so the claim looks again.
    await scene.insert(jobmill={"claims": "x"}, nextRunAt=date(scene.clock() - 1_000))
    await scene.put(*(f"job-{n:02}" for n in range(40)))
    assert [len(await claim(scene.store, 10, queues=HOME)) for _ in range(3)] == [10, 0, 0]
    scene.clock.advance(60)
    assert len(await claim(scene.store, 5, queues=HOME)) == 5
    assert len(await claim(scene.store, 10, queues=HOME)) == 5


ODD: list[tuple[str, Document]] = [
    ("a document as its name", {"name": {"a": 1}}),
    ("a list of documents as ours", {"jobmill": [{"a": 1}]}),
]


@pytest.mark.parametrize("odd", [one for _, one in ODD], ids=[name for name, _ in ODD])
async def test_an_odd_document_does_not_end_the_stream(
    store: MongoStore, odd: Document, caplog: pytest.LogCaptureFixture
) -> None:
    await ready(store)
    told: list[list[Document]] = [[{"status": "completed", **odd}, {}], [{}]]
    for documents in told:
        sleep = asyncio.create_task(store.wait_for_work(HOME, store.now() + FAR_MS))
        for document in documents:
            await store.context.here.jobs.insert_one(foreign(store.now(), **document))
        async with asyncio.timeout(PATIENCE_S):
            await sleep
        await ready(store)
    assert [one for one in caplog.records if one.levelname == "ERROR"] == []


async def ready(store: MongoStore) -> None:
    """Nothing to claim, and nothing told that a claim has not seen."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await claim(store, queues=HOME)
            sleep = asyncio.create_task(store.wait_for_work(HOME, store.now() + FAR_MS))
            done, _ = await asyncio.wait([sleep], timeout=0.1)
            sleep.cancel()
            if not done:
                return
