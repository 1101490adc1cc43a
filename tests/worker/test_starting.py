"""Starting a worker, and ticks."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

import jobmill
from jobmill import JobmillError
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
