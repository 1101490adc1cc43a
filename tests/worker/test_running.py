"""How a worker runs jobs: success, errors, snooze and fail, timeouts, threads."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

import jobmill
from jobmill import Client, Context
from jobmill.stores.memory import MemoryStore
from jobmill.worker.worker import Worker
from tests.helpers import until


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


async def test_an_async_handler_runs_and_its_result_is_stored(jobs: Client) -> None:
    @jobs.handler()
    async def add(a: int, b: int = 2) -> int:
        return a + b

    async with Worker(jobs):
        assert await (await add.enqueue(1)).result(timeout=5) == 3


async def test_a_task_factory_of_the_application_makes_the_tasks_of_runs(jobs: Client) -> None:
    class OwnTask(asyncio.Task[Any]):
        """What the factory makes."""

    @jobs.handler()
    async def kind() -> list[str]:
        task = asyncio.current_task()
        return [type(task).__name__, "" if task is None else task.get_name()]

    loop = asyncio.get_running_loop()
    async with Worker(jobs):
        job = await kind.enqueue()
        assert await job.result(timeout=5) == ["Task", job.id]
    loop.set_task_factory(lambda loop, work, **options: OwnTask(work, loop=loop, **options))
    try:
        async with Worker(jobs):
            job = await kind.enqueue()
            assert await job.result(timeout=5) == ["OwnTask", job.id]
    finally:
        loop.set_task_factory(None)


async def test_a_sync_handler_runs_in_a_thread(jobs: Client) -> None:
    @jobs.handler()
    def where() -> str:
        return threading.current_thread().name

    async with Worker(jobs):
        assert (await (await where.enqueue()).result(timeout=5)).startswith("jobmill-handler")


async def test_errors_are_retried_and_then_fail_with_error_and_tracebacks(jobs: Client) -> None:
    @jobs.handler(max_attempts=3, backoff="1ms")
    async def bad(x: str) -> None:
        raise ValueError(x)

    async with Worker(jobs):
        enqueued = await bad.enqueue(x="oops")
        with pytest.raises(jobmill.JobFailed, match="ValueError: oops"):
            await enqueued.result(timeout=5)
    job = await enqueued.job()
    assert (job.state, job.errors, job.claims, job.attempt) == ("failed", 3, 3, 3)
    assert len(job.attempts) == 3
    assert "raise ValueError(x)" in (job.attempts[0].traceback or "")
    assert "jobmill/worker" not in (job.attempts[0].traceback or "").replace("\\", "/")


async def test_a_success_after_an_error_leaves_no_error(jobs: Client) -> None:
    @jobs.handler(backoff="1ms")
    async def flaky(context: Context) -> int:
        if context.attempt == 1:
            raise ValueError("first")
        return context.attempt

    async with Worker(jobs):
        enqueued = await flaky.enqueue()
        assert await enqueued.result(timeout=5) == 2
    job = await enqueued.job()
    assert (job.error, job.errors, len(job.attempts)) == (None, 1, 1)


async def test_fail_ends_a_job_before_its_last_attempt(jobs: Client) -> None:
    @jobs.handler(max_attempts=10)
    async def hopeless() -> None:
        raise jobmill.Fail("no such customer")

    async with Worker(jobs):
        enqueued = await hopeless.enqueue()
        with pytest.raises(jobmill.JobFailed, match="no such customer"):
            await enqueued.result(timeout=5)
    assert (await enqueued.job()).errors == 1


async def test_snooze_runs_the_job_later_and_counts_no_attempt(jobs: Client) -> None:
    runs: list[int] = []

    @jobs.handler(max_attempts=1)
    async def not_yet(context: Context) -> str:
        runs.append(context.fence)
        if len(runs) < 3:
            context.snooze(timedelta(milliseconds=1))
        return "now"

    async with Worker(jobs):
        enqueued = await not_yet.enqueue()
        assert await enqueued.result(timeout=5) == "now"
    assert runs == [1, 2, 3]
    assert (await enqueued.job()).errors == 0


async def test_an_async_handler_is_stopped_at_its_timeout(jobs: Client) -> None:
    stopped = asyncio.Event()

    @jobs.handler(timeout="20ms", max_attempts=1)
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with Worker(jobs):
        with pytest.raises(jobmill.JobFailed, match="timed out after 20ms"):
            await (await slow.enqueue()).result(timeout=5)
    assert stopped.is_set()


async def test_a_handler_that_swallows_its_cancellation_times_out_too(jobs: Client) -> None:
    @jobs.handler(timeout="20ms", max_attempts=1)
    async def stubborn() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "fine"
        return ""

    async with Worker(jobs):
        with pytest.raises(jobmill.JobFailed, match="timed out"):
            await (await stubborn.enqueue()).result(timeout=5)


async def test_a_thread_past_its_timeout_is_settled_at_once_and_keeps_its_slot(jobs: Client) -> None:
    let_go = threading.Event()
    seen: list[bool] = []

    @jobs.handler(timeout="20ms", max_attempts=1)
    def stuck(context: Context) -> None:
        let_go.wait(10)
        seen.append(context.cancelled)

    @jobs.handler()
    async def other() -> str:
        return "ran"

    async with Worker(jobs, concurrency=1):
        with pytest.raises(jobmill.JobFailed, match="timed out"):
            await (await stuck.enqueue()).result(timeout=5)
        waiting = await other.enqueue()
        # The thread still occupies the only slot, so no other job starts.
        with pytest.raises(jobmill.ResultTimeout):
            await waiting.result(timeout=0.1)
        let_go.set()
        assert await waiting.result(timeout=5) == "ran"
    assert seen == [True]


async def test_the_timeout_of_a_job_overrides_the_timeout_of_its_handler(jobs: Client) -> None:
    @jobs.handler(timeout="1h")
    async def slow() -> None:
        await asyncio.Event().wait()

    async with Worker(jobs):
        enqueued = await slow.options(timeout="10ms", max_attempts=1).enqueue()
        with pytest.raises(jobmill.JobFailed, match="10ms"):
            await enqueued.result(timeout=5)


@pytest.mark.parametrize(
    ("raised", "error"), [(SystemExit(3), "SystemExit: 3"), (asyncio.CancelledError(), "cancelled itself")]
)
async def test_a_handler_cannot_stop_the_worker(jobs: Client, raised: BaseException, error: str) -> None:
    @jobs.handler(max_attempts=1)
    async def rude() -> None:
        raise raised

    @jobs.handler()
    async def polite() -> str:
        return "still here"

    async with Worker(jobs):
        with pytest.raises(jobmill.JobFailed, match=error):
            await (await rude.enqueue()).result(timeout=5)
        assert await (await polite.enqueue()).result(timeout=5) == "still here"


async def test_a_thread_that_raises_stop_iteration_is_an_error_like_any_other(jobs: Client) -> None:
    @jobs.handler(max_attempts=1)
    def odd() -> None:
        next(iter(()))

    async with Worker(jobs):
        with pytest.raises(jobmill.JobFailed, match="StopIteration"):
            await (await odd.enqueue()).result(timeout=5)


async def test_a_result_that_is_not_json_is_an_error_with_the_reason(jobs: Client) -> None:
    @jobs.handler(max_attempts=1)
    async def odd() -> object:
        return {"x": {1, 2}}

    async with Worker(jobs):
        with pytest.raises(jobmill.JobFailed, match=r"result\.x"):
            await (await odd.enqueue()).result(timeout=5)


async def test_a_payload_that_does_not_fit_fails_without_retries(jobs: Client) -> None:
    @jobs.handler(max_attempts=5)
    async def typed(n: int) -> int:
        return n

    # As a producer without this handler would enqueue it.
    other = jobmill.connect(store=jobs.store)
    enqueued = await other.enqueue("typed", {"n": "many"})
    async with Worker(jobs):
        with pytest.raises(jobmill.JobFailed, match="Expected `int`, got `str`"):
            await enqueued.result(timeout=5)
    assert (await enqueued.job()).errors == 1


async def test_the_users_backoff_function_decides_the_delay(jobs: Client) -> None:
    asked: list[tuple[int, str]] = []

    def mine(attempt: int, error: BaseException) -> str:
        asked.append((attempt, str(error)))
        return "1ms"

    @jobs.handler(max_attempts=3, backoff=mine)
    async def bad() -> None:
        raise ValueError("x")

    async with Worker(jobs):
        with pytest.raises(jobmill.JobFailed):
            await (await bad.enqueue()).result(timeout=5)
    assert asked == [(1, "x"), (2, "x"), (3, "x")]


async def test_progress_and_logs_are_written_before_the_job_is_settled(jobs: Client) -> None:
    @jobs.handler()
    def talks(context: Context) -> None:
        context.progress(50, "half")
        for n in range(3):
            context.log(f"line {n}", "warning" if n == 1 else "info")
        with pytest.raises(jobmill.InvalidValue, match="one of debug, info, warning, error"):
            context.log("x", "loud")  # type: ignore[arg-type]

    async with Worker(jobs):
        enqueued = await talks.enqueue()
        await enqueued.result(timeout=5)
    job = await enqueued.job()
    assert job.progress is not None
    assert (job.progress.value, job.progress.message) == (50, "half")
    assert [line.text for line in await jobs.logs(job.id)] == ["line 0", "line 1", "line 2"]
    assert [(line.attempt, line.level) for line in await jobs.logs(job.id)] == [
        (1, "info"),
        (1, "warning"),
        (1, "info"),
    ]


async def test_progress_is_visible_while_the_job_runs(jobs: Client) -> None:
    go = asyncio.Event()

    @jobs.handler()
    async def slow(context: Context) -> None:
        context.progress(10)
        await go.wait()

    async with Worker(jobs):
        enqueued = await slow.enqueue()
        await until(lambda: _progress(enqueued))
        go.set()
        await enqueued.result(timeout=5)


async def _progress(enqueued: jobmill.Enqueued[Any]) -> object:
    return (await enqueued.job()).progress


async def test_the_concurrency_of_a_handler_limits_only_that_handler(jobs: Client) -> None:
    now = most = 0
    go = asyncio.Event()

    @jobs.handler(concurrency=2)
    async def few() -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await go.wait()
        now -= 1

    @jobs.handler()
    async def many() -> str:
        return "ran"

    async with Worker(jobs, concurrency=10):
        enqueued = await jobs.enqueue_many(few.draft() for _ in range(6))
        assert await (await many.enqueue()).result(timeout=5) == "ran"
        assert most == 2
        go.set()
        for one in enqueued:
            await one.result(timeout=5)
    assert most == 2


class TwoInFlight(MemoryStore):
    """Like a store on a server: round trips overlap."""

    exchanges_in_flight = 2


async def test_two_exchangers_share_the_slots_and_the_limits_of_handlers() -> None:
    jobs = jobmill.connect(store=TwoInFlight())
    now: Counter[str] = Counter()
    most: Counter[str] = Counter()

    @jobs.handler(concurrency=1)
    async def alone() -> None:
        await note("alone")

    @jobs.handler
    async def together() -> None:
        await note("together")

    async def note(name: str) -> None:
        now[name] += 1
        now["all"] += 1
        most.update({key: max(0, now[key] - most[key]) for key in now})
        await asyncio.sleep(0.001)
        now[name] -= 1
        now["all"] -= 1

    async with Worker(jobs, concurrency=5) as worker:
        assert len(worker._exchangers) == 2
        drafts = [handler.draft() for _ in range(50) for handler in (alone, together)]
        # Room that one exchanger frees wakes the other at once, not at its next turn in 5 s.
        async with asyncio.timeout(5):
            for one in await jobs.enqueue_many(drafts):
                await one.result()
    assert most["alone"] == 1
    assert 2 <= most["all"] <= 5
    assert all(job.claims == 1 for job in [job async for job in jobs.find_all()])


class NoHints(TwoInFlight):
    """Never reports new work: only a claim finds it."""

    async def wait_for_work(self, queues: Sequence[str], until_ms: int) -> None:
        await asyncio.sleep(max(0, until_ms - self.now()) / 1000)


async def test_a_handler_slot_that_one_exchanger_frees_wakes_the_other() -> None:
    jobs = jobmill.connect(store=NoHints())
    go = asyncio.Event()

    @jobs.handler(concurrency=1)
    async def alone(wait: bool) -> None:
        if wait:
            await go.wait()

    @jobs.handler
    async def endless() -> None:
        await asyncio.Event().wait()

    await alone.enqueue(wait=True)
    async with Worker(jobs, concurrency=2, shutdown_timeout=0) as worker:
        await until(lambda: worker.running == 1)
        # The exchanger that frees the room claims this job first; only the other one can use the room then.
        await endless.enqueue()
        second = await alone.options(priority=5).enqueue(wait=False)
        go.set()
        await second.result(timeout=3)


async def test_several_queues_take_turns(jobs: Client) -> None:
    served: list[str] = []

    @jobs.handler()
    async def note(context: Context) -> None:
        served.append(context.job.queue)

    for queue in ("a", "b"):
        await jobs.enqueue_many(note.options(queue=queue).draft() for _ in range(10))
    async with Worker(jobs, concurrency=1, queues=["a", "b"]):
        await until(lambda: len(served) == 20)
    # With one slot and two full queues, no queue waits until the other is empty.
    assert set(served[:4]) == {"a", "b"}


async def test_a_worker_serves_the_queues_that_its_handlers_name(jobs: Client) -> None:
    @jobs.handler(queue="mail")
    async def send() -> str:
        return "sent"

    async with Worker(jobs):
        assert await (await send.enqueue()).result(timeout=5) == "sent"


async def test_jobs_carry_the_name_of_their_worker(jobs: Client) -> None:
    @jobs.handler()
    async def noop() -> None: ...

    async with Worker(jobs, name="w-1") as worker:
        enqueued = await noop.enqueue()
        await enqueued.result(timeout=5)
        assert worker.name == "w-1"
    assert (await enqueued.job()).worker == "w-1"
    assert Worker(jobs).name.count("-") >= 2


async def test_a_recurring_job_runs_again_and_again(jobs: Client) -> None:
    @jobs.handler()
    async def beat() -> None: ...

    async with Worker(jobs):
        enqueued = await beat.options(every="5ms", key="beat").enqueue()
        await until(lambda: _runs(enqueued, 3))
        await jobs.cancel(enqueued.id)


async def _runs(enqueued: jobmill.Enqueued[Any], least: int) -> bool:
    return (await enqueued.job()).runs >= least


async def test_the_error_hook_gets_every_error_also_a_timeout(jobs: Client) -> None:
    told: list[tuple[str, str]] = []
    jobs.on("error")(lambda error, job: told.append((str(error), job.name)))
    asked: list[str] = []

    @jobs.handler(max_attempts=1)
    async def bad() -> None:
        raise ValueError("x")

    def mine(attempt: int, error: BaseException) -> str:
        asked.append(str(error))
        return "1ms"

    @jobs.handler(max_attempts=2, timeout="5ms", backoff=mine)
    async def slow() -> None:
        await asyncio.Event().wait()

    async with Worker(jobs):
        for handler in (bad, slow):
            with pytest.raises(jobmill.JobFailed):
                await (await handler.enqueue()).result(timeout=5)
    assert told == [("x", "bad"), ("timed out after 5ms", "slow"), ("timed out after 5ms", "slow")]
    assert asked == ["timed out after 5ms"] * 2


async def test_a_snooze_without_a_delay_is_an_error_of_its_job() -> None:
    class Odd(jobmill.Snooze):
        def __init__(self) -> None:
            pass

    def exits(attempt: int, error: BaseException) -> float:
        raise SystemExit

    jobs = jobmill.connect("memory://")

    @jobs.handler(max_attempts=1, backoff=exits)
    async def odd() -> None:
        raise Odd

    async with Worker(jobs):
        with pytest.raises(jobmill.JobFailed, match="AttributeError"):
            await (await odd.enqueue()).result(timeout=5)
