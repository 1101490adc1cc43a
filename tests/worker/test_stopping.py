"""Stopping a worker: graceful, bounded and idempotent. Released jobs count no attempt."""

from __future__ import annotations

import asyncio
import threading

import pytest

import jobmill
from jobmill import Client
from jobmill.worker.worker import Worker
from tests.helpers import FaultyStore, until


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


async def test_stopping_waits_for_running_jobs_and_claims_no_more(jobs: Client) -> None:
    go = asyncio.Event()
    runs = 0

    @jobs.handler()
    async def work() -> str:
        nonlocal runs
        runs += 1
        await go.wait()
        return "done"

    worker = Worker(jobs, concurrency=1)
    await worker.start()
    first, second = await jobs.enqueue_many([work.draft(), work.draft()])
    await until(lambda: runs == 1)
    stopping = asyncio.create_task(worker.stop())
    await asyncio.sleep(0)
    go.set()
    await stopping
    assert await first.result(timeout=1) == "done"
    assert ((await second.job()).state, runs) == ("waiting", 1)


async def test_a_job_that_does_not_end_in_time_is_released_without_an_attempt(jobs: Client) -> None:
    @jobs.handler()
    async def endless() -> None:
        await asyncio.Event().wait()

    worker = Worker(jobs)
    await worker.start()
    enqueued = await endless.enqueue()
    await until(lambda: worker.running == 1)
    await worker.stop(timeout=0.02)
    job = await enqueued.job()
    assert (job.state, job.errors, job.crashes, job.claims) == ("waiting", 0, 0, 1)
    assert job.due_ms <= jobs.store.now()


async def test_an_error_raised_because_the_worker_stops_is_no_error_of_the_job(jobs: Client) -> None:
    @jobs.handler()
    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("interrupted") from None

    worker = Worker(jobs)
    await worker.start()
    enqueued = await endless.enqueue()
    await until(lambda: worker.running == 1)
    await worker.stop(timeout=0)
    assert ((await enqueued.job()).state, (await enqueued.job()).errors) == ("waiting", 0)


async def test_the_job_of_a_thread_that_does_not_end_is_released(jobs: Client) -> None:
    let_go = threading.Event()
    started = threading.Event()

    @jobs.handler()
    def stuck() -> None:
        started.set()
        let_go.wait(10)

    worker = Worker(jobs)
    await worker.start()
    enqueued = await stuck.enqueue()
    await until(started.is_set)
    await asyncio.wait_for(worker.stop(timeout=0.02), 5)
    assert (await enqueued.job()).state == "waiting"
    let_go.set()


async def test_stopping_twice_waits_for_the_same_end_and_a_timeout_of_zero_ends_the_wait(jobs: Client) -> None:
    @jobs.handler()
    async def endless() -> None:
        await asyncio.Event().wait()

    worker = Worker(jobs)
    await worker.start()
    enqueued = await endless.enqueue()
    await until(lambda: worker.running == 1)
    patient = asyncio.create_task(worker.stop(timeout=60))
    await asyncio.sleep(0)
    await asyncio.wait_for(worker.stop(timeout=0), 5)
    await asyncio.wait_for(patient, 5)
    await worker.stop()
    assert (await enqueued.job()).state == "waiting"


async def test_a_worker_can_be_started_again(jobs: Client) -> None:
    @jobs.handler()
    async def work() -> str:
        return "done"

    worker = Worker(jobs)
    for _ in range(2):
        await worker.start()
        assert await (await work.enqueue()).result(timeout=5) == "done"
        await worker.stop()


async def test_cancelling_the_task_that_runs_a_worker_stops_it(jobs: Client) -> None:
    go = asyncio.Event()
    running = asyncio.Event()

    @jobs.handler()
    async def work() -> str:
        running.set()
        await go.wait()
        return "done"

    task = asyncio.create_task(jobs.run_worker())
    enqueued = await work.enqueue()
    await asyncio.wait_for(running.wait(), 5)
    task.cancel()
    await asyncio.sleep(0)
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await enqueued.result(timeout=1) == "done"


@pytest.mark.parametrize("sync", [False, True])
def test_jobs_are_released_without_an_attempt_when_all_tasks_are_cancelled(sync: bool) -> None:
    jobs = jobmill.connect("memory://")
    running, go = threading.Event(), threading.Event()

    @jobs.handler()
    async def in_loop() -> None:
        running.set()
        await asyncio.Event().wait()

    @jobs.handler()
    def in_thread() -> None:
        running.set()
        go.wait(30)

    async def main() -> str:
        worker = asyncio.create_task(jobs.run_worker())
        enqueued = await (in_thread if sync else in_loop).enqueue()
        await until(running.is_set)
        assert not worker.done()
        return enqueued.id  # and asyncio.run cancels every task that is left

    id = asyncio.run(main())
    go.set()
    job = jobs.sync.get(id)
    jobs.sync.close()
    assert (job.state, job.errors, job.crashes) == ("waiting", 0, 0)


async def test_stopping_a_worker_ends_the_task_that_runs_it(jobs: Client) -> None:
    started = asyncio.Event()
    jobs.on("start")(lambda worker: started.set())
    worker = Worker(jobs)
    running = asyncio.create_task(worker.run())
    await asyncio.wait_for(started.wait(), 5)
    await until(lambda: worker.watchdog._last.get("exchanger 1"))
    await worker.stop()
    await asyncio.wait_for(running, 5)


@pytest.mark.parametrize("what", ["idle", "stop"])
async def test_a_hook_may_stop_its_worker(jobs: Client, what: str) -> None:
    finished: list[str] = []

    async def stop(worker: Worker) -> None:
        await worker.stop()
        finished.append(what)

    @jobs.handler()
    async def work() -> None: ...

    jobs.hooks.add(what, stop)
    worker = Worker(jobs)
    running = asyncio.create_task(worker.run())
    if what == "stop":
        await until(lambda: worker.watchdog._last.get("exchanger 1"))
        await asyncio.wait_for(worker.stop(), 3)
    # Not only after the wait for the hook has ended.
    await asyncio.wait_for(running, 3)
    assert finished == [what]


async def test_hooks_are_called_at_the_moments_of_a_worker(jobs: Client) -> None:
    told: list[str] = []
    for what in ("start", "idle", "stop"):
        jobs.on(what)(lambda worker, what=what: told.append(what))

    @jobs.handler()
    async def work() -> None: ...

    async with Worker(jobs):
        await until(lambda: told == ["start", "idle"])
        await (await work.enqueue()).result(timeout=5)
        await until(lambda: told == ["start", "idle", "idle"])
    assert told == ["start", "idle", "idle", "stop"]


async def test_hooks_get_events_in_order(jobs: Client) -> None:
    told: list[tuple[str, int]] = []
    jobs.on("*")(lambda event: told.append((event.type, event.attempt)))

    @jobs.handler(max_attempts=2, backoff="1ms")
    async def bad(context: jobmill.Context) -> None:
        context.progress(1)
        raise ValueError("x")

    async with Worker(jobs):
        with pytest.raises(jobmill.JobFailed):
            await (await bad.enqueue()).result(timeout=5)
    # The client reports the enqueued event, independent of the worker: before or after the claim.
    told.remove(("enqueued", 1))
    assert told == [
        ("claimed", 1),
        ("progress", 1),
        ("errored", 1),
        ("retrying", 1),
        ("claimed", 2),
        ("progress", 2),
        ("errored", 2),
        ("failed", 2),
    ]


async def test_a_stop_hook_that_never_returns_is_abandoned(jobs: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobmill.worker.worker.LAST_CALLS_S", 0.02)

    @jobs.on("stop")
    async def never(worker: Worker) -> None:
        await asyncio.Event().wait()

    worker = Worker(jobs)
    await worker.start()
    await asyncio.wait_for(worker.stop(), 5)


async def test_log_lines_that_cannot_be_stored_at_the_end_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    store = FaultyStore()
    jobs = jobmill.connect(store=store)
    store.faults["report"] = jobmill.StoreUnavailable("gone")
    talking = asyncio.Event()

    @jobs.handler
    async def talks(context: jobmill.Context) -> None:
        context.log("x")
        talking.set()
        await asyncio.Event().wait()

    worker = Worker(jobs)
    await worker.start()
    await talks.enqueue()
    await asyncio.wait_for(talking.wait(), 5)
    for task in worker._exchanging:
        task.cancel()
    await worker._end_loops()
    assert "the last progress and log lines could not be stored" in caplog.text
