"""Lifespans: what is opened once in each worker, is the state of all its runs, and is closed when the worker stops."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

import jobmill
from jobmill import Client, Context, InvalidValue, JobmillError, Worker
from jobmill.testing import drain
from jobmill.worker import lifespans
from tests.helpers import FaultyStore, until


@dataclass
class Pool:
    is_open: bool = True
    used_by: list[str] = field(default_factory=list)


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


def add_lifespan(
    jobs: Client, name: str, order: list[str], value: Any = None, wrong: BaseException | None = None
) -> Callable[[], AsyncIterator[Any]]:
    async def lifespan() -> AsyncIterator[Any]:
        if wrong is not None:
            raise wrong
        order.append(f"{name} opens")
        try:
            yield value
        finally:
            order.append(f"{name} closes")

    lifespan.__qualname__ = name
    return jobs.lifespan(lifespan)


async def test_all_runs_share_the_state_which_is_open_until_they_have_ended(jobs: Client) -> None:
    pools: list[Pool] = []
    may_end = asyncio.Event()

    @jobs.lifespan
    async def database() -> AsyncIterator[Pool]:
        pools.append(Pool())
        yield pools[-1]
        pools[-1].is_open = False

    @jobs.handler
    async def use(context: Context[Pool], n: int) -> bool:
        context.state.used_by.append("async")
        if n == 3:
            await may_end.wait()
        return context.state.is_open

    @jobs.handler
    def use_in_thread(context: Context[Pool]) -> bool:
        context.state.used_by.append("thread")
        return context.state.is_open

    worker = Worker(jobs)
    await worker.start()
    last = await use.enqueue(n=3)
    await until(lambda: pools[0].used_by)
    assert await (await use.enqueue(n=1)).result(timeout=10)
    assert await (await use_in_thread.enqueue()).result(timeout=10)
    stopping = asyncio.ensure_future(worker.stop())
    may_end.set()
    await stopping
    assert (await last.job()).result is True
    assert pools == [Pool(is_open=False, used_by=["async", "async", "thread"])]

    await use.enqueue(n=2)
    await worker.start()
    await until(lambda: len(pools) == 2 and pools[1].used_by)
    await worker.stop()
    assert not pools[1].is_open, "a worker that starts again opens them again"


async def test_several_are_closed_in_reverse_order_also_after_errors(
    jobs: Client, caplog: pytest.LogCaptureFixture
) -> None:
    order: list[str] = []
    add_lifespan(jobs, "first", order)
    add_lifespan(jobs, "second", order, {"one": "state"})

    @jobs.lifespan
    @asynccontextmanager
    async def third() -> AsyncIterator[None]:
        yield
        order.append("third raises")
        raise SystemExit("badly")

    @jobs.handler
    async def read(context: Context[dict[str, str]]) -> str:
        order.append("runs")
        return context.state["one"]

    async with Worker(jobs):
        assert await (await read.enqueue()).result(timeout=10) == "state"
    assert order == ["first opens", "second opens", "runs", "third raises", "second closes", "first closes"]
    (record,) = (record for record in caplog.records if record.levelno >= logging.ERROR)
    assert "third raised an error when it was closed; no job is affected" in record.getMessage()


async def test_one_that_hangs_at_its_end_is_cancelled_and_the_others_are_closed(
    jobs: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifespans, "CLOSE_S", 0.05)
    order: list[str] = []
    add_lifespan(jobs, "first", order)

    @jobs.lifespan
    async def hangs() -> AsyncIterator[None]:
        yield
        await asyncio.sleep(3600)

    await jobs.tick()
    assert order == ["first opens", "first closes"]
    assert "hangs did not close within 0.05 s and was cancelled" in caplog.text


@pytest.mark.parametrize("wrong", [OSError("connection refused"), SystemExit("no")])
async def test_an_error_at_the_start_ends_the_worker_before_it_claims(wrong: BaseException) -> None:
    store = FaultyStore()
    jobs = jobmill.connect(store=store)
    order: list[str] = []
    add_lifespan(jobs, "first", order)
    add_lifespan(jobs, "database", order, wrong=wrong)
    jobs.on("start")(lambda worker: order.append("starts"))

    @jobs.handler
    async def work() -> None: ...

    enqueued = await work.enqueue()
    worker = Worker(jobs)
    message = rf"the lifespan database raised {type(wrong).__name__}: {wrong} \(test_lifespan.py:\d+ in lifespan\)"
    with pytest.raises(JobmillError, match=message) as caught:
        await worker.run()
    assert caught.value.__cause__ is wrong
    assert order == ["first opens", "first closes"]
    assert "exchange" not in store.calls
    assert (await enqueued.job()).state == "waiting"


async def test_only_one_may_yield_a_state(jobs: Client) -> None:
    order: list[str] = []
    add_lifespan(jobs, "first", order, 1)
    add_lifespan(jobs, "second", order, 2)
    with pytest.raises(JobmillError, match="the lifespan second yields a state, but an earlier lifespan"):
        await jobs.tick()
    assert order == ["first opens", "second opens", "second closes", "first closes"]


async def test_without_a_state_reading_it_is_an_error_of_the_attempt(jobs: Client) -> None:
    add_lifespan(jobs, "opens nothing", [])

    @jobs.handler(max_attempts=1)
    async def read(context: Context) -> None:
        assert context.state

    enqueued = await read.enqueue()
    await jobs.tick()
    assert "no function with @jobs.lifespan yields one" in str((await enqueued.job()).error)


async def test_a_stop_does_not_wait_for_a_lifespan_that_never_opens(jobs: Client) -> None:
    order: list[str] = []
    opening = asyncio.Event()
    add_lifespan(jobs, "first", order)

    @jobs.lifespan
    async def never() -> AsyncIterator[None]:
        opening.set()
        await asyncio.sleep(3600)
        yield

    worker = Worker(jobs)
    running = asyncio.ensure_future(worker.run())
    await opening.wait()
    await worker.stop()
    await running
    assert order == ["first opens", "first closes"]


async def test_a_tick_opens_them_once_and_so_does_a_whole_drain(jobs: Client) -> None:
    order: list[str] = []
    add_lifespan(jobs, "state", order, "value")

    @jobs.handler
    async def chain(context: Context[str], left: int) -> None:
        order.append(context.state)
        if left:
            await chain.enqueue(left=left - 1)

    await chain.enqueue(left=0)
    await jobs.tick()
    assert order == ["state opens", "value", "state closes"]
    order.clear()
    await chain.enqueue(left=2)
    assert (await drain(jobs)).succeeded == 3
    assert order == ["state opens", "value", "value", "value", "state closes"]


def test_the_state_outlives_the_handlers_when_asyncio_run_cancels_everything(jobs: Client) -> None:
    order: list[str] = []
    add_lifespan(jobs, "state", order, "value")

    @jobs.handler
    async def long(context: Context[str]) -> None:
        order.append("starts")
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(0.05)
            order.append("cleans up")

    async def main() -> None:
        await long.enqueue()
        running = asyncio.ensure_future(jobs.run_worker())
        await until(lambda: "starts" in order)
        assert not running.done()

    asyncio.run(main())
    assert order == ["state opens", "starts", "cleans up", "state closes"]


def test_what_is_no_lifespan_is_refused(jobs: Client) -> None:
    async def returns() -> None: ...

    for wrong in (returns, lambda: None, 5):
        with pytest.raises(InvalidValue, match="lifespan: expected an async generator function"):
            jobs.lifespan(wrong)  # type: ignore[type-var]
