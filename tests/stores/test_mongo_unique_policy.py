"""Enqueue policies on MongoDB: processes that are killed between two writes, many jobs in one call, other programs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from msgspec import structs

from jobmill.core.changes import Cancel, Hold, Remove
from jobmill.core.flows import After
from jobmill.core.job import Keep
from jobmill.core.recurrence import recurrence
from jobmill.core.unique_policy import UniquePolicy
from jobmill.core.values import EVERYTHING, NewJob, Receipt, after
from jobmill.errors import InvalidValue, StoreUnavailable
from jobmill.stores.mongo import MongoStore, unique_policy
from jobmill.stores.mongo.taken_keys import GRACE_MS
from jobmill.testing.contract.steps import suspend
from jobmill.testing.contract.support import (
    claim,
    claim_one,
    enqueue_one,
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
from jobmill.testing.contract.unique_policy import CANCEL, FOR_A_MINUTE, REPLACE, debounced, keyed
from tests.stores.mongo_killed import Killed, Life, give_life
from tests.stores.mongo_scene import Scene, home

pytestmark = pytest.mark.stores("mongo")

GRACE_SECONDS = GRACE_MS / 1_000
#: How many writes a process makes at most.
MAX_WRITES = 30
Act = Callable[[MongoStore], Awaitable[object]]


@pytest.fixture
async def scene(mongo_url: str) -> AsyncIterator[Scene]:
    scene = Scene(mongo_url)
    await scene.open()
    yield scene
    await scene.store.close()


async def killed_before(scene: Scene, write: int, act: Act) -> bool:
    """Whether a process was killed before this write of what it does."""
    async with scene.another() as store:
        give_life(store, Life(write, halfway=False))
        try:
            await act(store)
        except Killed:
            return True
        return False


async def for_each_write(scene: Scene, prepare: Act, act: Act, check: Callable[[bool], Awaitable[None]]) -> None:
    """Kill a process before each of its writes; `check` is told whether it was killed."""
    for write in range(1, MAX_WRITES):
        here = scene.store.context.here
        for collection in (here.jobs, here.taken_keys, here.stages, here.edges):
            await collection.delete_many({})
        await prepare(scene.store)
        is_killed = await killed_before(scene, write, act)
        await check(is_killed)
        assert await here.stages.count_documents({}) == 0
        if not is_killed:
            assert write > 1
            return
    pytest.fail("more writes than expected")


async def repair(scene: Scene) -> None:
    """Another process finds what was left, after some time."""
    scene.clock.advance(GRACE_SECONDS + 1)
    while await scene.store.flush_outbox():
        pass


async def nothing(store: MongoStore) -> None:
    """Before the process begins."""


def enqueues(*jobs: NewJob) -> Act:
    """What a process does."""
    return lambda store: store.enqueue(jobs)


# ---------------------------------------------------------------------------------------------------- for a time


async def test_a_key_is_taken_if_and_only_if_its_job_was_inserted(scene: Scene) -> None:
    async def check(is_killed: bool) -> None:
        await repair(scene)
        is_there = await state_of(scene.store, "a") is not None
        assert is_there or is_killed
        if is_there:
            ends = structs.replace(succeed(await claim_one(scene.store)), keep=Keep(last=0))
            assert await enqueue_one(scene.store, keyed(FOR_A_MINUTE)) == Receipt("a", "duplicate")
            await settle(scene.store, ends)
            await scene.store.purge()
            assert await enqueue_one(scene.store, keyed(FOR_A_MINUTE)) == Receipt("a", "duplicate")
        else:
            assert (await enqueue_one(scene.store, keyed(FOR_A_MINUTE))).created

    await for_each_write(scene, nothing, enqueues(keyed(FOR_A_MINUTE, "a")), check)


async def test_a_call_that_was_killed_can_be_repeated_at_once(scene: Scene) -> None:
    async def check(is_killed: bool) -> None:
        receipt = await enqueue_one(scene.store, keyed(FOR_A_MINUTE, "a"))
        assert receipt.id == "a"
        assert receipt.status in ("created", "exists") if is_killed else receipt.status == "exists"
        await settle(scene.store, succeed(await claim_one(scene.store)))
        scene.clock.advance(30)
        assert await enqueue_one(scene.store, keyed(FOR_A_MINUTE)) == Receipt("a", "duplicate")

    await for_each_write(scene, nothing, enqueues(keyed(FOR_A_MINUTE, "a")), check)


@pytest.mark.parametrize("change", [Cancel(), Remove()], ids=lambda change: type(change).__name__)
async def test_a_key_is_free_if_and_only_if_its_job_was_cancelled_or_removed(
    scene: Scene, change: Cancel | Remove
) -> None:
    async def check(is_killed: bool) -> None:
        await repair(scene)
        is_live = await state_of(scene.store, "a") == "waiting"
        assert is_killed or not is_live
        if is_live:
            await settle(scene.store, succeed(await claim_one(scene.store)))
        receipt = await enqueue_one(scene.store, keyed(FOR_A_MINUTE))
        assert receipt == Receipt("a", "duplicate") if is_live else receipt.created

    await for_each_write(scene, enqueues(keyed(FOR_A_MINUTE, "a")), lambda store: store.change(["a"], change), check)


async def test_the_key_of_a_cancelled_job_is_free_at_once(scene: Scene) -> None:
    await put(scene.store, keyed(FOR_A_MINUTE, "a"))
    # The writes: that the key is uncertain, the cancel, and then the key.
    assert await killed_before(scene, 3, lambda store: store.change(["a"], Cancel()))
    assert await enqueue_one(scene.store, keyed(FOR_A_MINUTE, "b")) == Receipt("b", "created")


async def test_a_change_that_is_refused_leaves_the_key_taken(scene: Scene) -> None:
    running = await started(scene.store, keyed(FOR_A_MINUTE, "a"))
    await settle(scene.store, structs.replace(succeed(running), keep=Keep(age_ms=1_000)))
    assert (await scene.store.change(["a"], Cancel())).ids == []
    scene.clock.advance(2 * GRACE_SECONDS)
    assert (await scene.store.purge()).removed == 1
    assert await enqueue_one(scene.store, keyed(FOR_A_MINUTE)) == Receipt("a", "duplicate")


async def test_a_call_waits_for_another_one_that_takes_its_key(scene: Scene) -> None:
    """The first one may insert its job, or never: it was killed, which others know after some time."""
    assert await killed_before(scene, 2, enqueues(keyed(FOR_A_MINUTE, "a")))
    second = asyncio.create_task(enqueue_one(scene.store, keyed(FOR_A_MINUTE, "b")))
    done, _ = await asyncio.wait([second], timeout=0.2)
    assert not done
    scene.clock.advance(GRACE_SECONDS)
    assert await asyncio.wait_for(second, 10) == Receipt("b", "created")


async def test_a_call_learns_that_the_other_one_has_inserted_its_job(scene: Scene) -> None:
    assert await killed_before(scene, 2, enqueues(keyed(FOR_A_MINUTE, "a")))
    second = asyncio.create_task(enqueue_one(scene.store, keyed(FOR_A_MINUTE, "b")))
    async with scene.another() as first:
        assert await enqueue_one(first, keyed(FOR_A_MINUTE, "a")) == Receipt("a", "created")
    assert await asyncio.wait_for(second, 10) == Receipt("a", "duplicate")


async def test_a_call_gives_up_that_waits_for_too_long(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unique_policy, "GIVE_UP_SECONDS", 0.05)
    assert await killed_before(scene, 2, enqueues(keyed(FOR_A_MINUTE, "a")))
    with pytest.raises(StoreUnavailable, match="could not enqueue the job b within 0.05 s"):
        await scene.store.enqueue([keyed(FOR_A_MINUTE, "b")])


async def test_a_live_job_without_a_policy_leaves_no_taken_key(scene: Scene) -> None:
    await put(scene.store, new("plain", key="k"))
    assert await enqueue_one(scene.store, keyed(FOR_A_MINUTE)) == Receipt("plain", "duplicate")
    assert await scene.store.context.here.taken_keys.count_documents({}) == 0


async def test_a_job_that_lost_its_key_to_another_one_still_frees_it(scene: Scene) -> None:
    running = await started(scene.store, keyed(FOR_A_MINUTE, "a"))
    assert (await enqueue_one(scene.store, debounced("b"))).created
    await scene.store.change([running.job.id], Cancel())
    assert await scene.store.context.here.taken_keys.count_documents({}) == 0


async def test_the_janitor_forgets_keys_whose_time_is_over(scene: Scene) -> None:
    await put(scene.store, keyed(FOR_A_MINUTE, "a"), keyed(UniquePolicy(for_ms=120_000), "b", key="other"))
    scene.clock.advance(60)
    await scene.store.purge()
    assert [one["id"] for one in await scene.store.context.here.taken_keys.find().to_list()] == ["b"]


# ---------------------------------------------------------------------------------------------------- others


@pytest.mark.slow
@pytest.mark.parametrize("is_running", [False, True])
async def test_a_killed_process_does_not_lose_the_work_of_both_jobs(scene: Scene, is_running: bool) -> None:
    """Either the new job is there and the old one is cancelled, or nothing has happened."""
    jobs = [keyed(CANCEL, f"old-{key}", key=key) for key in "xyz"]
    follows = structs.replace(new("follows"), after=(After("old-x", "run"),))

    async def prepare(store: MongoStore) -> None:
        await store.enqueue([*jobs, follows])
        assert not is_running or len(await claim(store, lease_ms=600_000)) == 3

    async def check(is_killed: bool) -> None:
        await repair(scene)
        old = [await state_of(scene.store, f"old-{key}") for key in "xyz"]
        replaced = ["cancelled" if await state_of(scene.store, f"new-{key}") else old[0] for key in "xyz"]
        assert old == replaced
        assert is_killed or old == ["cancelled"] * 3
        found = [await look(scene.store, id) for id in await find_all(scene.store, EVERYTHING)]
        live = [job.unique_key for job in found if not job.is_final and job.id != "follows"]
        assert sorted(filter(None, live)) == ["x", "y", "z"]
        (edge,) = await scene.store.dependencies("follows")
        assert edge.state == ("cancelled" if old[0] == "cancelled" else "pending")

    taking = [keyed(CANCEL, f"new-{key}", key=key) for key in "xyz"]
    await for_each_write(scene, prepare, enqueues(*taking), check)


async def test_a_job_that_got_the_key_meanwhile_is_cancelled_by_the_process_that_repairs(scene: Scene) -> None:
    await put(scene.store, keyed(CANCEL, "a"))
    # The writes: begin, insert, commit, the attempt to take the key, and then the cancel.
    assert await killed_before(scene, 5, enqueues(keyed(CANCEL, "b")))
    await settle(scene.store, succeed(await claim_one(scene.store)))
    await put(scene.store, keyed(CANCEL, "c"))
    await repair(scene)
    assert [await state_of(scene.store, id) for id in "abc"] == ["succeeded", "waiting", "cancelled"]
    assert (await look(scene.store, "b")).unique_key == "k"


async def test_a_recurring_job_that_got_the_key_meanwhile_is_left_alone(scene: Scene) -> None:
    await put(scene.store, keyed(CANCEL, "a"))
    assert await killed_before(scene, 5, enqueues(keyed(CANCEL, "b")))
    await settle(scene.store, succeed(await claim_one(scene.store)))
    rule = recurrence(key="k", every_ms=60_000)
    await put(scene.store, new("c", key="k", recurrence=rule, due=after(60_000)))
    await repair(scene)
    assert [await state_of(scene.store, id) for id in "abc"] == ["succeeded", "waiting", "waiting"]


async def test_a_killed_process_leaves_the_old_payload_or_the_new_one(scene: Scene) -> None:
    async def check(is_killed: bool) -> None:
        assert (await look(scene.store, "a")).payload == ("old" if is_killed else "new")

    replaces = enqueues(keyed(REPLACE, payload="new"))
    await for_each_write(scene, enqueues(keyed(REPLACE, "a", payload="old")), replaces, check)


async def test_a_killed_process_leaves_a_key_to_the_next_one(scene: Scene) -> None:
    async def prepare(store: MongoStore) -> None:
        await started(store, keyed(CANCEL, "a"))

    async def check(is_killed: bool) -> None:
        receipt = await enqueue_one(scene.store, debounced("last"))
        assert receipt.created if is_killed else receipt.status == "updated"
        assert await state_of(scene.store, "a") == "running"

    await for_each_write(scene, prepare, enqueues(debounced("first")), check)


# ---------------------------------------------------------------------------------------------------- races


@pytest.fixture
def interpose(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Do something once, after a call has looked at the jobs that have its keys, or `before` it looks."""

    def do(act: Callable[[], Awaitable[object]], *, before: bool = False) -> None:
        acts, real = [act], unique_policy.look

        async def look_and_act(*arguments: Any) -> Any:
            found = None if before else await real(*arguments)
            while acts:
                await acts.pop()()
            return await real(*arguments) if before else found

        monkeypatch.setattr(unique_policy, "look", look_and_act)

    return do


async def test_a_job_that_was_claimed_meanwhile_is_not_replaced(scene: Scene, interpose: Any) -> None:
    await put(scene.store, keyed(REPLACE, "a", payload="old"))
    interpose(lambda: claim_one(scene.store))
    assert await enqueue_one(scene.store, keyed(REPLACE, payload="new")) == Receipt("a", "duplicate")
    assert (await look(scene.store, "a")).payload == "old"


async def test_a_job_that_was_suspended_meanwhile_is_not_replaced(scene: Scene, interpose: Any) -> None:
    async def run() -> None:
        await settle(scene.store, suspend(await claim_one(scene.store), waits_for="go", due=after(60_000)))

    await put(scene.store, keyed(REPLACE, "a", payload="old"))
    interpose(run)
    assert await enqueue_one(scene.store, keyed(REPLACE, payload="new")) == Receipt("a", "duplicate")


async def test_a_job_that_was_held_meanwhile_stays_held(scene: Scene, interpose: Any) -> None:
    await put(scene.store, keyed(REPLACE, "a", payload="old"))
    interpose(lambda: scene.store.change(["a"], Hold()))
    assert await enqueue_one(scene.store, keyed(REPLACE, due=after(1_000))) == Receipt("a", "updated")
    scene.clock.advance(2)
    assert await claim(scene.store) == []


async def test_a_job_that_ended_meanwhile_makes_room(scene: Scene, interpose: Any) -> None:
    running = await started(scene.store, keyed(REPLACE, "a"))
    interpose(lambda: settle(scene.store, succeed(running)))
    assert (await enqueue_one(scene.store, debounced("new"))).created
    assert (await look(scene.store, "a")).unique_key == "k"


async def test_a_job_that_ended_before_the_call_looked(scene: Scene, interpose: Any) -> None:
    """The call has taken the key for a time already, and need not wait for itself."""
    running = await started(scene.store, new("a", key="k"))
    interpose(lambda: settle(scene.store, succeed(running)), before=True)
    jobs = [keyed(FOR_A_MINUTE, "b"), keyed(FOR_A_MINUTE, "c")]
    receipts = await asyncio.wait_for(scene.store.enqueue(jobs), 5)
    assert receipts == [Receipt("b", "created"), Receipt("b", "duplicate")]


async def test_a_key_that_another_call_took_meanwhile(scene: Scene, interpose: Any) -> None:
    running = await started(scene.store, keyed(REPLACE, "a"))

    async def race() -> None:
        await settle(scene.store, succeed(running))
        async with scene.another() as other:
            await put(other, new("b", key="k", payload="old"))

    interpose(race)
    assert await enqueue_one(scene.store, debounced("new")) == Receipt("b", "updated")


# ---------------------------------------------------------------------------------------------------- many jobs


@pytest.mark.parametrize(
    ("jobs", "expected", "most"),
    [
        # The insert; then one write for all of them.
        ([debounced(n, key=f"k{n}") for n in range(200)], {"updated"}, 2),
        ([keyed(REPLACE, payload=n, key=f"k{n % 3}") for n in range(200)], {"updated"}, 2),
        # The keys, the insert, that the jobs are there.
        ([keyed(FOR_A_MINUTE, key=f"new{n}") for n in range(200)], {"created"}, 3),
        # The keys that were reserved are released.
        ([keyed(FOR_A_MINUTE, key=f"k{n}") for n in range(200)], {"duplicate"}, 3),
        # The insert; the call, the jobs, the commit, the attempt, the cancel, the keys, the rest, the end.
        ([keyed(CANCEL, key=f"k{n}") for n in range(200)], {"created"}, 9),
    ],
    ids=["debounce", "replace", "take", "taken", "cancel"],
)
async def test_many_jobs_need_few_writes(scene: Scene, jobs: list[NewJob], expected: set[str], most: int) -> None:
    await scene.store.enqueue([new(key=f"k{n}") for n in range(200)])
    life = Life(1_000_000, halfway=False)
    async with scene.another() as store:
        give_life(store, life)
        assert {receipt.status for receipt in await store.enqueue(jobs)} == expected
    assert life.writes <= most


async def test_many_jobs_with_one_key(scene: Scene) -> None:
    receipts = await scene.store.enqueue([debounced(n) for n in range(300)])
    assert [one.status for one in receipts] == ["created"] + ["updated"] * 299
    assert (await look(scene.store, receipts[0].id)).payload == 299


async def test_a_due_time_stays_if_the_next_job_has_none(scene: Scene) -> None:
    await put(scene.store, keyed(REPLACE, "a", payload=0))
    await scene.store.enqueue([keyed(REPLACE, payload=1, due=after(60_000)), keyed(REPLACE, payload=2)])
    job = await look(scene.store, "a")
    assert (job.payload, job.due_ms) == (2, scene.clock() + 60_000)


async def test_jobs_with_and_without_a_policy_keep_their_order(scene: Scene) -> None:
    rule = recurrence(key="r", every_ms=60_000)
    minutely = new(key="r", recurrence=rule, due=after(60_000))
    jobs = [new("a", key="k"), keyed(CANCEL, "b"), new("c", key="k"), keyed(FOR_A_MINUTE, "d"), minutely, minutely]
    receipts = await scene.store.enqueue([*jobs, structs.replace(minutely, id=scene.store.new_id())])
    expected = [*("created", "created", "duplicate", "duplicate"), *("created", "exists", "updated")]
    assert [one.status for one in receipts] == expected
    assert [one.id for one in receipts[:4]] == ["a", "b", "b", "b"]


async def test_a_flow_that_cannot_be_leaves_jobs_with_a_policy_alone(scene: Scene) -> None:
    await put(scene.store, keyed(REPLACE, "a", payload="old"))
    lost = structs.replace(new("b"), after=(After("nobody"),))
    with pytest.raises(InvalidValue, match="nobody"):
        await scene.store.enqueue([keyed(REPLACE, payload="new"), lost])
    assert (await look(scene.store, "a")).payload == "old"


async def test_a_flow_waits_for_the_job_that_took_over_a_payload(scene: Scene) -> None:
    await put(scene.store, keyed(REPLACE, "a", payload="old"))
    waits = structs.replace(new("c"), after=(After("b"),))
    receipts = await scene.store.enqueue([waits, keyed(REPLACE, "b", payload="new")])
    assert receipts == [Receipt("c", "created"), Receipt("a", "updated")]
    assert [edge.id for edge in await scene.store.dependencies("c")] == ["a"]


# ---------------------------------------------------------------------------------------------------- Monque


async def test_a_job_of_monque_can_be_replaced(scene: Scene) -> None:
    id = await scene.insert(uniqueKey="k", data={"n": 1})
    job = structs.replace(home("b", key="k"), policy=REPLACE, payload_json=b"null")
    assert await enqueue_one(scene.store, job) == Receipt(str(id), "updated")
    document = await scene.store.context.here.jobs.find_one({"_id": id})
    assert document is not None
    assert (document["data"], document["status"], document["uniqueKey"]) == (None, "pending", "k")


async def test_a_job_that_lost_its_key_is_a_document_that_monque_reads(scene: Scene) -> None:
    first = structs.replace(home("a", key="k"), policy=UniquePolicy(debounce_ms=5_000))
    await put_one(scene.store, first)
    await claim_one(scene.store, queues=("default",))
    assert (await enqueue_one(scene.store, structs.replace(first, id="b", due=after(5_000)))).created
    old, fresh = await scene.store.context.here.jobs.find().sort("_id", 1).to_list()
    assert (old["status"], fresh["status"], fresh["uniqueKey"]) == ("processing", "pending", "k")
    assert "uniqueKey" not in old
