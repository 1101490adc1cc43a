"""Damage to jobs that wait for jobs is found and repaired: by fsck, and by flush_outbox."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from bson import ObjectId
from msgspec import structs

from jobmill.core.findings import Finding
from jobmill.core.flows import After
from jobmill.core.values import NewJob
from jobmill.stores.mongo.codec import date
from jobmill.testing.contract.support import claim_ids, claim_one, settle, state_of, succeed
from tests.stores.mongo_scene import HOME, Scene, home

pytestmark = pytest.mark.stores("mongo")


@pytest.fixture
async def scene(mongo_url: str) -> AsyncIterator[Scene]:
    scene = Scene(mongo_url)
    await scene.open()
    yield scene
    await scene.store.close()


def waits(id: str, *on: str) -> NewJob:
    return structs.replace(home(id), after=tuple(After(one) for one in on))


async def chain(scene: Scene) -> None:
    await scene.store.enqueue([home("first"), waits("then", "first")])


async def lose_release(scene: Scene) -> None:
    """The edge is set, and the dependent is still held."""
    await chain(scene)
    await scene.store.context.here.edges.update_one({}, {"$set": {"state": "succeeded"}, "$unset": {"open": ""}})


async def leave_outbox(scene: Scene) -> None:
    """As a worker of Monque, or of an older version, leaves a job that it has completed."""
    await chain(scene)
    ended = {"status": "completed", "updatedAt": date(scene.clock())}
    await scene.store.context.here.jobs.update_one({"jobmill.id": "first"}, {"$set": ended})


async def orphan_edge(scene: Scene) -> None:
    """Another program has deleted the dependent."""
    await chain(scene)
    await scene.store.context.here.jobs.delete_one({"jobmill.id": "then"})


async def delete_dependency(scene: Scene) -> None:
    await chain(scene)
    await scene.store.context.here.jobs.delete_one({"jobmill.id": "first"})


async def lose_outbox(scene: Scene) -> None:
    """The job has ended, its edge is pending, and nothing says so."""
    await leave_outbox(scene)
    await scene.store.context.here.jobs.update_one({"jobmill.id": "first"}, {"$unset": {"jobmill.outbox": ""}})


async def orphan_staged(scene: Scene) -> None:
    """An insert came after its call was undone."""
    await chain(scene)
    staged = {"jobmill.staged": ObjectId(), "jobmill.outbox": True}
    await scene.store.context.here.jobs.update_many({}, {"$set": staged})


async def leave_stage(scene: Scene) -> None:
    """A process ended before it committed."""
    await orphan_staged(scene)
    document = await scene.store.context.here.jobs.find_one({})
    assert document is not None
    about = {"jobs": scene.store.context.url.collection, "state": "staging", "at": date(scene.clock())}
    await scene.store.context.here.stages.insert_one({"_id": document["jobmill"]["staged"], **about})


async def leave_pin(scene: Scene) -> None:
    await scene.put("first")
    await settle(scene.store, succeed(await claim_one(scene.store, queues=HOME)))
    pin = {"jobmill.hasDependents": ObjectId()}
    await scene.store.context.here.jobs.update_one({"jobmill.id": "first"}, {"$set": pin})


DAMAGE = [
    ("lost_release", lose_release, ["first", "then"]),
    ("outbox", leave_outbox, ["then"]),
    ("orphan_edge", orphan_edge, ["first"]),
    ("edge_to_ended", delete_dependency, ["then"]),
    ("edge_to_ended", lose_outbox, ["then"]),
    ("staged_orphan", orphan_staged, []),
    ("staged_orphan", leave_stage, []),
    ("pinned", leave_pin, []),
]
damages = pytest.mark.parametrize(
    ("check", "damage", "claimable"), DAMAGE, ids=lambda it: getattr(it, "__name__", None)
)
Damage = Callable[[Scene], Awaitable[None]]


async def found(scene: Scene, *, repair: bool = False) -> dict[str, Finding]:
    return {one.check: one for one in await scene.store.fsck(repair=repair) if one.count}


@damages
async def test_it_is_found_and_repaired(scene: Scene, check: str, damage: Damage, claimable: list[str]) -> None:
    assert await found(scene) == {}
    await damage(scene)
    scene.clock.advance(61)
    for _ in range(2):
        seen = await found(scene)
        assert list(seen) == [check]
        assert (seen[check].level, seen[check].repaired, seen[check].can_repair) == ("error", 0, True)
        assert len(seen[check].evidence["ids"]) == 1
    repaired = (await found(scene, repair=True))[check]
    assert (repaired.level, repaired.remedy, repaired.repaired) == ("ok", None, repaired.count)
    assert await found(scene) == {}
    assert sorted(await claim_ids(scene.store, queues=HOME)) == claimable


@damages
async def test_a_flush_repairs_it(scene: Scene, check: str, damage: Damage, claimable: list[str]) -> None:
    await damage(scene)
    scene.clock.advance(61)
    await scene.store.flush_outbox()
    # A pin without edges does no harm but that the job stays.
    assert list(await found(scene)) == ([check] if check == "pinned" else [])
    assert sorted(await claim_ids(scene.store, queues=HOME)) == claimable


async def test_a_call_that_may_still_commit_is_left_alone(scene: Scene) -> None:
    await leave_stage(scene)
    scene.clock.advance(4)
    await scene.store.flush_outbox()
    assert await scene.store.context.here.stages.count_documents({}) == 1
    scene.clock.advance(2)
    await scene.store.flush_outbox()
    assert await scene.store.context.here.stages.count_documents({}) == 0
    assert await scene.store.context.here.jobs.count_documents({}) == 0


async def test_a_dependency_that_is_gone_counts_as_cancelled(scene: Scene) -> None:
    await delete_dependency(scene)
    await scene.store.flush_outbox()
    job = (await claim_one(scene.store, queues=HOME)).job
    assert (job.id, job.deferred_error) == ("then", "dependency first was cancelled")


async def test_an_edge_that_is_gone_lets_its_job_go(scene: Scene) -> None:
    await orphan_edge(scene)
    await scene.store.flush_outbox()
    claimed = await claim_one(scene.store, queues=HOME)
    await settle(scene.store, succeed(claimed))
    scene.clock.advance(10**8)
    await scene.store.purge()
    assert await state_of(scene.store, "first") is None
