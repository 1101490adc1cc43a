"""Errors: an unavailable store, a store that refuses a document, and invalid documents."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from typing import Any

import pytest

from jobmill import InvalidValue
from jobmill.crontab import CrontabJob
from tests.crontab.support import NOON, WAYS, Scene
from tests.helpers import until


@WAYS
async def test_calls_to_an_unavailable_store_are_retried_and_reported_once(
    kind: str, concurrency: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "jobmill")
    scene = Scene(kind, concurrency=concurrency, idle_delay="1s")
    error = ConnectionError("nobody there")
    scene.memory.faults["lock"] = error
    await scene.memory.add("a")
    async with scene.run(60):
        assert scene.crontab.is_running
        assert not scene.crontab.is_idle
        assert scene.told.errors == [(error, None)]
        looking = concurrency if kind == "plain" else 1
        # From a tenth of a second up to five, with jitter.
        assert max(scene.time.slept) <= 5.0
        assert min(scene.time.slept) >= 0.05
        assert 60 / 5 <= len(scene.memory.calls) / looking <= 60 / 2.5 + 10
        scene.memory.faults.clear()
        await scene.time.advance(5)
        assert scene.told.ids == ["a"]
        # Another outage is reported again.
        scene.memory.faults["lock"] = error
        await scene.time.advance(10)
        scene.expected = [(error, None), (error, None)]
    said = [record.getMessage() for record in caplog.records]
    away = "crontab: the store is unavailable (ConnectionError: nobody there); trying again"
    assert said == [away, "crontab: the store is available again", away]


@WAYS
async def test_a_failed_write_is_retried(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    error = ConnectionError("gone")
    await scene.memory.add("once")
    await scene.memory.add("again", interval="@hourly")
    await scene.memory.add("removed", auto_remove=True)
    scene.memory.faults["write"] = error
    scene.expected = [(error, None)]
    async with scene.run():
        scene.memory.faults["lock"] = error
        await scene.time.advance(20)
        assert scene.crontab.is_processing is True
        scene.memory.faults.clear()
        await scene.time.advance(6)
        await until(lambda: not scene.crontab.is_processing)
        assert sorted(scene.told.ids) == ["again", "once", "removed"]
        assert scene.sleep_until("once") is None
        assert scene.sleep_until("again") == NOON + timedelta(hours=1)
        assert "removed" not in scene.memory.documents


@WAYS
async def test_stop_waits_for_the_retry_of_a_write(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    scene.memory.faults["write"] = ConnectionError("gone")
    await scene.memory.add("a")
    await scene.crontab.start()
    await scene.time.advance(0)
    stopping = asyncio.create_task(scene.crontab.stop())
    await scene.time.advance(10)
    assert not stopping.done()
    scene.memory.faults.clear()
    await scene.time.advance(5)
    await stopping
    assert scene.sleep_until() is None
    assert scene.told.ids == ["a"]


@WAYS
async def test_a_document_that_the_store_refuses_does_not_block_others(kind: str, concurrency: int) -> None:
    scene = Scene(kind, concurrency=concurrency)
    error = ValueError("schema says no")
    scene.memory.faults["write"] = lambda ids: error if "bad" in ids else None
    for n, id in enumerate(["a", "bad", "b", "c", "d", "e"]):
        await scene.memory.add(id, sleep_until=NOON - timedelta(seconds=9 - n))
    async with scene.crontab:
        await scene.time.advance(30)
        assert scene.told.ids == ["a", "bad", "b", "c", "d", "e"]
        assert [id for id in scene.memory.documents if scene.sleep_until(id) is not None] == ["bad"]
        assert not scene.crontab.is_processing
        # First reported as an outage, because nothing else is known; then as an error of the document.
        assert {told[0] for told in scene.told.errors} == {error}
        assert [job.id for _, job in scene.told.errors if job is not None] == ["bad"]
        assert scene.told.errors[-1][1] is not None
        # The outage is over, so that a real outage is reported.
        outage = ConnectionError("gone")
        scene.memory.faults["lock"] = outage
        await scene.time.advance(10)
        assert scene.told.errors[-1] == (outage, None)


@pytest.mark.parametrize("ids", [["good", "bad"], ["bad", "good"], ["bad"]])
async def test_the_next_outage_after_a_split_batch_is_reported(ids: list[str]) -> None:
    scene = Scene(concurrency=2)
    scene.memory.faults["write"] = lambda ids: ValueError("no") if "bad" in ids else None
    for n, id in enumerate(ids):
        await scene.memory.add(id, sleep_until=NOON - timedelta(seconds=9 - n))
    async with scene.crontab:
        await scene.time.advance(30)
        assert [id for id in ids if scene.sleep_until(id) is not None] == ["bad"]
        assert not scene.crontab.is_processing
        outage = ConnectionError("gone")
        scene.memory.faults["lock"] = outage
        await scene.time.advance(10)
        assert scene.told.errors[-1] == (outage, None)


async def test_a_write_is_given_up_after_its_lock_has_ended() -> None:
    scene = Scene(lock_duration="10s")
    error = ConnectionError("gone")
    await scene.memory.add("a")
    scene.memory.faults["write"] = error
    async with scene.crontab:
        await scene.time.advance(0)
        scene.memory.faults["lock"] = error
        await scene.time.advance(16)
        assert [job and job.id for _, job in scene.told.errors] == [None, "a"]
        assert not scene.crontab.is_processing
        # So it runs again, as after a crash.
        scene.memory.faults.clear()
        await scene.time.advance(6)
        assert scene.told.ids == ["a", "a"]
        assert scene.sleep_until() is None


async def test_fewer_answers_than_endings_are_an_error() -> None:
    scene = Scene(concurrency=3)

    async def forget(endings: Any) -> list[bool]:
        return []

    scene.memory.finish_many = forget  # type: ignore[method-assign]
    for id in ("a", "b"):
        await scene.memory.add(id)
    async with scene.crontab:
        await scene.time.advance(10)
        assert "finish_many returned 0 answers for 2 endings" in str(scene.told.errors[0][0])
        assert {scene.sleep_until(id) for id in ("a", "b")} == {None}


# ------------------------------------------------------------------------------------------------ bad documents


@WAYS
@pytest.mark.parametrize("auto_remove", [False, True])
@pytest.mark.parametrize(
    ("field", "value"),
    [("interval", "61 * * * *"), ("interval", 5), ("repeat_until", "tomorrow"), ("repeat_until", 17)],
)
async def test_an_invalid_document_runs_once_and_is_completed(
    kind: str, concurrency: int, auto_remove: bool, field: str, value: Any
) -> None:
    scene = Scene(kind, concurrency=concurrency)
    await scene.memory.add("a", interval="@hourly", auto_remove=auto_remove)
    setattr(scene.memory.documents["a"], field, value)
    async with scene.crontab:
        await scene.time.advance(60)
        assert scene.told.ids == ["a"]
        [(error, job)] = scene.told.errors
        assert isinstance(error, InvalidValue)
        assert error.field == field
        assert job == scene.told.jobs[0]
        # Kept, so that the user can correct it.
        assert scene.sleep_until() is None


async def test_a_slow_on_error_does_not_lose_the_ending() -> None:
    async def wait(error: BaseException, job: CrontabJob | None) -> None:
        waiting.set()
        await asyncio.Event().wait()

    waiting = asyncio.Event()
    scene = Scene(on_error=wait)
    await scene.memory.add("a", interval="@hourly")
    scene.memory.documents["a"].interval = "never"
    await scene.crontab.start()
    await waiting.wait()
    await scene.crontab.stop(timeout=0)
    assert scene.sleep_until() is None
