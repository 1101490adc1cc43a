"""Usage recorders never affect a job: slow and failing recorders, full queues, and stopping workers."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest

import jobmill
from jobmill import Client, StoreUnavailable, Usage
from jobmill.errors import InvalidValue
from jobmill.handlers.handler import Handler
from jobmill.handlers.usage import UsageRecorder
from jobmill.runtime import handoff
from jobmill.store import RecordsUsage
from jobmill.stores.memory import MemoryStore
from jobmill.worker import usage
from jobmill.worker.worker import Worker
from tests.helpers import until

pytestmark = pytest.mark.stores("memory")


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


@pytest.fixture
def noop(jobs: Client) -> Handler[[], Any]:
    @jobs.handler
    async def noop() -> None: ...

    return noop


def complaints(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if "usage recorder" in record.getMessage() or "the recorder" in record.getMessage()
    ]


class Batches:
    """Keeps batches, after it has raised the given errors."""

    def __init__(self, *faults: BaseException) -> None:
        self.faults = list(faults)
        self.batches: list[list[Usage]] = []

    async def record_usage(self, records: Sequence[Usage]) -> None:
        if self.faults:
            raise self.faults.pop(0)
        self.batches.append(list(records))


# ---------------------------------------------------------------------------------------------------- who records


async def test_all_kinds_of_functions_get_every_run_in_order(jobs: Client, noop: Handler[[], Any]) -> None:
    told: dict[str, list[str]] = {}
    threads: set[str] = set()

    def note(kind: str, usage: Usage) -> None:
        told.setdefault(kind, []).append(usage.job_id)

    @jobs.record_usage
    def plain(usage: Usage) -> None:
        threads.add(threading.current_thread().name)
        note("plain", usage)

    @jobs.record_usage
    async def coroutine(usage: Usage) -> None:
        assert threading.current_thread() is threading.main_thread()
        note("async", usage)

    async def later(kind: str, usage: Usage) -> None:
        note(kind, usage)

    class Callable:
        async def __call__(self, usage: Usage) -> None:
            note("object", usage)

    jobs.record_usage(Callable())
    jobs.record_usage(functools.partial(later, "partial"))
    jobs.record_usage(lambda usage: later("lambda", usage))
    assert plain.__name__ == "plain", "a decorated function stays what it was"
    enqueued = await jobs.enqueue_many(noop.draft() for _ in range(5))
    await jobs.tick()
    ids = [one.id for one in enqueued]
    assert told == dict.fromkeys(("plain", "async", "object", "partial", "lambda"), ids)
    assert all(name.startswith("jobmill-handler") for name in threads), "a plain function may block"


def test_an_invalid_recorder_is_refused(jobs: Client) -> None:
    with pytest.raises(
        InvalidValue,
        match="recorder: expected a function that takes one Usage, or a store that records .*, got 'table'",
    ):
        jobs.record_usage("table")  # type: ignore[type-var]
    with pytest.raises(InvalidValue, match="the memory store has no table for usage"):
        jobs.record_usage(jobs.store)
    assert jobs.usage_recorders == []


async def test_without_a_recorder_nothing_is_recorded(jobs: Client, noop: Handler[[], Any]) -> None:
    async with Worker(jobs) as worker:
        await (await noop.enqueue()).result(timeout=5)
        assert worker._context.usage is None


# ---------------------------------------------------------------------------------------------------- failing


async def test_a_recorder_that_raises_is_logged_once_and_affects_no_job(
    jobs: Client, noop: Handler[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    @jobs.record_usage
    def bad(usage: Usage) -> None:
        raise RuntimeError("a bad recorder")

    @jobs.record_usage
    async def worse(usage: Usage) -> None:
        raise SystemExit(3)

    @jobs.record_usage
    async def odd(usage: Usage) -> None:
        raise asyncio.CancelledError

    @jobs.record_usage  # type: ignore[type-var]
    def wrong() -> None: ...

    jobs.record_usage(lambda usage: worse(usage))
    jobs.record_usage(lambda usage: told.append(usage.outcome))
    with caplog.at_level(logging.WARNING, "jobmill"):
        async with Worker(jobs):
            for one in await jobs.enqueue_many(noop.draft() for _ in range(50)):
                await one.result(timeout=5)
    assert told == ["succeeded"] * 50
    said = complaints(caplog)
    # At once, and what went unsaid since at the end.
    assert len(said) == 10
    assert sum("for 1 usage records; no job is affected" in one for one in said) == 5
    assert sum("for 49 usage records" in one for one in said) == 5
    assert "a bad recorder" in caplog.text
    assert (await jobs.count())[0].state == "succeeded"


async def test_a_repeated_error_is_logged_again_after_a_minute(
    jobs: Client, noop: Handler[[], Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "LOG_EVERY_S", 0.0)

    @jobs.record_usage
    async def bad(usage: Usage) -> None:
        raise RuntimeError("x")

    await jobs.enqueue_many(noop.draft() for _ in range(3))
    await jobs.tick()
    assert len(complaints(caplog)) == 3


async def test_batches_that_cannot_be_stored_are_given_up_and_logged(
    jobs: Client, noop: Handler[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    sink = jobs.record_usage(Batches(RuntimeError("no such table")))
    await jobs.enqueue_many(noop.draft() for _ in range(3))
    assert (await jobs.tick()).succeeded == 3
    assert sink.batches == []
    (said,) = complaints(caplog)
    assert "raised an error for 3 usage records" in said
    await noop.enqueue()
    await jobs.tick()
    assert len(sink.batches) == 1


async def test_batches_wait_for_an_unavailable_table(
    jobs: Client, noop: Handler[[], Any], caplog: pytest.LogCaptureFixture
) -> None:
    sink = jobs.record_usage(Batches(StoreUnavailable("gone"), StoreUnavailable("gone")))
    enqueued = await jobs.enqueue_many(noop.draft() for _ in range(3))
    await jobs.tick()
    assert [usage.job_id for usage in sink.batches[0]] == [one.id for one in enqueued]
    assert len(complaints(caplog)) == 2
    assert "is unavailable (gone); trying again" in caplog.text


# ---------------------------------------------------------------------------------------------------- slow


@pytest.mark.parametrize("kind", ["blocking", "async", "table"])
async def test_a_recorder_that_hangs_delays_only_itself(
    jobs: Client,
    noop: Handler[[], Any],
    kind: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(usage, "LAST_RECORDS_S", 0.1)
    monkeypatch.setattr(usage, "COLLECT_S", 0.0)
    let_go, quick = threading.Event(), list[Usage]()
    hung: list[Usage] = []

    class Table:
        async def record_usage(self, records: Sequence[Usage]) -> None:
            await hang(records[0])

    def block(usage: Usage) -> None:
        hung.append(usage)
        let_go.wait(10)

    async def hang(usage: Usage) -> None:
        hung.append(usage)
        await asyncio.Event().wait()

    slow: dict[str, UsageRecorder] = {"blocking": block, "async": hang, "table": Table()}
    jobs.record_usage(slow[kind])
    jobs.record_usage(quick.append)
    async with Worker(jobs):
        for one in await jobs.enqueue_many(noop.draft() for _ in range(50)):
            await one.result(timeout=5)
        await until(lambda: len(quick) == 50)
        stopping = time.monotonic()
    assert time.monotonic() - stopping < 8, "a recorder that hangs would be waited for"
    assert len(hung) == 1
    (said,) = complaints(caplog)
    # What a function was given counts as given; a batch is not kept until it says so.
    left = 50 if kind == "table" else 49
    assert f"{left} usage records did not reach the recorder" in said
    let_go.set()
    await until(lambda: not any(thread.name.startswith("jobmill-handler") for thread in threading.enumerate()))
    assert len(hung) == 1, "a thread that was left does not go on with the next record"


async def test_a_recorder_that_swallows_its_cancellation_is_abandoned(
    jobs: Client, noop: Handler[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "LAST_RECORDS_S", 0.05)
    monkeypatch.setattr(handoff, "GRACE_S", 0.05)
    go, told = asyncio.Event(), list[Usage]()

    @jobs.record_usage
    async def stubborn(usage: Usage) -> None:
        told.append(usage)
        while not go.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await go.wait()

    await jobs.enqueue_many(noop.draft() for _ in range(3))
    async with asyncio.timeout(5):
        assert (await jobs.tick()).succeeded == 3
    (left,) = [task for task in asyncio.all_tasks() if task.get_name() == "jobmill usage"]
    go.set()
    await asyncio.wait([left], timeout=5)
    assert len(told) == 1


async def test_a_full_queue_drops_new_records_and_logs_the_number(
    jobs: Client, noop: Handler[[], Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "MAX_WAITING", 10)
    go, told = asyncio.Event(), list[str]()

    @jobs.record_usage
    async def slow(usage: Usage) -> None:
        await go.wait()
        told.append(usage.job_id)

    async with Worker(jobs, concurrency=1):
        enqueued = await jobs.enqueue_many(noop.draft() for _ in range(40))
        for one in enqueued:
            await one.result(timeout=5)
        go.set()
    kept = len(told)
    assert 11 <= kept <= 21, "those that wait, and those in hand"
    assert told == [one.id for one in enqueued[:kept]]
    said = complaints(caplog)
    assert "is too slow: 1 usage records were dropped" in said[0]
    assert f"is too slow: {39 - kept} usage records were dropped" in said[1]
    assert len(said) == 2


async def test_an_async_recorder_that_never_awaits_does_not_block_the_loop(
    jobs: Client, noop: Handler[[], Any]
) -> None:
    turns = 0
    seen: list[int] = []

    @jobs.record_usage
    async def busy(usage: Usage) -> None:
        seen.append(turns)
        end = time.perf_counter() + 0.001
        while time.perf_counter() < end:
            pass

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    turning = asyncio.create_task(turn())
    try:
        async with Worker(jobs, concurrency=200):
            await jobs.enqueue_many(noop.draft() for _ in range(200))
            await until(lambda: len(seen) == 200)
    finally:
        turning.cancel()
    # All in one go, the loop would hardly have turned between the first and the last.
    assert seen[-1] - seen[0] > 50


# ---------------------------------------------------------------------------------------------------- batches


async def test_records_are_collected_and_a_stopping_worker_writes_them_at_once(
    jobs: Client, noop: Handler[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "COLLECT_S", 60.0)
    sink = jobs.record_usage(Batches())
    assert isinstance(sink, RecordsUsage)
    started = time.monotonic()
    async with Worker(jobs):
        for one in await jobs.enqueue_many(noop.draft() for _ in range(30)):
            await one.result(timeout=5)
    assert time.monotonic() - started < usage.COLLECT_S
    assert [len(batch) for batch in sink.batches] == [30]


async def test_a_full_batch_is_written_at_once(
    jobs: Client, noop: Handler[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "COLLECT_S", 60.0)
    sink = jobs.record_usage(Batches())
    await jobs.enqueue_many(noop.draft() for _ in range(1_200))

    async def all_ended() -> bool:
        return not await jobs.count(states=("waiting", "running"))

    async with Worker(jobs, concurrency=100):
        await until(lambda: len(sink.batches) >= 2, 30)
        await until(all_ended, 30)
    assert [len(batch) for batch in sink.batches] == [500, 500, 200]


async def test_a_batch_is_written_after_the_collect_time(
    jobs: Client, noop: Handler[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(usage, "COLLECT_S", 0.05)
    sink = jobs.record_usage(Batches())
    async with Worker(jobs):
        await noop.enqueue()
        await until(lambda: len(sink.batches) == 1)
        await noop.enqueue()
        await until(lambda: len(sink.batches) == 2)


# ---------------------------------------------------------------------------------------------------- the end


@pytest.mark.parametrize("kind", ["async", "plain", "table"])
def test_queued_records_are_written_when_all_tasks_are_cancelled(kind: str) -> None:
    jobs = jobmill.connect(store=MemoryStore())
    told: list[Usage] = []
    running = threading.Event()

    async def note(usage: Usage) -> None:
        told.append(usage)

    class Table:
        async def record_usage(self, records: Sequence[Usage]) -> None:
            told.extend(records)

    recorders: dict[str, UsageRecorder] = {"async": note, "plain": told.append, "table": Table()}
    jobs.record_usage(recorders[kind])

    @jobs.handler
    async def quick() -> None: ...

    @jobs.handler
    async def endless() -> None:
        running.set()
        await asyncio.Event().wait()

    async def main() -> None:
        task = asyncio.create_task(Worker(jobs).run())
        await (await quick.enqueue()).result(timeout=5)
        await endless.enqueue()
        await until(running.is_set)
        assert not task.done()

    # asyncio.run cancels what is left at its end: the worker, its handlers and all of its loops.
    asyncio.run(main())
    assert sorted(usage.outcome for usage in told) == ["released", "succeeded"]
