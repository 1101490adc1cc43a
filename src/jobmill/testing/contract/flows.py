"""Flows: jobs that wait for jobs, and what becomes of them."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from jobmill.core.changes import Cancel, Hold, Remove, Requeue, Reschedule, Subject, resolved
from jobmill.core.due import NEVER_MS, Held
from jobmill.core.flows import MAX_RELEASED, After, Dependency, Dependent, IfFailed, verdict
from jobmill.core.job import JobOptions, Keep, State
from jobmill.core.lifecycle import Policy
from jobmill.core.recurrence import Recurrence
from jobmill.core.values import NOW, Filter, NewJob, QueueChange, Settlement, after, at
from jobmill.errors import InvalidValue
from jobmill.store import Store
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    NAME,
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    fail,
    find_all,
    look,
    new,
    next_due,
    put,
    put_one,
    retry,
    second,
    settle,
    snooze,
    started,
    state_of,
    succeed,
)

GONE = Keep(last=0)


def waits(
    id: str | None = None, *on: str, if_failed: IfFailed = "fail", flow: str | None = None, **about: Any
) -> NewJob:
    """A job that waits for others."""
    job = new(id, **about)
    return msgspec.structs.replace(job, after=tuple(After(one, if_failed) for one in on), flow=flow)


async def chain(store: Store, *, if_failed: IfFailed = "fail", **about: Any) -> tuple[str, str]:
    """A job and another one that waits for it."""
    first, then = await put(store, new("first", **about), waits("then", "first", if_failed=if_failed))
    return first, then


async def run(store: Store, id: str, result: object = None, **about: Any) -> None:
    """Claim the job that is claimable, which must be this one, and let it succeed."""
    claimed = await claim_one(store, **about)
    assert claimed.job.id == id
    assert await settle(store, succeed(claimed, result)) == ["done"]


async def edges(store: Store, id: str) -> list[tuple[str, str]]:
    """The dependencies of a job and the states of its edges."""
    return [(edge.id, edge.state) for edge in await store.dependencies(id)]


async def flush(store: Store) -> int:
    """Release all that is in the outbox; how many jobs."""
    total = 0
    while released := await store.flush_outbox():
        total += released
    return total


class DependencyContract:
    """enqueue with `after`, and what a settlement does to the jobs that wait."""

    # ------------------------------------------------------------------------------------------------ enqueue

    async def test_a_job_waits_for_another(self, harness: Harness) -> None:
        store = harness.store
        first, then = await put(store, new("first"), waits("then", "first", payload={"a": 1}, flow="f"))
        job = await look(store, then)
        due = at(store.now())
        assert (job.state, job.held, job.due_ms) == ("waiting", Held(by=("jobs",), due=due), NEVER_MS)
        assert (job.flow, job.dependencies, job.payload) == ("f", 1, {"a": 1})
        assert (await look(store, first)).dependencies == 0
        assert await store.dependencies(then) == [Dependency(id=first, number=0)]
        assert await store.dependents(first) == [Dependent(id=then)]
        assert await store.dependencies(first) == []
        assert await store.dependents(then) == []
        await run(store, first, {"n": 7})
        assert await store.dependencies(then) == [
            Dependency(id=first, number=0, state="succeeded", result_json=msgspec.Raw(b'{"n":7}'))
        ]
        claimed = await claim_one(store)
        assert (claimed.job.id, claimed.job.held, claimed.job.dependencies) == (then, None, 1)
        assert (claimed.job.payload, claimed.job.flow) == ({"a": 1}, "f")
        assert await settle(store, succeed(claimed)) == ["done"]
        assert (await look(store, then)).state == "succeeded"

    async def test_the_order_in_the_call_does_not_matter(self, harness: Harness) -> None:
        third, second_one, first = await put(harness.store, waits("c", "b"), waits("b", "a"), new("a"))
        for id in (first, second_one, third):
            assert await next_due(harness.store, names=("none",)) is None
            await run(harness.store, id)

    async def test_a_job_waits_for_several(self, harness: Harness) -> None:
        store = harness.store
        ids = await put(store, *[new(f"part-{number}") for number in range(5)])
        last = await put_one(store, waits("last", *ids))
        claimed = {one.job.id: one for one in await claim(store)}
        assert sorted(claimed) == sorted(ids)
        for number in (4, 0, 2, 1):
            assert await settle(store, succeed(claimed[ids[number]], number)) == ["done"]
            assert await claim(store) == []
        assert await edges(store, last) == [(id, "pending" if id == ids[3] else "succeeded") for id in ids]
        assert await settle(store, succeed(claimed[ids[3]], 3)) == ["done"]
        assert await claim_ids(store) == [last]
        results = [edge.result_json for edge in await store.dependencies(last)]
        assert results == [msgspec.Raw(b"%d" % number) for number in range(5)]
        page = await store.dependencies(last, 1, 2)
        assert [(edge.number, edge.id) for edge in page] == [(1, ids[1]), (2, ids[2])]

    async def test_several_wait_for_one(self, harness: Harness) -> None:
        store = harness.store
        first = await put_one(store, new("first"))
        ids = await put(store, *[waits(f"then-{number}", first) for number in range(5)])
        assert sorted(one.id for one in await store.dependents(first)) == ids
        assert len(await store.dependents(first, limit=2)) == 2
        await run(store, first)
        assert sorted(await claim_ids(store)) == ids

    async def test_a_dependency_that_has_ended_counts_at_once(self, harness: Harness) -> None:
        store = harness.store
        done = await started(store, new("done"))
        await settle(store, succeed(done, "x"))
        bad = await started(store, new("bad"))
        await settle(store, fail(bad, "no luck\nsecond line"))
        await put(store, waits("fine", "done"), waits("any", "bad", if_failed="run"))
        assert sorted(await claim_ids(store)) == ["any", "fine"]
        (edge,) = await store.dependencies("any")
        assert (edge.state, edge.error, edge.result_json) == ("failed", "no luck", None)
        await put(store, waits("not", "bad", "done"))
        job = (await claim_one(store)).job
        assert (job.id, job.deferred_error) == ("not", "dependency bad failed: no luck")

    async def test_a_dependency_that_runs_already(self, harness: Harness) -> None:
        claimed = await started(harness.store, new("first"))
        then = await put_one(harness.store, waits("then", "first"))
        assert await claim(harness.store) == []
        assert await settle(harness.store, succeed(claimed)) == ["done"]
        assert await claim_ids(harness.store) == [then]

    async def test_an_unknown_dependency_stores_nothing(self, harness: Harness) -> None:
        with pytest.raises(InvalidValue, match="nobody"):
            await harness.store.enqueue([new("a"), waits("b", "a", "nobody")])
        assert await harness.store.get(["a", "b"]) == [None, None]
        assert await claim(harness.store) == []

    async def test_recurring_jobs_are_refused_on_both_sides(self, harness: Harness) -> None:
        rule = Recurrence(key="k", every_ms=60_000)
        recurring = new("r", key="k", recurrence=rule)
        with pytest.raises(InvalidValue, match="recurring"):
            await harness.store.enqueue([recurring, waits("b", "r")])
        with pytest.raises(InvalidValue, match="recurring"):
            await harness.store.enqueue([new("a"), msgspec.structs.replace(recurring, after=(After("a"),))])
        assert await harness.store.get(["a", "b", "r"]) == [None, None, None]
        id = await put_one(harness.store, recurring)
        with pytest.raises(InvalidValue, match="recurring"):
            await harness.store.enqueue([waits("b", id)])
        with pytest.raises(InvalidValue, match="recurring"):
            await harness.store.enqueue([new("x", key="k", recurrence=rule), waits("b", "x")])
        assert await state_of(harness.store, "b") is None

    async def test_a_duplicate_dependency_leads_to_its_owner(self, harness: Harness) -> None:
        store = harness.store
        owner = await put_one(store, new("owner", key="k"))
        receipts = await store.enqueue([new("twin", key="k"), new("owner"), waits("then", "twin", "owner")])
        assert [(one.id, one.status) for one in receipts] == [
            (owner, "duplicate"),
            (owner, "exists"),
            ("then", "created"),
        ]
        assert await edges(store, "then") == [(owner, "pending"), (owner, "pending")]
        await run(store, owner, 5)
        assert [edge.result_json for edge in await store.dependencies("then")] == [msgspec.Raw(b"5")] * 2
        assert await claim_ids(store) == ["then"]

    async def test_a_dependent_that_exists_gets_no_edges(self, harness: Harness) -> None:
        store = harness.store
        await put(store, new("there"), new("other", key="k"))
        receipts = await store.enqueue([new("a"), waits("there", "a"), waits("twin", "a", key="k")])
        assert [one.status for one in receipts] == ["created", "exists", "duplicate"]
        assert await store.dependencies("there") == await store.dependencies("other") == []
        assert await store.dependents("a") == []
        assert sorted(await claim_ids(store)) == ["a", "other", "there"]

    async def test_the_same_flow_twice_is_one_flow(self, harness: Harness) -> None:
        store = harness.store
        drafts = [new("a"), waits("b", "a")]
        assert [one.status for one in await store.enqueue(drafts)] == ["created"] * 2
        await run(store, "a")
        assert [one.status for one in await store.enqueue(drafts)] == ["exists"] * 2
        assert await edges(store, "b") == [("a", "succeeded")]
        assert await claim_ids(store) == ["b"]

    async def test_a_dependency_in_another_queue(self, harness: Harness) -> None:
        store = harness.store
        await store.configure("other", QueueChange(feed=True))
        await put(store, new("first"), waits("then", "first", queue="other"))
        async with second(harness) as elsewhere:
            assert await next_due(elsewhere, queues=("other",)) is None
            woken = asyncio.ensure_future(elsewhere.wait_for_work(["other"], elsewhere.now() + 60_000))
            await asyncio.sleep(0)
            await run(store, "first")
            await asyncio.wait_for(woken, 30)
            assert await claim_ids(elsewhere, queues=("other",)) == ["then"]
        types = [event.type for event in await store.events("other")]
        assert types == ["enqueued", "released", "claimed"]

    async def test_a_large_result(self, harness: Harness) -> None:
        await chain(harness.store)
        await run(harness.store, "first", "x" * 4 * 1024 * 1024)
        (edge,) = await harness.store.dependencies("then")
        assert edge.result_json is not None
        assert len(edge.result_json) == 4 * 1024 * 1024 + 2

    async def test_many_to_one(self, harness: Harness) -> None:
        store, count = harness.store, 2_500
        parts = [new(f"part-{number:04}") for number in range(count)]
        await put(store, *parts, waits("last", *[one.id for one in parts], if_failed="run"))
        for _ in range(count // 500):
            claimed = await claim(store, 500)
            assert len(claimed) == 500
            assert (await look(store, "last")).held is not None
            results = [succeed(one, number) for number, one in enumerate(claimed)]
            assert await settle(store, *results) == ["done"] * 500
        assert await claim_ids(store) == ["last"]
        assert len(await store.dependencies("last", 2_000)) == 500

    async def test_one_to_many(self, harness: Harness) -> None:
        store, count = harness.store, MAX_RELEASED + 1_500
        first = await put_one(store, new("first"))
        await put(store, *[waits(f"then-{number:04}", first) for number in range(count)])
        claimed = await claim_one(store)
        exchanged = await store.exchange([succeed(claimed, 1)], None)
        assert (exchanged.settled, exchanged.has_outbox) == (["done"], True)
        (depth,) = await store.depths([QUEUE])
        assert (depth.due, depth.held) == (MAX_RELEASED, count - MAX_RELEASED)
        assert await flush(store) == count - MAX_RELEASED
        assert await store.flush_outbox() == 0
        (depth,) = await store.depths([QUEUE])
        assert (depth.due, depth.held) == (count, 0)
        assert (await store.exchange([], None)).has_outbox is False

    async def test_the_jobs_of_a_flow_are_found_by_state(self, harness: Harness) -> None:
        """More of them than a store reads one by one, in every list or set that a store may have."""
        store, flow = harness.store, "report"
        kinds: dict[str, dict[str, Any]] = {"urgent": {}, "plain": {"priority": 1}, "later": {"due": after(60_000)}}
        names = [f"{kind}-{n}" for kind in kinds for n in range(20)]
        await put(store, *[waits(id, flow=flow, **kinds[id.split("-")[0]]) for id in names], new("other"))
        report = waits("report", *names, flow=flow, name="report", if_failed="run")
        await put(store, report, waits("alone", flow="alone"))
        claimed = {one.job.id: one for one in await claim(store, 18)}
        await settle(store, *[succeed(claimed[f"urgent-{n}"]) for n in range(2)], fail(claimed["urgent-2"]))
        await store.change(["urgent-3", "plain-0"], Cancel())
        states: dict[State, int] = {"succeeded": 2, "failed": 1, "cancelled": 2, "running": 14, "waiting": 41}
        of_mail = {(one.name, one.state): one.count for one in await store.count(Filter(flow=flow))}
        assert of_mail == {(NAME, state): count for state, count in states.items()} | {("report", "waiting"): 1}
        for state, count in states.items():
            found = await find_all(store, Filter(flow=flow, states=(state,), name=NAME), 5)
            assert len(set(found)) == len(found) == count
        assert (await store.flow_counts([flow]))[flow].states == states | {"waiting": 42}
        assert await find_all(store, Filter(flow=flow, states=("failed",))) == ["urgent-2"]
        assert [one.count for one in await store.count(Filter(flow=flow, held=True))] == [1]

    # ------------------------------------------------------------------------------------------------ released

    async def test_a_released_job_has_the_position_in_which_it_was_enqueued(self, harness: Harness) -> None:
        store = harness.store
        await put(store, new("first"), waits("then", "first", priority=1), waits("urgent", "first"))
        await harness.advance(0.01)
        await put(store, new("later", priority=1))
        await harness.advance(0.01)
        await run(store, "first")
        assert await claim_ids(store, 1) == ["urgent"]
        assert await claim_ids(store, 1) == ["then"]
        assert await claim_ids(store) == ["later"]

    @pytest.mark.parametrize("feed", [False, True])
    async def test_jobs_that_end_together_release_what_the_core_decides(self, harness: Harness, feed: bool) -> None:
        """A store may release many jobs at once, and need not ask the core for each: the result is the same."""
        store = harness.store
        await store.configure(QUEUE, QueueChange(feed=feed))
        dues = {"soon": NOW, "late": at(store.now() + 60_000), "slow": after(5_000)}
        policies: list[IfFailed] = ["fail", "run"]
        await put(store, new("good"), new("fine"), new("bad"), new("open", name="other"))
        dependents = [
            *[waits(id, "good", due=due) for id, due in dues.items()],
            *[waits(f"{one}-{id}", "good", due=due) for one in ("held", "moved", "gone") for id, due in dues.items()],
            *[waits(f"both-{id}", "good", "fine", due=due) for id, due in dues.items()],
            *[waits(f"part-{id}", "good", "open", due=due) for id, due in dues.items()],
            *[waits(f"{one}-{id}", "bad", "good", if_failed=one, due=dues[id]) for one in policies for id in dues],
        ]
        await put(store, *dependents)
        await store.change([f"held-{id}" for id in dues], Hold(who="ada"))
        await store.change([f"moved-{id}" for id in dues], Reschedule(after(7_000)))
        await store.change([f"gone-{id}" for id in dues], Cancel())
        await harness.advance(1)
        ids = [one.id for one in dependents]
        before = [await look(store, id) for id in ids]
        claimed = await claim(store)
        assert (
            await settle(store, *[(fail if one.job.id == "bad" else succeed)(one) for one in claimed]) == ["done"] * 3
        )
        for old in before:
            patch = resolved(Subject.of(old), verdict(await store.dependencies(old.id)), store.now())
            expected = old if patch is None else msgspec.structs.replace(old, **patch.fields)
            job = msgspec.structs.replace(await look(store, old.id), updated_ms=expected.updated_ms)
            assert job == expected, old.id
        free = [one.job_id for one in await store.events(QUEUE) if one.type == "released"]
        expected_ids = [id for id in ids if id.partition("-")[0] not in ("held", "gone", "part")]
        assert sorted(free) == (sorted(expected_ids) if feed else [])

    async def test_jobs_that_one_call_releases_have_their_positions(self, harness: Harness) -> None:
        """Each among the jobs that were enqueued before and after it, whatever the order of the settlements is."""
        store = harness.store
        await put(store, *[new(f"first-{n}") for n in range(5)])
        first = await claim(store)
        pairs = [(new(f"plain-{n}"), waits(f"then-{n}", f"first-{n}")) for n in range(5)]
        await put(store, *[one for pair in pairs for one in pair])
        await settle(store, *[succeed(first[n]) for n in (3, 0, 4, 1)])
        released = ["plain-0", "then-0", "plain-1", "then-1", "plain-2", "plain-3", "then-3", "plain-4", "then-4"]
        assert await claim_ids(store) == released

    async def test_one_call_releases_jobs_of_all_kinds(self, harness: Harness) -> None:
        store = harness.store
        await put(store, *[new(f"first-{n}") for n in range(8)])
        first = await claim(store)
        kinds: list[dict[str, Any]] = [{}, {"priority": 1}, {"due": after(5_000)}, {"queue": "other"}]
        await put(store, *[waits(f"then-{n}", f"first-{n}", **kind) for n, kind in enumerate(kinds)])
        past_ms = store.now() - 5_000
        await put(store, waits("past", "first-7", due=at(past_ms)))
        await put(store, waits("then-4", "first-4"), waits("then-5", "first-5"), waits("both", "first-5", "first-6"))
        assert (await store.change(["then-4"], Hold())).ids == ["then-4"]
        await settle(store, *[fail(one) if one.job.id == "first-5" else succeed(one) for one in first])
        found = await store.get(["then-2", "then-4", "then-5", "both"])
        assert [job and (job.held and job.held.by, job.deferred_error) for job in found] == [
            (None, None),
            (("person",), None),
            (None, "dependency first-5 failed: no luck"),
            (None, "dependency first-5 failed: no luck"),
        ]
        assert (await look(store, "past")).due_ms == past_ms
        *others, last = await claim_ids(store)
        assert (sorted(others), last) == (["both", "past", "then-0", "then-5"], "then-1")
        assert await claim_ids(store, queues=["other"]) == ["then-3"]
        await harness.advance(5)
        assert await claim_ids(store) == ["then-2"]

    async def test_a_delay_counts_from_the_release(self, harness: Harness) -> None:
        store = harness.store
        await put(store, new("first"), waits("then", "first", due=after(5_000)))
        job = await look(store, "then")
        assert job.held == Held(by=("jobs",), due=after(5_000))
        assert job.due_at is None
        await harness.advance(60)
        await run(store, "first")
        assert await claim(store) == []
        assert await next_due(store) == (await look(store, "then")).due_ms == store.now() + 5_000
        await harness.advance(5)
        assert await claim_ids(store) == ["then"]

    async def test_a_due_time_means_not_before(self, harness: Harness) -> None:
        store = harness.store
        due_ms = store.now() + 60_000
        await put(store, new("first"), waits("then", "first", due=at(due_ms)))
        await run(store, "first")
        assert (await look(store, "then")).due_ms == due_ms
        assert await claim(store) == []
        await harness.advance(60)
        assert await claim_ids(store) == ["then"]

    async def test_a_dependency_that_is_not_kept_still_gives_its_result(self, harness: Harness) -> None:
        store = harness.store
        await put(store, new("first", options=JobOptions(keep_succeeded=GONE)), waits("then", "first"))
        claimed = await claim_one(store)
        rules = Policy(keep_succeeded=GONE)
        assert await settle(store, succeed(claimed, 3, rules)) == ["done"]
        (edge,) = await store.dependencies("then")
        assert edge.result_json == msgspec.Raw(b"3")
        then = await claim_one(store)
        await store.purge()
        assert [edge.result_json for edge in await store.dependencies("then")] == [msgspec.Raw(b"3")]
        assert await state_of(store, "first") == "succeeded", "as long as the job that waited for it is there"
        assert await settle(store, succeed(then, None, rules)) == ["done"]
        assert await state_of(store, "then") is None
        await harness.advance(1)
        await store.purge()
        await store.purge()
        assert await state_of(store, "first") is None

    async def test_a_purge_leaves_what_others_have_waited_for(self, harness: Harness) -> None:
        store = harness.store
        rules = Policy(keep_succeeded=Keep(last=1))
        ids = [f"part-{number}" for number in range(10)]
        await put(store, *map(new, ids), waits("last", *ids))
        for one in await claim(store):
            await harness.advance(0.001)
            assert await settle(store, succeed(one, one.job.id, rules)) == ["done"]
        await store.purge()
        results = [msgspec.json.decode(edge.result_json or b"null") for edge in await store.dependencies("last")]
        assert results == ids
        last = await claim_one(store)
        await settle(store, succeed(last, None, Policy(keep_succeeded=GONE)))
        for _ in range(3):
            await store.purge()
        left = [id for id, job in zip(ids, await store.get(ids), strict=True) if job is not None]
        assert len(left) <= 1

    async def test_a_purge_goes_up_a_chain(self, harness: Harness) -> None:
        """A job stays as long as those that come after it. When these go, the purge says that there is more."""
        store, rules = harness.store, Policy(keep_succeeded=Keep(age_ms=60_000))
        ids = [f"link-{number:02}" for number in range(20)]
        links = [waits(id, *ids[max(number - 1, 0) : number]) for number, id in enumerate(ids)]
        await put(store, *links)
        for id in ids:
            claimed = await claim_one(store)
            assert claimed.job.id == id
            assert await settle(store, succeed(claimed, None, rules)) == ["done"]
            await harness.advance(1)
        await harness.advance(45)
        await store.purge()
        assert None not in await store.get(ids), "some are too old, but others came after them"
        await harness.advance(15)
        while (await store.purge()).more:
            pass
        assert await store.get(ids) == [None] * 20

    # ------------------------------------------------------------------------------------------------ failures

    @pytest.mark.parametrize("if_failed", ["fail", "run"])
    @pytest.mark.parametrize("how", ["failed", "crashed", "cancelled", "removed"])
    async def test_a_dependency_ends_without_success(self, harness: Harness, how: str, if_failed: IfFailed) -> None:
        store = harness.store
        await chain(store, if_failed=if_failed)
        if how == "cancelled":
            assert (await store.change(["first"], Cancel())).ids == ["first"]
        elif how == "removed":
            assert (await store.change(["first"], Remove())).ids == ["first"]
        else:
            claimed = await claim_one(store)
            await settle(store, fail(claimed, "no luck") if how == "failed" else crashed(claimed))
        job = (await claim_one(store)).job
        assert job.id == "then"
        if if_failed == "run":
            assert job.deferred_error is None
        elif how in ("cancelled", "removed"):
            assert job.deferred_error == "dependency first was cancelled"
        else:
            assert job.deferred_error is not None
            assert job.deferred_error.startswith("dependency first failed: ")
        (edge,) = await store.dependencies("then")
        assert edge.state == ("cancelled" if how in ("cancelled", "removed") else "failed")
        assert (edge.error is None) == (how in ("cancelled", "removed"))

    async def test_a_job_fails_although_others_still_run(self, harness: Harness) -> None:
        store = harness.store
        await put(store, new("good"), new("bad"), waits("then", "good", "bad"))
        claimed = {one.job.id: one for one in await claim(store)}
        await settle(store, fail(claimed["bad"], "no luck"))
        then = await claim_one(store)
        assert then.job.deferred_error == "dependency bad failed: no luck"
        await settle(store, fail(then, "because"))
        assert await settle(store, succeed(claimed["good"])) == ["done"]
        assert await claim(store) == []
        assert await state_of(store, "then") == "failed"

    @pytest.mark.parametrize("last", ["good", "bad"])
    async def test_a_job_waits_until_a_failed_dependency_is_requeued(self, harness: Harness, last: str) -> None:
        store = harness.store
        then = msgspec.structs.replace(new("then"), after=(After("good"), After("bad", "wait")))
        await put(store, new("good"), new("bad"), then)
        claimed = {one.job.id: one for one in await claim(store)}
        settlements = {"good": succeed(claimed["good"]), "bad": fail(claimed["bad"], "no luck")}
        for id in sorted(settlements, key=last.__eq__):
            assert await settle(store, settlements[id]) == ["done"]
        assert await claim(store) == []
        job = await look(store, "then")
        assert (job.held and job.held.by, job.deferred_error) == (("jobs",), None)
        assert (await store.change(["bad"], Requeue())).ids == ["bad"]
        await run(store, "bad")
        assert await claim_ids(store) == ["then"]

    async def test_a_job_runs_as_soon_as_a_dependency_has_failed(self, harness: Harness) -> None:
        store = harness.store
        await put(store, new("good"), new("bad"), waits("then", "good", "bad", if_failed="now"))
        claimed = {one.job.id: one for one in await claim(store)}
        assert await settle(store, fail(claimed["bad"])) == ["done"]
        then = await claim_one(store)
        assert (then.job.id, then.job.deferred_error) == ("then", None)
        assert await settle(store, succeed(claimed["good"]), succeed(then)) == ["done"] * 2
        assert await claim(store) == []

    async def test_a_failed_dependency_is_forgotten(self, harness: Harness) -> None:
        store = harness.store
        await put(store, new("good"), new("bad"), waits("then", "good", "bad", if_failed="forget"))
        claimed = {one.job.id: one for one in await claim(store)}
        assert await settle(store, fail(claimed["bad"])) == ["done"]
        assert await claim(store) == []
        assert await settle(store, succeed(claimed["good"])) == ["done"]
        then = await claim_one(store)
        assert (then.job.id, then.job.deferred_error) == ("then", None)

    async def test_a_failure_goes_down_a_chain(self, harness: Harness) -> None:
        store = harness.store
        await put(store, new("a"), waits("b", "a"), waits("c", "b"))
        await settle(store, fail(await claim_one(store), "no luck"))
        b = await claim_one(store)
        await settle(store, fail(b, b.job.deferred_error or ""))
        c = await claim_one(store)
        assert c.job.deferred_error == "dependency b failed: dependency a failed: no luck"

    async def test_an_attempt_that_is_not_the_last_releases_nobody(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        claimed = await claim_one(store)
        assert await settle(store, retry(claimed, 1_000)) == ["done"]
        assert await edges(store, "then") == [("first", "pending")]
        await harness.advance(1)
        again = await claim_one(store)
        assert await settle(store, snooze(again, 1_000)) == ["done"]
        assert await edges(store, "then") == [("first", "pending")]
        await harness.advance(1)
        await run(store, "first")
        assert await claim_ids(store) == ["then"]

    async def test_a_lost_lease_sets_no_edge(self, harness: Harness) -> None:
        store = harness.store
        await chain(store)
        stale = await claim_one(store)
        await harness.advance(16)
        fresh = await claim_one(store)
        assert await settle(store, succeed(stale, "stale")) == ["lost"]
        assert await edges(store, "then") == [("first", "pending")]
        assert await settle(store, succeed(fresh, "fresh"), succeed(stale, "stale")) == ["done", "lost"]
        (edge,) = await store.dependencies("then")
        assert edge.result_json == msgspec.Raw(b'"fresh"')
        assert await settle(store, succeed(fresh, "again")) == ["lost"]
        assert await claim_ids(store) == ["then"]

    # ------------------------------------------------------------------------------------------------ races

    async def test_the_last_two_dependencies_end_at_once(self, harness: Harness) -> None:
        store = harness.store
        async with second(harness) as other:
            for number in range(15):
                a, b, then = f"a-{number}", f"b-{number}", f"then-{number}"
                await put(store, new(a), new(b), waits(then, a, b))
                one, two = await claim(store)
                first, last = await asyncio.gather(settle(store, succeed(one)), settle(other, succeed(two)))
                assert (first, last) == (["done"], ["done"])
                assert await claim_ids(store) == [then]

    async def test_a_dependency_ends_while_its_dependent_is_enqueued(self, harness: Harness) -> None:
        store = harness.store
        async with second(harness) as other:
            for number in range(15):
                claimed = await started(store, new(f"first-{number}"))
                await asyncio.gather(
                    settle(store, succeed(claimed)), put(other, waits(f"then-{number}", claimed.job.id))
                )
                assert await claim_ids(store) == [f"then-{number}"]

    async def test_jobs_that_share_dependents_end_at_once(self, harness: Harness) -> None:
        """Each of 60 jobs has 3 of 20 dependents, in changing order: stores that lock them must do so in one order."""
        store = harness.store
        parts = [f"part-{number:02}" for number in range(60)]
        of = {f"then-{number:02}": [parts[(number * 3 + step * 7) % 60] for step in range(9)] for number in range(20)}
        await put(store, *map(new, parts))
        await put(store, *[waits(id, *dict.fromkeys(on)) for id, on in of.items()])
        claimed = await claim(store)
        async with second(harness) as other:
            halves = [claimed[number::6] for number in range(6)]
            calls = [settle((store, other)[n % 2], *map(succeed, part[:: (-1) ** n])) for n, part in enumerate(halves)]
            answers = await asyncio.gather(*calls)
        assert {one for answer in answers for one in answer} == {"done"}
        assert sorted(await claim_ids(store)) == sorted(of)

    async def test_a_cancel_meets_a_settlement(self, harness: Harness) -> None:
        store = harness.store
        async with second(harness) as other:
            for number in range(10):
                ids = [f"{part}-{number}" for part in ("a", "b", "c")]
                await put(store, new(ids[0], payload=1), waits(ids[1], ids[0]), waits(ids[2], ids[0], ids[1]))
                claimed = await claim_one(store)
                await asyncio.gather(settle(store, succeed(claimed)), other.change(ids, Cancel()))
                await store.change(ids, Cancel())
                states = {job.state for job in await store.get(ids) if job is not None}
                assert states <= {"succeeded", "cancelled"}
                assert await claim(store) == []


def crashed(claimed: Any) -> Settlement:
    """A job that has crashed too often."""
    settlement = fail(claimed, "crashed 3 times")
    return msgspec.structs.replace(settlement, outcome="crashed", attempts=None)
