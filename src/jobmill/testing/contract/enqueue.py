"""`enqueue` and `new_id`: each job is stored once, completely and in order."""

from __future__ import annotations

import pytest

from jobmill.core.changes import Cancel, Remove
from jobmill.core.job import FINAL, LIVE, JobOptions, Keep, State
from jobmill.core.retry import exponential
from jobmill.core.values import EVERYTHING, after, at
from jobmill.testing.contract.harness import Harness
from jobmill.testing.contract.support import (
    claim,
    claim_one,
    enqueue_one,
    find_all,
    in_state,
    look,
    new,
    put,
    put_one,
    second,
    settle,
    started,
    state_of,
    succeed,
)

ODD_TEXTS = [
    'it\'s "quoted" `here`',
    "100%s %d %(x)s ? $1 :1",
    "back\\slash \\' \\x00",
    "{curly} [square] <angle> & #hash",
    "--; DROP TABLE jobs",
    "ümläut-Ωmega-工作-🦫",
    "e\u0301 is not \u00e9",
    " blanks around ",
    "NULL",
    "x" * 255,
]
# A name and a queue have no white space; a queue has no colon.
ODD_WORDS = ["it's", '"quoted"', "100%s", "back\\slash", "ümläut-工作-🦫", "a.b/c-d_e", "$where", "*", "x" * 255]
PAYLOADS: list[object] = [
    None,
    True,
    0,
    -1.5,
    0.1,
    1e300,
    2**63 - 1,
    -(2**63),
    2**53 + 1,
    "",
    "plain",
    "null \u0000 and \u001f, \u2028, quotes \"'\\",
    "astral 🦫 𝒳",
    [],
    {},
    [1, "two", [None, False]],
    {"a": {"b": [{"c": 1}]}, "": 0, "ü": "ß", "$set": 1, "a.b": 2},
]


class EnqueueContract:
    """Enqueueing."""

    # ------------------------------------------------------------------------------------------------ created

    async def test_a_new_job_is_created_and_waits(self, harness: Harness) -> None:
        receipt = await enqueue_one(harness.store, new("one"))
        assert receipt.status == "created"
        assert (await look(harness.store, receipt.id)).state == "waiting"

    async def test_a_receipt_has_the_id_of_its_job(self, harness: Harness) -> None:
        ids = await put(harness.store, new(payload="a"), new(payload="b"))
        assert [(await look(harness.store, id)).payload for id in ids] == ["a", "b"]

    async def test_enqueueing_no_jobs_returns_no_receipts(self, harness: Harness) -> None:
        assert await harness.store.enqueue([]) == []

    async def test_receipts_come_in_the_order_of_the_jobs(self, harness: Harness) -> None:
        first, owner = await put(harness.store, new("first"), new("owner", key="k"))
        receipts = await harness.store.enqueue([new("x"), new("first"), new("y"), new("z", key="k"), new("w")])
        assert [receipt.status for receipt in receipts] == ["created", "exists", "created", "duplicate", "created"]
        assert receipts[1].id == first
        assert receipts[3].id == owner

    async def test_all_given_fields_are_stored(self, harness: Harness) -> None:
        options = JobOptions(
            max_attempts=7,
            max_crashes=2,
            backoff=exponential("2s", cap="1m", jitter=0.5),
            timeout_ms=30_000,
            keep_succeeded=Keep(last=5),
            keep_failed=Keep(age_ms=1_000),
        )
        given = new(name="report", queue="slow", payload={"a": 1}, priority=3, key="k", tenant="acme", options=options)
        job = await look(harness.store, await put_one(harness.store, given))
        assert (job.name, job.queue, job.payload, job.priority) == ("report", "slow", {"a": 1}, 3)
        assert (job.unique_key, job.tenant, job.options) == ("k", "acme", options)

    async def test_a_keep_for_ever_is_not_the_same_as_no_keep(self, harness: Harness) -> None:
        options = JobOptions(keep_succeeded=Keep())
        job = await look(harness.store, await put_one(harness.store, new(options=options)))
        assert job.options == options

    async def test_headers_are_kept_and_claimed(self, harness: Harness) -> None:
        headers = {
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "tracestate": "a=b",
            "x": "ö “”",
        }
        only = new("only headers", options=JobOptions(headers=headers))
        both = new("and options", options=JobOptions(headers=headers, max_attempts=7))
        trace = new("trace", options=JobOptions(headers={"baggage": "k=v"}))
        await put(harness.store, only, both, trace, new("none"))
        for job in await harness.store.get(["only headers", "and options"]):
            assert job is not None
            assert job.headers == headers
        claimed = {one.job.id: one.job for one in await claim(harness.store)}
        assert claimed["and options"].options == both.options
        assert claimed["trace"].headers == {"baggage": "k=v"}
        assert (claimed["none"].headers, claimed["none"].options) == ({}, JobOptions())

    async def test_a_fresh_job_has_no_history(self, harness: Harness) -> None:
        job = await look(harness.store, await put_one(harness.store))
        assert (job.started_ms, job.finished_ms, job.worker, job.progress) == (None, None, None, None)
        assert (job.errors, job.crashes, job.claims, job.attempt) == (0, 0, 0, 1)
        assert (job.result, job.error, job.attempts, job.deferred_error) == (None, None, (), None)
        assert (job.unique_key, job.tenant, job.recurrence) == (None, None, None)
        assert (job.runs, job.failed_runs, job.last_error, job.last_finished_ms) == (0, 0, None, None)

    async def test_a_job_is_created_at_the_time_of_the_store(self, harness: Harness) -> None:
        job = await look(harness.store, await put_one(harness.store))
        assert (job.created_ms, job.updated_ms) == (harness.store.now(), harness.store.now())

    async def test_a_thousand_jobs_can_be_enqueued_in_one_call(self, harness: Harness) -> None:
        jobs = [new(f"many-{number}", payload=number) for number in range(1_000)]
        ids = await put(harness.store, *jobs)
        assert len(set(ids)) == 1_000
        stored = await harness.store.get(ids)
        assert [job.payload for job in stored if job is not None] == list(range(1_000))

    async def test_another_connection_sees_what_was_enqueued(self, harness: Harness) -> None:
        async with second(harness) as other:
            id = await put_one(harness.store)
            assert await state_of(other, id) == "waiting"

    # ------------------------------------------------------------------------------------------------ ids

    async def test_a_repeated_id_makes_one_job(self, harness: Harness) -> None:
        first = await enqueue_one(harness.store, new("same", payload="first"))
        again = await enqueue_one(harness.store, new("same", payload="second", priority=9))
        assert (again.status, again.id) == ("exists", first.id)
        job = await look(harness.store, first.id)
        assert (job.payload, job.priority) == ("first", 0)

    async def test_a_repeated_id_within_one_call_makes_one_job(self, harness: Harness) -> None:
        receipts = await harness.store.enqueue([new("same", payload="first"), new("same", payload="second")])
        assert [receipt.status for receipt in receipts] == ["created", "exists"]
        assert receipts[0].id == receipts[1].id
        assert (await look(harness.store, receipts[0].id)).payload == "first"

    @pytest.mark.parametrize("state", [*LIVE, *FINAL])
    async def test_an_id_stays_taken_in_every_state(self, harness: Harness, state: State) -> None:
        id = await in_state(harness.store, state, new("taken"))
        assert (await enqueue_one(harness.store, new("taken"))).status == "exists"
        assert await state_of(harness.store, id) == state

    async def test_the_id_of_a_removed_job_is_free(self, harness: Harness) -> None:
        id = await put_one(harness.store, new("again"))
        await harness.store.change([id], Remove())
        assert (await enqueue_one(harness.store, new("again"))).status == "created"

    async def test_a_repeated_id_is_reported_before_a_repeated_key(self, harness: Harness) -> None:
        await put_one(harness.store, new("same", key="k"))
        assert (await enqueue_one(harness.store, new("same", key="k"))).status == "exists"

    @pytest.mark.parametrize("id", ODD_TEXTS)
    async def test_an_id_is_an_opaque_text(self, harness: Harness, id: str) -> None:
        odd = id.replace(":", "")
        stored = await put_one(harness.store, new(odd, payload="odd"))
        await put_one(harness.store, new("plain"))
        assert (await look(harness.store, stored)).id == stored
        assert (await enqueue_one(harness.store, new(odd))).status == "exists"
        claimed = await claim_one(harness.store)
        assert (claimed.job.id, claimed.lease.id) == (stored, stored)
        assert await settle(harness.store, succeed(claimed)) == ["done"]

    async def test_ids_differ_by_case_accent_and_blanks(self, harness: Harness) -> None:
        ids = await put(harness.store, *[new(id) for id in ("a1", "A1", "a1 ", "e\u0301x", "\u00e9x")])
        assert len(set(ids)) == 5

    def test_new_ids_are_never_the_same(self, harness: Harness) -> None:
        # The store must create them without a round trip: ten thousand round trips would be slow.
        assert len({harness.store.new_id() for _ in range(10_000)}) == 10_000

    async def test_a_new_id_can_be_enqueued(self, harness: Harness) -> None:
        id = harness.store.new_id()
        assert 0 < len(id) <= 255
        assert await put_one(harness.store, new(id)) == id
        assert (await enqueue_one(harness.store, new(id))).status == "exists"

    # ------------------------------------------------------------------------------------------------ unique keys

    async def test_a_second_job_with_a_live_key_is_a_duplicate_of_the_first(self, harness: Harness) -> None:
        owner = await put_one(harness.store, new(key="k", payload="first"))
        receipt = await enqueue_one(harness.store, new("loser", key="k", payload="second"))
        assert (receipt.status, receipt.id) == ("duplicate", owner)
        assert await state_of(harness.store, "loser") is None
        assert (await look(harness.store, owner)).payload == "first"

    async def test_a_repeated_key_within_one_call_makes_one_job(self, harness: Harness) -> None:
        receipts = await harness.store.enqueue([new(key="k"), new(key="k"), new(key="other")])
        assert [receipt.status for receipt in receipts] == ["created", "duplicate", "created"]
        assert receipts[1].id == receipts[0].id

    async def test_a_running_job_keeps_its_key(self, harness: Harness) -> None:
        claimed = await started(harness.store, new(key="k"))
        receipt = await enqueue_one(harness.store, new(key="k"))
        assert (receipt.status, receipt.id) == ("duplicate", claimed.job.id)

    async def test_a_job_whose_lease_ended_keeps_its_key(self, harness: Harness) -> None:
        await started(harness.store, new(key="k"))
        await harness.advance(3_600)
        assert (await enqueue_one(harness.store, new(key="k"))).status == "duplicate"

    @pytest.mark.parametrize("state", FINAL)
    async def test_a_final_job_frees_its_key(self, harness: Harness, state: State) -> None:
        await in_state(harness.store, state, new(key="k"))
        assert (await enqueue_one(harness.store, new(key="k"))).status == "created"

    async def test_a_cancelled_running_job_frees_its_key(self, harness: Harness) -> None:
        claimed = await started(harness.store, new(key="k"))
        await harness.store.change([claimed.job.id], Cancel())
        assert (await enqueue_one(harness.store, new(key="k"))).status == "created"

    async def test_a_removed_job_frees_its_key(self, harness: Harness) -> None:
        id = await put_one(harness.store, new(key="k"))
        await harness.store.change([id], Remove())
        assert (await enqueue_one(harness.store, new(key="k"))).status == "created"

    async def test_a_key_counts_within_its_queue(self, harness: Harness) -> None:
        await put(harness.store, new(queue="a", key="k"), new(queue="b", key="k"))

    async def test_a_key_counts_within_its_name(self, harness: Harness) -> None:
        await put(harness.store, new(name="a", key="k"), new(name="b", key="k"))

    async def test_queue_name_and_key_are_compared_separately(self, harness: Harness) -> None:
        texts = [("a", "b", "c"), ("a", "bc", "x"), ("ab", "c", "x"), ("a", "b", "c-x"), ("a-b", "c", "x")]
        await put(harness.store, *[new(queue=queue, name=name, key=key) for queue, name, key in texts])

    async def test_jobs_without_a_key_are_never_duplicates(self, harness: Harness) -> None:
        await put(harness.store, new(payload=1), new(payload=1))
        await put(harness.store, new(payload=1))

    async def test_keys_differ_by_case_accent_and_blanks(self, harness: Harness) -> None:
        await put(harness.store, *[new(key=key) for key in ("k", "K", "k ", "e\u0301", "\u00e9")])

    @pytest.mark.parametrize("key", [*ODD_TEXTS, "y" * 1_024, "with: colon"])
    async def test_a_key_is_an_opaque_text(self, harness: Harness, key: str) -> None:
        owner = await put_one(harness.store, new(key=key))
        assert (await look(harness.store, owner)).unique_key == key
        assert (await enqueue_one(harness.store, new(key=key))).status == "duplicate"

    # ------------------------------------------------------------------------------------------------ values

    @pytest.mark.parametrize("payload", PAYLOADS, ids=repr)
    async def test_a_payload_is_stored_unchanged(self, harness: Harness, payload: object) -> None:
        id = await put_one(harness.store, new(payload=payload))
        seen = (await look(harness.store, id)).payload
        claimed = (await claim_one(harness.store)).job.payload
        assert (seen, type(seen)) == (payload, type(payload))
        assert claimed == payload

    async def test_a_payload_can_be_a_hundred_levels_deep(self, harness: Harness) -> None:
        deep: object = "bottom"
        for _ in range(50):
            deep = [{"next": deep}]
        assert (await look(harness.store, await put_one(harness.store, new(payload=deep)))).payload == deep

    async def test_a_payload_of_a_megabyte_is_stored(self, harness: Harness) -> None:
        large = ["0123456789äöü🦫" * 1_000] * 50
        id, *_ = await put(harness.store, new(payload=large), new(payload="small"))
        assert (await look(harness.store, id)).payload == large
        assert [one.job.payload for one in await claim(harness.store)] == [large, "small"]

    @pytest.mark.parametrize("word", ODD_WORDS)
    async def test_names_queues_and_tenants_are_texts(self, harness: Harness, word: str) -> None:
        id = await put_one(harness.store, new(name=word, queue=word, tenant=word))
        claimed = await claim_one(harness.store, queues=(word,), names=(word,))
        assert claimed.job.id == id
        assert (claimed.job.name, claimed.job.queue, claimed.job.tenant) == (word, word, word)
        assert (claimed.lease.name, claimed.lease.queue) == (word, word)

    @pytest.mark.parametrize("priority", [0, 1, 2_097_151])
    async def test_a_priority_can_be_up_to_2097151(self, harness: Harness, priority: int) -> None:
        assert (await look(harness.store, await put_one(harness.store, new(priority=priority)))).priority == priority

    # ------------------------------------------------------------------------------------------------ due

    async def test_a_job_without_a_due_time_is_due_when_enqueued(self, harness: Harness) -> None:
        job = await look(harness.store, await put_one(harness.store))
        assert job.due_ms == job.created_ms

    async def test_a_delay_counts_from_the_time_of_the_store(self, harness: Harness) -> None:
        await harness.advance(86_400)
        job = await look(harness.store, await put_one(harness.store, new(due=after(1_234))))
        assert job.due_ms == harness.store.now() + 1_234 == job.created_ms + 1_234

    async def test_an_instant_is_stored_to_the_millisecond(self, harness: Harness) -> None:
        instant = harness.store.now() + 987_654_321
        job = await look(harness.store, await put_one(harness.store, new(due=at(instant))))
        assert job.due_ms == instant

    @pytest.mark.parametrize("instant", [0, 1, 253_402_300_799_999])
    async def test_an_instant_can_be_from_1970_to_9999(self, harness: Harness, instant: int) -> None:
        job = await look(harness.store, await put_one(harness.store, new(due=at(instant))))
        assert job.due_ms == instant

    async def test_duplicates_and_repeated_ids_store_nothing(self, harness: Harness) -> None:
        ids = await put(harness.store, new("one", key="k"))
        await harness.store.enqueue([new("one"), new("two", key="k")])
        assert await find_all(harness.store, EVERYTHING) == ids
