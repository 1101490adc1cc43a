"""The test kit, used as a test of an application uses it."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

import jobmill
from jobmill import Context, Enqueued, InvalidValue, JobFailed, JobmillError, StoreUnavailable
from jobmill.testing import Kit, LeftoverJobWarning, ManualClock

NEW_YEAR = datetime(2030, 1, 1, tzinfo=UTC)


class App:
    """An application with a store that no test may reach."""

    def __init__(self) -> None:
        self.jobs = jobmill.connect("sqlite:////nowhere/jobs.db")
        self.ran: list[Any] = []

        @self.jobs.handler(max_attempts=3, backoff=jobmill.fixed("1m"))
        async def send(to: str, text: str = "hello") -> str:
            self.ran.append(to)
            if to == "nobody":
                raise ConnectionError("503")
            return f"{text} {to}"

        @self.jobs.handler
        def split(context: Context, count: int) -> int:
            for number in range(count):
                self.jobs.sync(send.enqueue(to=str(number)))
            return context.attempt

        self.send, self.split = send, split


@pytest.fixture
def app() -> Iterator[App]:
    app = App()
    yield app
    app.jobs.sync.close()


@pytest.fixture
def kit(app: App) -> Iterator[Kit]:
    with Kit(app.jobs) as kit:
        yield kit


# ---------------------------------------------------------------------------------------------------- drain


async def test_drain_runs_what_is_due_in_order_and_what_that_enqueues(app: App, kit: Kit) -> None:
    await app.split.enqueue(count=2)
    await app.send.enqueue(to="ada")
    await app.send.options(delay="1h").enqueue(to="late")
    runs = await kit.drain()
    assert runs.names == ["split", "send", "send", "send"]
    assert (runs[0].result, runs[0].attempt, runs[0].at) == (1, 1, NEW_YEAR)
    assert app.ran == ["ada", "0", "1"]
    await app.send.options(queue="mail").enqueue(to="any queue")
    assert len(await kit.drain()) == 1
    assert await kit.drain() == []


async def test_drain_raises_the_error_of_a_handler_with_a_note(app: App, kit: Kit) -> None:
    await app.send.enqueue(to="nobody")
    await app.send.enqueue(to="ada")
    with pytest.raises(ConnectionError, match="503") as raised:
        await kit.drain()
    (note,) = raised.value.__notes__
    due = 'it is due again at 2030-01-01 00:01:00+00:00: errors="keep" continues'
    assert note == f"raised by the job send(to='nobody') in attempt 1; {due}"
    assert (await kit.drain()).names == ["send"]


async def test_drain_keeps_errors_or_runs_retries_at_once(app: App, kit: Kit) -> None:
    await app.send.enqueue(to="nobody")
    (run,) = await kit.drain(errors="keep")
    assert (run.outcome, run.failed, type(run.error)) == ("errored", False, ConnectionError)
    with pytest.raises(AssertionError, match="there is no result: <run of send"):
        run.result  # noqa: B018
    runs = await kit.drain(errors="retry")
    assert [(run.attempt, run.failed) for run in runs.errored] == [(2, False), (3, True)]
    assert (runs.succeeded, kit.clock.now) == ([], NEW_YEAR)


async def test_drain_later_runs_delayed_jobs_by_due_time_but_no_recurring_ones(app: App, kit: Kit) -> None:
    for hours in (3, 1, 2):
        await app.send.options(delay=f"{hours}h").enqueue(to=str(hours))
    await app.send.options(every="1d", key="daily", delay="1d").enqueue(to="daily")
    await kit.drain(later=True)
    assert (app.ran, kit.clock.now) == (["1", "2", "3"], NEW_YEAR)


async def test_drain_stops_at_a_limit_and_names_jobs_that_run_for_ever(
    app: App, kit: Kit, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.jobs.handler
    async def again() -> None:
        await again.enqueue()

    await again.enqueue()
    assert len(await kit.drain(max_jobs=5)) == 5
    monkeypatch.setattr("jobmill.testing.drain_jobs.MAX_RUNS", 20)
    with pytest.raises(JobmillError, match=r"20 jobs have run and more are due \(again 20 times\)"):
        await kit.drain()
    with pytest.raises(InvalidValue, match="one of raise, keep, retry"):
        await kit.drain(errors="ignore")  # type: ignore[arg-type]


async def test_jobs_that_wait_for_each_other_need_concurrency(app: App, kit: Kit) -> None:
    both = asyncio.Barrier(2)

    @app.jobs.handler(timeout="10s")
    async def meet() -> None:
        await both.wait()

    await meet.enqueue()
    await meet.enqueue()
    assert len((await kit.drain(concurrency=2)).succeeded) == 2


# ---------------------------------------------------------------------------------------------------- travel


async def test_travel_goes_from_due_time_to_due_time(app: App, kit: Kit) -> None:
    @app.jobs.handler(cron="0 9 * * *")
    async def report() -> None:
        await app.send.options(delay="30m").enqueue(to="boss")

    await app.send.options(delay="10h").enqueue(to="ada")
    runs = await kit.travel("2d")
    assert [(run.name, (run.at - NEW_YEAR) / timedelta(hours=1)) for run in runs] == [
        *(("report", 9), ("send", 9.5), ("send", 10), ("report", 33), ("send", 33.5))
    ]
    assert kit.clock.now == NEW_YEAR + timedelta(days=2)


async def test_travel_stops_the_clock_where_a_handler_raises(app: App, kit: Kit) -> None:
    await app.send.options(delay="1h").enqueue(to="nobody")
    with pytest.raises(ConnectionError):
        await kit.travel("3h")
    assert kit.clock.now == NEW_YEAR + timedelta(hours=1)
    runs = await kit.travel("1h", errors="keep")
    assert [run.at.minute for run in runs] == [1, 2]
    assert kit.enqueued.one(app.send).state == "failed"


async def test_travel_waits_for_the_end_of_pauses_and_rate_limits(app: App, kit: Kit) -> None:
    await app.jobs.queue("slow").pause(until="1h")
    await app.jobs.queue("limited").rate_limit(1, per="10m")
    await app.send.options(queue="slow").enqueue(to="slow")
    for _ in range(3):
        await app.send.options(queue="limited").enqueue(to="limited")
    runs = await kit.travel("2h")
    assert [(run.job.queue, (run.at - NEW_YEAR) / timedelta(minutes=1)) for run in runs] == [
        *(("limited", 0), ("limited", 10), ("limited", 20), ("slow", 60))
    ]


async def test_travel_has_a_limit(app: App, kit: Kit, monkeypatch: pytest.MonkeyPatch) -> None:
    await app.send.options(every="1s", key="often").enqueue(to="ada")
    assert len(await kit.travel("1d", max_jobs=10)) == 10
    monkeypatch.setattr("jobmill.testing.travel.MAX_RUNS", 20)
    with pytest.raises(JobmillError, match="20 jobs have run"):
        await kit.travel("1d")


async def test_the_lifespans_of_the_application_are_open_once_in_each_call(app: App, kit: Kit) -> None:
    opened: list[str] = []

    @app.jobs.lifespan
    async def state() -> AsyncIterator[str]:
        opened.append("open")
        yield "the state"

    @app.jobs.handler
    async def use(context: Context[str]) -> str:
        return context.state

    for delay in (0, 0, 10):
        await use.options(delay=delay).enqueue()
    assert [run.result for run in await kit.travel("1h")] == ["the state"] * 3
    assert (await kit.run_job(use)).result == "the state"
    assert len(opened) == 2


# ---------------------------------------------------------------------------------------------------- run_job


async def test_run_job_is_one_attempt_with_real_arguments_context_and_timeout(app: App, kit: Kit) -> None:
    @app.jobs.handler(timeout="20ms", every="1h")
    async def slow(context: Context, at: datetime | None = None, sleep: float = 0) -> datetime | None:
        assert context.attempt == 1
        await asyncio.sleep(sleep)
        return at

    assert (await kit.run_job(slow, at=NEW_YEAR)).result == NEW_YEAR
    timed_out = await kit.run_job(slow, sleep=30)
    assert (timed_out.outcome, type(timed_out.error), timed_out.failed) == ("errored", TimeoutError, False)
    with pytest.raises(InvalidValue, match="payload"):
        await kit.run_job(slow, sleep="long")  # type: ignore[call-overload]
    kit.enqueued.none()


async def test_run_job_takes_options_and_enqueues_to_the_store_of_the_test(app: App, kit: Kit) -> None:
    run = await kit.run_job(app.send.options(delay="1h", max_attempts=1), to="nobody")
    assert (run.failed, run.job.state, type(run.error)) == (True, "failed", ConnectionError)
    await kit.run_job(app.split, count=2)
    kit.enqueued.exactly(2, app.send)


async def test_run_job_returns_a_snooze(app: App, kit: Kit) -> None:
    @app.jobs.handler
    async def doze(context: Context) -> None:
        context.snooze("5m")

    run = await kit.run_job(doze)
    assert (run.outcome, run.job.due_at) == ("snoozed", NEW_YEAR + timedelta(minutes=5))


# ---------------------------------------------------------------------------------------------------- inline


async def test_inline_runs_jobs_when_they_are_enqueued_and_raises_their_errors(app: App, kit: Kit) -> None:
    with kit.inline():
        await app.split.enqueue(count=2)
        assert app.ran == ["0", "1"]
        with pytest.raises(ConnectionError):
            await app.send.enqueue(to="nobody")
        await app.send.options(delay="1h").enqueue(to="later")
        await app.send.options(within=object()).enqueue(to="within")
    await app.send.enqueue(to="after")
    assert app.ran == ["0", "1", "nobody", "within"]


async def test_inline_goes_through_json(app: App, kit: Kit) -> None:
    @app.jobs.handler
    async def take(what: list[int]) -> None:
        app.ran.append(what)

    given = [1, 2]
    with kit.inline():
        await take.enqueue(what=given)
    assert app.ran == [given]
    assert app.ran[0] is not given


# ---------------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("after", "outcomes", "ran", "recovered"),
    [
        ("claim", ["succeeded"], ["bob", "ada"], ["succeeded"]),
        ("effect", ["lost", "succeeded"], ["ada", "bob", "ada"], ["succeeded"]),
        ("settle", ["succeeded", "succeeded"], ["ada", "bob"], []),
    ],
)
async def test_a_crash_and_its_recovery(
    app: App,
    kit: Kit,
    after: Literal["claim", "effect", "settle"],
    outcomes: list[str],
    ran: list[str],
    recovered: list[str],
) -> None:
    enqueued = await app.send.enqueue(to="ada")
    await app.send.enqueue(to="bob")
    async with kit.crash(after=after) as crashed:
        assert [run.outcome for run in await kit.drain()] == outcomes
    assert crashed.id == enqueued.id
    assert (await enqueued.job()).state == ("running" if recovered else "succeeded")
    assert crashed.lease == timedelta(seconds=15)
    assert [run.outcome for run in await kit.travel(crashed.lease)] == recovered
    assert app.ran == ran
    assert (await enqueued.job()).crashes == len(recovered)


async def test_a_job_that_crashes_too_often_fails(app: App, kit: Kit) -> None:
    @app.jobs.handler(max_crashes=1)
    async def once() -> None: ...

    await once.enqueue()
    with kit.crash(after="claim") as crashed:
        await kit.drain()
    with pytest.raises(JobFailed, match="crashed 1 times"):
        await kit.travel(crashed.lease)


async def test_a_crash_that_does_not_happen_is_an_error_of_the_test(kit: Kit) -> None:
    with pytest.raises(AssertionError, match="no job ran inside crash"), kit.crash(after="effect"):
        await kit.drain()
    with pytest.raises(InvalidValue, match="one of claim, effect, settle"):
        kit.crash(after="lunch")  # type: ignore[arg-type]


@pytest.mark.parametrize("lose", ["call", "answer", "either"])
async def test_no_job_is_lost_while_the_store_is_flaky(
    app: App, kit: Kit, lose: Literal["call", "answer", "either"]
) -> None:
    await app.jobs.enqueue_many(app.send.draft(to=str(number)) for number in range(5))
    with kit.flaky_store(0.3, lose=lose, seed=2) as flaky:
        await kit.drain()
    assert flaky.failures > 0
    await kit.travel("1m")
    kit.enqueued.exactly(5, app.send, state="succeeded")
    if lose == "call":
        assert sorted(app.ran) == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize(("lose", "stored"), [("call", 0), ("answer", 1)])
async def test_a_lost_answer_means_that_the_store_has_applied_the_call(
    app: App, kit: Kit, lose: Literal["call", "answer"], stored: int
) -> None:
    with kit.flaky_store(0.999, on=["enqueue"], lose=lose), pytest.raises(StoreUnavailable, match=f"lost the {lose}"):
        await app.send.enqueue(to="ada")
    kit.enqueued.exactly(stored, app.send)


async def test_an_outage(app: App, kit: Kit) -> None:
    await app.send.enqueue(to="ada")
    with kit.flaky_store(1, on=["enqueue", "exchange"]) as outage:
        with pytest.raises(StoreUnavailable, match="lost the call of enqueue"):
            await app.send.enqueue(to="bob")
        with pytest.raises(StoreUnavailable, match="lost the call of exchange"):
            await kit.drain()
    assert outage.failures == 2, "the kit did not try again"
    assert (await kit.drain()).names == ["send"]
    for p in (-0.1, 1.1):
        with pytest.raises(InvalidValue, match="a probability from 0 to 1"):
            kit.flaky_store(p)


async def test_the_same_seed_gives_the_same_failures(app: App, kit: Kit) -> None:
    async def failures() -> list[bool]:
        found = []
        with kit.flaky_store(0.5, on=["enqueue"], seed=7):
            for _ in range(20):
                try:
                    await app.send.enqueue(to="ada")
                    found.append(False)
                except StoreUnavailable:
                    found.append(True)
        return found

    first = await failures()
    assert set(first) == {True, False}
    assert await failures() == first
    await app.send.enqueue(to="ada")
    with pytest.raises(InvalidValue, match="some of the verbs"):
        kit.flaky_store(0.5, on=["exchanges"])


# ---------------------------------------------------------------------------------------------------- enqueued


async def test_fields_inside_of_a_field(app: App, kit: Kit) -> None:
    @app.jobs.handler
    async def post(mail: dict[str, Any]) -> None: ...

    await post.enqueue(mail={"to": {"name": "ada", "copies": []}, "tags": ["a"], "more": {"x": 1}})
    kit.enqueued.one(post, mail={"to": {"name": "ada"}})
    kit.enqueued.one(post, mail={"tags": ["a"], "to": {"copies": []}})
    others: list[dict[str, Any]] = [{"tags": []}, {"more": {}}, {"to": {"age": 7}}, {"to": "ada"}]
    for wanted in others:
        kit.enqueued.none(post, mail=wanted)
    with pytest.raises(AssertionError, match="mail.to.name: 'ada' instead of 'bob'"):
        kit.enqueued.one(post, mail={"to": {"name": "bob"}})


async def test_enqueued_finds_jobs_by_handler_payload_and_options(app: App, kit: Kit) -> None:
    await app.send.enqueue(to="ada")
    await app.send.options(
        delay="1h", queue="mail", priority=3, unique_key="k", lane="acme", headers={"a": "b"}
    ).enqueue(to="bob")
    enqueued = kit.enqueued
    assert enqueued.one(app.send, to="ada").payload == {"to": "ada"}
    assert enqueued.one("send", delay="1h").priority == 3
    enqueued.one(app.send, delay="59m59s", queue="mail", unique_key="k", headers={"a": "b"}, state="waiting")
    enqueued.one(app.send, lane="acme")
    enqueued.none(app.send, lane="other")
    enqueued.one(due_at=NEW_YEAR + timedelta(minutes=50), delta="10m")
    enqueued.none(app.send, delay="59m")
    enqueued.none(app.split)
    assert [job.payload["to"] for job in enqueued.exactly(2, app.send)] == ["ada", "bob"]
    assert len(enqueued.some()) == 2
    assert enqueued.all(app.send, to="eve") == []


async def test_a_failure_shows_the_nearest_jobs_and_the_fields_that_differ(app: App, kit: Kit) -> None:
    await app.split.enqueue(count=3)
    await app.send.enqueue(to="ada", text="bye")
    await app.send.options(delay="2h").enqueue(to="ada")
    with pytest.raises(AssertionError) as failed:
        kit.enqueued.one(app.send, to="ada", text="bye", delay="2h")
    assert str(failed.value).splitlines() == [
        "expected 1 job like send(to='ada', text='bye', delay='2h'), found none; the nearest of 3 jobs:",
        "  send(to='ada'): waiting, queue default, due at 2030-01-01 02:00:00+00:00",
        "      text: not given instead of 'bye'",
        "  send(to='ada', text='bye'): waiting, queue default, due at 2030-01-01 00:00:00+00:00",
        "      delay: 0s instead of 2h (± 1s)",
        "  split(count=3): waiting, queue default, due at 2030-01-01 00:00:00+00:00",
        "      name: 'split' instead of 'send'",
        "      to: not given instead of 'ada'",
        "      text: not given instead of 'bye'",
        "      delay: 0s instead of 2h (± 1s)",
    ]


async def test_other_failures(app: App, kit: Kit) -> None:
    with pytest.raises(AssertionError, match="found none: no job was enqueued at all"):
        kit.enqueued.some(app.send)
    for _ in range(7):
        await app.send.enqueue(to="ada")
    with pytest.raises(AssertionError, match=r"expected no job like send\(\), found 7:\n  send\(to='ada'\): waiting"):
        kit.enqueued.none(app.send)
    with pytest.raises(AssertionError, match=r"(?s)expected 2 jobs like \*\(\), found 7:.*and 2 more"):
        kit.enqueued.exactly(2)


async def test_a_field_that_no_job_can_have_is_an_error(app: App, kit: Kit) -> None:
    with pytest.raises(InvalidValue, match="one of the parameters of send: to, text"):
        kit.enqueued.none(app.send, too="ada")

    @app.jobs.handler
    async def move(queue: str) -> None: ...

    await move.enqueue(queue="a")
    with pytest.raises(InvalidValue, match="write payload="):
        kit.enqueued.one(move, queue="a")
    kit.enqueued.one(move, payload={"queue": "a"})


async def test_soon_waits_for_a_job_of_another_task(app: App, kit: Kit) -> None:
    task = asyncio.create_task(app.send.enqueue(to="ada"))
    assert (await kit.enqueued.soon(app.send, to="ada", timeout="10s")).name == "send"
    await task
    with pytest.raises(AssertionError, match=r"(?s)found none.*to: 'ada' instead of 'bob'\n\(after 0\.01\)"):
        await kit.enqueued.soon(app.send, to="bob", timeout=0.01)
    with pytest.raises(InvalidValue, match=r"await enqueued\.soon"):
        kit.enqueued.one(app.send, within=1)


# ---------------------------------------------------------------------------------------------------- sync tests


def test_everything_has_a_sync_twin(app: App, kit: Kit) -> None:
    app.jobs.sync(app.split.enqueue(count=1))
    with kit.crash(after="effect") as crashed:
        kit.drain.sync()
    kit.travel.sync(crashed.lease)
    assert kit.run_job.sync(app.send, to="ada").result == "hello ada"
    kit.enqueued.exactly(2, app.send, within="10s")
    with kit.inline():
        app.jobs.sync(app.split.enqueue(count=1))
    assert app.ran.count("0") == 3


# ---------------------------------------------------------------------------------------------------- the end


async def _fail(app: App) -> Enqueued[str]:
    enqueued = await app.send.options(max_attempts=1).enqueue(to="nobody")
    await app.jobs.tick()
    return enqueued


async def test_a_failed_job_that_nobody_read_is_shown_with_its_traceback(app: App) -> None:
    kit = Kit(app.jobs).__enter__()
    await _fail(app)
    with pytest.warns(LeftoverJobWarning) as warned:
        kit.__exit__(None, None, None)
    (text,) = [str(one.message) for one in warned]
    assert text.startswith("the job send(to='nobody') failed, and the test did not read it:\nTraceback")
    assert text.endswith("ConnectionError: 503")


async def test_a_job_that_runs_at_the_end_is_shown(app: App) -> None:
    kit = Kit(app.jobs).__enter__()
    await app.send.enqueue(to="ada")
    with kit.crash(after="claim"):
        await kit.drain()
    with pytest.warns(LeftoverJobWarning, match=r"while the job send\(to='ada'\) was running"):
        kit.__exit__(None, None, None)


async def test_nothing_is_shown_of_jobs_that_were_read_or_after_an_error_of_the_test(app: App) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for read in ("get", "find", "enqueued"):
            with Kit(app.jobs) as kit:
                enqueued = await _fail(app)
                if read == "get":
                    await enqueued.job()
                elif read == "find":
                    await app.jobs.find(states="failed")
                else:
                    kit.enqueued.one(app.send, state="failed")
        with Kit(app.jobs) as kit:
            await app.send.options(max_attempts=1).enqueue(to="nobody")
            with pytest.raises(ConnectionError):
                await kit.drain()
        kit = Kit(app.jobs).__enter__()
        await _fail(app)
        error = ZeroDivisionError()
        kit.__exit__(type(error), error, None)


async def test_two_kits_of_one_client_follow_each_other(app: App) -> None:
    clock = ManualClock()
    for _ in range(2):
        with Kit(app.jobs, clock=clock) as kit:
            await app.send.enqueue(to="ada")
            kit.enqueued.one(app.send)
            await kit.drain()


def test_tests_in_parallel_threads_do_not_see_each_others_jobs(app: App) -> None:
    together = threading.Barrier(3)

    def one(number: int) -> tuple[list[int], list[str]]:
        with Kit(app.jobs) as kit:
            together.wait(10)
            app.jobs.sync(app.split.enqueue(count=number))
            together.wait(10)
            counts = [job.payload["count"] for job in kit.enqueued.all()]
            runs = kit.drain.sync()
            together.wait(10)
            assert len(kit.enqueued.all(app.send, state="succeeded")) == number
            return counts, runs.names

    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(one, (1, 2, 3)))
    assert found == [([number], ["split"] + ["send"] * number) for number in (1, 2, 3)]


@pytest.mark.parametrize("which", ["oracle", "oracle://x/y"])
def test_an_unknown_store_is_refused(app: App, which: str) -> None:
    with pytest.raises(InvalidValue, match="one of memory, sqlite, postgres, redis, mongo, or a URL"):
        Kit(app.jobs, which)


def test_a_server_needs_its_url(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOBMILL_TEST_REDIS", raising=False)
    with pytest.raises(InvalidValue, match="JOBMILL_TEST_REDIS"):
        Kit(app.jobs, "redis")


async def test_the_kit_on_every_store(
    app: App, store_name: str, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"JOBMILL_TEST_{store_name.upper()}", store_url)
    for _ in range(2):  # the second one finds nothing of the first one
        with Kit(app.jobs, store_name) as kit:
            app.ran.clear()
            assert app.jobs.store.name == store_name
            kit.enqueued.none()
            await app.send.enqueue(to="ada")
            await app.send.options(delay="1h").enqueue(to="bob")
            await app.send.options(every="1h", key="often", delay="90m").enqueue(to="often")
            await app.jobs.queue("paused").pause()
            with kit.crash(after="effect") as crashed:
                await kit.drain()
            assert (await kit.travel(crashed.lease)).names == ["send"]
            assert len(await kit.travel("3h")) == 3
            assert app.ran == ["ada", "ada", "bob", "often", "often"]
            assert kit.enqueued.one(to="ada").crashes == 1
            for sending in (app.send, app.send.options(unique_key="k")):
                with kit.flaky_store(0.999, on=["enqueue"]), pytest.raises(StoreUnavailable, match="lost the call"):
                    await sending.enqueue(to="lost")
            await app.send.options(delay="1h").enqueue(to="left")
            await kit.close_here()
