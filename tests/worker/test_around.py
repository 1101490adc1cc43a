"""`jobs.around`: functions that wrap each run and are part of it, for async, threaded and isolated handlers."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

import jobmill
from jobmill import Client, Context, Enqueued, InvalidValue, Job, JobFailed, RunEnd, Worker
from tests.worker import surrounded_handlers

KINDS = ("async", "thread")


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


def add_handler(jobs: Client, kind: str, work: Callable[[], object], **options: Any) -> None:
    async def coroutine() -> object:
        await asyncio.sleep(0)
        return work()

    jobs.handler(name="work", **options)(coroutine if kind == "async" else work)


async def run(jobs: Client) -> Job:
    """One job, run in one tick."""
    enqueued = await jobs.enqueue("work")
    await jobs.tick()
    return await enqueued.job()


# ---------------------------------------------------------------------------------------------------- order and place


@pytest.mark.parametrize("kind", KINDS)
async def test_they_nest_in_the_order_given_and_plain_ones_are_inside_of_async_ones(jobs: Client, kind: str) -> None:
    order: list[str] = []
    threads: dict[str, threading.Thread] = {}

    def note(name: str) -> None:
        order.append(name)
        threads[name] = threading.current_thread()

    @jobs.around
    def plain(context: Context) -> Iterator[None]:
        note("plain in")
        yield
        note("plain out")

    @jobs.around
    async def first(context: Context) -> AsyncIterator[None]:
        note(f"first in, attempt {context.attempt}")
        yield
        note("first out")

    @jobs.around
    @asynccontextmanager
    async def second(context: Context) -> AsyncIterator[None]:
        note("second in")
        yield
        note("second out")

    @jobs.around
    @contextmanager
    def decorated(context: Context) -> Iterator[None]:
        note("decorated in")
        yield
        note("decorated out")

    add_handler(jobs, kind, lambda: note("runs"))
    assert (await run(jobs)).state == "succeeded"
    assert order == [
        "first in, attempt 1", "second in", "plain in", "decorated in", "runs",
        "decorated out", "plain out", "second out", "first out",
    ]  # fmt: skip
    here = threading.current_thread()
    assert threads["first out"] is threads["second in"] is here
    assert threads["plain in"] is threads["runs"] is threads["decorated out"]
    assert (threads["runs"] is here) == (kind == "async")


@pytest.mark.parametrize("kind", KINDS)
async def test_the_handler_sees_their_context_variables(jobs: Client, kind: str) -> None:
    tenant = contextvars.ContextVar("tenant", default="")
    after: list[str] = []

    @jobs.around
    async def with_tenant(context: Context) -> AsyncIterator[None]:
        token = tenant.set(context.job.id)
        yield
        tenant.reset(token)
        after.append(tenant.get())

    add_handler(jobs, kind, lambda: tenant.get())
    job = await run(jobs)
    assert (job.result, after) == (job.id, [""])


# ---------------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize("kind", KINDS)
async def test_they_see_the_error_which_stays_the_error_of_the_attempt(jobs: Client, kind: str) -> None:
    seen: list[BaseException] = []

    @jobs.around
    async def outer(context: Context) -> AsyncIterator[None]:
        try:
            yield
        except ValueError as error:
            seen.append(error)
            raise

    @jobs.around
    def inner(context: Context) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            seen.append(error)
            raise

    def broken() -> None:
        raise ValueError("no")

    add_handler(jobs, kind, broken, max_attempts=1)
    job = await run(jobs)
    first, second = seen
    assert first is second
    assert (job.state, job.error) == ("failed", "ValueError: no")
    (attempt,) = job.attempts
    traceback = str(attempt.traceback)
    assert traceback.count("File ") == (2 if kind == "async" else 1), traceback
    assert "in broken" in traceback


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("moment", ["before", "after"])
async def test_their_errors_are_errors_of_the_attempt(jobs: Client, kind: str, is_async: bool, moment: str) -> None:
    ran: list[bool] = []

    def step(now: str) -> None:
        if now == moment:
            raise ConnectionError("no session")

    async def asynchronous(context: Context) -> AsyncIterator[None]:
        step("before")
        yield
        step("after")

    def plain(context: Context) -> Iterator[None]:
        step("before")
        yield
        step("after")

    jobs.around(asynchronous if is_async else plain)
    add_handler(jobs, kind, lambda: ran.append(True), max_attempts=2, backoff="1h")
    job = await run(jobs)
    assert (job.state, job.errors, job.error) == ("waiting", 1, "ConnectionError: no session")
    assert ran == ([True] if moment == "after" else [])
    traceback = str(job.attempts[0].traceback)
    assert (traceback.count("File "), traceback.count("in step")) == (2, 1), traceback


async def test_one_that_swallows_the_error_makes_the_attempt_a_success(jobs: Client) -> None:
    @jobs.around
    async def forgiving(context: Context) -> AsyncIterator[None]:
        try:
            yield
        except ValueError:
            context.log("forgiven")

    def broken() -> None:
        raise ValueError("no")

    add_handler(jobs, "async", broken)
    job = await run(jobs)
    assert (job.state, job.result) == ("succeeded", None)


async def test_a_snooze_passes_through_them_and_one_may_snooze_itself(jobs: Client) -> None:
    seen: list[str] = []

    @jobs.around
    async def quiet_hours(context: Context) -> AsyncIterator[None]:
        try:
            yield
        except jobmill.Snooze:
            seen.append("snoozed")
            raise
        context.snooze("1h")

    def snoozes() -> None:
        raise jobmill.Snooze("2h")

    add_handler(jobs, "async", snoozes)
    job = await run(jobs)
    assert (job.state, job.errors, seen) == ("waiting", 0, ["snoozed"])


@pytest.mark.parametrize("where", ["before", "after"])
async def test_they_count_into_the_timeout(jobs: Client, where: str) -> None:
    seen: list[str] = []

    @jobs.around
    async def slow(context: Context) -> AsyncIterator[None]:
        try:
            if where == "before":
                await asyncio.sleep(3600)
            yield
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            seen.append(where)
            raise

    add_handler(jobs, "async", lambda: None, timeout="50ms", max_attempts=1)
    job = await run(jobs)
    assert (job.state, job.error, seen) == ("failed", "timed out after 50ms", [where])


async def test_a_payload_that_does_not_fit_runs_nothing(jobs: Client) -> None:
    seen: list[str] = []

    @jobs.around
    async def note(context: Context) -> AsyncIterator[None]:
        seen.append("in")
        yield

    @jobs.handler
    async def number(n: int) -> None: ...

    enqueued = await jobmill.connect(store=jobs.store).enqueue("number", {"n": "x"})
    await jobs.tick()
    assert ((await enqueued.job()).state, seen) == ("failed", [])


async def test_observers_see_how_a_run_with_them_ended(jobs: Client) -> None:
    ends: list[str] = []

    @jobs.observe("run")
    def observer(context: Context) -> Generator[None, RunEnd, None]:
        ends.append((yield).outcome)

    @jobs.around
    async def broken(context: Context) -> AsyncIterator[None]:
        yield
        raise ValueError("after")

    add_handler(jobs, "async", lambda: None)
    await run(jobs)
    assert ends == ["errored"]


def test_what_cannot_be_around_is_refused(jobs: Client) -> None:
    async def returns(context: Context) -> None: ...

    for wrong in (returns, lambda context: None, "run"):
        with pytest.raises(InvalidValue, match="around: expected an async generator function or a generator function"):
            jobs.around(wrong)  # type: ignore[type-var]


# ---------------------------------------------------------------------------------------------------- isolated


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    path = tmp_path / "notes"
    monkeypatch.setenv(surrounded_handlers.NOTES, str(path))
    return lambda: path.read_text().splitlines()


async def ended(enqueued: Enqueued[Any]) -> Job:
    with contextlib.suppress(JobFailed):
        await enqueued.result(timeout=30)
    return await enqueued.job()


async def outcome(name: str) -> Job:
    """A job of the isolated handlers, run to its end."""
    jobs = surrounded_handlers.jobs
    async with Worker(jobs):
        return await ended(await jobs.enqueue(name))


@pytest.mark.parametrize("name", ["in_main", "in_loop"])
async def test_in_an_isolated_process_they_run_in_the_child(notes: Callable[[], list[str]], name: str) -> None:
    job = await outcome(name)
    is_main = name == "in_main"
    assert job.result["tenant"] == f"of {name}"
    assert job.result["thread"] == ("MainThread" if is_main else "jobmill-around")
    inside = ["async in True", f"plain in {is_main}", "runs", "plain out", "async out"]
    # The worker has its own lifespan, around that of the child.
    assert notes() == ["open", "open", *inside, "close", "close"]


async def test_in_an_isolated_process_they_see_errors(notes: Callable[[], list[str]]) -> None:
    job = await outcome("raises")
    assert (job.state, job.error) == ("failed", "ValueError: from the child")
    assert str(job.attempts[0].traceback).count("File ") == 1
    assert "saw from the child" in notes()


@pytest.mark.parametrize(
    ("name", "error"), [("exits", "SystemExit: 3"), ("stops", "the handler raised StopIteration(5)")]
)
async def test_in_an_isolated_process_no_error_stops_the_loop(
    notes: Callable[[], list[str]], name: str, error: str
) -> None:
    job = await outcome(name)
    assert job.state == "failed"
    assert error in str(job.error)
    assert "async out" in notes()


async def test_an_error_of_a_lifespan_in_an_isolated_process_is_one_of_the_attempt(
    notes: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = surrounded_handlers.jobs
    async with Worker(jobs):
        monkeypatch.setenv("SURROUNDED_BREAK", "1")  # the lifespan of the worker is open already
        enqueued = await surrounded_handlers.in_main.options(max_attempts=1).enqueue()
        job = await ended(enqueued)
    assert job.state == "failed"
    assert str(job.error).startswith("the lifespan state raised OSError: no database (surrounded_handlers.py:")


async def test_a_process_of_a_pool_opens_lifespans_once(notes: Callable[[], list[str]]) -> None:
    around = ["async in True", "plain in True", "plain out", "async out"]
    async with Worker(surrounded_handlers.jobs, concurrency=1):
        seen = [(await ended(await surrounded_handlers.in_pool.enqueue())).result for _ in range(3)]
        assert notes() == ["open", "open", *around * 3]
    assert len({one["pid"] for one in seen}) == 1
    assert [one["tenant"] for one in seen] == ["of in_pool"] * 3
    assert notes()[-2:] == ["close", "close"]


async def test_a_process_of_a_pool_ends_if_a_task_is_left(notes: Callable[[], list[str]]) -> None:
    async with Worker(surrounded_handlers.jobs, concurrency=1):
        first = (await ended(await surrounded_handlers.leaves_a_task.enqueue())).result
        assert notes().count("close") == 1
        assert (await ended(await surrounded_handlers.in_pool.enqueue())).result["pid"] != first["pid"]
