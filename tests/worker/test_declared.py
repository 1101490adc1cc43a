"""Declared recurrences: workers of an application's releases, one after the other, on every store."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from click.testing import CliRunner

import jobmill
from jobmill import Client, InvalidValue, Job, Worker
from jobmill.cli import main
from jobmill.core.job import LIVE
from jobmill.core.lifecycle import DEFAULT_POLICY, Succeeded, settle
from jobmill.core.values import Claim, Claimed, Filter
from jobmill.worker import janitor
from jobmill.worker.declared import end_undeclared, state_declared
from tests.helpers import until

ENDED = "ended the recurrence"
FAR = "0 0 1 1 *"


@pytest.fixture
async def release(store_name: str, store_url: str) -> AsyncIterator[Callable[[], Client]]:
    """Makes the client of a new release of the application, on the same store."""
    async with AsyncExitStack() as stack:
        clients: list[Client] = []

        def new() -> Client:
            is_shared = store_name == "memory" and bool(clients)  # its jobs live as long as its store
            client = jobmill.connect(store=clients[0].store) if is_shared else jobmill.connect(store_url)
            clients.append(client)
            stack.push_async_callback(client.close)
            return client

        yield new


def define(jobs: Client, name: str = "report", **options: Any) -> list[str]:
    """A handler with these options; the list gets an entry with each run."""
    runs: list[str] = []

    @jobs.handler(name=name, **options)
    async def handle(text: str = "default") -> None:
        runs.append(text)

    return runs


async def start(jobs: Client) -> None:
    """Start a worker of this release, and stop it."""
    async with Worker(jobs):
        pass


async def live(jobs: Client) -> list[Job]:
    return [job async for job in jobs.find_all(states=LIVE)]


async def the_live_one(jobs: Client) -> Job:
    (job,) = await live(jobs)
    return job


def endings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [message for message in caplog.messages if ENDED in message]


# ---------------------------------------------------------------------------------------------------- stating


async def test_a_worker_states_what_its_handlers_declare(release: Callable[[], Client]) -> None:
    jobs = release()
    define(jobs, queue="mail", priority=3, max_attempts=7, cron="0 9 * * mon", timezone="Europe/Berlin")
    define(jobs, "plain")
    await start(jobs)
    job = await the_live_one(jobs)
    assert (job.name, job.queue, job.priority, job.unique_key, job.payload) == ("report", "mail", 3, "report", {})
    assert job.recurrence is not None
    assert (job.recurrence.cron, job.recurrence.timezone, job.recurrence.declared) == (
        *("0 9 * * mon", "Europe/Berlin"),
        True,
    )
    assert job.options.max_attempts is None, "the handler's options apply, as they are when the job runs"
    assert job.due_at is not None
    assert job.due_at.weekday() == 0


async def test_an_interval_runs_at_once_and_not_again_at_the_next_start(release: Callable[[], Client]) -> None:
    first = release()
    runs = define(first, every="1h", key="hourly")
    async with Worker(first):
        await until(lambda: runs == ["default"])
    before = await the_live_one(first)
    assert (before.unique_key, before.runs) == ("hourly", 1)
    second = release()
    again = define(second, every="1h", key="hourly")
    await start(second)
    after = await the_live_one(second)
    assert (after.id, after.due_ms, after.runs, again) == (before.id, before.due_ms, 1, [])


async def test_a_new_rule_replaces_the_old_one(release: Callable[[], Client], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jobmill")
    old, new = release(), release()
    define(old, cron=FAR)
    define(new, cron="0 0 2 1 *")
    await start(old)
    await start(new)
    job = await the_live_one(new)
    assert job.recurrence is not None
    assert job.due_at is not None
    assert (job.recurrence.cron, job.recurrence.revision, job.due_at.day) == ("0 0 2 1 *", 1, 2)
    assert endings(caplog) == []


async def test_a_recurrence_that_code_enqueued_becomes_declared(release: Callable[[], Client]) -> None:
    jobs = release()
    define(jobs, cron=FAR)
    enqueued = await jobs.enqueue("report", {"text": "mine"}, cron=FAR, key="report")
    await start(jobs)
    job = await the_live_one(jobs)
    assert (job.id, job.payload) == (enqueued.id, {})
    assert job.recurrence is not None
    assert (job.recurrence.declared, job.recurrence.revision) == (True, 0)


async def test_a_plain_job_with_the_key_is_reported(
    release: Callable[[], Client], caplog: pytest.LogCaptureFixture
) -> None:
    jobs = release()
    define(jobs, cron=FAR)
    enqueued = await jobs.enqueue("report", unique_key="report", delay="1h")
    await start(jobs)
    assert f"job {enqueued.id} has its unique key 'report' and is not a recurring job" in caplog.text


async def test_a_tick_states_once(release: Callable[[], Client]) -> None:
    jobs = release()
    define(jobs, cron=FAR)
    await jobs.tick()
    job = await the_live_one(jobs)
    await jobs.cancel([job.id])
    await jobs.tick()
    assert await live(jobs) == []
    define(jobs, "later", cron=FAR)
    await jobs.tick()
    assert sorted(job.name for job in await live(jobs)) == ["later", "report"]


@pytest.mark.stores("sqlite")
async def test_the_command_line_shows_that_a_recurrence_is_declared(
    release: Callable[[], Client], store_url: str
) -> None:
    jobs = release()
    define(jobs, every="1h")
    assert not await state_declared(jobs)
    command = ["jobs", "show", (await the_live_one(jobs)).id, "--url", store_url]
    shown = await asyncio.to_thread(CliRunner().invoke, main, command)  # it starts its own event loop
    assert "every 60 m (UTC), key report, declared by its handler" in shown.output


# ---------------------------------------------------------------------------------------------------- ending


async def test_what_is_no_longer_declared_ends(release: Callable[[], Client], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jobmill")
    old, new = release(), release()
    define(old, cron=FAR)
    define(new)
    await start(old)
    job = await the_live_one(old)
    await start(new)
    await start(new)
    assert await live(new) == []
    assert (await new.get(job.id)).state == "cancelled"
    assert endings(caplog) == ["ended the recurrence 'report' of the handler report: it is no longer declared"]


@pytest.mark.parametrize("moved", [{"key": "another"}, {"queue": "another"}], ids=["key", "queue"])
async def test_another_key_or_queue_ends_the_old_recurrence(
    release: Callable[[], Client], moved: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobmill")
    old, new = release(), release()
    define(old, cron=FAR)
    define(new, cron=FAR, **moved)
    await start(old)
    await start(new)
    job = await the_live_one(new)
    assert "another" in (job.unique_key, job.queue)
    assert len(endings(caplog)) == 1


async def test_all_other_recurrences_are_left_alone(release: Callable[[], Client]) -> None:
    other, jobs = release(), release()
    define(other, "other", cron=FAR)  # declared by an application whose handlers are not in this worker
    await start(other)
    define(jobs)
    await jobs.enqueue("report", cron=FAR, key="by code")
    await jobs.enqueue("report", cron=FAR, key="report")
    await start(jobs)
    assert sorted(str(job.unique_key) for job in await live(jobs)) == ["by code", "other", "report"]


async def test_a_statement_of_code_takes_a_declared_recurrence_over(release: Callable[[], Client]) -> None:
    old, new = release(), release()
    define(old, cron=FAR)
    define(new)
    await start(old)
    assert (await new.enqueue("report", cron=FAR, key="report")).status == "updated"
    await start(new)
    assert (await the_live_one(new)).unique_key == "report"


async def claimed(jobs: Client) -> Claimed:
    """The one job, as another worker has claimed it."""
    wish = Claim(queues=("default",), names={"report": 1}, n=1, lease_ms=60_000, worker="old", token="t" * 32)
    (one,) = (await jobs.store.exchange([], wish)).claimed
    assert isinstance(one, Claimed)
    return one


async def test_a_run_that_is_no_longer_declared_may_finish(
    release: Callable[[], Client], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(janitor, "EVERY_S", 0.05)
    old, new = release(), release()
    define(old, every="1h")
    define(new)
    await old.open()
    await old.enqueue_many([draft for draft in [old.handlers["report"].declared] if draft])
    run = await claimed(old)
    async with Worker(new):
        assert (await the_live_one(new)).state == "running"
        done = settle(run, Succeeded(), DEFAULT_POLICY, old.store.now())
        assert (await old.store.exchange([done], None)).settled == ["done"]
        await until(lambda: _no_live_job(new))


async def _no_live_job(jobs: Client) -> bool:
    return not await live(jobs)


async def test_more_than_a_page_of_recurrences(release: Callable[[], Client]) -> None:
    old, new = release(), release()
    for number in range(1_005):
        define(old, f"report{number}", cron=FAR)
    define(new, "report1")
    define(new, "report1004")
    await new.open()
    assert not await state_declared(old)
    assert not await end_undeclared(new)
    declared = 0
    cursor = None
    while True:
        page = await new.store.find(Filter(declared=True, states=LIVE), cursor, 1_000)
        declared += len(page.jobs)
        cursor = page.next
        if cursor is None:
            break
    assert declared == 1_003


# ---------------------------------------------------------------------------------------------------- defining


@pytest.mark.stores("memory")
def test_a_handler_with_required_arguments_is_refused() -> None:
    jobs = jobmill.connect("memory://")
    for options in ({"cron": FAR}, {"every": "1h"}):

        def report(team: str, size: int, text: str = "x") -> None: ...

        with pytest.raises(InvalidValue) as refused:
            jobs.handler(**options)(report)  # type: ignore[call-overload]
        field = next(iter(options))
        assert str(refused.value) == (
            f"{field}: expected a handler that can run without arguments (needed: team, size), got 'report'; "
            "give them defaults, or enqueue the recurring job: report.options(cron=…, key=…).enqueue(…)"
        )
    assert jobs.handlers == {}


@pytest.mark.stores("memory")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cron": "61 * * * *"}, "cron: expected a valid minute field, got '61 * * * *'"),
        ({"cron": "@daily", "every": "1d"}, "cron: expected either cron or every, not both"),
        ({"every": 0}, "every: expected a duration above 0"),
        ({"every": "1h", "timezone": "Mars/Base"}, "timezone: expected the IANA name of a time zone"),
        ({"timezone": "UTC"}, "timezone: expected timezone only together with cron or every"),
        ({"key": "k"}, "key: expected key only together with cron or every"),
        ({"cron": "@daily", "key": "a\nb"}, "key: expected a text of 1 to 1024 characters"),
        ({"cron": "@daily", "until": None}, "until: expected one of the options"),
    ],
)
def test_what_cannot_be_declared_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidValue, match=message.replace("*", r"\*")):
        define(jobmill.connect("memory://"), **options)


@pytest.mark.stores("memory")
async def test_enqueueing_a_handler_with_a_recurrence_makes_a_plain_job() -> None:
    jobs = jobmill.connect("memory://")
    define(jobs, cron=FAR)
    job = await (await jobs.handlers["report"].enqueue(text="once")).job()
    assert (job.recurrence, job.unique_key, job.payload) == (None, None, {"text": "once"})
