"""A process that uses lanes is killed before each of its writes: limits hold, and every job gets its slot."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from msgspec import structs

from jobmill.core.due import NEVER_MS
from jobmill.core.lifecycle import DEFAULT_POLICY, Succeeded
from jobmill.core.lifecycle import settle as decide
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import EVERYTHING, after
from jobmill.testing.contract.lanes import laned, rule, run
from jobmill.testing.contract.support import QUEUE, claim, claim_one, find_all, look, put, settle, succeed, turns
from tests.stores.mongo_killed import Killed, Life, give_life
from tests.stores.mongo_lanes_killed import LANE_STORIES, LaneStory, running
from tests.stores.mongo_scene import Scene

pytestmark = [pytest.mark.stores("mongo"), pytest.mark.slow]

stories = pytest.mark.parametrize("story", LANE_STORIES, ids=lambda story: type(story).__name__)
MUCH_MS = 10_000_000
#: How many writes a process makes at most.
MAX_WRITES = 60


@pytest.fixture
async def scene(mongo_url: str) -> AsyncIterator[Scene]:
    scene = Scene(mongo_url)
    await scene.open()
    yield scene
    await scene.store.close()


async def empty(scene: Scene) -> None:
    here = scene.store.context.here
    for collection in (here.jobs, here.edges, here.stages, here.steps, here.logs, here.queues, here.lanes):
        await collection.delete_many({})
    scene.store.context.lanes.changed.clear()


async def live_until(scene: Scene, story: LaneStory, dies_at: int, halfway: bool) -> bool:
    """Whether a process has done what the story says, before it was killed."""
    async with scene.another() as killed:
        act = await story.prepare(killed)
        scene.clock.advance(2)
        give_life(killed, Life(dies_at, halfway))
        try:
            await act(killed)
        except Killed:
            return False
        return True


async def repair(scene: Scene, dies_at: int | None) -> None:
    """After some time another process repairs, which may be killed as well."""
    scene.clock.advance(20)
    scene.store.context.flows.sweep_from_ms = NEVER_MS
    if dies_at is not None:
        async with scene.another() as killed:
            give_life(killed, Life(dies_at, halfway=False))
            with contextlib.suppress(Killed):
                await killed.flush_outbox()
    while await scene.store.flush_outbox():
        pass


async def drain(scene: Scene) -> dict[str, str]:
    """Run all jobs, and never more of a lane than its limit; the states in which they end."""
    store = scene.store
    lanes = (await store.settings([QUEUE]))[QUEUE].lanes
    limit = MAX_WRITES if lanes is None or lanes.running is None else lanes.running
    idle = 0
    for _ in turns(200):
        claimed = await claim(store, 100)
        most = max((await running(store)).values(), default=0)
        assert most <= limit, f"{most} jobs of a lane run"
        for one in claimed:
            assert await settle(store, succeed(one)) == ["done"]
        if not claimed:
            scene.clock.advance(15)  # for delays, rates and leases that were left
            await store.flush_outbox()
        idle = 0 if claimed else idle + 1
        if idle == 8:
            break
    jobs = await store.get(await find_all(store, EVERYTHING))
    return {job.id: job.state for job in jobs if job is not None}


async def check(scene: Scene, story: LaneStory, states: dict[str, str]) -> None:
    here = scene.store.context.here
    story.check(states)
    left = {id: state for id, state in states.items() if state in ("waiting", "running")}
    assert left.keys() <= {"a1"}, left
    for whole in story.whole:
        there = whole & states.keys()
        assert there in (set(), whole), f"half of a flow: {there}"
    assert await here.stages.count_documents({}) == 0
    for field in ("laneSlot", "turn"):
        assert await here.jobs.count_documents({f"jobmill.{field}": {"$exists": True}}) == 0
    assert {one.check: one.evidence for one in await scene.store.fsck() if one.count} == {}


async def kill(scene: Scene, story: LaneStory, dies_at: int, *, halfway: bool = False) -> bool:
    """One story; whether its process did everything before it was killed."""
    await empty(scene)
    is_done = await live_until(scene, story, dies_at, halfway)
    await repair(scene, dies_at % 5 + 1 if dies_at % 2 else None)
    await story.go_on(scene.store)
    await check(scene, story, await drain(scene))
    return is_done


async def test_a_process_is_killed_that_ends_a_run_whose_rule_was_changed(scene: Scene) -> None:
    """The job is due much later, and must not keep the slot until then."""
    every = Recurrence(key="k", every_ms=60_000)
    changed = laned(key="k", recurrence=structs.replace(every, every_ms=MUCH_MS), due=after(MUCH_MS))
    for dies_at in range(1, MAX_WRITES):
        await empty(scene)
        async with scene.another() as killed:
            await rule(killed, 1)
            await put(killed, laned("again", key="k", recurrence=every), laned("other"))
            claimed = await claim_one(killed)
            due_ms = killed.now() + MUCH_MS
            await killed.enqueue([changed])
            life = Life(dies_at, halfway=False)
            give_life(killed, life)
            with contextlib.suppress(Killed):
                await settle(killed, decide(claimed, Succeeded(), DEFAULT_POLICY, killed.now()))
        await repair(scene, None)
        job = await look(scene.store, "again")
        if job.state == "waiting":  # otherwise it was killed before it wrote anything
            assert job.occurrence_ms == due_ms
            await run(scene.store, "other")
        if life.writes < dies_at:
            return
    pytest.fail("more writes than expected")


@stories
@pytest.mark.parametrize("halfway", [False, True])
async def test_a_process_is_killed_at_every_write(scene: Scene, story: LaneStory, halfway: bool) -> None:
    for dies_at in range(1, MAX_WRITES):
        if await kill(scene, story, dies_at, halfway=halfway):
            return
    pytest.fail("more writes than expected")
