"""Loops survive errors and cancellations inside hooks and stores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import jobmill
from jobmill import Client
from jobmill.core.job import Job
from jobmill.core.values import Claim, Settlement
from jobmill.worker.worker import Worker
from tests.helpers import FaultyStore, until


def faulty() -> tuple[Client, FaultyStore]:
    store = FaultyStore()
    return jobmill.connect(store=store), store


async def cancelled_elsewhere(*_: object) -> None:
    """Raises as if it had awaited a task that was cancelled."""
    raise asyncio.CancelledError


# ---------------------------------------------------------------------------------------------------- hooks


async def test_a_cancellation_inside_a_hook_ends_no_loop() -> None:
    jobs, store = faulty()
    for what in ("start", "stop", "idle", "error", "*"):
        jobs.on(what)(cancelled_elsewhere)
    succeeded: list[str] = []
    jobs.on("succeeded")(lambda event: succeeded.append(event.job_id))

    @jobs.handler()
    async def work() -> None: ...

    async with Worker(jobs):
        store.faults["wait_for_work"] = RuntimeError("broken")
        await until(lambda: store.calls.count("wait_for_work") > 1)
        del store.faults["wait_for_work"]
        for number in (1, 2):
            await (await work.enqueue()).result(timeout=5)
            await until(lambda: len(succeeded) == number)  # noqa: B023 - called before the next number


async def test_an_error_hook_that_never_returns_does_not_block_the_heartbeat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs, store = faulty()
    hooked, go, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @jobs.on("error")
    async def slow(error: BaseException, job: Job | None) -> None:
        hooked.set()
        await go.wait()

    @jobs.handler()
    async def long(first: bool) -> None:
        await done.wait()

    async with Worker(jobs, lease="1200ms") as worker:
        first, second = await long.enqueue(first=True), await long.enqueue(first=False)
        await until(lambda: worker.running == 2)
        real = store.get

        async def get(ids: Sequence[str]) -> list[Job | None]:
            monkeypatch.setattr(store, "get", real)
            raise RuntimeError("broken")

        await jobs.cancel(first.id)
        monkeypatch.setattr(store, "get", get)
        await asyncio.wait_for(hooked.wait(), 5)
        before = store.calls.count("extend")
        await until(lambda: store.calls.count("extend") >= before + 4)
        done.set()
        await second.result(timeout=5)
        assert (await second.job()).claims == 1
        go.set()


# ---------------------------------------------------------------------------------------------------- stores


@pytest.mark.parametrize("verb", ["exchange", "extend", "report", "wait_for_work"])
async def test_a_cancellation_inside_the_store_ends_no_loop(verb: str) -> None:
    jobs, store = faulty()
    met: list[str] = []
    go = asyncio.Event()

    @jobs.handler()
    async def work(context: jobmill.Context) -> str:
        context.log("x")
        if verb == "extend":
            await go.wait()
        return "done"

    def once(*_: object) -> BaseException | None:
        del store.faults[verb]
        met.append(verb)
        return asyncio.CancelledError()

    async with Worker(jobs, lease="1200ms") as worker:
        store.faults[verb] = once
        enqueued = await work.enqueue()
        await until(lambda: met)
        before = store.calls.count("extend")
        if verb == "extend":
            await until(lambda: store.calls.count("extend") > before)
        go.set()
        assert await enqueued.result(timeout=5) == "done"
        assert not any(task.done() for task in (*worker._loops, *worker._exchanging))


async def test_a_settlement_survives_a_cancellation_inside_the_store() -> None:
    jobs, store = faulty()
    runs = 0

    @jobs.handler()
    async def work() -> str:
        nonlocal runs
        runs += 1
        return "done"

    def when_settling(settlements: Sequence[Settlement], claim: Claim | None) -> BaseException | None:
        if not settlements:
            return None
        del store.faults["exchange"]
        return asyncio.CancelledError()

    async with Worker(jobs):
        store.faults["exchange"] = when_settling
        assert await (await work.enqueue()).result(timeout=5) == "done"
    assert runs == 1


async def test_a_log_line_that_raises_in_the_store_does_not_block_others() -> None:
    jobs, store = faulty()

    @jobs.handler()
    async def talks(context: jobmill.Context, text: str) -> None:
        context.log(text)
        context.progress(50)

    def choke(reports: Sequence[Any]) -> BaseException | None:
        return RuntimeError("no") if any("bad" in report.lines for report in reports) else None

    store.faults["report"] = choke
    bad, good = await talks.enqueue(text="bad"), await talks.enqueue(text="good")
    async with Worker(jobs):
        await bad.result(timeout=5)
        await good.result(timeout=5)
    assert [line.text for line in await jobs.logs(good.id)] == ["good"]


async def test_a_settlement_does_not_overtake_a_report_in_flight() -> None:
    store = SlowlyReporting()
    jobs = jobmill.connect(store=store)
    go = asyncio.Event()

    @jobs.handler()
    async def talks(context: jobmill.Context) -> None:
        context.log("last words")
        await go.wait()

    async with Worker(jobs):
        enqueued = await talks.enqueue()
        await asyncio.wait_for(store.reporting.wait(), 5)
        go.set()
        await until(lambda: store.waiting_to_settle(enqueued.id) or None)
        store.go.set()
        await enqueued.result(timeout=5)
    assert [line.text for line in await jobs.logs(enqueued.id)] == ["last words"]


class SlowlyReporting(FaultyStore):
    """Like a store with several connections: a later call may finish first."""

    def __init__(self) -> None:
        super().__init__()
        self.reporting, self.go = asyncio.Event(), asyncio.Event()
        self.turns = 0

    def waiting_to_settle(self, id: str) -> bool:
        self.turns += 1
        return self.turns > 20

    async def report(self, reports: Sequence[Any]) -> list[str]:
        self.reporting.set()
        await self.go.wait()
        return await super().report(reports)
