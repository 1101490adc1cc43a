"""Two processes change edges at the same time: one stops before a write, until the other one is done."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import pytest
from pymongo.errors import AutoReconnect

from jobmill.core.changes import Remove, Requeue
from jobmill.core.due import NEVER_MS
from jobmill.core.job import Keep
from jobmill.core.lifecycle import Policy
from jobmill.core.values import Receipt
from jobmill.errors import StoreUnavailable
from jobmill.stores.mongo import MongoStore
from jobmill.testing.contract.support import (
    claim,
    claim_ids,
    claim_one,
    fail,
    look,
    new,
    put,
    settle,
    state_of,
    succeed,
    wish,
)
from tests.stores.mongo_killed import Killed, Life, give_life, suspend, waits
from tests.stores.mongo_scene import Scene

pytestmark = pytest.mark.stores("mongo")

T = TypeVar("T")


@pytest.fixture
async def scene(mongo_url: str) -> AsyncIterator[Scene]:
    scene = Scene(mongo_url)
    await scene.open()
    yield scene
    await scene.store.close()


class Stop:
    """A process stops before its write number `number` to a collection, of a kind, until it may go on."""

    def __init__(self, store: MongoStore, collection: str, method: str, number: int = 1) -> None:
        self._method, self._left = method, number
        self._real = getattr(store.context.here, collection)
        self.is_there, self.goes_on = asyncio.Event(), asyncio.Event()
        setattr(store.context.here, collection, self)

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._real, name)
        if name == "with_options":
            return lambda **_: self
        if name != self._method:
            return real

        async def write(*given: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == 0:
                self.is_there.set()
                await self.goes_on.wait()
            return await real(*given, **options)

        return write


class Unavailable:
    """A collection on a server that cannot be reached."""

    def find(self, *_: Any, **__: Any) -> Any:
        raise AutoReconnect("connection closed")


async def between(stop: Stop, call: Awaitable[T], act: Callable[[], Awaitable[object]]) -> T:
    """What a call returns, where another process acts before that write of the call."""
    task = asyncio.ensure_future(call)
    there = asyncio.ensure_future(stop.is_there.wait())
    await asyncio.wait([task, there], return_when="FIRST_COMPLETED")
    there.cancel()
    assert not task.done(), "the call does not write this"
    try:
        await act()
    finally:
        stop.goes_on.set()
    return await task


async def edges(store: MongoStore, id: str) -> list[tuple[str, str]]:
    return [(edge.id, edge.state) for edge in await store.dependencies(id)]


async def test_an_end_of_an_earlier_round_sets_no_edge(scene: Scene) -> None:
    await put(scene.store, new("a"), new("b"), waits("then", "a", "b", if_failed="run"))
    claimed = {one.job.id: one for one in await claim(scene.store)}
    async with scene.another() as slow:
        stop = Stop(slow, "edges", "bulk_write")
        await between(stop, settle(slow, fail(claimed["a"])), lambda: scene.store.change(["a"], Requeue()))
    assert await edges(scene.store, "then") == [("a", "pending"), ("b", "pending")]
    await settle(scene.store, succeed(claimed["b"]))
    assert await claim_ids(scene.store, 1) == ["a"]
    assert (await look(scene.store, "then")).held is not None


async def test_a_settlement_comes_after_its_note_was_taken_for_a_lost_one(scene: Scene) -> None:
    """The job is in the outbox afterwards, although the process ends right after the settlement."""
    await put(scene.store, new("a"), waits("then", "a"))
    claimed = await claim_one(scene.store)
    scene.store.context.flows.sweep_from_ms = NEVER_MS

    async def repair() -> None:
        scene.clock.advance(6)
        await scene.store.flush_outbox()
        assert await scene.store.context.here.stages.count_documents({}) == 0

    async with scene.another() as slow:
        give_life(slow, Life(4, halfway=False))  # the note, the settlement, the same once more, the edge
        stop = Stop(slow, "jobs", "bulk_write")
        with pytest.raises(Killed):
            await between(stop, settle(slow, succeed(claimed)), repair)
    assert await state_of(scene.store, "a") == "succeeded"
    assert await scene.store.flush_outbox() == 1
    assert await claim_ids(scene.store) == ["then"]


async def test_a_job_gets_a_dependent_while_it_is_settled(scene: Scene) -> None:
    """The call has read the edges already, together with the jobs that it claims."""
    await put(scene.store, new("a"), waits("then", "a"), new("next"))
    claimed = await claim_one(scene.store)
    async with scene.another() as slow:
        stop = Stop(slow, "stages", "insert_one")
        answer = await between(
            stop, slow.exchange([succeed(claimed)], wish(1)), lambda: put(scene.store, waits("late", "a"))
        )
    assert (answer.settled, [one.lease.id for one in answer.claimed]) == (["done"], ["next"])
    assert await edges(scene.store, "late") == [("a", "succeeded")]
    assert sorted(await claim_ids(scene.store)) == ["late", "then"]


async def test_a_job_is_removed_while_its_settlement_sets_edges(scene: Scene) -> None:
    """The end counts, although the process that settled has ended before it set the edges."""
    await put(scene.store, new("a"), waits("then", "a"))
    claimed = await claim_one(scene.store)
    async with scene.another() as killed:
        give_life(killed, Life(3, halfway=False))  # the note, the settlement, the edge
        with pytest.raises(Killed):
            await settle(killed, succeed(claimed))
    assert await state_of(scene.store, "a") == "succeeded"
    assert (await scene.store.change(["a"], Remove())).ids == ["a"]
    assert await edges(scene.store, "then") == [("a", "succeeded")]
    assert await claim_ids(scene.store) == ["then"]


async def test_a_job_loses_its_dependents_before_it_is_settled(scene: Scene) -> None:
    await put(scene.store, new("a"), waits("then", "a"))
    claimed = await claim_one(scene.store)
    assert (await scene.store.change(["then"], Remove())).ids == ["then"]
    assert await settle(scene.store, succeed(claimed)) == ["done"]
    assert await settle(scene.store, succeed(claimed)) == ["lost"]
    assert await scene.store.context.here.stages.count_documents({}) == 0


async def test_a_job_loses_its_dependents_before_its_note_is_repaired(scene: Scene) -> None:
    """Nothing keeps it any more."""
    await put(scene.store, new("a"), waits("then", "a"))
    claimed = await claim_one(scene.store)
    async with scene.another() as killed:
        give_life(killed, Life(3, halfway=False))  # the note, the settlement, the edge
        with pytest.raises(Killed):
            await settle(killed, succeed(claimed))
    assert (await scene.store.change(["then"], Remove())).ids == ["then"]
    scene.clock.advance(6)
    await scene.store.flush_outbox()
    assert {one.check: one.evidence for one in await scene.store.fsck() if one.count} == {}
    assert await scene.store.context.here.jobs.count_documents({"jobmill.hasDependents": {"$exists": True}}) == 0


async def test_the_server_becomes_unavailable_after_a_settlement(scene: Scene) -> None:
    """The worker need not wait until others take its note for that of a process that has ended."""
    await put(scene.store, new("a"), waits("then", "a"))
    claimed = await claim_one(scene.store)
    here: Any = scene.store.context.here
    here.edges, real = Unavailable(), here.edges
    exchanged = await scene.store.exchange([succeed(claimed)], None)
    here.edges = real
    assert (exchanged.settled, exchanged.has_outbox) == (["done"], True)
    assert await scene.store.flush_outbox() == 1
    assert await claim_ids(scene.store) == ["then"]
    assert await here.stages.count_documents({}) == 0


async def test_fsck_finds_nothing_while_a_job_is_settled(scene: Scene) -> None:
    await put(scene.store, new("a"), waits("then", "a"))
    claimed = await claim_one(scene.store)

    async def check() -> None:
        assert {one.check: one.evidence for one in await scene.store.fsck() if one.count} == {}

    async with scene.another() as slow:
        await between(Stop(slow, "edges", "bulk_write"), settle(slow, succeed(claimed)), check)


async def test_a_released_job_is_to_fail_before_it_is_leased(scene: Scene) -> None:
    """A claim gives out what it has found only if nothing of that has changed."""
    await put(scene.store, new("a"), waits("then", "a"))
    await settle(scene.store, succeed(await claim_one(scene.store)))
    fails = {"$set": {"jobmill.deferredError": "no luck"}}

    async def fail_later() -> None:
        await scene.store.context.here.jobs.update_one({"jobmill.id": "then"}, fails)

    async with scene.another() as slow:
        (then,) = await between(Stop(slow, "jobs", "bulk_write"), claim(slow), fail_later)
    assert then.job.deferred_error == "no luck"


async def test_a_job_that_ends_again_while_it_is_requeued(scene: Scene) -> None:
    """It runs and ends before the edges that lead to it are open again."""
    await put(scene.store, new("a"), new("b"), waits("then", "a", "b", if_failed="run"))
    claimed = {one.job.id: one for one in await claim(scene.store)}
    await settle(scene.store, fail(claimed["a"]))

    async def run() -> None:
        await settle(scene.store, succeed(await claim_one(scene.store), 2))

    async with scene.another() as slow:
        stop = Stop(slow, "edges", "update_many")
        await between(stop, slow.change(["a"], Requeue()), run)
    assert await edges(scene.store, "then") == [("a", "succeeded"), ("b", "pending")]
    await settle(scene.store, succeed(claimed["b"]))
    assert await claim_ids(scene.store) == ["then"]


async def test_a_dependent_is_removed_while_another_one_is_enqueued(scene: Scene) -> None:
    """The job still has its mark afterwards."""
    await put(scene.store, new("a"), waits("one", "a"))
    async with scene.another() as slow:
        stop = Stop(slow, "jobs", "bulk_write")  # takes the mark off
        await between(stop, slow.change(["one"], Remove()), lambda: put(scene.store, waits("two", "a")))
    await settle(scene.store, succeed(await claim_one(scene.store)))
    assert await claim_ids(scene.store) == ["two"]


async def test_a_job_ends_while_a_dependent_is_enqueued(scene: Scene) -> None:
    for number, (collection, method) in enumerate(
        [("edges", "insert_many"), ("jobs", "update_many"), ("stages", "update_one"), ("stages", "delete_one")]
    ):
        first, then = f"first-{number}", f"then-{number}"
        await put(scene.store, new(first))
        claimed = await claim_one(scene.store)
        async with scene.another() as slow:
            stop = Stop(slow, collection, method)
            await between(stop, put(slow, waits(then, first)), lambda it=claimed: settle(scene.store, succeed(it)))  # type: ignore[misc]
        assert await claim_ids(scene.store) == [then]


async def test_a_job_leaves_while_a_dependent_is_enqueued(scene: Scene) -> None:
    await put(scene.store, new("first"))
    claimed = await claim_one(scene.store)
    gone = succeed(claimed, None, Policy(keep_succeeded=Keep(last=0)))
    async with scene.another() as slow:
        stop = Stop(slow, "edges", "insert_many")
        with pytest.raises(ValueError, match="first"):
            await between(stop, put(slow, waits("then", "first")), lambda: settle(scene.store, gone))
    here = scene.store.context.here
    assert [await one.count_documents({}) for one in (here.jobs, here.edges, here.stages)] == [0, 0, 0]


async def test_a_call_that_takes_too_long_is_undone(scene: Scene) -> None:
    async def repair() -> None:
        scene.clock.advance(6)
        await scene.store.flush_outbox()

    async with scene.another() as slow:
        stop = Stop(slow, "stages", "update_one")
        with pytest.raises(StoreUnavailable, match="took longer than 5 s"):
            await between(stop, slow.enqueue([new("a"), waits("b", "a")]), repair)
    here = scene.store.context.here
    assert [await one.count_documents({}) for one in (here.jobs, here.edges, here.stages)] == [0, 0, 0]


async def test_a_call_does_not_commit_while_it_is_undone(scene: Scene) -> None:
    aborting = {"$set": {"state": "aborting"}}
    async with scene.another() as slow:
        stop = Stop(slow, "stages", "update_one")
        with pytest.raises(StoreUnavailable):
            await between(
                stop,
                slow.enqueue([new("a"), waits("b", "a")]),
                lambda: scene.store.context.here.stages.update_one({}, aborting),
            )
    assert await claim(scene.store) == []


async def test_a_suspension_that_takes_too_long_is_undone(scene: Scene) -> None:
    await put(scene.store, new("p"))
    claimed = await claim_one(scene.store)

    async def repair() -> None:
        scene.clock.advance(6)
        await scene.store.flush_outbox()

    async with scene.another() as slow:
        stop = Stop(slow, "jobs", "update_one")
        assert await between(stop, settle(slow, suspend(claimed, new("p.0"))), repair) == ["lost"]
    assert await state_of(scene.store, "p.0") is None
    assert await state_of(scene.store, "p") == "running"
    assert await settle(scene.store, suspend(claimed, new("p.0"))) == ["done"]
    assert await claim_ids(scene.store) == ["p.0"]


@pytest.mark.parametrize("commits", [True, False])
async def test_the_same_flow_from_two_processes(scene: Scene, commits: bool) -> None:
    """The second one waits until it is known whether the jobs of the first one exist."""
    flow = [new("a", key="k"), waits("b", "a")]
    async with scene.another() as slow:
        stop = Stop(slow, "stages", "update_one")
        first = asyncio.ensure_future(slow.enqueue(flow))
        await stop.is_there.wait()
        assert await scene.store.get(["a", "b"]) == [None, None], "nobody sees them"
        assert await claim(scene.store) == []
        second = asyncio.ensure_future(scene.store.enqueue([new("c", key="k"), new("a")]))
        if commits:
            stop.goes_on.set()
            assert [one.status for one in await first] == ["created", "created"]
            assert await second == [Receipt("a", "duplicate"), Receipt("a", "exists")]
        else:
            scene.clock.advance(6)
            assert [one.status for one in await second] == ["created", "created"]
            stop.goes_on.set()
            with pytest.raises(StoreUnavailable):
                await first
            assert await scene.store.get(["b"]) == [None]
