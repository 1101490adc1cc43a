"""Leases that end while their job runs: the run is stopped, reported once, and never settled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

import jobmill
from jobmill import Client, StoreUnavailable
from jobmill.core.job import Job
from jobmill.core.values import Claim, Exchanged, Lease, Settlement
from jobmill.worker.worker import Worker
from tests.helpers import FaultyStore, until
from tests.kit.measure import best_of


def faulty() -> tuple[Client, FaultyStore]:
    store = FaultyStore()
    return jobmill.connect(store=store), store


@pytest.mark.parametrize("claimed_again_by", ["the exchanger first", "the heartbeat first"])
async def test_a_job_that_its_worker_claims_again_is_not_stopped_with_the_older_run(claimed_again_by: str) -> None:
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
                # The older run ends late, and still writes a log line.
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

    async with Worker(jobs, lease="500ms") as worker:
        enqueued = await long.enqueue()
        (run,) = await until(lambda: list(worker._context.running.runs.values()))
        store.faults["extend"] = extend
        if claimed_again_by == "the exchanger first":
            run.expires += 10  # as if the clock of the worker had stopped
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


async def test_jobs_of_a_claim_that_took_longer_than_its_lease_do_not_run() -> None:
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
    """Blocks the event loop after the first claim that returned a job, like a suspended process."""

    blocked = False

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        answer = await super().exchange(settlements, claim)
        if answer.claimed and not self.blocked:
            self.blocked = True
            time.sleep(0.11)  # noqa: ASYNC251 - this must block the whole loop
        return answer


@pytest.mark.slow
async def test_a_job_does_not_outlive_its_lease_while_the_store_hangs() -> None:
    # It would be 0.6 s late if the call that hangs had a timeout of a third of the lease.
    assert await best_of(_outlived, below=0.4) < 0.4


async def _outlived() -> float:
    """How long after its lease the job was stopped."""
    store = SilentStore()
    jobs = jobmill.connect(store=store)
    stopped: list[float] = []

    @jobs.handler()
    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(time.monotonic())

    async with Worker(jobs, lease="3s", shutdown_timeout=0) as worker:
        await long.enqueue()
        (run,) = await until(lambda: list(worker._context.running.runs.values()))
        await until(lambda: worker.running and store.extended)
        # First the store raises, then it does not answer: a call is in flight when the lease ends.
        store.faults["extend"] = StoreUnavailable("gone")
        before = store.calls.count("extend")
        await until(lambda: store.calls.count("extend") == before + 3)
        store.hangs = True
        await until(lambda: stopped)
        store.faults.clear()
        store.hangs = False
    late: float = stopped[0] - run.expires
    assert late > -0.01
    return late


class HangingStore(FaultyStore):
    """Does not answer while `hangs` is set."""

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


class SilentStore(HangingStore):
    """Nor does it hand out jobs then: a worker that claimed the job again would stop the older run."""

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        await until(lambda: not self.hangs)
        return await super().exchange(settlements, claim)


async def test_the_heartbeat_continues_when_the_reason_of_a_loss_is_unknown() -> None:
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

    async with Worker(jobs, lease="1200ms") as worker:
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


async def test_a_run_that_ignores_its_timeout_and_is_then_lost_is_reported_once() -> None:
    jobs = jobmill.connect("memory://")
    events: list[str] = []
    jobs.on("*")(lambda event: events.append(event.type))
    timed_out, go = asyncio.Event(), asyncio.Event()

    @jobs.handler(timeout="10ms")
    async def deaf() -> None:
        try:
            await go.wait()
        except asyncio.CancelledError:
            timed_out.set()
            await go.wait()

    async with Worker(jobs, lease="500ms") as worker:
        enqueued = await deaf.enqueue()
        await asyncio.wait_for(timed_out.wait(), 5)
        await jobs.cancel(enqueued.id)
        await until(lambda: "cancelled" in events)
        turned = worker.watchdog._last["heartbeat"]
        await until(lambda: worker.watchdog._last["heartbeat"] > turned + 0.1)
        go.set()
    assert sorted(events) == ["cancelled", "claimed", "enqueued"]
