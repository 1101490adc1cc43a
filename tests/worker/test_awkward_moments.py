"""A worker at awkward moments: blocked loops, claims that come too late, hooks and stores that misbehave."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

import jobmill
from jobmill import Client, JobmillError, StoreUnavailable
from jobmill.core.job import Job
from jobmill.core.values import Claim, Exchanged, Lease, Settlement
from jobmill.runtime.threads import Threads
from jobmill.worker import deadlines
from jobmill.worker.deadlines import Deadlines
from jobmill.worker.running import Run
from jobmill.worker.worker import Worker
from tests.helpers import FaultyStore, until


def faulty() -> tuple[Client, FaultyStore]:
    store = FaultyStore()
    return jobmill.connect(store=store), store


async def cancelled_elsewhere(*_: object) -> None:
    """What awaiting something that was cancelled comes to."""
    raise asyncio.CancelledError


# ---------------------------------------------------------------------------------------------------- leases


@pytest.mark.parametrize("claimed_again_by", ["the exchanger first", "the heartbeat first"])
async def test_a_job_that_its_own_worker_claims_again_is_not_stopped_with_its_older_run(claimed_again_by: str) -> None:
    jobs, store = faulty()
    lost: list[int] = []
    claims: list[int] = []
    jobs.on("lease_lost")(lambda event: lost.append(event.attempt))
    stubborn, go = asyncio.Event(), asyncio.Event()

    @jobs.handler()
    async def long(context: jobmill.Context) -> int:
        claims.append(context.fence)
        if context.fence == 1:
            try:
                await asyncio.Event().wait()
            finally:
                # It takes its time to end, and talks.
                await until(lambda: len(extended) >= 3)
                context.log("the older run")
                stubborn.set()
        await go.wait()
        context.log("the newer run")
        return context.fence

    extended: list[list[Lease]] = []

    def extend(leases: Sequence[Lease], for_ms: int) -> BaseException | None:
        if claims == [1]:
            return StoreUnavailable("gone")
        extended.append(list(leases))
        return None

    async with Worker(jobs, lease="150ms") as worker:
        enqueued = await long.enqueue()
        (run,) = await until(lambda: list(worker._running.runs.values()))
        store.faults["extend"] = extend
        if claimed_again_by == "the exchanger first":
            run.expires += 10  # as if our own clock had stood still
        await until(lambda: store.now() > run.claimed.lease.until_ms)
        worker._exchangers[0].wake()
        await asyncio.wait_for(stubborn.wait(), 5)
        go.set()
        assert await enqueued.result(timeout=5) == 2
        job = await enqueued.job()
        assert (job.claims, job.crashes) == (2, 1)
        assert lost == [1]
        assert all(len(leases) == 1 for leases in extended)
        assert [line.text for line in await jobs.logs(enqueued.id)] == ["the newer run"]
        assert worker.running == 0


async def test_a_claim_whose_answer_took_longer_than_its_lease_does_not_run() -> None:
    store = SlowStore()
    jobs = jobmill.connect(store=store)
    fences: list[int] = []

    @jobs.handler()
    async def work(context: jobmill.Context) -> None:
        fences.append(context.fence)

    enqueued = await work.enqueue()
    async with Worker(jobs, lease="100ms"):
        await enqueued.result(timeout=5)
    assert 1 not in fences


class SlowStore(FaultyStore):
    """Blocks everything, as a stopped process would, after the first claim that brought something."""

    blocked = False

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        answer = await super().exchange(settlements, claim)
        if answer.claimed and not self.blocked:
            self.blocked = True
            time.sleep(0.11)  # noqa: ASYNC251 - it is the whole loop that stands still
        return answer


async def test_a_store_that_hangs_does_not_let_a_job_outlive_its_lease() -> None:
    store = HangingStore()
    jobs = jobmill.connect(store=store)
    stopped: list[float] = []

    @jobs.handler()
    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(time.monotonic())

    async with Worker(jobs, lease="900ms", shutdown_timeout=0) as worker:
        await long.enqueue()
        (run,) = await until(lambda: list(worker._running.runs.values()))
        await until(lambda: worker.running and store.extended)
        # Away, then silent: a call that is waited for when the lease ends.
        store.faults["extend"] = StoreUnavailable("gone")
        before = store.calls.count("extend")
        await until(lambda: store.calls.count("extend") == before + 4)
        store.hangs = True
        await until(lambda: stopped)
        # It would be 0.24 s late if that call got its third of the lease.
        assert -0.01 < stopped[0] - run.expires < 0.2
        store.faults.clear()
        store.hangs = False


class HangingStore(FaultyStore):
    """Does not answer."""

    hangs = False
    extended = 0

    async def extend(self, leases: Sequence[Lease], for_ms: int) -> list[str]:
        if self.hangs:
            await asyncio.Event().wait()
        self.extended += 1
        return await super().extend(leases, for_ms)

    async def get(self, ids: Sequence[str]) -> list[Job | None]:
        if self.hangs:
            await asyncio.Event().wait()
        return await super().get(ids)


async def test_the_heartbeat_goes_on_when_nobody_says_why_a_job_was_lost() -> None:
    store = HangingStore()
    jobs = jobmill.connect(store=store)
    go, stopped = asyncio.Event(), asyncio.Event()

    @jobs.handler()
    async def long(first: bool) -> None:
        try:
            await go.wait()
        finally:
            if first:
                stopped.set()

    async with Worker(jobs, lease="600ms") as worker:
        first, second = await long.enqueue(first=True), await long.enqueue(first=False)
        await until(lambda: worker.running == 2)
        real = store.extend

        async def extend(leases: Sequence[Lease], for_ms: int) -> list[str]:
            store.hangs = False
            lost = await real(leases, for_ms)
            store.hangs = True
            return lost

        store.extend = extend  # type: ignore[method-assign]
        await jobs.cancel(first.id)
        await asyncio.wait_for(stopped.wait(), 5)
        before = store.extended
        await until(lambda: store.extended >= before + 4)
        store.extend = real  # type: ignore[method-assign]
        store.hangs = False
        go.set()
        await second.result(timeout=5)
        assert (await second.job()).claims == 1


async def test_a_run_that_ignores_its_timeout_and_is_lost_then_is_told_once() -> None:
    jobs = jobmill.connect("memory://")
    told: list[str] = []
    jobs.on("*")(lambda event: told.append(event.type))
    timed_out, go = asyncio.Event(), asyncio.Event()

    @jobs.handler(timeout="10ms")
    async def deaf() -> None:
        try:
            await go.wait()
        except asyncio.CancelledError:
            timed_out.set()
            await go.wait()

    async with Worker(jobs, lease="100ms") as worker:
        enqueued = await deaf.enqueue()
        await asyncio.wait_for(timed_out.wait(), 5)
        await jobs.cancel(enqueued.id)
        await until(lambda: "cancelled" in told)
        turned = worker.watchdog._last["heartbeat"]
        await until(lambda: worker.watchdog._last["heartbeat"] > turned + 0.1)
        go.set()
    assert sorted(told) == ["cancelled", "claimed", "enqueued"]


# ---------------------------------------------------------------------------------------------------- hooks


async def test_a_hook_that_awaits_something_cancelled_ends_no_loop() -> None:
    jobs, store = faulty()
    for what in ("start", "stop", "idle", "error", "*"):
        jobs.on(what)(cancelled_elsewhere)
    told: list[str] = []
    jobs.on("succeeded")(lambda event: told.append(event.job_id))

    @jobs.handler()
    async def work() -> None: ...

    async with Worker(jobs):
        store.faults["wait_for_work"] = RuntimeError("broken")
        await until(lambda: store.calls.count("wait_for_work") > 1)
        del store.faults["wait_for_work"]
        for number in (1, 2):
            await (await work.enqueue()).result(timeout=5)
            await until(lambda: len(told) == number)  # noqa: B023 - called before the next number


async def test_an_error_hook_that_takes_for_ever_does_not_hold_the_heartbeat_up(
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

    async with Worker(jobs, lease="600ms") as worker:
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

    async with Worker(jobs, lease="600ms") as worker:
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


async def test_a_line_that_the_store_chokes_on_holds_nobody_up() -> None:
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


async def test_what_is_being_written_is_not_overtaken_by_a_settlement() -> None:
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
    """Like a store with several connections: a later call may be done first."""

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


# ---------------------------------------------------------------------------------------------------- starting


def tasks() -> set[asyncio.Task[Any]]:
    """Those of this test: fixtures of the whole session may have some, too."""
    return asyncio.all_tasks() - {asyncio.current_task()} - _before


_before: set[asyncio.Task[Any]] = set()


@pytest.fixture(autouse=True)
async def _note_tasks() -> None:
    _before.clear()
    _before.update(asyncio.all_tasks() - {asyncio.current_task()})


async def test_a_worker_that_was_started_again_stops_again() -> None:
    jobs = jobmill.connect("memory://")
    worker = Worker(jobs)
    for _ in range(2):
        await worker.start()
        assert tasks()
        await worker.stop()
        await until(lambda: not tasks())


async def test_a_worker_that_runs_cannot_be_started() -> None:
    async with Worker(jobmill.connect("memory://")) as worker:
        with pytest.raises(JobmillError, match="runs already"):
            await worker.start()
    await until(lambda: not tasks())


async def test_a_start_that_fails_leaves_nothing_running() -> None:
    jobs = jobmill.connect("memory://")
    async with Worker(jobs, health=0) as first:
        assert first._health is not None
        second = Worker(jobs, health=first._health.port)
        with pytest.raises(jobmill.InvalidValue, match="health"):
            await second.start()
        assert [task.get_name() for task in tasks()].count("jobmill teller") == 1


# ---------------------------------------------------------------------------------------------------- ticks


async def test_a_tick_that_is_cancelled_releases_its_jobs() -> None:
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


# ---------------------------------------------------------------------------------------------------- running


async def test_a_snooze_that_lacks_its_delay_is_an_error_of_its_job() -> None:
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


async def test_deadlines_forget_runs_that_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "FEW", 10)
    kept = Deadlines()
    live = [a_run() for _ in range(5)]
    for run in live:
        kept.add(run, 3_600_000)
    for _ in range(1_000):
        short = a_run()
        kept.add(short, 3_600_000)
        short.over = True
    assert len(kept._heap) <= 2 * 15
    assert {entry[2] for entry in kept._heap} >= set(live)
    kept.clear()


def a_run() -> Run:
    nothing: Any = None
    return Run(nothing, nothing, nothing, 0.0, nothing)


async def test_the_switch_interval_is_the_usual_one_again_when_the_last_worker_has_ended() -> None:
    usual = sys.getswitchinterval()
    first, second = Threads(), Threads()
    nothing: Callable[[], None] = lambda: None  # noqa: E731
    await first.run(nothing)
    await second.run(nothing)
    first.close()
    assert sys.getswitchinterval() < usual
    second.close()
    assert sys.getswitchinterval() == pytest.approx(usual)
