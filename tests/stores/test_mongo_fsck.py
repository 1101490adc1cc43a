"""Damage in the documents of MongoDB is found and repaired, and a server that is set up badly is reported."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from pymongo.asynchronous.database import AsyncDatabase
from pymongo.errors import OperationFailure

from jobmill.core.changes import Hold
from jobmill.core.due import NEVER_MS
from jobmill.core.findings import Finding, facts_of
from jobmill.errors import StoreError
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.codec import date
from jobmill.testing.contract.support import claim_ids, claim_one, look, started
from tests.kit.mongo import MongoReplicaSet
from tests.stores.mongo_scene import HOME, Scene, home

pytestmark = pytest.mark.stores("mongo")


@pytest.fixture
async def scene(mongo_url: str) -> AsyncIterator[Scene]:
    scene = Scene(mongo_url)
    await scene.open()
    yield scene
    await scene.store.close()


async def plant(scene: Scene, **fields: Any) -> None:
    """Write to the only document; None removes a field."""
    names = {name.replace("__", "."): value for name, value in fields.items()}
    update = {
        "$set": {name: value for name, value in names.items() if value is not None},
        "$unset": {name: "" for name, value in names.items() if value is None},
    }
    await scene.store.context.here.jobs.update_one({}, {verb: given for verb, given in update.items() if given})


async def found(scene: Scene, check: str, *, repair: bool = False) -> Finding:
    """What a check says; all others find nothing."""
    findings = {one.check: one for one in await scene.store.fsck(repair=repair)}
    assert [one for one in findings.values() if one.count and one.check != check] == []
    return findings[check]


async def check_that_it_is_repaired(scene: Scene, check: str) -> None:
    """It is found, not changed without `repair`, repaired with it, and gone then."""
    jobs = scene.store.context.here.jobs
    before = await jobs.find_one({})
    seen = await found(scene, check)
    assert (seen.level, seen.count, seen.evidence, seen.repaired) == ("error", 1, {"ids": ["job"]}, 0)
    assert seen.can_repair
    assert seen.remedy is not None
    assert await jobs.find_one({}) == before
    repaired = await found(scene, check, repair=True)
    assert (repaired.level, repaired.count, repaired.repaired, repaired.remedy) == ("ok", 1, 1, None)
    assert (await found(scene, check)).count == 0


async def test_a_running_job_without_a_lease_is_taken_over(scene: Scene) -> None:
    await started(scene.store, home("job"))
    await plant(scene, jobmill__leaseUntil=None)
    scene.clock.advance(3_600)
    assert await claim_ids(scene.store, queues=HOME) == []
    await check_that_it_is_repaired(scene, "running_without_lease")
    claimed = await claim_one(scene.store, queues=HOME)
    assert (claimed.job.id, claimed.job.crashes) == ("job", 1)


async def test_fields_of_a_claim_on_a_waiting_job(scene: Scene) -> None:
    await scene.put("job")
    before = await scene.store.context.here.jobs.find_one({})
    await plant(scene, claimId="x", lockedAt=date(scene.clock()), jobmill__leaseUntil=date(scene.clock()))
    await check_that_it_is_repaired(scene, "claim_on_waiting")
    assert await scene.store.context.here.jobs.find_one({}) == before
    assert await claim_ids(scene.store, queues=HOME) == ["job"]


async def test_a_held_job_that_is_not_counted(scene: Scene) -> None:
    await scene.put("job")
    await scene.store.change(["job"], Hold())
    await plant(scene, jobmill__due=None)
    await check_that_it_is_repaired(scene, "held_but_due")
    (depth,) = await scene.store.depths()
    assert (depth.due, depth.later, depth.held) == (0, 0, 1)


async def test_a_job_that_is_never_due_and_not_held(scene: Scene) -> None:
    await scene.put("job")
    await scene.store.change(["job"], Hold())
    await plant(scene, jobmill__held=None)
    assert (await look(scene.store, "job")).due_ms == NEVER_MS
    await check_that_it_is_repaired(scene, "never_due")
    scene.clock.advance(21 * 24 * 3_600)
    assert await claim_ids(scene.store, queues=HOME) == ["job"]


async def test_a_due_time_that_cannot_be_read(scene: Scene) -> None:
    await scene.put("job")
    await plant(scene, nextRunAt="tomorrow")
    seen = await found(scene, "due_time_unreadable", repair=True)
    assert (seen.level, seen.evidence, seen.can_repair, seen.repaired) == ("error", {"ids": ["job"]}, False, 0)


async def test_a_unique_key_twice(scene: Scene) -> None:
    await scene.store.context.here.jobs.drop_index("name_1_uniqueKey_1")
    for id in ("a", "b"):
        await scene.put(id, key="k")
    seen = await found(scene, "unique_key_twice", repair=True)
    assert (seen.level, seen.count, seen.evidence, seen.can_repair) == ("error", 2, {"ids": ["a", "b"]}, False)


async def test_missing_indexes_are_reported(scene: Scene) -> None:
    assert {one.level for one in await scene.store.diagnose()} == {"ok"}
    jobs = scene.store.context.here.jobs
    for index, level in (("jobmill_final", "warning"), ("jobmill_id", "error")):
        await jobs.drop_index(index)
        (finding,) = (one for one in await scene.store.diagnose() if one.check == "indexes")
        assert (finding.level, index in finding.evidence["missing"]) == (level, True)
        assert "jobmill migrate" in (finding.remedy or "")


async def test_a_server_in_no_replica_set_is_reported(mongo_standalone_url: str) -> None:
    store = MongoStore(mongo_standalone_url)
    await store.migrate()
    await store.open()
    assert {one.check: one.level for one in await store.diagnose()} == {
        "reachable": "ok",
        "replica_set": "warning",
        "members": "ok",
        "indexes": "ok",
    }
    await store.close()


@pytest.mark.parametrize("code", [13, 1])
async def test_a_user_who_may_not_ask_for_sizes(scene: Scene, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    real = AsyncDatabase.command

    async def command(database: Any, name: str, *args: Any, **options: Any) -> Any:
        if name == "collStats":
            raise OperationFailure("not authorized", code)
        return await real(database, name, *args, **options)

    monkeypatch.setattr(AsyncDatabase, "command", command)
    if code == 13:
        facts = facts_of(await scene.store.diagnose())
        assert facts is not None
        assert (facts.product, facts.size_bytes) == ("MongoDB", None)
    else:
        with pytest.raises(StoreError, match="not authorized"):
            await scene.store.diagnose()


@pytest.mark.slow
async def test_a_replica_set_with_an_arbiter_is_reported() -> None:
    with MongoReplicaSet(arbiters=1) as group:
        store = MongoStore(group.url("jobs"))
        await store.migrate()
        await store.open()
        findings = {one.check: one for one in await store.diagnose()}
        await store.close()
    assert {check: one.level for check, one in findings.items()} == {
        "reachable": "ok",
        "replica_set": "ok",
        "members": "warning",
        "indexes": "ok",
    }
    hosts, arbiters = ([f"127.0.0.1:{one.port}" for one in servers] for servers in (group.nodes, group.arbiters))
    assert findings["members"].evidence == {"hosts": hosts, "arbiters": arbiters}
    assert "a member that has data" in (findings["members"].remedy or "")
