"""Starting a worker, and ticks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import jobmill
from jobmill import JobmillError, StoreUnavailable
from jobmill.stores.memory import MemoryStore
from jobmill.worker.worker import Worker
from tests.helpers import until

# ---------------------------------------------------------------------------------------------------- start


def tasks() -> set[asyncio.Task[Any]]:
    """The tasks of this test. Fixtures of the whole session may have some too."""
    return asyncio.all_tasks() - {asyncio.current_task()} - _before


_before: set[asyncio.Task[Any]] = set()


@pytest.fixture(autouse=True)
async def _note_tasks() -> None:
    _before.clear()
    _before.update(asyncio.all_tasks() - {asyncio.current_task()})


async def test_a_worker_can_be_started_and_stopped_twice() -> None:
    jobs = jobmill.connect("memory://")
    worker = Worker(jobs)
    for _ in range(2):
        await worker.start()
        assert tasks()
        await worker.stop()
        await until(lambda: not tasks())


async def test_a_running_worker_cannot_be_started() -> None:
    async with Worker(jobmill.connect("memory://")) as worker:
        with pytest.raises(JobmillError, match="is running already"):
            await worker.start()
    await until(lambda: not tasks())


async def test_a_failed_start_leaves_no_task_running() -> None:
    jobs = jobmill.connect("memory://")
    async with Worker(jobs, health=0) as first:
        assert first._health is not None
        second = Worker(jobs, health=first._health.port)
        with pytest.raises(jobmill.InvalidValue, match="health"):
            await second.start()
        assert [task.get_name() for task in tasks()].count("jobmill hooks") == 1


# ---------------------------------------------------------------------------------------------------- no store yet


class LateStore(MemoryStore):
    """A store that cannot be opened until `available` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.available = False

    async def open(self) -> None:
        if not self.available:
            raise StoreUnavailable("connection refused")
        await super().open()


async def readyz(port: int) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /readyz HTTP/1.1\r\n\r\n")
    response = (await reader.read()).decode()
    writer.close()
    return int(response.split()[1]), response


async def test_a_worker_waits_for_a_store_that_is_unavailable_at_its_start(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "jobmill")
    store = LateStore()
    jobs = jobmill.connect(store=store)
    ran = asyncio.Event()

    @jobs.handler()
    async def run() -> None:
        ran.set()

    worker = Worker(jobs, health=0)
    running = asyncio.create_task(worker.run())
    await until(lambda: "waits for its store (connection refused)" in caplog.text)
    assert worker._health is not None
    status, response = await readyz(worker._health.port)
    assert status == 503
    assert '"store":"unavailable"' in response
    store.available = True
    await until(lambda: "the memory store is back after" in caplog.text)
    await run.enqueue()
    await asyncio.wait_for(ran.wait(), 5)
    assert (await readyz(worker._health.port))[0] == 200
    await worker.stop()
    await running
    await until(lambda: not tasks())


async def test_a_worker_can_be_stopped_while_it_waits_for_its_store(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(jobmill.connect(store=LateStore()))
    running = asyncio.create_task(worker.run())
    await until(lambda: "waits for its store" in caplog.text)
    await worker.stop()
    await asyncio.wait_for(running, 5)
    await until(lambda: not tasks())


class SilentStore(MemoryStore):
    """A store whose server takes connections and never answers."""

    async def open(self) -> None:
        await asyncio.Event().wait()


async def test_a_worker_can_be_stopped_while_its_store_does_not_answer(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobmill.worker.worker.SILENT_S", 0.01)
    worker = Worker(jobmill.connect(store=SilentStore()))
    running = asyncio.create_task(worker.run())
    await until(lambda: "waits for its store (no answer yet)" in caplog.text)
    await worker.stop()
    await asyncio.wait_for(running, 5)
    await until(lambda: not tasks())


async def test_a_worker_that_must_not_wait_for_its_store_and_a_tick_raise() -> None:
    jobs = jobmill.connect(store=LateStore())
    with pytest.raises(StoreUnavailable, match="connection refused"):
        await Worker(jobs, wait_for_store=False).run()
    with pytest.raises(StoreUnavailable, match="connection refused"):
        await jobs.tick()
    await until(lambda: not tasks())


async def test_running_a_worker_twice_does_not_stop_it() -> None:
    async with Worker(jobmill.connect("memory://")) as worker:
        with pytest.raises(JobmillError, match="is running already"):
            await worker.run()
        assert not worker._end.is_set()


# ---------------------------------------------------------------------------------------------------- tick


async def test_a_cancelled_tick_releases_its_jobs() -> None:
    jobs = jobmill.connect("memory://")
    running, stopped = asyncio.Event(), asyncio.Event()

    @jobs.handler()
    async def long() -> None:
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    enqueued = await long.enqueue()
    tick = asyncio.create_task(jobs.tick())
    await asyncio.wait_for(running.wait(), 5)
    tick.cancel()
    with pytest.raises(asyncio.CancelledError):
        await tick
    assert stopped.is_set()
    job = await enqueued.job()
    assert (job.state, job.crashes, job.errors) == ("waiting", 0, 0)


async def test_a_tick_does_not_wait_for_a_thread_past_its_timeout() -> None:
    jobs = jobmill.connect("memory://")
    go = threading.Event()

    @jobs.handler(timeout="10ms", max_attempts=1)
    def long() -> None:
        go.wait(30)

    await long.enqueue()
    try:
        done = await asyncio.wait_for(jobs.tick(), 5)
        assert done.failed == 1
    finally:
        go.set()
