"""Monque's documents: exactly its fields, types and absences, before and after each verb; and those that it left us."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import bson
import pytest
from bson import ObjectId
from msgspec import structs

from jobmill.core.changes import Cancel, Remove, Reprioritize, Requeue, Reschedule, Seize
from jobmill.core.job import DAY_MS, JobOptions, Keep
from jobmill.core.lifecycle import DEFAULT_POLICY, Errored, Policy, Released, Succeeded, policy
from jobmill.core.lifecycle import settle as decide
from jobmill.core.recurrence import Recurrence
from jobmill.core.retry import fixed
from jobmill.core.values import Claimed, NewJob, Refused, Settlement, after, at
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.codec import CODEC, date
from jobmill.stores.mongo.leases import find_lost
from jobmill.testing import ManualClock
from jobmill.testing.contract.support import claim, claim_one, fail, release, retry, settle, snooze, succeed

pytestmark = pytest.mark.stores("mongo")

Document = dict[str, Any]
ID = "6760a1234567890abcdef123"
TOKEN = "00112233445566778899aabbccddeeff"
CLAIM_ID = "00112233-4455-6677-8899-aabbccddeeff"
LEASE_MS = 15_000
WEEK_MS = 7 * DAY_MS
MINUTE_MS = 60_000


class Scene:
    """A store, its time, and its documents as they are."""

    def __init__(self, url: str) -> None:
        self.clock = ManualClock()
        self.store = MongoStore(url, clock=self.clock)
        #: When the scene began.
        self.t = self.clock()

    async def put(self, **about: Any) -> str:
        said: Document = {"id": ID, "name": "send", "queue": "default", "payload_json": b'{"to":"ada"}'} | about
        (receipt,) = await self.store.enqueue([NewJob(**said)])
        return receipt.id

    async def insert(self, **document: Any) -> ObjectId:
        """What another program wrote."""
        id = (await self.store.context.here.jobs.insert_one(document)).inserted_id
        assert isinstance(id, ObjectId)
        return id

    async def claim(self) -> Claimed:
        return await claim_one(self.store, queues=("default",), token=TOKEN, lease_ms=LEASE_MS, worker="w1")

    async def document(self, id: str | ObjectId = ID) -> Document:
        """As it is stored, but for its _id and the mark of the last call."""
        found = await self.store.context.here.jobs.find_one({"_id": ObjectId(id)})
        assert found is not None
        del found["_id"]
        if isinstance(ours := found.get("jobmill"), dict):
            ours.pop("mark", None)
        return found


@pytest.fixture
async def scene(mongo_url: str) -> AsyncIterator[Scene]:
    scene = Scene(mongo_url)
    await scene.store.migrate()
    await scene.store.open()
    yield scene
    await scene.store.close()


def pending(t: int, **more: Any) -> Document:
    """A job that waits, as Monque would have written it."""
    ours = {"v": 1, **more.pop("jobmill", {})}
    return {
        "name": "send",
        "data": {"to": "ada"},
        "status": "pending",
        "nextRunAt": date(t),
        "failCount": 0,
        "priority": 0,
        "createdAt": date(t),
        "updatedAt": date(t),
        **more,
        "jobmill": ours,
    }


def processing(t: int, now: int, **more: Any) -> Document:
    """The same, claimed."""
    ran = {"claims": 1, "startedAt": date(now), "worker": "w1", **more.pop("jobmill", {})}
    claimed = {
        "status": "processing",
        "lockedAt": date(now),
        "claimedBy": "jobmill:w1",
        "claimId": CLAIM_ID,
        "lastHeartbeat": date(now),
        "heartbeatInterval": 5_000,
        "updatedAt": date(now),
    }
    return pending(t, **claimed, **more, jobmill={"leaseUntil": date(now + LEASE_MS), **ran})


def ran(t: int, now: int, **more: Any) -> Document:
    """The same, waiting again or final: without any trace of its claim but what Monque leaves as well."""
    history = {"claims": 1, "startedAt": date(t), "worker": "w1", **more.pop("jobmill", {})}
    return pending(t, heartbeatInterval=5_000, **{"updatedAt": date(now), **more}, jobmill=history)


# ---------------------------------------------------------------------------------------------------- enqueue

PLAIN = Recurrence(key="k", cron="0 9 * * 1")
ZONED = Recurrence(key="k", cron="0 9 * * 1", timezone="Europe/Berlin")
ENQUEUED: list[tuple[str, Document, Document]] = [
    ("plain", {}, {}),
    ("of a priority", {"priority": 3}, {"priority": -3}),
    ("with a unique key", {"unique_key": "k"}, {"uniqueKey": "k"}),
    ("for a tenant", {"tenant": "acme"}, {"jobmill": {"tenant": "acme"}}),
    ("with options", {"options": JobOptions(max_attempts=5)}, {"jobmill": {"options": {"max_attempts": 5}}}),
    (
        "in another queue",
        {"queue": "mail", "unique_key": "k"},
        {"uniqueKey": "mail\x1fk", "jobmill": {"queue": "mail", "key": "k"}},
    ),
    (
        "plain cron",
        {"unique_key": "k", "recurrence": PLAIN},
        {
            "uniqueKey": "k",
            "repeatInterval": "0 9 * * 1",
            "timezone": "UTC",
            "jobmill": {"armed": True},
        },
    ),
    (
        "cron in a timezone",
        {"unique_key": "k", "recurrence": ZONED},
        {"uniqueKey": "k", "jobmill": {"armed": True, "rule": {"cron": "0 9 * * 1", "zone": "Europe/Berlin"}}},
    ),
    (
        "cron with a value twice, which cron-parser refuses",
        {"unique_key": "k", "recurrence": Recurrence(key="k", cron="*/30,0 9 * * 1-5,WED")},
        {
            "uniqueKey": "k",
            "repeatInterval": "0,30 9 * * 1-5",
            "timezone": "UTC",
            "jobmill": {"armed": True, "rule": {"cron": "*/30,0 9 * * 1-5,WED", "zone": "UTC"}},
        },
    ),
    (
        "cron that only we read",
        {"unique_key": "k", "recurrence": Recurrence(key="k", cron="0 9 LW * *")},
        {"uniqueKey": "k", "jobmill": {"armed": True, "rule": {"cron": "0 9 LW * *", "zone": "UTC"}}},
    ),
    (
        "cron by its name",
        {"unique_key": "k", "recurrence": Recurrence(key="k", cron="@daily")},
        {"uniqueKey": "k", "repeatInterval": "@daily", "timezone": "UTC", "jobmill": {"armed": True}},
    ),
    (
        "six fields",
        {"unique_key": "k", "recurrence": Recurrence(key="k", cron="30 0 9 * * mon")},
        {"uniqueKey": "k", "jobmill": {"armed": True, "rule": {"cron": "30 0 9 * * mon", "zone": "UTC"}}},
    ),
    (
        "an interval",
        {"unique_key": "k", "recurrence": Recurrence(key="k", every_ms=MINUTE_MS)},
        {"uniqueKey": "k", "jobmill": {"armed": True, "rule": {"everyMs": MINUTE_MS, "zone": "UTC"}}},
    ),
    (
        "until a time",
        {"unique_key": "k", "recurrence": Recurrence(key="k", cron="@daily", until_ms=5)},
        {"uniqueKey": "k", "jobmill": {"armed": True, "rule": {"cron": "@daily", "zone": "UTC", "until": date(5)}}},
    ),
]


@pytest.mark.parametrize(("said", "written"), [one[1:] for one in ENQUEUED], ids=[one[0] for one in ENQUEUED])
async def test_an_enqueued_job(scene: Scene, said: Document, written: Document) -> None:
    await scene.put(**said)
    assert await scene.document() == pending(scene.t, **written)


async def test_an_id_of_the_callers_own(scene: Scene) -> None:
    assert await scene.put(id="mine") == "mine"
    (found,) = await scene.store.context.here.jobs.find().to_list()
    assert isinstance(found.pop("_id"), ObjectId)
    assert found == pending(scene.t, jobmill={"id": "mine"})


async def test_a_timezone_is_monques_where_every_monque_knows_it(mongo_url: str) -> None:
    scene = Scene(f"{mongo_url}&monque=2")
    await scene.store.migrate()
    await scene.store.open()
    await scene.put(unique_key="k", recurrence=ZONED)
    document = await scene.document()
    assert (document["repeatInterval"], document["timezone"]) == ("0 9 * * 1", "Europe/Berlin")
    assert document["jobmill"] == {"v": 1, "armed": True}
    assert (await scene.store.get([ID]))[0] is not None
    await scene.store.close()


async def test_a_recurrence_is_read_as_it_was_given(scene: Scene) -> None:
    """Whatever Monque's fields say, so that the same rule, stated again, changes nothing."""
    rule = Recurrence(key="k", cron="*/30,0 9 * * 1-5,WED")
    await scene.put(unique_key="k", recurrence=rule)
    (job,) = await scene.store.get([ID])
    assert job is not None
    assert job.recurrence == rule


async def test_a_delayed_job(scene: Scene) -> None:
    await scene.put(due=after(5_000))
    assert await scene.document() == pending(scene.t, nextRunAt=date(scene.t + 5_000))


async def test_types_are_those_that_node_expects(scene: Scene) -> None:
    await scene.put(priority=1, unique_key="k")
    raw = await scene.store.context.here.jobs.with_options(codec_options=CODEC).find_one()
    assert raw is not None
    kinds = bson.decode(bson.encode(raw))
    assert {type(kinds[name]).__name__ for name in ("nextRunAt", "createdAt", "updatedAt")} == {"datetime"}
    # Int64 would be another class, and a Long to Node.
    assert (type(kinds["failCount"]), type(kinds["priority"])) == (int, int)


# ---------------------------------------------------------------------------------------------------- work


async def test_a_claimed_job(scene: Scene) -> None:
    await scene.put()
    scene.clock.advance(2)
    await scene.claim()
    assert await scene.document() == processing(scene.t, scene.t + 2_000)


async def test_a_heartbeat_moves_what_others_look_at(scene: Scene) -> None:
    await scene.put()
    claimed = await scene.claim()
    scene.clock.advance(5)
    assert await scene.store.extend([claimed.lease], LEASE_MS) == []
    now = date(scene.t + 5_000)
    moved = processing(scene.t, scene.t, jobmill={"leaseUntil": date(scene.t + 5_000 + LEASE_MS)})
    assert await scene.document() == moved | {"lockedAt": now, "lastHeartbeat": now, "updatedAt": now}


def kept(t: int, ms: int) -> Document:
    """What is said of how long a final job stays."""
    return {"purgeAt": date(t + ms)}


def attempt(started_ms: int) -> Document:
    """What is kept of an attempt that errored; the settlement of a test ends at 0."""
    about = {"number": 1, "started_ms": started_ms, "finished_ms": 0, "worker": "w1", "error": "boom"}
    return {**about, "traceback": "Traceback of boom"}


SETTLED: list[tuple[str, Callable[[Claimed], Settlement], Callable[[int], Document]]] = [
    (
        "complete",
        lambda one: succeed(one, [1]),
        lambda t: {"status": "completed", "jobmill": {"result": "[1]", **kept(t, WEEK_MS)}},
    ),
    (
        "fail, attempts left",
        lambda one: retry(one, 2_000, "boom"),
        lambda t: {
            "failCount": 1,
            "failReason": "boom",
            "nextRunAt": date(t + 2_000),
            "jobmill": {"attempts": [attempt(t - 1_000)]},
        },
    ),
    (
        "fail, none left",
        lambda one: fail(one, "boom"),
        lambda t: {
            "status": "failed",
            "failCount": 1,
            "failReason": "boom",
            "jobmill": {"attempts": [attempt(t - 1_000)], **kept(t, 30 * DAY_MS)},
        },
    ),
    ("release", release, lambda t: {}),
    ("snooze", lambda one: snooze(one, 3_000), lambda t: {"nextRunAt": date(t + 3_000)}),
]


@pytest.mark.parametrize(("how", "written"), [one[1:] for one in SETTLED], ids=[one[0] for one in SETTLED])
async def test_a_settled_job(
    scene: Scene, how: Callable[[Claimed], Settlement], written: Callable[[int], Document]
) -> None:
    await scene.put()
    claimed = await scene.claim()
    scene.clock.advance(1)
    assert await settle(scene.store, how(claimed)) == ["done"]
    now = scene.t + 1_000
    assert await scene.document() == ran(scene.t, now, **written(now))


async def test_a_success_removes_the_reason_of_the_failure_before(scene: Scene) -> None:
    await scene.put()
    await settle(scene.store, retry(await scene.claim(), 0, "boom"))
    await settle(scene.store, succeed(await scene.claim()))
    document = await scene.document()
    assert (document["status"], document["failCount"]) == ("completed", 1)
    assert not {"failReason", "lockedAt", "claimedBy", "claimId", "lastHeartbeat"} & document.keys()


async def test_a_crash_is_counted_where_monque_does_not_look(scene: Scene) -> None:
    await scene.put()
    await scene.claim()
    scene.clock.advance(15)
    await scene.claim()
    now = scene.t + 15_000
    assert await scene.document() == processing(scene.t, now, jobmill={"claims": 2, "crashes": 1})


# ---------------------------------------------------------------------------------------------------- recurring


async def recurring(scene: Scene, rule: Recurrence, due: int) -> Claimed:
    await scene.put(unique_key="k", recurrence=rule, due=at(due))
    return await scene.claim()


async def test_a_recurring_job_that_succeeded(scene: Scene) -> None:
    claimed = await recurring(scene, Recurrence(key="k", cron="@hourly"), scene.t)
    await settle(scene.store, decide(claimed, Succeeded(), DEFAULT_POLICY, scene.t))
    document = await scene.document()
    next_ms = int(document["nextRunAt"])
    assert next_ms > scene.t
    assert next_ms % 3_600_000 == 0
    assert document == ran(
        scene.t,
        scene.t,
        nextRunAt=date(next_ms),
        uniqueKey="k",
        repeatInterval="@hourly",
        timezone="UTC",
        jobmill={"armed": True, "runs": 1, "failedRuns": 0, "lastFinishedAt": date(scene.t)},
    )


async def test_a_recurring_job_that_failed_for_good_goes_on(scene: Scene) -> None:
    claimed = await recurring(scene, Recurrence(key="k", cron="@hourly"), scene.t)
    await settle(scene.store, decide(claimed, Errored(error="boom", final=True), DEFAULT_POLICY, scene.t))
    document = await scene.document()
    assert (document["status"], document["failCount"], document["failReason"]) == ("pending", 0, "boom")
    assert document["nextRunAt"] > date(scene.t)
    assert document["jobmill"]["lastError"] == "boom"


async def test_a_retry_keeps_its_slot_beside_the_due_time(scene: Scene) -> None:
    claimed = await recurring(scene, Recurrence(key="k", every_ms=MINUTE_MS), scene.t)
    await settle(scene.store, decide(claimed, Errored(error="boom", delay_ms=2_000), DEFAULT_POLICY, scene.t))
    ours = (await scene.document())["jobmill"]
    assert (ours["slot"], ours["slotDue"]) == (date(scene.t), date(scene.t + 2_000))


async def test_what_a_monque_armed_again_runs_in_the_slot_that_it_chose(scene: Scene) -> None:
    claimed = await recurring(scene, Recurrence(key="k", cron="@hourly"), scene.t)
    await settle(scene.store, decide(claimed, Errored(error="boom", delay_ms=2_000), DEFAULT_POLICY, scene.t))
    slot = date(scene.t + 7_200_000)
    await scene.store.context.here.jobs.update_one({}, {"$set": {"nextRunAt": slot}})
    (job,) = await scene.store.get([ID])
    assert job is not None
    assert job.occurrence_ms == int(slot)


@pytest.mark.parametrize("status", ["completed", "failed"])
async def test_the_janitor_arms_again_what_another_process_ended(scene: Scene, status: str) -> None:
    await recurring(scene, Recurrence(key="k", every_ms=MINUTE_MS), scene.t)
    gone = dict.fromkeys(("lockedAt", "claimedBy", "claimId", "lastHeartbeat"), "")
    ended = {"status": status, "failCount": 10, "failReason": "theirs"}
    await scene.store.context.here.jobs.update_one({}, {"$set": ended, "$unset": gone})
    scene.clock.advance(90)
    await scene.store.purge()
    document = await scene.document()
    assert (document["status"], document["failCount"]) == ("pending", 0)
    assert document["nextRunAt"] == date(scene.t + 2 * MINUTE_MS)
    assert (document["jobmill"]["runs"], document["jobmill"]["failedRuns"]) == (1, int(status == "failed"))


async def test_the_janitor_leaves_alone_what_was_cancelled(scene: Scene) -> None:
    await scene.put(unique_key="k", recurrence=Recurrence(key="k", every_ms=MINUTE_MS))
    await scene.store.context.here.jobs.update_one({}, {"$set": {"status": "cancelled"}})
    await scene.store.purge()
    assert (await scene.document())["status"] == "cancelled"


# ---------------------------------------------------------------------------------------------------- change


async def test_a_cancelled_job(scene: Scene) -> None:
    await scene.put()
    scene.clock.advance(1)
    await scene.store.change([ID], Cancel())
    now = scene.t + 1_000
    cancelled = pending(scene.t, status="cancelled", updatedAt=date(now), jobmill=kept(now, 30 * DAY_MS))
    assert await scene.document() == cancelled


async def test_a_job_that_was_cancelled_while_it_ran(scene: Scene) -> None:
    await scene.put()
    await scene.claim()
    await scene.store.change([ID], Cancel())
    written = {"status": "cancelled", "jobmill": kept(scene.t, 30 * DAY_MS)}
    assert await scene.document() == ran(scene.t, scene.t, **written)


async def test_a_job_that_is_retried_by_hand(scene: Scene) -> None:
    await scene.put()
    await settle(scene.store, fail(await scene.claim(), "boom"))
    scene.clock.advance(1)
    await scene.store.change([ID], Requeue())
    now = scene.t + 1_000
    history = {"attempts": [attempt(scene.t)]}
    assert await scene.document() == ran(scene.t, now, nextRunAt=date(now), jobmill=history)


async def test_a_job_that_is_rescheduled_or_reprioritised(scene: Scene) -> None:
    await scene.put()
    await scene.store.change([ID], Reschedule(after(5_000)))
    await scene.store.change([ID], Reprioritize(7))
    assert await scene.document() == pending(scene.t, nextRunAt=date(scene.t + 5_000), priority=-7)


async def test_a_job_that_is_seized(scene: Scene) -> None:
    await scene.put()
    await scene.store.change([ID], Seize(token=TOKEN, worker="w1", lease_ms=LEASE_MS))
    assert await scene.document() == processing(scene.t, scene.t)


async def test_a_job_that_is_removed(scene: Scene) -> None:
    await scene.put()
    await scene.store.change([ID], Remove())
    assert await scene.store.context.here.jobs.count_documents({}) == 0


# ---------------------------------------------------------------------------------------------------- foreign


def theirs(t: int, **more: Any) -> Document:
    """What a Monque of the first generation writes."""
    at = {"nextRunAt": date(t), "createdAt": date(t), "updatedAt": date(t)}
    return {"name": "send", "data": {"n": 1}, "status": "pending", "failCount": 0, **at, **more}


RUNNABLE: list[tuple[str, Document]] = [
    ("first generation", {}),
    ("second generation", {"priority": 0, "timezone": "UTC"}),
    ("the seed's, with lockedAt null", {"lockedAt": None}),
    ("claimedBy null", {"claimedBy": None, "lockedAt": None, "lastHeartbeat": None}),
    ("failCount below none", {"failCount": -3}),
    ("failCount null", {"failCount": None}),
    ("failCount as a double", {"failCount": 2.0}),
    ("no data", {"data": None}),
    ("a priority of its own", {"priority": 5}),
    ("extra fields", {"owner": {"a": [1]}}),
]


@pytest.mark.parametrize("more", [one[1] for one in RUNNABLE], ids=[one[0] for one in RUNNABLE])
async def test_a_foreign_job_runs_and_is_left_as_its_own_process_would(scene: Scene, more: Document) -> None:
    before = theirs(scene.t, **more)
    id = await scene.insert(**before)
    claimed = await scene.claim()
    assert (claimed.job.id, claimed.job.queue, claimed.job.errors) == (
        str(id),
        "default",
        max(0, int(before["failCount"] or 0)),
    )
    assert await settle(scene.store, succeed(claimed)) == ["done"]
    document = await scene.document(id)
    ours = document.pop("jobmill")
    assert "purgeAt" not in ours, "it is its own system's to remove"
    claim_fields = {
        name: value for name, value in before.items() if name not in ("lockedAt", "claimedBy", "lastHeartbeat")
    }
    count = max(0, int(before["failCount"] or 0))
    assert document == claim_fields | {"status": "completed", "failCount": count, "heartbeatInterval": 5_000}


async def test_a_job_without_a_fail_count_gets_one_when_it_is_claimed(scene: Scene) -> None:
    before = theirs(scene.t)
    del before["failCount"]
    id = await scene.insert(**before)
    await scene.claim()
    assert (await scene.document(id))["failCount"] == 0


RULES_OF_A_HANDLER = Policy(max_attempts=3, backoff=fixed("1m"), given=JobOptions(max_attempts=3, backoff=fixed("1m")))


@pytest.mark.parametrize(
    ("options", "attempts", "first_ms"),
    [("", 10, 2_000), ("&max_retries=4&base_retry_interval=10ms", 4, 20)],
    ids=["Monque's defaults", "given in the URL"],
)
async def test_a_foreign_job_is_retried_by_the_rule_of_monque(
    mongo_url: str, options: str, attempts: int, first_ms: int
) -> None:
    """Whatever the handler says: a Node process that runs it counts in the same way."""
    scene = Scene(mongo_url + options)
    await scene.store.migrate()
    await scene.store.open()
    id = await scene.insert(**theirs(scene.t))
    for attempt in range(1, attempts + 1):
        claimed = await scene.claim()
        rules = policy(claimed.job.options, RULES_OF_A_HANDLER)
        now_ms = scene.clock()
        await settle(scene.store, decide(claimed, Errored(error="oops", delay_ms=7), rules, now_ms, 0.99))
        document = await scene.document(id)
        assert (document["failCount"], document["status"] == "failed") == (attempt, attempt == attempts)
        if attempt < attempts:
            assert int(document["nextRunAt"]) == now_ms + first_ms * 2 ** (attempt - 1)
            scene.clock.advance((int(document["nextRunAt"]) - now_ms) / 1000)
    await scene.store.close()


async def test_a_recurring_foreign_job_is_armed_again(scene: Scene) -> None:
    id = await scene.insert(**theirs(scene.t, repeatInterval="0 0 * * *"))
    claimed = await scene.claim()
    await settle(scene.store, decide(claimed, Succeeded(), DEFAULT_POLICY, scene.t))
    document = await scene.document(id)
    assert (document["status"], document["repeatInterval"]) == ("pending", "0 0 * * *")
    assert int(document["nextRunAt"]) % DAY_MS == 0
    assert "timezone" not in document


async def test_both_sides_run_jobs_in_the_same_order(scene: Scene) -> None:
    ids = [await scene.insert(**theirs(scene.t, priority=priority)) for priority in (-1, 5, 0)]
    first = await scene.insert(**theirs(scene.t))
    ours = await scene.put(id="ours", priority=2)
    expected = [str(ids[1]), str(ids[2]), str(first), str(ids[0]), ours]
    assert [one.job.id for one in await claim(scene.store, queues=("default",))] == expected


LEFT_ALONE: list[tuple[str, Document]] = [
    ("an unknown status", {"status": "paused"}),
    ("a number for a date", {"nextRunAt": 5}),
    ("a text for a date", {"nextRunAt": "2025-12-16T10:30:00.000Z"}),
    ("no date", {"nextRunAt": None}),
    ("another name", {"name": "elsewhere"}),
    ("running, and not for long", {"status": "processing", "claimedBy": "node-1"}),
    ("something of another program where our part is", {"jobmill": "text"}),
    ("nothing where our part is", {"jobmill": None}),
    ("running, by nobody, since never", {"status": "processing", "claimedBy": None, "lockedAt": None}),
]


@pytest.mark.parametrize("more", [one[1] for one in LEFT_ALONE], ids=[one[0] for one in LEFT_ALONE])
async def test_what_is_not_for_us_is_left_alone(scene: Scene, more: Document) -> None:
    before = theirs(scene.t, **more)
    if before.get("claimedBy"):
        before["lockedAt"] = date(scene.t)
    id = await scene.insert(**before)
    scene.clock.advance(60)
    assert await claim(scene.store, queues=("default",)) == []
    await scene.store.purge()
    assert await scene.document(id) == before


@pytest.mark.parametrize("given", [5, "2025-12-16T10:30:00.000Z"])
async def test_a_due_time_that_is_no_date_is_reported_once(
    scene: Scene, given: object, caplog: pytest.LogCaptureFixture
) -> None:
    id = await scene.insert(**theirs(scene.t, nextRunAt=given))
    await claim(scene.store, queues=("default",))
    with caplog.at_level(logging.WARNING, "jobmill"):
        for _ in range(3):
            await scene.store.purge()
    (record,) = caplog.records
    assert str(id) in record.getMessage()


@pytest.mark.parametrize("more", [one[1] for one in LEFT_ALONE], ids=[one[0] for one in LEFT_ALONE])
async def test_what_is_left_alone_holds_nothing_up(scene: Scene, more: Document) -> None:
    await scene.insert(**theirs(scene.t, **more))
    others = [str(await scene.insert(**theirs(scene.t))) for _ in range(3)]
    assert [one.job.id for one in await claim(scene.store, queues=("default",))] == others


async def test_a_status_that_nobody_knows_is_reported_once(mongo_url: str, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(f"{mongo_url}{'&' if '?' in mongo_url else '?'}indexes=monque")
    await scene.store.migrate()
    id = await scene.insert(**theirs(scene.t, status="paused"))
    await claim(scene.store, queues=("default",))
    with caplog.at_level(logging.WARNING, "jobmill"):
        for _ in range(3):
            await scene.store.purge()
    await scene.store.close()
    (record,) = caplog.records
    assert f"{id} in" in record.getMessage()
    assert "its status 'paused' is unknown" in record.getMessage()


async def test_a_job_that_changes_between_two_looks_is_handed_out_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [await scene.put(), await scene.put(id="second"), await scene.put(id="third")]

    async def another_died_with_it(*given: Any, **more: Any) -> list[Document] | None:
        left = {"status": "processing", "claimedBy": "jobmill:dead", "jobmill.leaseUntil": date(scene.t - 1)}
        await scene.store.context.here.jobs.update_one({"_id": ObjectId(ID), "status": "pending"}, {"$set": left})
        return await find_lost(*given, **more)

    monkeypatch.setattr("jobmill.stores.mongo.leases.find_lost", another_died_with_it)
    assert [one.job.id for one in await claim(scene.store, queues=("default",))] == ids


# ---------------------------------------------------------------------------------------------------- stale


def held(t: int, **more: Any) -> Document:
    """What a Monque that is gone has left."""
    claimed = {"status": "processing", "lockedAt": date(t), "claimedBy": "node-1", "lastHeartbeat": date(t)}
    return theirs(t, **claimed, heartbeatInterval=30_000, **more)


async def test_a_foreign_claim_is_taken_over_after_the_lock_timeout(scene: Scene) -> None:
    id = await scene.insert(**held(scene.t))
    scene.clock.advance(30 * 60)
    assert await claim(scene.store, queues=("default",)) == []
    scene.clock.advance(60)
    (claimed,) = await claim(scene.store, queues=("default",))
    assert (claimed.job.id, claimed.job.crashes) == (str(id), 1)


@pytest.mark.parametrize("interval", [600_000, 600_000.0, "often", None, float("inf")])
async def test_a_foreign_claim_is_not_taken_over_before_its_next_heartbeat(mongo_url: str, interval: object) -> None:
    """The larger one counts of the lock timeout, here a minute, and the interval; an interval may be anything."""
    scene = Scene(f"{mongo_url}&lock_timeout=60s")
    await scene.store.migrate()
    await scene.store.open()
    id = await scene.insert(**(held(scene.t) | {"heartbeatInterval": interval}))
    found = []
    for seconds in (61, 539, 60):
        scene.clock.advance(seconds)
        found.append([one.job.id for one in await claim(scene.store, queues=("default",), lease_ms=DAY_MS)])
    taken = [0, 0, 1] if isinstance(interval, int | float) else [1, 0, 0]
    assert found == [[str(id)] * n for n in (taken if interval != float("inf") else [0, 0, 0])]
    await scene.store.close()


@pytest.mark.parametrize("alive", ["lastHeartbeat", "lockedAt"])
async def test_a_foreign_claim_that_gave_a_sign_is_not_taken_over(scene: Scene, alive: str) -> None:
    await scene.insert(**(held(scene.t) | {alive: date(scene.t + 60_000)}))
    scene.clock.advance(30 * 60 + 30)
    assert await claim(scene.store, queues=("default",)) == []


async def test_a_foreign_claim_under_a_lease_is_not_taken_over(scene: Scene) -> None:
    await scene.insert(**held(scene.t, leaseExpiresAt=date(scene.t + 10 * DAY_MS)))
    scene.clock.advance(3_600)
    assert await claim(scene.store, queues=("default",)) == []


async def test_a_foreign_claim_of_a_job_of_ours_is_not_taken_for_ours(scene: Scene) -> None:
    await scene.put()
    await scene.claim()
    # Another has recovered it and runs it now: the end of our lease still stands there.
    theirs = {"claimedBy": "node-1", "claimId": "x", "lockedAt": date(scene.t), "lastHeartbeat": date(scene.t)}
    await scene.store.context.here.jobs.update_one({}, {"$set": theirs})
    scene.clock.advance(60)
    assert await claim(scene.store, queues=("default",)) == []


async def test_foreign_claims_are_left_alone_where_that_is_said(mongo_url: str) -> None:
    scene = Scene(f"{mongo_url}{'&' if '?' in mongo_url else '?'}recover_foreign=false")
    await scene.store.migrate()
    await scene.insert(**held(scene.t))
    scene.clock.advance(3_600)
    assert await claim(scene.store, queues=("default",)) == []
    await scene.store.close()


async def test_a_stale_settlement_writes_nothing_once_another_took_over(scene: Scene) -> None:
    await scene.put()
    late = await scene.claim()
    await scene.store.context.here.jobs.update_one({}, {"$set": {"claimedBy": "node-1", "claimId": "x"}})
    before = await scene.document()
    rules = structs.replace(DEFAULT_POLICY, keep_succeeded=Keep(last=0))
    for outcome in (Succeeded(), Released(), Errored(error="boom", final=True)):
        assert await settle(scene.store, decide(late, outcome, rules, scene.t)) == ["lost"]
    assert await scene.store.extend([late.lease], 1_000) == [ID]
    assert await scene.document() == before


async def test_a_due_time_before_1970_has_come(scene: Scene) -> None:
    id = await scene.insert(**theirs(scene.t, nextRunAt=date(-5)))
    assert [one.job.id for one in await claim(scene.store, queues=("default",))] == [str(id)]


async def test_a_result_that_does_not_fit_is_refused_and_the_lease_stands(scene: Scene) -> None:
    large = b'"' + b"x" * 9_000_000 + b'"'
    await scene.put(payload_json=large)
    other = await scene.put(id="other")
    claimed = {one.job.id: one for one in await claim(scene.store, queues=("default",))}
    too_large, done = await settle(scene.store, succeed(claimed[ID], "y" * 9_000_000), succeed(claimed[other], "small"))
    assert isinstance(too_large, Refused)
    assert done == "done"
    assert (await scene.document())["status"] == "processing"
    assert await settle(scene.store, fail(claimed[ID], "too large")) == ["done"]
