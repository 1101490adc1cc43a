"""Start and stop: what a stop waits for, what it cancels, and that a start after it works."""

from __future__ import annotations

import asyncio
import threading
from datetime import datetime, timedelta

import pytest

from jobmill.crontab import CrontabJob, crontab
from tests.crontab.support import NOON, WAYS, Scene, settled
from tests.helpers import until


class Held:
    """A handler that ends when it may."""

    def __init__(self) -> None:
        self.began: list[object] = []
        self.ended: list[object] = []
        self.cancelled: list[object] = []
        self.go_on = asyncio.Event()

    async def __call__(self, job: CrontabJob) -> None:
        self.began.append(job.id)
        try:
            await self.go_on.wait()
        except asyncio.CancelledError:
            self.cancelled.append(job.id)
            raise
        self.ended.append(job.id)


@WAYS
async def test_stop_waits_for_the_handler_and_its_write(kind: str, concurrency: int) -> None:
    held = Held()
    scene = Scene(kind, concurrency=concurrency, on_document=held)
    await scene.memory.add("a")
    scene.memory.gate = asyncio.Event()
    await scene.crontab.start()
    await until(lambda: held.began)
    stopping = asyncio.create_task(scene.crontab.stop())
    await settled()
    assert (scene.crontab.is_running, scene.crontab.is_processing, stopping.done()) == (False, True, False)
    held.go_on.set()
    await settled()
    # Handled, and not yet written.
    assert held.ended == ["a"]
    assert (scene.crontab.is_running, scene.crontab.is_processing, stopping.done()) == (False, True, False)
    assert scene.told.moments == ["start"]
    scene.memory.gate.set()
    await stopping
    assert scene.sleep_until() is None
    assert not scene.crontab.is_processing
    assert scene.told.moments == ["start", "stop"]


@WAYS
async def test_nothing_is_locked_after_a_stop(kind: str, concurrency: int) -> None:
    held = Held()
    scene = Scene(kind, concurrency=concurrency, on_document=held)
    await scene.memory.add("a")
    await scene.crontab.start()
    await until(lambda: held.began)
    stopping = asyncio.create_task(scene.crontab.stop())
    await settled()
    await scene.memory.add("b")
    held.go_on.set()
    await stopping
    assert held.began == ["a"]
    assert scene.sleep_until("b") == NOON


@WAYS
async def test_documents_of_a_lock_in_flight_are_released_after_the_stop(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency, next_delay="1s")
    due = NOON - timedelta(seconds=7)
    await scene.memory.add("a", sleep_until=due)
    answering, answer = asyncio.Event(), asyncio.Event()
    lock = scene.memory.lock_documents

    async def slow(lock_until: datetime, most: int) -> list[CrontabJob]:
        jobs = await lock(lock_until, most)
        answering.set()
        await answer.wait()
        return jobs

    scene.memory.lock_documents = slow  # type: ignore[method-assign]
    await scene.crontab.start()
    await scene.time.advance(1)
    await answering.wait()
    assert scene.sleep_until() == NOON + timedelta(seconds=601)
    stopping = asyncio.create_task(scene.crontab.stop())
    await settled()
    answer.set()
    await stopping
    assert scene.told.ids == []
    assert scene.sleep_until() == due


@WAYS
async def test_start_after_stop_and_stop_twice(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    for id in ("a", "b"):
        await scene.memory.add(id)
        await scene.crontab.start()
        assert scene.crontab.is_running
        await scene.time.advance(1)
        await asyncio.gather(scene.crontab.stop(), scene.crontab.stop())
        await scene.crontab.stop()
        assert not scene.crontab.is_running
    assert scene.told.moments == ["start", "document a", "idle", "stop", "start", "document b", "idle", "stop"]


async def test_stop_without_a_start_does_nothing() -> None:
    scene = Scene()
    await scene.crontab.stop()
    assert scene.told.moments == []


async def test_start_of_a_running_crontab_does_nothing() -> None:
    scene = Scene()
    await scene.memory.add("a")
    async with scene.run(1):
        await scene.crontab.start()
        await scene.time.advance(1)
    assert scene.told.moments == ["start", "document a", "idle", "stop"]


async def test_start_of_a_stopping_crontab_waits_for_its_end() -> None:
    held = Held()
    scene = Scene(on_document=held)
    await scene.memory.add("a")
    await scene.crontab.start()
    await until(lambda: held.began)
    stopping = asyncio.create_task(scene.crontab.stop())
    await settled()
    starting = asyncio.create_task(scene.crontab.start())
    await settled()
    assert scene.told.moments == ["start"]
    held.go_on.set()
    await stopping
    await starting
    assert scene.crontab.is_running
    await scene.crontab.stop()
    assert [moment for moment in scene.told.moments if moment != "idle"] == ["start", "stop", "start", "stop"]


@WAYS
async def test_a_stop_interrupts_every_delay(kind: str, concurrency: int) -> None:
    for options in ({"idle_delay": "1d"}, {"next_delay": "1d"}):
        scene = Scene(kind, concurrency=concurrency, **options)
        async with scene.run(), asyncio.timeout(5):
            await settled()


# ------------------------------------------------------------------------------------------------ time is over


@WAYS
async def test_handlers_are_cancelled_after_the_timeout_and_locks_stay(
    kind: str, concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held()
    scene = Scene(kind, concurrency=concurrency, on_document=held)
    await scene.memory.add("a")
    await scene.crontab.start()
    await until(lambda: held.began)
    await scene.crontab.stop(timeout="10ms")
    assert held.cancelled == ["a"]
    assert scene.sleep_until() == NOON + timedelta(minutes=10)
    assert scene.told.errors == []
    assert scene.told.moments == ["start", "stop"]
    assert (
        "crontab: 1 handler did not end in time; their documents are handled again when their locks have ended"
        in caplog.text
    )


@WAYS
async def test_a_write_in_flight_is_not_cancelled_after_the_timeout(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    await scene.memory.add("a")
    scene.memory.gate = asyncio.Event()
    await scene.crontab.start()
    await until(lambda: scene.told.ids)
    stopping = asyncio.create_task(scene.crontab.stop(timeout=0))
    await settled()
    assert not stopping.done()
    scene.memory.gate.set()
    await stopping
    assert scene.sleep_until() is None


@WAYS
async def test_a_store_that_never_answers_does_not_block_the_stop(
    kind: str, concurrency: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(crontab, "LAST_CALLS_S", 0.01)
    scene = Scene(kind, concurrency=concurrency)
    await scene.memory.add("a")
    scene.memory.gate = asyncio.Event()
    await scene.crontab.start()
    await until(lambda: scene.told.ids)
    await scene.crontab.stop(timeout=0)
    assert scene.told.moments[-1] == "stop"
    assert not scene.crontab.is_running
    assert (
        "crontab: 1 endings could not be written in time; their documents are handled again when their locks have ended"
        in caplog.text
    )
    # And it is as good as new.
    scene.memory.gate = None
    await scene.memory.add("b")
    async with scene.run(1):
        assert scene.told.ids == ["a", "b"]


async def test_an_error_of_on_stop_after_a_hanging_write_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    async def give_up() -> None:
        raise asyncio.CancelledError("its own")

    monkeypatch.setattr(crontab, "LAST_CALLS_S", 0.01)
    scene = Scene(on_stop=give_up)
    await scene.memory.add("a")
    scene.memory.gate = asyncio.Event()
    await scene.crontab.start()
    await until(lambda: scene.told.ids)
    await scene.crontab.stop(timeout=0)
    [(error, job)] = scene.told.errors
    assert (str(error), job) == ("its own", None)


async def test_an_on_stop_that_never_returns_does_not_block_the_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crontab, "LAST_CALLS_S", 0.01)
    cancelled: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("on_stop")
            raise

    scene = Scene(on_stop=hang)
    await scene.memory.add("a")
    scene.memory.gate = asyncio.Event()
    await scene.crontab.start()
    await until(lambda: scene.told.ids)
    async with asyncio.timeout(5):
        await scene.crontab.stop(timeout=0)
    assert cancelled == ["on_stop"]
    assert not scene.crontab.is_running


async def test_a_thread_that_never_ends_does_not_block_the_stop() -> None:
    began, go_on = threading.Event(), threading.Event()

    def block(job: CrontabJob) -> None:
        began.set()
        go_on.wait(10)

    scene = Scene(on_document=block)
    await scene.memory.add("a")
    await scene.crontab.start()
    await until(began.is_set)
    await scene.crontab.stop(timeout=0)
    assert not scene.crontab.is_running
    assert scene.sleep_until() == NOON + timedelta(minutes=10)
    go_on.set()


# ------------------------------------------------------------------------------------------------ run and cancel


@WAYS
async def test_run_returns_after_a_stop(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    await scene.memory.add("a")
    running = asyncio.create_task(scene.crontab.run())
    await until(lambda: scene.crontab.is_idle)
    await scene.crontab.stop()
    await running
    assert scene.told.moments == ["start", "document a", "idle", "stop"]


@WAYS
async def test_cancelling_the_task_of_run_is_a_stop(kind: str, concurrency: int) -> None:
    held = Held()
    scene = Scene(kind, concurrency=concurrency, on_document=held)
    await scene.memory.add("a")
    running = asyncio.create_task(scene.crontab.run())
    await until(lambda: held.began)
    running.cancel()
    await settled()
    assert not running.done()
    assert not scene.crontab.is_running
    assert held.cancelled == []
    held.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert held.ended == ["a"]
    assert scene.sleep_until() is None
    assert scene.told.moments == ["start", "stop"]


@WAYS
async def test_cancelling_the_task_of_run_again_cancels_handlers(kind: str, concurrency: int) -> None:
    held = Held()
    scene = Scene(kind, concurrency=concurrency, on_document=held)
    await scene.memory.add("a")
    running = asyncio.create_task(scene.crontab.run())
    await until(lambda: held.began)
    for _ in range(2):
        running.cancel()
        await settled()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert held.cancelled == ["a"]
    assert scene.told.moments == ["start", "stop"]
    assert scene.sleep_until() == NOON + timedelta(minutes=10)


async def test_cancelling_during_on_start_leaves_nothing_running() -> None:
    async def wait() -> None:
        waiting.set()
        await go_on.wait()

    waiting, go_on = asyncio.Event(), asyncio.Event()
    scene = Scene(on_start=wait)
    await scene.memory.add("a")
    running = asyncio.create_task(scene.crontab.run())
    await waiting.wait()
    running.cancel()
    await settled()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert not scene.crontab.is_running
    assert scene.told.moments == ["stop"]
    assert scene.sleep_until() == NOON


async def test_a_with_body_that_raises_stops_the_crontab() -> None:
    scene = Scene()
    await scene.memory.add("a")

    async def body() -> None:
        async with scene.crontab as started:
            assert started is scene.crontab
            await until(lambda: scene.told.ids)
            raise KeyError("body")

    with pytest.raises(KeyError):
        await body()
    assert not scene.crontab.is_running
    assert scene.told.moments[-1] == "stop"


async def test_a_crontab_can_start_again_after_its_loop_ended_without_a_stop() -> None:
    scene = Scene()
    await scene.memory.add("a")

    async def start_only() -> None:
        await scene.crontab.start()
        await until(lambda: scene.told.ids)

    def in_a_loop_of_its_own() -> None:
        asyncio.run(start_only())

    await asyncio.to_thread(in_a_loop_of_its_own)
    assert not scene.crontab.is_running
    await scene.memory.add("b")
    async with scene.run(1):
        assert scene.told.ids == ["a", "b"]
