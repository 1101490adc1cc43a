"""Enqueueing: what each job becomes, what its options say, one or many in one call."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import jobmill
from jobmill import Client, Enqueued, Keep
from jobmill.core.durations import to_datetime
from jobmill.core.recurrence import Recurrence
from jobmill.core.retry import exponential, fixed
from jobmill.handlers.handler import Handler
from jobmill.store import Store
from jobmill.testing import ManualClock

HOUR = 3_600_000


@pytest.fixture
def send(jobs: Client) -> Handler[..., Any]:
    @jobs.handler(queue="mail", priority=5, max_attempts=7)
    async def send(to: str = "ada", subject: str = "hello") -> str:
        return f"{subject}, {to}"

    return send


# ---------------------------------------------------------------------------------------------------- one job


async def test_a_job_is_stored_with_what_was_said(jobs: Client, send: Handler[..., Any], clock: ManualClock) -> None:
    enqueued = await send.enqueue(to="bob")
    assert (enqueued.status, enqueued.created) == ("created", True)
    assert repr(enqueued) == f"Enqueued(id={enqueued.id!r}, status='created')"
    job = await enqueued.job()
    assert job == await jobs.get(enqueued.id)
    assert (job.id, job.name, job.queue, job.payload, job.state) == (
        enqueued.id,
        "send",
        "mail",
        {"to": "bob"},
        "waiting",
    )
    assert (job.priority, job.options.max_attempts, job.attempt) == (5, 7, 1)
    assert job.due_ms == job.created_ms == job.updated_ms == clock()
    assert (job.errors, job.crashes, job.claims, job.runs) == (0, 0, 0, 0)
    assert (job.worker, job.progress, job.result, job.error, job.attempts) == (None, None, None, None, ())
    assert (job.unique_key, job.tenant, job.recurrence, job.started_at, job.finished_at) == (None,) * 5


async def test_what_is_said_of_one_job_goes_before_what_its_handler_says(send: Handler[..., Any]) -> None:
    said = send.options(
        id="mine",
        queue="other",
        priority=0,
        tenant="acme",
        unique_key="once",
        max_attempts=1,
        max_crashes=2,
        timeout="5s",
        backoff=exponential("2s", cap="1m", jitter=0.5),
        keep_succeeded=True,
        keep_failed=0,
    )
    job = await (await said.enqueue("bob")).job()
    assert (job.id, job.queue, job.priority, job.tenant, job.unique_key) == ("mine", "other", 0, "acme", "once")
    assert (job.options.max_attempts, job.options.max_crashes, job.options.timeout_ms) == (1, 2, 5_000)
    assert job.options.backoff == exponential("2s", cap="1m", jitter=0.5)
    assert (job.options.keep_succeeded, job.options.keep_failed) == (Keep(), Keep(last=0))


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (5, fixed(5)),
        ("5s", fixed("5s")),
        (timedelta(seconds=5), fixed(5)),
        ({"type": "exponential", "delay": 250}, exponential("250ms")),
    ],
)
async def test_every_form_of_a_backoff_is_stored(send: Handler[..., Any], given: Any, stored: Any) -> None:
    assert (await (await send.options(backoff=given).enqueue()).job()).options.backoff == stored


async def test_none_is_as_good_as_not_said(send: Handler[..., Any]) -> None:
    nothing: Any = dict.fromkeys(jobmill.handlers.options.EnqueueOptions.__annotations__)
    job = await (await send.options(**nothing).enqueue()).job()
    assert (job.queue, job.priority, job.options.max_attempts, job.unique_key) == ("mail", 5, 7, None)


@pytest.mark.parametrize(
    ("options", "later_ms"),
    [
        ({}, 0),
        ({"delay": 0}, 0),
        ({"delay": 1.5}, 1_500),
        ({"delay": "10m"}, 600_000),
        ({"delay": timedelta(days=1)}, 24 * HOUR),
        ({"due_at": datetime(2023, 11, 14, 22, 13, 21, 999, tzinfo=UTC)}, 1_000),
        ({"due_at": datetime(1970, 1, 1, tzinfo=UTC)}, -1_700_000_000_000),
        ({"due_at": datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)}, 253_370_764_799_000 - 1_700_000_000_000),
    ],
)
async def test_when_a_job_is_due(
    send: Handler[..., Any], clock: ManualClock, options: dict[str, Any], later_ms: int
) -> None:
    job = await (await send.options(**options).enqueue()).job()
    assert job.due_ms - clock() == later_ms


async def test_by_name_a_known_handler_has_its_options_and_annotations_applied(
    jobs: Client, send: Handler[..., Any]
) -> None:
    job = await (await jobs.enqueue("send", {"to": "bob"}, priority=1)).job()
    assert (job.queue, job.priority, job.options.max_attempts, job.payload) == ("mail", 1, 7, {"to": "bob"})
    assert (await (await jobs.enqueue("send")).job()).payload == {}
    with pytest.raises(jobmill.InvalidValue, match="Expected `str`, got `int`"):
        await jobs.enqueue("send", {"to": 5})


@pytest.mark.parametrize("payload", [None, {}, {"a": 1}, [1, 2], "text", 5, False])
async def test_by_name_an_unknown_handlers_payload_goes_as_it_is(jobs: Client, payload: Any) -> None:
    job = await (await jobs.enqueue("elsewhere", payload)).job()
    assert (job.name, job.queue, job.priority) == ("elsewhere", "default", 0)
    assert job.payload == ({} if payload is None else payload)


async def test_ids_are_fresh_and_sort_by_age(send: Handler[..., Any]) -> None:
    ids = [(await send.enqueue()).id for _ in range(20)]
    assert len(set(ids)) == 20
    assert ids == sorted(ids)
    # A uuid7, or what MongoDB has instead.
    form = r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}|[0-9a-f]{24}"
    assert all(re.fullmatch(form, id) for id in ids)


# ---------------------------------------------------------------------------------------------------- how


async def test_an_id_makes_one_job(jobs: Client, send: Handler[..., Any]) -> None:
    first = await send.options(id="mine").enqueue(to="ada")
    again = await send.options(id="mine").enqueue(to="bob")
    assert [(one.id, one.status, one.created) for one in (first, again)] == [
        ("mine", "created", True),
        ("mine", "exists", False),
    ]
    assert (await again.job()).payload == {"to": "ada"}
    await jobs.cancel("mine")
    assert (await send.options(id="mine").enqueue()).status == "exists", "also when it is final"


async def test_a_unique_key_makes_one_live_job_of_its_queue_and_name(jobs: Client, send: Handler[..., Any]) -> None:
    once = send.options(unique_key="k")
    first, again = await once.enqueue(), await once.enqueue()
    assert (first.status, again.status, again.id) == ("created", "duplicate", first.id)
    assert (await send.options(unique_key="k", queue="other").enqueue()).status == "created"
    assert (await jobs.enqueue("another", unique_key="k", queue="mail")).status == "created"
    await jobs.cancel(first.id)
    assert (await once.enqueue()).status == "created"


async def test_many_in_one_call_with_an_answer_for_each(jobs: Client, send: Handler[..., Any]) -> None:
    drafts = [
        send.draft(to="ada"),
        send.options(id="mine", delay="1m").draft("bob"),
        send.options(id="mine").draft(),
        send.options(unique_key="k").draft(),
        send.options(unique_key="k").draft(),
    ]
    answers = await jobs.enqueue_many(iter(drafts))
    assert [one.status for one in answers] == ["created", "created", "exists", "created", "duplicate"]
    assert answers[4].id == answers[3].id
    assert [(await one.job()).payload for one in answers[:2]] == [{"to": "ada"}, {"to": "bob"}]


async def test_none_in_one_call(jobs: Client) -> None:
    assert await jobs.enqueue_many([]) == []


async def test_a_draft_is_a_value_that_may_be_enqueued_again(jobs: Client, send: Handler[..., Any]) -> None:
    draft = send.draft(to="ada")
    assert draft == send.draft(to="ada")
    first, second = await jobs.enqueue_many([draft, draft])
    assert first.created
    assert second.created
    assert first.id != second.id


# ---------------------------------------------------------------------------------------------------- recurring


async def test_an_interval_runs_at_once_and_a_cron_at_its_first_slot(
    send: Handler[..., Any], clock: ManualClock
) -> None:
    every = await (await send.options(every="1h", key="e").enqueue()).job()
    assert (every.due_ms, every.occurrence_ms) == (clock(), clock())
    assert every.recurrence == Recurrence(key="e", every_ms=HOUR)
    cron = await (await send.options(cron="0 9 * * mon", timezone="Europe/Berlin", key="c").enqueue()).job()
    assert cron.due_at == datetime(2023, 11, 20, 8, tzinfo=UTC)
    assert cron.recurrence == Recurrence(key="c", cron="0 9 * * mon", timezone="Europe/Berlin")
    assert (cron.unique_key, cron.runs, cron.failed_runs) == ("c", 0, 0)


async def test_a_first_run_at_a_time_of_ones_own(send: Handler[..., Any], clock: ManualClock) -> None:
    job = await (await send.options(every="1h", key="e", delay="5m").enqueue()).job()
    assert job.due_ms == job.occurrence_ms == clock() + 300_000
    when = datetime(2024, 1, 1, 12, 34, tzinfo=UTC)
    assert (await (await send.options(cron="@daily", key="c", due_at=when).enqueue()).job()).due_at == when


async def test_a_live_key_is_updated(jobs: Client, send: Handler[..., Any], clock: ManualClock) -> None:
    first = await send.options(every="1h", key="k").enqueue(to="ada")
    clock.advance(60)
    again = await send.options(cron="@daily", key="k", until=datetime(2030, 1, 1, tzinfo=UTC)).enqueue(to="bob")
    assert (again.status, again.id, again.created) == ("updated", first.id, False)
    job = await again.job()
    assert (job.payload, job.due_at) == ({"to": "bob"}, datetime(2023, 11, 15, tzinfo=UTC))
    assert job.recurrence is not None
    assert (job.recurrence.cron, job.recurrence.every_ms, job.recurrence.revision) == ("@daily", None, 1)
    await jobs.cancel(first.id)
    assert (await send.options(every="1h", key="k").enqueue()).status == "created", "cancelling has ended the other"


async def test_a_rule_that_is_stated_again_keeps_its_due_time(send: Handler[..., Any], clock: ManualClock) -> None:
    """As an application does that states its recurring jobs at every start."""
    first = await (await send.options(every="1h", key="k", delay="5m").enqueue(to="ada")).job()
    clock.advance(600)
    again = await send.options(every="1h", key="k").enqueue(to="bob")
    job = await again.job()
    assert (again.status, job.payload, job.due_ms, job.occurrence_ms) == (
        "updated",
        {"to": "bob"},
        first.due_ms,
        first.occurrence_ms,
    )
    moved = await (await send.options(every="1h", key="k", delay="5m").enqueue()).job()
    assert moved.due_ms == clock() + 300_000, "a time that was asked for is taken"


async def test_the_unique_key_may_stand_for_the_key(send: Handler[..., Any]) -> None:
    job = await (await send.options(every="1h", unique_key="k").enqueue()).job()
    assert job.recurrence is not None
    assert (job.recurrence.key, job.unique_key) == ("k", "k")
    assert (await send.options(every="2h", key="k", unique_key="k").enqueue()).status == "updated"


async def test_the_last_instant_of_a_recurrence_still_runs(send: Handler[..., Any], clock: ManualClock) -> None:
    assert (await send.options(every="1h", key="k", until=to_datetime(clock())).enqueue()).created


# ---------------------------------------------------------------------------------------------------- within


@pytest.mark.stores("memory")
async def test_a_store_without_transactions_says_so(jobs: Client, send: Handler[..., Any]) -> None:
    connection = object()
    doors = [
        send.options(within=connection).enqueue(),
        jobs.enqueue("send", within=connection),
        jobs.enqueue_many([send.draft()], within=connection),
    ]
    for door in doors:
        with pytest.raises(
            jobmill.InvalidValue, match="within: expected nothing: the memory store has no transactions, got"
        ):
            await door
    assert await jobs.count() == []


@pytest.mark.stores("sqlite")
async def test_within_a_transaction_the_job_exists_if_it_commits(
    jobs: Client, send: Handler[..., Any], tmp_path: Path
) -> None:
    import sqlite3

    connection = sqlite3.connect(tmp_path / "jobs.db")
    try:
        connection.execute("BEGIN IMMEDIATE")
        await send.options(within=connection).enqueue()
        connection.rollback()
        assert await jobs.count() == []
        connection.execute("BEGIN IMMEDIATE")
        one = await send.options(within=connection).enqueue()
        two = await jobs.enqueue("send", within=connection)
        (three,) = await jobs.enqueue_many([send.draft(to="bob")], within=connection)
        connection.commit()
        assert {job.id for job in (await jobs.find()).jobs} == {one.id, two.id, three.id}
    finally:
        connection.close()


async def test_a_draft_cannot_be_within_a_transaction_by_itself(jobs: Client, send: Handler[..., Any]) -> None:
    within = send.options(within=object())
    with pytest.raises(jobmill.InvalidValue, match=r"within: .*jobs\.enqueue_many\(\[send\.draft\(…\)\], within=…\)"):
        within.draft()
    assert await jobs.count() == []


# ---------------------------------------------------------------------------------------------------- opening


async def test_the_first_call_opens_the_store_and_closing_is_no_end(store: Store, clock: ManualClock) -> None:
    client = jobmill.connect(store=store)
    try:
        enqueued: Enqueued[Any] = await client.enqueue("elsewhere", id="mine")
        await client.close()
        await client.close()
        assert (await client.enqueue("elsewhere", id="other")).created
        assert (await enqueued.job()).id == "mine"
    finally:
        await client.close()
