"""Flows on Redis beyond the contract: relays, large flows that a process leaves, clusters."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from msgspec import structs

from jobmill.core.changes import Cancel, Remove, Requeue
from jobmill.core.flows import MAX_RELEASED, After, IfFailed
from jobmill.core.lifecycle import DEFAULT_POLICY, Suspended
from jobmill.core.lifecycle import settle as decide
from jobmill.core.values import Claimed, Filter, NewJob, Settlement
from jobmill.errors import InvalidValue, StoreUnavailable
from jobmill.stores.redis import RedisStore
from jobmill.stores.redis.flows import STAGED_MS, staging_index
from jobmill.stores.redis.scripts import Script
from jobmill.testing import ManualClock
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    fail,
    find_all,
    look,
    new,
    put,
    put_one,
    settle,
    started,
    state_of,
    succeed,
)
from jobmill.testing.contract.unique_policy import CANCEL, keyed
from tests.kit.redis_groups import RedisCluster

pytestmark = pytest.mark.stores("redis")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(redis_url: str, clock: ManualClock) -> AsyncIterator[RedisStore]:
    store = RedisStore(redis_url, clock=clock)
    await store.open()
    yield store
    await store.close()


def waits(id: str, *on: str, if_failed: IfFailed = "fail", queue: str = QUEUE) -> NewJob:
    return structs.replace(new(id, queue=queue), after=tuple(After(one, if_failed) for one in on))


def suspend(claimed: Claimed, *children: NewJob) -> Settlement:
    return decide(claimed, Suspended(children=children), DEFAULT_POLICY, 0)


async def keys(store: RedisStore, pattern: str) -> list[str]:
    """All keys of a pattern below our own prefix."""
    found: list[str] = []
    for type in ("hash", "list", "set", "zset"):
        own = f"jobmill:{store.context.url.prefix}:relays{pattern}"
        found += [key.decode() for key in await store.context.client.scan(own, type)]
    return found


# ---------------------------------------------------------------------------------------------------- order


async def test_jobs_that_are_released_late_stand_where_they_were_added(store: RedisStore) -> None:
    """Before those that were added after them, which were released first; and after all others, however many."""
    others = [f"other-{number}" for number in range(300)]
    firsts, thens = [f"first-{number}" for number in range(8)], [f"then-{number}" for number in range(8)]
    plain = [new(id) for id in (*firsts, *others)]
    await put(store, *plain, *(waits(*pair) for pair in zip(thens, firsts, strict=True)), new("last"))
    claimed = await claim(store, len(firsts))
    for some in ((6, 7), (1, 3), (0, 5), (2, 4)):
        await settle(store, *[succeed(claimed[number]) for number in some])
    assert await claim_ids(store, 500) == [*others, *thens, "last"]


# ---------------------------------------------------------------------------------------------------- relays


@pytest.mark.parametrize("policies", [("fail", "run"), ("run", "fail")])
async def test_two_edges_to_one_job_with_two_policies(store: RedisStore, policies: tuple[IfFailed, IfFailed]) -> None:
    """Both are there, and the job fails, as one of them says."""
    twice = structs.replace(new("then"), after=tuple(After("first", policy) for policy in policies))
    await put(store, new("first"), twice)
    assert [edge.if_failed for edge in await store.dependencies("then")] == list(policies)
    await settle(store, fail(await claim_one(store), "no luck"))
    assert (await claim_one(store)).job.deferred_error == "dependency first failed: no luck"


async def test_a_requeued_job_tells_all_that_still_wait(store: RedisStore) -> None:
    await put(
        store, new("first"), new("other"), *[waits(f"then-{n}", "first", "other", if_failed="run") for n in "abc"]
    )
    claimed = {one.job.id: one for one in await claim(store)}
    await settle(store, fail(claimed["first"], "no luck"))
    await store.change(["then-b"], Cancel())
    assert (await store.change(["first"], Requeue())).ids == ["first"]
    await settle(store, succeed(claimed["other"], 1))
    assert await claim_ids(store) == ["first"]
    assert [one.state for one in await store.dependents("first")] == ["pending", "failed", "pending"]
    again = await store.change(["first"], Cancel())
    assert again.ids == ["first"]
    assert sorted(await claim_ids(store)) == ["then-a", "then-c"]


async def test_a_relay_goes_with_its_job(store: RedisStore) -> None:
    await put(store, new("first"), waits("a", "first"), waits("b", "first"))
    assert len(await keys(store, "*:next")) == 1
    await settle(store, succeed(await claim_one(store), 1))
    assert (await store.change(["a", "b"], Remove())).ids == ["a", "b"]
    assert await store.dependents("first") == []
    assert (await store.change(["first"], Remove())).ids == ["first"]
    assert await keys(store, "*") == []


async def test_a_live_job_with_many_dependents_is_removed(store: RedisStore) -> None:
    """More than a call may tell: the relay tells the others although its job is gone."""
    count = MAX_RELEASED + 100
    first = await put_one(store, new("first"))
    await put(store, *[waits(f"then-{n}", first, if_failed="run") for n in range(count)])
    assert (await store.change([first], Remove())).ids == [first]
    assert (await store.depths([QUEUE]))[0].held == 100
    assert await store.flush_outbox() == 100
    assert (await store.depths([QUEUE]))[0].due == count
    (edge,) = await store.dependencies("then-1050")
    assert edge.state == "cancelled"
    assert await keys(store, "*") == []


# ---------------------------------------------------------------------------------------------------- large flows


class Dies:
    """A store whose process ends after some calls of scripts and commands that write."""

    def __init__(self, store: RedisStore, after: int) -> None:
        self.left = after
        self.client = store.context.client
        self.run = self.client.run
        self.client.run = self._run  # type: ignore[method-assign]

    async def _run(self, script: Script, key: str, args: Sequence[Any]) -> Any:
        if self.left == 0:
            raise StoreUnavailable("the process has ended")
        self.left -= 1
        return await self.run(script, key, args)

    def end(self) -> None:
        """The next process."""
        self.client.run = self.run  # type: ignore[method-assign]


IDS = [f"part-{n:03}" for n in range(260)]


@pytest.mark.parametrize("late", [False, True], ids=["flush once", "flush twice"])
async def test_a_large_flow_is_whole_or_not_there(redis_url: str, late: bool) -> None:
    """The process ends after each of its calls; another one finishes the flow, or removes it."""
    written, calls = 0, 0
    while True:
        clock = ManualClock()
        store = RedisStore(f"{redis_url}-{calls}", clock=clock)
        await put_one(store, new("before"))
        dies = Dies(store, calls)
        try:
            await put(store, *map(new, IDS), waits("middle", *IDS[:100]), waits("last", "before", "middle", *IDS[200:]))
            is_done = True
        except StoreUnavailable:
            is_done = False
        dies.end()
        for _ in range(2 if late else 1):
            clock.advance(STAGED_MS / 1000 + 1)
            await store.flush_outbox()
        jobs = await store.get([*IDS, "middle", "last"])
        is_there = {job is not None for job in jobs}
        assert len(is_there) == 1, f"a half flow after {calls} calls"
        written += is_there == {True}
        assert {one.check for one in await store.fsck() if one.count} == set()
        ran: list[str] = []
        while found := await claim(store, 50):
            ran += [one.job.id for one in found]
            assert set(await settle(store, *map(succeed, found))) == {"done"}
        assert sorted(ran) == sorted(["before", *([*IDS, "middle", "last"] if is_there == {True} else [])])
        assert ran[-1] == ("last" if is_there == {True} else "before")
        await store.close()
        if is_done:
            break
        calls += 1
    assert calls > 6
    assert written > 2


async def test_a_job_with_a_policy_stays_if_its_large_flow_does_not(store: RedisStore, clock: ManualClock) -> None:
    """It has cancelled another one, which nobody can undo."""
    await put_one(store, keyed(CANCEL, "old"))
    dies = Dies(store, 2)
    with pytest.raises(StoreUnavailable):
        await put(store, keyed(CANCEL, "next"), *map(new, IDS), waits("last", "next", *IDS))
    dies.end()
    clock.advance(STAGED_MS / 1000 + 1)
    await store.flush_outbox()
    assert [await state_of(store, id) for id in ("old", "next", IDS[0], "last")] == ["cancelled", "waiting", None, None]
    assert await claim_ids(store) == ["next"]


async def test_a_process_that_was_too_slow_cannot_commit(store: RedisStore, clock: ManualClock) -> None:
    """Another process has removed the flow meanwhile."""
    run = store.context.client.run

    async def slow(script: Any, key: str, args: Any) -> Any:
        if b"commit" in args[0]:
            clock.advance(STAGED_MS / 1000 + 1)
            store.context.client.run = run  # type: ignore[method-assign]
            await store.flush_outbox()
        return await run(script, key, args)

    store.context.client.run = slow  # type: ignore[method-assign]
    with pytest.raises(InvalidValue, match="took too long"):
        await put(store, *map(new, IDS), waits("last", *IDS))
    assert await store.get([*IDS, "last"]) == [None] * 261
    assert await claim(store) == []


async def test_a_run_waits_for_many_children(store: RedisStore) -> None:
    parent = await started(store, new("p"))
    children = [new(f"p.{n}") for n in range(600)]
    assert await settle(store, suspend(parent, *children)) == ["done"]
    assert (await look(store, "p")).dependencies == 600
    for _ in range(3):
        found = await claim(store, 200)
        assert len(found) == 200
        assert await settle(store, *[succeed(one, 1) for one in found]) == ["done"] * 200
    again = await claim_one(store)
    assert again.job.id == "p"
    assert await settle(store, suspend(again, new("p.600"))) == ["done"]
    assert [edge.id for edge in await store.dependencies("p", 599)] == ["p.599", "p.600"]


async def test_a_lost_lease_leaves_none_of_many_children(store: RedisStore, clock: ManualClock) -> None:
    stale = await started(store, new("p"))
    clock.advance(16)
    await claim_one(store)
    assert await settle(store, suspend(stale, *[new(f"p.{n}") for n in range(600)])) == ["lost"]
    assert await find_all(store, Filter()) == ["p"]
    assert await keys(store, "*") == []


# ---------------------------------------------------------------------------------------------------- clusters


@pytest.fixture(params=["?prefix={{t-flows-{0}}}", "?prefix=t-flows-{0}"], ids=["prefix", "queue"])
async def cluster(
    request: pytest.FixtureRequest, redis_cluster: RedisCluster, clock: ManualClock
) -> AsyncIterator[RedisStore]:
    """A store on a cluster, whose slot is that of the prefix or of each queue."""
    options = request.param.format(request.param.count("{"))
    store = RedisStore(f"redis+cluster://127.0.0.1:{redis_cluster.nodes[0].port}{options}", clock=clock)
    yield store
    for type in ("hash", "list", "set", "zset", "stream", "string"):
        for key in await store.context.client.scan("*t-flows-*", type):
            await store.context.client.call(key.decode(), "DEL", key)
    await store.close()


async def test_a_flow_on_a_cluster(cluster: RedisStore) -> None:
    steps, top = "{a}steps", "{a}top"
    many = [waits(f"many-{n}", "first", queue=top) for n in range(300)]
    await put(cluster, new("first", queue=steps), waits("left", "first", queue=top), waits("right", "first", queue=top))
    await put(cluster, *many, waits("last", "left", "right", *[one.id for one in many], queue=steps))
    await settle(cluster, succeed(await claim_one(cluster, queues=(steps,)), 5))
    found = await claim(cluster, 500, queues=(top,))
    assert len(found) == 302
    assert await claim(cluster, queues=(steps,)) == []
    assert set(await settle(cluster, *[succeed(one, 1) for one in found])) == {"done"}
    assert await claim_ids(cluster, queues=(steps,)) == ["last"]
    assert {one.check for one in await cluster.fsck() if one.count} == set()


async def test_a_flow_over_several_slots_is_refused(cluster: RedisStore) -> None:
    if "{" in cluster.context.url.prefix:  # then all queues are in one slot
        await put(cluster, new("first", queue="{b}steps"), waits("then", "first", queue="{a}top"))
        return
    with pytest.raises(InvalidValue, match=r"\{a\}top and \{b\}steps"):
        await put(cluster, new("first", queue="{b}steps"), waits("then", "first", queue="{a}top"))
    await put(cluster, new("first", queue="{b}steps"))
    with pytest.raises(InvalidValue, match=r"\{a\}top and \{b\}steps"):
        await put(cluster, waits("then", "first", queue="{a}top"))
    assert await state_of(cluster, "then") is None
    await put(cluster, new("b", queue="{b}steps"), new("a", queue="{a}top"), waits("then", "a", queue="{a}top"))
    parent = await claim_one(cluster, queues=("{a}top",))
    (refused,) = await settle(cluster, suspend(parent, new("child", queue="{b}steps")))
    assert "one slot" in getattr(refused, "why", "")


async def test_a_large_flow_left_on_a_cluster(cluster: RedisStore, clock: ManualClock) -> None:
    dies = Dies(cluster, 2)
    ids = [f"part-{n}" for n in range(260)]
    with pytest.raises(StoreUnavailable):
        await put(cluster, *[new(id, queue="{a}top") for id in ids], waits("last", *ids, queue="{a}top"))
    dies.end()
    index = staging_index(cluster.context, "{a}top")
    assert await cluster.context.client.call(index, "ZCARD", index) == 1
    clock.advance(STAGED_MS / 1000 + 1)
    await cluster.flush_outbox()
    assert await cluster.get([*ids, "last"]) == [None] * 261
    assert await cluster.context.client.call(index, "EXISTS", index) == 0
