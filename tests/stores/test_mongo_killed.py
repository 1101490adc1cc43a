"""A process is killed before each of its writes: another one finishes or undoes what it had begun."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
from collections.abc import AsyncIterator

import pytest

from jobmill.core.due import NEVER_MS
from jobmill.core.values import EVERYTHING, Filter
from jobmill.stores.mongo import MongoStore
from jobmill.stores.mongo.codec import FINAL
from jobmill.testing.contract.support import claim, fail, find_all, new, put, settle, succeed, turns
from tests.stores.mongo_killed import STORIES, Killed, Life, Story, give_life, waits
from tests.stores.mongo_scene import Scene

pytestmark = [pytest.mark.stores("mongo"), pytest.mark.slow]

stories = pytest.mark.parametrize("story", STORIES, ids=lambda story: type(story).__name__)
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
    for collection in (here.jobs, here.edges, here.stages, here.steps, here.logs):
        await collection.delete_many({})


async def live_until(scene: Scene, story: Story, dies_at: int, halfway: bool) -> bool:
    """Whether a process has done what the story says, before it was killed."""
    async with scene.another() as killed:
        act = await story.prepare(killed)
        give_life(killed, Life(dies_at, halfway))
        try:
            await act(killed)
        except Killed:
            return False
        return True


async def flush(store: MongoStore) -> None:
    while await store.flush_outbox():
        pass


async def repair(scene: Scene, story: Story, dies_at: int | None = None) -> None:
    """After some time another process repairs, which may be killed as well."""
    scene.clock.advance(60)
    scene.store.context.flows.sweep_from_ms = 0 if story.needs_sweep else NEVER_MS
    if dies_at is not None:
        async with scene.another() as killed:
            killed.context.flows.sweep_from_ms = scene.store.context.flows.sweep_from_ms
            give_life(killed, Life(dies_at, halfway=False))
            try:
                await flush(killed)
            except Killed:
                scene.clock.advance(60)
    await flush(scene.store)


async def drain(scene: Scene, story: Story) -> dict[str, str]:
    """Run all jobs; none of them too early. The states in which they end."""
    store = scene.store
    while claimed := await claim(store):
        for one in claimed:
            id, must_fail = one.job.id, one.job.deferred_error is not None
            for edge in await store.dependencies(id):
                (other,) = await store.get([edge.id])
                is_open = edge.state == "pending" or (other is not None and not other.is_final)
                assert must_fail or not is_open, f"{id} runs before {edge.id} has ended"
            ends_badly = must_fail or id in story.fails
            assert await settle(store, fail(one) if ends_badly else succeed(one, id)) == ["done"]
        await flush(store)
    jobs = await store.get(await find_all(store, EVERYTHING))
    return {job.id: job.state for job in jobs if job is not None}


async def check(scene: Scene, story: Story, states: dict[str, str]) -> None:
    """No job is stuck, no flow is in pieces, and nothing is left over."""
    here = scene.store.context.here
    assert {id: state for id, state in states.items() if state in ("waiting", "running")} == {}
    for whole in story.whole:
        there = whole & states.keys()
        assert there in (set(), whole), f"half of a flow: {there}"
    story.check(states)
    assert await here.stages.count_documents({}) == 0
    assert await here.jobs.count_documents({"jobmill.staged": {"$exists": True}}) == 0
    assert await here.jobs.count_documents({"status": {"$in": FINAL}, "jobmill.outbox": True}) == 0
    assert await here.edges.count_documents({"state": "pending"}) == 0
    assert {one.check: one.evidence for one in await scene.store.fsck() if one.count} == {}


async def kill(scene: Scene, story: Story, dies_at: int, *, halfway: bool = False) -> bool:
    """One story; whether its process did everything before it was killed."""
    await empty(scene)
    is_done = await live_until(scene, story, dies_at, halfway)
    await repair(scene, story, dies_at % 7 + 1 if dies_at % 3 else None)
    states = await drain(scene, story)
    await check(scene, story, states)
    assert not is_done or set().union(*story.whole) <= states.keys(), "a call that has returned is lost"
    return is_done


@stories
async def test_a_process_is_killed_at_some_writes(scene: Scene, story: Story) -> None:
    for dies_at in range(1, MAX_WRITES, 2):
        if await kill(scene, story, dies_at):
            return
    pytest.fail("more writes than expected")


@pytest.mark.extended
@pytest.mark.parametrize("halfway", [False, True])
@stories
async def test_a_process_is_killed_at_every_write(scene: Scene, story: Story, halfway: bool) -> None:
    for dies_at in range(1, MAX_WRITES):
        if await kill(scene, story, dies_at, halfway=halfway):
            return
    pytest.fail("more writes than expected")


@pytest.mark.extended
@stories
async def test_the_repair_is_killed_at_every_write(scene: Scene, story: Story) -> None:
    for dies_at in (2, 3, 5, 7):
        for repair_dies_at in range(1, MAX_WRITES):
            await empty(scene)
            if await live_until(scene, story, dies_at, halfway=False):
                return
            scene.clock.advance(60)
            async with scene.another() as killed:
                give_life(killed, Life(repair_dies_at, halfway=False))
                try:
                    await flush(killed)
                    is_done = True
                except Killed:
                    is_done = False
            await repair(scene, story)
            await check(scene, story, await drain(scene, story))
            if is_done:
                break


@pytest.mark.parametrize(("number", "dies_at"), [(0, 3), (0, 6), (2, 2), (2, 4), (5, 5), (10, 3)])
async def test_a_process_is_killed_by_the_kernel(scene: Scene, number: int, dies_at: int) -> None:
    arguments = [scene.url, str(scene.clock()), str(number), str(dies_at)]
    program = [sys.executable, "-m", "tests.stores.mongo_killed", *arguments]
    process = await asyncio.create_subprocess_exec(*program)
    assert await asyncio.wait_for(process.wait(), 60) == -signal.SIGKILL
    await repair(scene, STORIES[number])
    await check(scene, STORIES[number], await drain(scene, STORIES[number]))


@pytest.mark.extended
@pytest.mark.parametrize("seed", range(5))
async def test_workers_are_killed_beside_each_other(scene: Scene, seed: int) -> None:
    """Three workers run 12 parents with 15 children each; whenever one is killed, another one takes its place."""
    chance = random.Random(seed)
    parts = {f"p{n}": [f"k{n}-{m}" for m in range(15)] for n in range(12)}
    jobs = [new(id) for ids in parts.values() for id in ids]
    jobs += [waits(id, *ids, *([f"p{int(id[1:]) - 1}"] if int(id[1:]) % 4 else [])) for id, ids in parts.items()]
    chance.shuffle(jobs)
    await put(scene.store, *jobs)
    ran: list[str] = []
    kills = 0

    async def work(store: MongoStore) -> None:
        while claimed := await claim(store, chance.randint(1, 7)):
            for one in claimed:
                assert [edge.id for edge in await store.dependencies(one.job.id) if edge.state == "pending"] == []
                ran.append(one.job.id)
            await store.exchange([succeed(one) for one in claimed], None)
            await store.flush_outbox()

    async def live() -> None:
        nonlocal kills
        while True:
            async with scene.another() as store:
                give_life(store, Life(chance.randint(3, 30), halfway=chance.random() < 0.5))
                try:
                    await work(store)
                    return
                except Killed:
                    kills += 1
                    scene.clock.advance(20)

    for _ in turns(100):
        await asyncio.gather(live(), live(), live())
        scene.clock.advance(60)
        await flush(scene.store)
        if not await find_all(scene.store, Filter(states=("waiting", "running"))):
            break
    assert kills > 3
    assert set(ran) == {one.id for one in jobs}
    await check(scene, Story(), dict.fromkeys(set(ran), "succeeded"))
