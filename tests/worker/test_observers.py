"""Observers: what observes each run of a job, and each call that enqueues."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Generator
from typing import Any

import pytest
from msgspec import structs

import jobmill
from jobmill import Client, Draft, Enqueued, InvalidValue, RunEnd, StoreUnavailable
from jobmill.worker.worker import Worker
from tests.helpers import FaultyStore, until
from tests.worker import isolated_handlers

Runs = Generator[None, RunEnd, None]
Enqueues = Generator[None, list[Enqueued[Any]], None]


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


def collect(jobs: Client) -> list[RunEnd]:
    ends: list[RunEnd] = []

    @jobs.observe("run")
    def collecting(context: jobmill.Context) -> Runs:
        ends.append((yield))

    return ends


# ---------------------------------------------------------------------------------------------------- runs


async def test_observers_nest_around_the_run(jobs: Client) -> None:
    order: list[str] = []

    def observer(name: str) -> Callable[[jobmill.Context], Runs]:
        def observe(context: jobmill.Context) -> Runs:
            order.append(f"{name} begins {context.job.payload['n']}")
            end = yield
            order.append(f"{name} ends {end.outcome}")

        return observe

    jobs.observe("run")(observer("outer"))

    @jobs.handler
    async def work(n: int) -> None:
        order.append("runs")

    async with Worker(jobs):
        jobs.observe("run")(observer("inner"))  # also while the worker runs
        await (await work.enqueue(n=7)).result(timeout=10)
    assert order == ["outer begins 7", "inner begins 7", "runs", "inner ends succeeded", "outer ends succeeded"]


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_the_handler_sees_context_variables_of_an_observer(jobs: Client, kind: str) -> None:
    variable = contextvars.ContextVar("variable", default="")
    after: list[str] = []

    @jobs.observe("run")
    def observe(context: jobmill.Context) -> Runs:
        token = variable.set(context.job.id)
        yield
        variable.reset(token)
        after.append(variable.get())

    def plain() -> str:
        return variable.get()

    async def coroutine() -> str:
        await asyncio.sleep(0)
        return variable.get()

    handler = jobs.handler(name="see")(coroutine if kind == "async" else plain)
    async with Worker(jobs):
        enqueued = await handler.enqueue()
        assert await enqueued.result(timeout=10) == enqueued.id
        await until(lambda: after == [""])


async def test_errors_retries_and_the_failure(jobs: Client) -> None:
    ends = collect(jobs)

    @jobs.handler(max_attempts=2, backoff="1ms")
    def fails() -> None:
        raise ValueError("no")

    async with Worker(jobs):
        with pytest.raises(jobmill.JobFailed):
            await (await fails.enqueue()).result(timeout=10)
    first, last = ends
    assert (first.outcome, first.failed, last.outcome, last.failed) == ("errored", False, "errored", True)
    assert isinstance(last.error, ValueError)
    assert last.error.__traceback__ is not None
    assert "ValueError: no" in (last.traceback or "")


async def test_a_recurring_job_that_failed_this_time(jobs: Client) -> None:
    ends = collect(jobs)

    @jobs.handler(max_attempts=1, every="1h")
    async def hourly() -> None:
        raise ValueError("no")

    async with Worker(jobs):
        await until(lambda: ends)
    assert (ends[0].outcome, ends[0].failed) == ("errored", True)


async def test_a_timeout_a_snooze_and_an_unfit_payload(jobs: Client) -> None:
    ends = collect(jobs)

    @jobs.handler(max_attempts=1, timeout=0.01)
    async def slow() -> None:
        await asyncio.sleep(60)

    @jobs.handler
    async def later() -> None:
        raise jobmill.Snooze("1h")

    @jobs.handler
    async def number(n: int) -> None: ...

    async with Worker(jobs, concurrency=1):
        for name in ("slow", "later"):
            await jobs.enqueue(name)
        await jobmill.connect(store=jobs.store).enqueue("number", {"n": "x"})
        await until(lambda: len(ends) == 3)
    assert [(end.outcome, type(end.error), end.failed) for end in ends] == [
        ("errored", TimeoutError, True),
        ("snoozed", type(None), False),
        ("errored", RuntimeError, True),
    ]


async def test_a_cancelled_and_a_released_run(jobs: Client) -> None:
    ends = collect(jobs)
    started = asyncio.Event()

    @jobs.handler
    async def long() -> None:
        started.set()
        await asyncio.sleep(60)

    async with Worker(jobs, lease="900ms"):
        enqueued = await long.enqueue()
        await started.wait()
        await jobs.cancel(enqueued.id)
        await until(lambda: ends)
    assert ends == [RunEnd(outcome="lost")]
    worker = Worker(jobs)
    await worker.start()
    started.clear()
    await long.enqueue()
    await started.wait()
    await worker.stop(timeout=0)
    assert ends[1:] == [RunEnd(outcome="released")]


async def test_an_isolated_run() -> None:
    jobs = isolated_handlers.jobs
    ends = collect(jobs)
    try:
        async with Worker(jobs):
            with pytest.raises(jobmill.JobFailed):
                await (await isolated_handlers.raises.options(max_attempts=1).enqueue("from a child")).result(
                    timeout=20
                )
    finally:
        jobs.hooks.observers.run.clear()
    (end,) = ends
    assert (end.outcome, end.failed, type(end.error), end.error_type) == ("errored", True, RuntimeError, "ValueError")
    assert str(end.error) == "ValueError: from a child"
    assert "in raises" in (end.traceback or "")


class Wrong:
    """Observers that misbehave."""

    @staticmethod
    def raises_before(_: Any) -> Runs:
        if _ is not None:
            raise SystemExit(3)
        yield

    @staticmethod
    def raises_after(_: Any) -> Runs:
        yield
        raise ValueError("after")

    @staticmethod
    def has_no_turn(_: Any) -> Runs:
        if _ is None:
            yield

    @staticmethod
    def has_two(_: Any) -> Runs:
        yield
        yield


@pytest.mark.parametrize("name", [name for name in vars(Wrong) if not name.startswith("_")])
async def test_an_observer_that_misbehaves_affects_no_job(
    jobs: Client, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    ends = collect(jobs)
    for what in ("run", "enqueue"):
        jobs.observe(what)(getattr(Wrong, name))

    @jobs.handler
    async def fine() -> int:
        return 1

    async with Worker(jobs):
        assert await (await fine.enqueue()).result(timeout=10) == 1
    assert [end.outcome for end in ends] == ["succeeded"]
    logged = [record for record in caplog.records if record.getMessage().startswith(f"the observer {name} raised")]
    assert len(logged) == (2 if "raises" in name else 0)
    assert all(record.levelno == logging.ERROR and record.exc_info for record in logged)


def test_what_is_no_observer_is_refused(jobs: Client) -> None:
    with pytest.raises(InvalidValue, match="observe: expected one of run, enqueue"):
        jobs.observe("start")(Wrong.has_two)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="observe: expected a generator function"):
        jobs.observe("run")(lambda context: None)  # type: ignore[type-var]


# ---------------------------------------------------------------------------------------------------- enqueueing


async def test_an_observer_replaces_drafts_and_gets_the_results(jobs: Client) -> None:
    results: list[str] = []

    @jobs.observe("enqueue")
    def urgent(drafts: list[Draft[Any]]) -> Enqueues:
        for at, draft in enumerate(drafts):
            drafts[at] = structs.replace(draft, options=structs.replace(draft.options, priority=9))
        enqueued = yield
        results.extend(one.id for one in enqueued)

    @jobs.handler
    async def work() -> None: ...

    first = await work.enqueue()
    second, third = await jobs.enqueue_many(work.draft() for _ in range(2))
    fourth = await jobs.enqueue("elsewhere")
    assert results == [first.id, second.id, third.id, fourth.id]
    assert [job.priority for job in [await jobs.get(id) for id in results]] == [9, 9, 9, 9]


def test_the_sync_client_has_the_same_observers(jobs: Client) -> None:
    seen: list[str] = []

    @jobs.observe("enqueue")
    def observe(drafts: list[Draft[Any]]) -> Enqueues:
        seen.extend(draft.name for draft in drafts)
        yield

    jobs.sync.enqueue("elsewhere")
    assert seen == ["elsewhere"]


async def test_an_observer_sees_the_error_of_the_call(caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyStore()
    jobs = jobmill.connect(store=store)
    seen: list[BaseException] = []

    @jobs.observe("enqueue")
    def passes_it_on(drafts: list[Draft[Any]]) -> Enqueues:
        yield

    @jobs.observe("enqueue")
    def handles_it(drafts: list[Draft[Any]]) -> Enqueues:
        try:
            yield
        except StoreUnavailable as error:
            seen.append(error)

    error = StoreUnavailable("away")
    store.faults["enqueue"] = error
    with pytest.raises(StoreUnavailable, match="away"):
        await jobs.enqueue("elsewhere")
    assert seen == [error]
    assert not caplog.records
