"""Damage of lanes in the documents of MongoDB is found and repaired."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from jobmill.core.changes import Hold, Release
from jobmill.core.due import NEVER_MS
from jobmill.core.findings import Finding
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.codec import date
from jobmill.stores.mongo.schema import SLOTS
from jobmill.testing.contract.lanes import held_by, laned, rule, run
from jobmill.testing.contract.support import claim, claim_ids, claim_one, look, put, settle, succeed
from tests.stores.mongo_scene import Scene

pytestmark = pytest.mark.stores("mongo")


@pytest.fixture
async def scene(mongo_url: str) -> AsyncIterator[Scene]:
    scene = Scene(mongo_url)
    await scene.open()
    await rule(scene.store, 1)
    await put(scene.store, laned("first"), laned("second"))
    yield scene
    await scene.store.close()


async def plant(store: MongoStore, id: str, **fields: Any) -> None:
    """Write to a document; None removes a field."""
    names = {f"jobmill.{name.replace('__', '.')}": value for name, value in fields.items()}
    update = {"$set": {name: value for name, value in names.items() if value is not None}}
    update["$unset"] = {name: "" for name, value in names.items() if value is None}
    await store.context.here.jobs.update_one(
        {"jobmill.id": id}, {verb: given for verb, given in update.items() if given}
    )


async def found(store: MongoStore, check: str, *, repair: bool = False) -> Finding:
    """What a check says; all others find nothing."""
    findings = {one.check: one for one in await store.fsck(repair=repair)}
    assert [one for one in findings.values() if one.count and one.check != check] == []
    return findings[check]


async def check_that_it_is_repaired(store: MongoStore, check: str, id: str) -> None:
    """It is found, repaired, and gone then."""
    seen = await found(store, check)
    assert (seen.level, seen.count, seen.evidence, seen.repaired) == ("error", 1, {"ids": [id]}, 0)
    repaired = await found(store, check, repair=True)
    assert (repaired.level, repaired.count, repaired.repaired, repaired.remedy) == ("ok", 1, 1, None)
    assert (await found(store, check)).count == 0


async def test_sound_lanes_have_no_findings(scene: Scene) -> None:
    scene.clock.advance(120)
    assert [one.check for one in await scene.store.fsck() if one.count] == []


async def test_a_held_job_that_does_not_stand_in_its_lane(scene: Scene) -> None:
    """An older version has released it from a person, and knows no lanes."""
    store = scene.store
    await store.change(["second"], Hold())
    await plant(store, "second", held={"by": ["lane"], "due": {"at_ms": scene.clock()}})
    await check_that_it_is_repaired(store, "lane_lost_turn", "second")
    await run(store, "first")
    await run(store, "second")


async def test_a_job_that_only_a_person_holds(scene: Scene) -> None:
    """An older version has held a job that had a slot."""
    store = scene.store
    held = {"by": ["person"], "due": {"at_ms": scene.clock()}}
    await plant(store, "first", held=held, due=date(NEVER_MS), dueOf=date(NEVER_MS))
    await check_that_it_is_repaired(store, "lane_lost_hold", "first")
    assert await held_by(store, "first") == [("lane", "person")]
    await store.flush_outbox()
    await run(store, "second")
    await store.change(["first"], Release())
    await run(store, "first")


async def test_a_held_job_that_stands_in_its_lane(scene: Scene) -> None:
    store = scene.store
    await plant(store, "second", held__by=["lane", "person"])
    await check_that_it_is_repaired(store, "lane_turn_of_held", "second")


async def test_a_held_job_with_a_slot(scene: Scene) -> None:
    store = scene.store
    await plant(store, "second", laneSlot=7)
    await check_that_it_is_repaired(store, "lane_slot_of_held", "second")


async def test_a_job_without_a_slot(scene: Scene) -> None:
    """Node has made a job wait again that had ended."""
    store = scene.store
    await plant(store, "first", laneSlot=None)
    await check_that_it_is_repaired(store, "lane_without_slot", "first")
    claimed = await claim_one(store)
    assert (claimed.job.id, await claim(store)) == ("first", [])
    assert await settle(store, succeed(claimed)) == ["done"]
    assert await claim_ids(store) == ["second"]


async def test_a_job_that_a_lane_holds_without_a_lane(scene: Scene) -> None:
    store = scene.store
    await plant(store, "second", lane=None)
    await check_that_it_is_repaired(store, "held_without_lane", "second")
    assert (await look(store, "second")).held is None
    await run(store, "first", "second")


async def test_a_queue_that_does_not_say_that_it_has_lanes(scene: Scene) -> None:
    store = scene.store
    await run(store, "first")
    await store.context.here.queues.delete_many({})
    await check_that_it_is_repaired(store, "lanes_unknown", "mail")
    await run(store, "second")


async def test_a_slot_that_nobody_has_given_on(scene: Scene) -> None:
    store = scene.store
    await store.context.here.jobs.delete_one({"jobmill.id": "first"})
    assert (await found(store, "lane_lost_slot")).count == 0, "a worker will"
    scene.clock.advance(61)
    await check_that_it_is_repaired(store, "lane_lost_slot", "mail: a")
    await run(store, "second")


async def test_two_jobs_with_one_slot(scene: Scene) -> None:
    store = scene.store
    await store.context.here.jobs.drop_index(SLOTS)
    await put(store, laned("third"))
    await store.context.here.jobs.update_one(
        {"jobmill.id": "third"},
        {"$set": {"jobmill.laneSlot": 0}, "$unset": dict.fromkeys(("jobmill.turn", "jobmill.held", "jobmill.due"), "")},
    )
    seen = await found(store, "lane_slot_twice")
    assert (seen.count, seen.evidence, seen.can_repair) == (2, {"ids": ["first", "third"]}, False)
    assert "jobmill migrate" in (seen.remedy or "")
