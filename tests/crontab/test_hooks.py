"""Hooks: when they are called, sync or async. The crontab survives their errors."""

from __future__ import annotations

import asyncio
import functools
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

from jobmill.crontab import CrontabJob
from tests.crontab.support import NOON, WAYS, Scene
from tests.helpers import until


@WAYS
async def test_hooks_are_called_in_order_and_on_idle_once_per_idle_period(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    await scene.memory.add("a")
    await scene.memory.add("b", sleep_until=NOON + timedelta(seconds=5))
    async with scene.run(10):
        assert scene.crontab.is_idle
    assert scene.told.moments == ["start", "document a", "idle", "document b", "idle", "stop"]
    assert not scene.crontab.is_idle


@WAYS
async def test_the_state_while_a_handler_runs(kind: str, concurrency: int) -> None:
    states: list[tuple[bool, bool, bool]] = []

    async def look(job: CrontabJob) -> None:
        crontab = scene.crontab
        states.append((crontab.is_running, crontab.is_processing, crontab.is_idle))

    scene = Scene(kind, concurrency=concurrency, on_document=look)
    assert (scene.crontab.is_running, scene.crontab.is_processing, scene.crontab.is_idle) == (False, False, False)
    await scene.memory.add("a", sleep_until=NOON + timedelta(seconds=1))
    async with scene.run(2):
        assert states == [(True, True, False)]
        assert (scene.crontab.is_running, scene.crontab.is_processing, scene.crontab.is_idle) == (True, False, True)
    assert (scene.crontab.is_running, scene.crontab.is_processing, scene.crontab.is_idle) == (False, False, False)


@WAYS
async def test_a_crontab_is_not_idle_while_a_handler_runs(kind: str, concurrency: int) -> None:
    go_on = asyncio.Event()

    async def wait(job: CrontabJob) -> None:
        await go_on.wait()

    scene = Scene(kind, concurrency=concurrency, on_document=wait)
    await scene.memory.add("a")
    async with scene.run(5):
        assert (scene.crontab.is_processing, scene.crontab.is_idle) == (True, False)
        go_on.set()
        await scene.time.advance(0.1)
        assert scene.crontab.is_idle
    assert scene.told.moments == ["start", "idle", "stop"]


async def _called(job: CrontabJob, threads: list[Any]) -> None:
    threads.append(threading.current_thread())


class _Callable:
    def __init__(self, threads: list[Any]) -> None:
        self.threads = threads

    async def __call__(self, job: CrontabJob) -> None:
        self.threads.append(threading.current_thread())


async def test_async_handlers_of_any_kind_run_in_the_loop() -> None:
    for make in (
        lambda threads: functools.partial(_called, threads=threads),
        _Callable,
        lambda threads: lambda job: _called(job, threads),
    ):
        threads: list[Any] = []
        scene = Scene(on_document=make(threads))
        await scene.memory.add("a")
        async with scene.run():
            await until(lambda threads=threads: threads)  # type: ignore[misc]
        assert threads == [threading.current_thread()]


@WAYS
async def test_a_sync_handler_runs_in_a_thread(kind: str, concurrency: int) -> None:
    threads = []
    held, go_on = threading.Event(), threading.Event()

    def block(job: CrontabJob) -> None:
        threads.append(threading.current_thread())
        held.set()
        assert go_on.wait(10)

    scene = Scene(kind, concurrency=concurrency, on_document=block)
    await scene.memory.add("a", auto_remove=True)
    async with scene.run():
        await until(held.is_set)
        assert scene.crontab.is_processing
        go_on.set()
        await until(lambda: not scene.memory.documents)
    assert threads[0] is not threading.current_thread()


# ------------------------------------------------------------------------------------------------ errors


@WAYS
async def test_an_error_of_a_handler_is_reported_and_other_documents_run(kind: str, concurrency: int) -> None:
    async def fail(job: CrontabJob) -> None:
        scene.told.jobs.append(job)
        if job.id == "bad":
            raise error

    error = ValueError("no")
    scene = Scene(kind, concurrency=concurrency, on_document=fail, lock_duration="20s")
    await scene.memory.add("bad", sleep_until=NOON - timedelta(seconds=1), data=1)
    await scene.memory.add("good")
    async with scene.run(1):
        assert scene.told.ids == ["bad", "good"]
        assert scene.sleep_until("bad") == NOON + timedelta(seconds=20)
        assert scene.sleep_until("good") is None
        scene.expected = [(error, scene.told.jobs[0])]
        # Again when the lock ends.
        await scene.time.advance(19)
        assert scene.told.ids == ["bad", "good", "bad"]
        scene.expected.append((error, scene.told.jobs[2]))


class _Odd(BaseException):
    """What libraries have that do not want to be caught."""


@WAYS
@pytest.mark.parametrize("error", [SystemExit(3), _Odd("odd"), asyncio.CancelledError("its own")])
async def test_a_handler_that_raises_system_exit_stops_nothing(
    kind: str, concurrency: int, error: BaseException
) -> None:
    async def fail(job: CrontabJob) -> None:
        raise error

    scene = Scene(kind, concurrency=concurrency, on_document=fail)
    await scene.memory.add("a")
    async with scene.crontab:
        await scene.time.advance(1)
        assert scene.crontab.is_running
        [(told, job)] = scene.told.errors
        assert job is not None
        assert told is error or str(told) == "the handler was cancelled"
        assert scene.sleep_until() == NOON + timedelta(minutes=10)


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("name", ["on_start", "on_stop", "on_idle"])
async def test_an_error_of_another_hook_is_reported_and_stops_nothing(name: str, is_async: bool) -> None:
    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    error = ValueError(name)
    hook: dict[str, Any] = {name: fail_async if is_async else fail}
    scene = Scene(**hook)
    await scene.memory.add("a")
    scene.expected = [(error, None)]
    async with scene.run(1):
        assert scene.told.ids == ["a"]
        assert scene.crontab.is_running
    assert not scene.crontab.is_running


@pytest.mark.parametrize("error", [SystemExit(3), _Odd("odd")])
@pytest.mark.parametrize("name", ["on_start", "on_stop", "on_idle"])
async def test_another_hook_that_raises_system_exit_stops_nothing(name: str, error: BaseException) -> None:
    def fail() -> None:
        raise error

    hook: dict[str, Any] = {name: fail}
    scene = Scene(**hook)
    await scene.memory.add("a")
    scene.expected = [(error, None)]
    async with scene.run(1):
        assert scene.told.ids == ["a"]
        assert scene.crontab.is_running


@pytest.mark.parametrize("error", [SystemExit(3), _Odd("odd")])
async def test_on_error_that_raises_system_exit_stops_nothing(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise error

    scene = Scene(on_document=fail, on_error=fail)
    await scene.memory.add("a")
    async with scene.run():
        await until(lambda: "on_error raised an error while handling" in caplog.text)
        assert scene.crontab.is_running


@pytest.mark.parametrize("is_async", [False, True])
async def test_an_error_of_on_error_is_logged(is_async: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def fail(job: CrontabJob) -> None:
        raise ValueError(f"handler of {job.id}")

    def fail_again(error: BaseException, job: CrontabJob | None) -> None:
        raise KeyError("hook")

    async def fail_again_async(error: BaseException, job: CrontabJob | None) -> None:
        raise KeyError("hook")

    scene = Scene(on_document=fail, on_error=fail_again_async if is_async else fail_again)
    await scene.memory.add("a")
    await scene.memory.add("b")
    async with scene.run(1):
        assert scene.crontab.is_running
    said = [record.getMessage() for record in caplog.records]
    assert said == [
        f"on_error raised an error while handling ValueError: handler of {id} (the job '{id}')" for id in "ab"
    ]
    assert all(record.exc_info for record in caplog.records)


async def test_without_on_error_errors_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(job: CrontabJob) -> None:
        raise ValueError("no")

    def fail_idle() -> None:
        raise KeyError("idle")

    scene = Scene(on_document=fail, on_idle=fail_idle, on_error=None)
    await scene.memory.add("a")
    async with scene.run(1):
        pass
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.ERROR, "the job 'a': ValueError: no"),
        (logging.ERROR, "the crontab: KeyError: 'idle'"),
    ]


async def test_an_on_error_with_one_parameter_gets_only_the_error() -> None:
    told: list[BaseException] = []

    def fail(job: CrontabJob) -> None:
        raise ValueError(job.id)

    scene = Scene(on_document=fail, on_error=told.append)
    await scene.memory.add("a")
    async with scene.run(1):
        pass
    assert [(type(error), str(error)) for error in told] == [(ValueError, "a")]
