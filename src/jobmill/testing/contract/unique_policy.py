"""Policies of unique keys: what an enqueue does when its key is taken."""

from __future__ import annotations

from itertools import chain

import pytest
from msgspec import structs

from jobmill.core.changes import Cancel, Hold, Release, Remove, Reschedule
from jobmill.core.flows import After
from jobmill.core.job import LIVE, JobOptions, Keep, State
from jobmill.core.recurrence import recurrence
from jobmill.core.unique_policy import UniquePolicy
from jobmill.core.values import NOW, Due, Filter, NewJob, QueueChange, Receipt, after
from jobmill.store import Store
from jobmill.testing.contract.events import events_of
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.racing import in_threads
from jobmill.testing.contract.steps import suspend
from jobmill.testing.contract.support import (
    QUEUE,
    claim,
    claim_ids,
    claim_one,
    enqueue_one,
    fail,
    find_all,
    in_state,
    look,
    new,
    put,
    put_one,
    retry,
    settle,
    started,
    state_of,
    succeed,
)

FOR_A_MINUTE = UniquePolicy(for_ms=60_000)
REPLACE = UniquePolicy(when_live="replace")
CANCEL = UniquePolicy(when_live="cancel")
LARGE = "x" * 300_000


def keyed(
    policy: UniquePolicy,
    id: str | None = None,
    *,
    key: str = "k",
    payload: object = None,
    due: Due = NOW,
    options: JobOptions | None = None,
) -> NewJob:
    """A job whose unique key has a policy."""
    job = new(id, key=key, payload=payload, due=due)
    return structs.replace(job, policy=policy, options=options or job.options)


def debounced(payload: object = None, *, seconds: int = 5, key: str = "k") -> NewJob:
    """A job that is due when nobody has enqueued it for some seconds."""
    policy = UniquePolicy(debounce_ms=seconds * 1_000)
    return keyed(policy, key=key, payload=payload, due=after(seconds * 1_000))


class UniquePolicyContract:
    """Policies of unique keys."""

    # ------------------------------------------------------------------------------------------------ for a time

    async def test_a_key_can_stay_taken_after_its_job_is_final(self, harness: Harness) -> None:
        first = await started(harness.store, keyed(FOR_A_MINUTE))
        assert await enqueue_one(harness.store, keyed(FOR_A_MINUTE)) == Receipt(first.job.id, "duplicate")
        await settle(harness.store, succeed(first))
        await harness.advance(59.999)
        assert await enqueue_one(harness.store, keyed(FOR_A_MINUTE)) == Receipt(first.job.id, "duplicate")
        await harness.advance(0.001)
        assert await enqueue_one(harness.store, keyed(FOR_A_MINUTE, "next")) == Receipt("next", "created")
        assert (await look(harness.store, "next")).unique_key == "k"

    async def test_a_key_is_taken_again_from_its_next_job_on(self, harness: Harness) -> None:
        await settle(harness.store, succeed(await started(harness.store, keyed(FOR_A_MINUTE))))
        await harness.advance(61)
        await settle(harness.store, succeed(await started(harness.store, keyed(FOR_A_MINUTE, "next"))))
        await harness.advance(59)
        assert await enqueue_one(harness.store, keyed(FOR_A_MINUTE)) == Receipt("next", "duplicate")

    async def test_duplicates_do_not_prolong_the_time(self, harness: Harness) -> None:
        await settle(harness.store, succeed(await started(harness.store, keyed(FOR_A_MINUTE))))
        await harness.advance(40)
        assert (await enqueue_one(harness.store, keyed(FOR_A_MINUTE))).status == "duplicate"
        await harness.advance(20)
        assert (await enqueue_one(harness.store, keyed(FOR_A_MINUTE))).status == "created"

    async def test_a_live_job_has_its_key_longer_than_the_time(self, harness: Harness) -> None:
        id = await put_one(harness.store, keyed(FOR_A_MINUTE))
        await harness.advance(120)
        assert await enqueue_one(harness.store, keyed(FOR_A_MINUTE)) == Receipt(id, "duplicate")
        await settle(harness.store, succeed(await claim_one(harness.store)))
        assert (await enqueue_one(harness.store, keyed(FOR_A_MINUTE))).status == "created"

    async def test_a_key_stays_taken_if_its_job_was_removed_by_its_retention(self, harness: Harness) -> None:
        options = JobOptions(keep_succeeded=Keep(last=0))
        first = await started(harness.store, keyed(FOR_A_MINUTE, options=options))
        await settle(harness.store, structs.replace(succeed(first), keep=Keep(last=0)))
        await harness.store.purge()
        assert await state_of(harness.store, first.job.id) is None
        assert await enqueue_one(harness.store, keyed(FOR_A_MINUTE)) == Receipt(first.job.id, "duplicate")

    async def test_a_key_stays_taken_if_its_job_has_failed(self, harness: Harness) -> None:
        first = await started(harness.store, keyed(FOR_A_MINUTE))
        await settle(harness.store, fail(first))
        assert await enqueue_one(harness.store, keyed(FOR_A_MINUTE)) == Receipt(first.job.id, "duplicate")

    @pytest.mark.parametrize("change", [Cancel(), Remove()], ids=lambda change: type(change).__name__)
    async def test_a_cancelled_or_removed_job_frees_its_key(self, harness: Harness, change: Cancel | Remove) -> None:
        id = await put_one(harness.store, keyed(FOR_A_MINUTE))
        assert (await harness.store.change([id], change)).ids == [id]
        assert (await enqueue_one(harness.store, keyed(FOR_A_MINUTE))).status == "created"

    async def test_a_final_job_that_is_removed_frees_its_key(self, harness: Harness) -> None:
        id = await in_state(harness.store, "succeeded", keyed(FOR_A_MINUTE))
        assert (await harness.store.change([id], Remove())).ids == [id]
        assert (await enqueue_one(harness.store, keyed(FOR_A_MINUTE))).status == "created"

    async def test_a_key_is_taken_in_its_queue_for_its_name(self, harness: Harness) -> None:
        await in_state(harness.store, "succeeded", keyed(FOR_A_MINUTE))
        others = [{"queue": "other"}, {"name": "other"}, {"unique_key": "other"}]
        receipts = await harness.store.enqueue([structs.replace(keyed(FOR_A_MINUTE), **one) for one in others])
        assert [receipt.status for receipt in receipts] == ["created"] * 3

    async def test_of_two_jobs_in_one_call_the_first_takes_the_key(self, harness: Harness) -> None:
        receipts = await harness.store.enqueue([keyed(FOR_A_MINUTE, "a"), keyed(FOR_A_MINUTE, "b"), new("c")])
        assert receipts == [Receipt("a", "created"), Receipt("a", "duplicate"), Receipt("c", "created")]

    async def test_a_repeated_call_finds_its_job(self, harness: Harness) -> None:
        job = keyed(FOR_A_MINUTE)
        assert [(await enqueue_one(harness.store, job)).status for _ in range(2)] == ["created", "exists"]

    # ------------------------------------------------------------------------------------------------ debounce

    async def test_a_debounced_job_is_due_when_nobody_has_enqueued_it_for_a_time(self, harness: Harness) -> None:
        id = await put_one(harness.store, debounced("first"))
        await harness.advance(4.999)
        assert await claim(harness.store) == []
        assert await enqueue_one(harness.store, debounced("second")) == Receipt(id, "updated")
        await harness.advance(4.999)
        assert await claim(harness.store) == []
        await harness.advance(0.001)
        claimed = await claim_one(harness.store)
        assert (claimed.job.id, claimed.job.payload) == (id, "second")

    async def test_a_debounced_job_that_is_due_already_waits_again(self, harness: Harness) -> None:
        id = await put_one(harness.store, debounced("first"))
        await harness.advance(6)
        assert await enqueue_one(harness.store, debounced("second")) == Receipt(id, "updated")
        assert await claim(harness.store) == []
        await harness.advance(5)
        assert (await claim_one(harness.store)).job.payload == "second"

    async def test_a_debounced_job_that_runs_leaves_its_key_to_the_next_one(self, harness: Harness) -> None:
        """What was enqueued last must not be lost: the running job may not have seen it."""
        await put_one(harness.store, debounced("first"))
        await harness.advance(5)
        running = await claim_one(harness.store)
        second = await enqueue_one(harness.store, debounced("second"))
        assert second.created
        assert await enqueue_one(harness.store, debounced("third")) == Receipt(second.id, "updated")
        assert await find_all(harness.store, Filter(unique_key="k", states=LIVE)) == [second.id]
        assert await settle(harness.store, succeed(running)) == ["done"]
        await harness.advance(5)
        assert [(one.job.id, one.job.payload) for one in await claim(harness.store)] == [(second.id, "third")]

    async def test_after_a_debounced_job_has_ended_the_next_one_is_new(self, harness: Harness) -> None:
        await put_one(harness.store, debounced("first"))
        await harness.advance(5)
        await settle(harness.store, succeed(await claim_one(harness.store)))
        assert (await enqueue_one(harness.store, debounced("second"))).created

    async def test_a_held_debounced_job_stays_held(self, harness: Harness) -> None:
        id = await put_one(harness.store, debounced("first"))
        await harness.store.change([id], Hold())
        assert await enqueue_one(harness.store, debounced("second")) == Receipt(id, "updated")
        assert (await look(harness.store, id)).held is not None
        await harness.advance(10)
        assert await claim(harness.store) == []
        await harness.store.change([id], Release())
        await harness.advance(5)
        assert (await claim_one(harness.store)).job.payload == "second"

    async def test_jobs_of_one_call_are_debounced_too(self, harness: Harness) -> None:
        receipts = await harness.store.enqueue([debounced("a"), debounced("b"), debounced("c", key="other")])
        assert [receipt.status for receipt in receipts] == ["created", "updated", "created"]
        await harness.advance(5)
        assert {one.job.payload for one in await claim(harness.store)} == {"b", "c"}

    # ------------------------------------------------------------------------------------------------ replace

    async def test_a_job_that_waits_takes_over_the_payload_and_keeps_its_place(self, harness: Harness) -> None:
        first, second = await put(harness.store, keyed(REPLACE, payload="old"), new())
        before = await look(harness.store, first)
        await harness.advance(1)
        assert await enqueue_one(harness.store, keyed(REPLACE, payload="new")) == Receipt(first, "updated")
        job = await look(harness.store, first)
        assert (job.payload, job.due_ms, job.created_ms) == ("new", before.due_ms, before.created_ms)
        assert await claim_ids(harness.store, 1) == [first]
        assert await claim_ids(harness.store, 1) == [second]

    async def test_a_job_that_waits_takes_over_a_due_time_that_was_given(self, harness: Harness) -> None:
        id = await put_one(harness.store, keyed(REPLACE, due=after(60_000)))
        assert await enqueue_one(harness.store, keyed(REPLACE, due=after(1_000))) == Receipt(id, "updated")
        await harness.advance(1)
        assert await claim_ids(harness.store) == [id]
        other = await put_one(harness.store, keyed(REPLACE, key="other"))
        await enqueue_one(harness.store, keyed(REPLACE, key="other", due=after(1_000)))
        assert await claim_ids(harness.store) == []
        await harness.advance(1)
        assert await claim_ids(harness.store) == [other]

    @pytest.mark.parametrize(("old", "replacement"), [(LARGE, "small"), ("small", LARGE), (LARGE, LARGE + "!")])
    async def test_payloads_of_any_size_are_replaced(self, harness: Harness, old: str, replacement: str) -> None:
        id = await put_one(harness.store, keyed(REPLACE, payload=old))
        assert await enqueue_one(harness.store, keyed(REPLACE, payload=replacement)) == Receipt(id, "updated")
        assert (await claim_one(harness.store)).job.payload == replacement

    async def test_a_job_that_waits_for_a_retry_takes_over_the_payload(self, harness: Harness) -> None:
        first = await started(harness.store, keyed(REPLACE, payload="old"))
        await settle(harness.store, retry(first, 5_000))
        assert await enqueue_one(harness.store, keyed(REPLACE, payload="new")) == Receipt(first.job.id, "updated")
        await harness.advance(5)
        again = await claim_one(harness.store)
        assert (again.job.payload, again.job.errors) == ("new", 1)

    async def test_a_running_job_is_not_replaced(self, harness: Harness) -> None:
        running = await started(harness.store, keyed(REPLACE, payload="old"))
        assert await enqueue_one(harness.store, keyed(REPLACE, payload="new")) == Receipt(running.job.id, "duplicate")
        assert (await look(harness.store, running.job.id)).payload == "old"
        assert await settle(harness.store, succeed(running)) == ["done"]

    async def test_a_suspended_run_keeps_its_payload(self, harness: Harness) -> None:
        """Its steps belong to it."""
        parent = await started(harness.store, keyed(REPLACE, "p", payload="old"))
        assert await settle(harness.store, suspend(parent, new("p.0"))) == ["done"]
        assert await enqueue_one(harness.store, keyed(REPLACE, payload="new")) == Receipt("p", "duplicate")
        assert (await look(harness.store, "p")).payload == "old"
        assert (await enqueue_one(harness.store, debounced("newer"))).created

    @pytest.mark.parametrize("policy", [REPLACE, CANCEL, FOR_A_MINUTE], ids=["replace", "cancel", "for"])
    async def test_a_recurring_job_is_left_alone(self, harness: Harness, policy: UniquePolicy) -> None:
        rule = recurrence(key="k", every_ms=60_000)
        id = await put_one(harness.store, new(key="k", recurrence=rule, due=after(60_000), payload="old"))
        assert await enqueue_one(harness.store, keyed(policy, payload="new")) == Receipt(id, "duplicate")
        assert (await look(harness.store, id)).payload == "old"

    # ------------------------------------------------------------------------------------------------ cancel

    @pytest.mark.parametrize("state", LIVE)
    async def test_a_new_job_can_take_the_place_of_a_live_one(self, harness: Harness, state: State) -> None:
        old = await in_state(harness.store, state, keyed(CANCEL, payload="old"))
        receipt = await enqueue_one(harness.store, keyed(CANCEL, payload="new"))
        assert receipt.created
        assert await state_of(harness.store, old) == "cancelled"
        assert [(one.job.id, one.job.payload) for one in await claim(harness.store)] == [(receipt.id, "new")]

    async def test_a_new_job_can_take_the_place_of_one_that_is_held_with_a_delay(self, harness: Harness) -> None:
        await put_one(harness.store, keyed(CANCEL, "old"))
        for change in (Hold(), Reschedule(after(5_000))):
            assert (await harness.store.change(["old"], change)).ids == ["old"]
        assert await enqueue_one(harness.store, keyed(CANCEL, "new")) == Receipt("new", "created")
        assert await state_of(harness.store, "old") == "cancelled"
        assert await claim_ids(harness.store) == ["new"]

    async def test_a_cancelled_run_has_lost_its_lease(self, harness: Harness) -> None:
        running = await started(harness.store, keyed(CANCEL))
        await enqueue_one(harness.store, keyed(CANCEL))
        assert await settle(harness.store, succeed(running)) == ["lost"]

    async def test_of_two_jobs_in_one_call_the_second_stays(self, harness: Harness) -> None:
        receipts = await harness.store.enqueue([keyed(CANCEL, "a"), keyed(CANCEL, "b")])
        assert receipts == [Receipt("a", "created"), Receipt("b", "created")]
        assert [await state_of(harness.store, id) for id in ("a", "b")] == ["cancelled", "waiting"]

    async def test_jobs_that_waited_for_a_cancelled_one_learn_it(self, harness: Harness) -> None:
        await put(harness.store, keyed(CANCEL, "a"), structs.replace(new("b"), after=(After("a"),)))
        await enqueue_one(harness.store, keyed(CANCEL))
        (edge,) = await harness.store.dependencies("b")
        assert edge.state == "cancelled"

    async def test_the_feed_tells_that_the_live_job_was_cancelled(self, harness: Harness) -> None:
        await harness.store.configure(QUEUE, QueueChange(feed=True))
        await harness.store.enqueue([keyed(CANCEL, "a")])
        await harness.store.enqueue([keyed(CANCEL, "b")])
        told = [(event.type, event.job_id) for event in await events_of(harness.store)]
        assert told == [("enqueued", "a"), ("cancelled", "a"), ("enqueued", "b")]

    async def test_a_free_key_needs_no_policy(self, harness: Harness) -> None:
        receipts = await harness.store.enqueue([keyed(REPLACE, key="a"), keyed(CANCEL, key="b"), new(key="c")])
        assert [receipt.status for receipt in receipts] == ["created"] * 3

    # ------------------------------------------------------------------------------------------------ races

    async def test_threads_that_debounce_make_one_job(self, harness: Harness) -> None:
        told = await in_threads(harness, _debounce)
        assert sorted(chain(*told)) == ["created"] + ["updated"] * 79
        (id,) = await find_all(harness.store, Filter(unique_key="k"))
        assert (await look(harness.store, id)).payload in {f"{number} 19" for number in range(4)}

    async def test_threads_that_take_a_key_for_a_time_make_one_job(self, harness: Harness) -> None:
        told = await in_threads(harness, _take)
        assert sorted(chain(*told)) == ["created"] + ["duplicate"] * 79

    async def test_threads_that_cancel_each_other_leave_one_live_job(self, harness: Harness) -> None:
        told = await in_threads(harness, _replace_by_cancel)
        assert len(await find_all(harness.store, Filter(unique_key="k", states=LIVE))) == 1
        created = list(chain(*told)).count("created")
        assert len(await find_all(harness.store, Filter(unique_key="k", states=("cancelled",)))) == created - 1


async def _debounce(store: Store, number: int) -> list[str]:
    return [(await enqueue_one(store, debounced(f"{number} {turn}"))).status for turn in range(20)]


async def _take(store: Store, number: int) -> list[str]:
    jobs = [keyed(FOR_A_MINUTE, f"{number}-{turn}") for turn in range(20)]
    return [(await enqueue_one(store, job)).status for job in jobs]


async def _replace_by_cancel(store: Store, number: int) -> list[str]:
    jobs = [keyed(CANCEL, f"{number}-{turn}") for turn in range(20)]
    return [(await enqueue_one(store, job)).status for job in jobs]
