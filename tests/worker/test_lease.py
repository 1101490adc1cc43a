"""Leases in a worker: a live job is never lost; lost and cancelled jobs are stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

import jobmill
from jobmill import Client, StoreUnavailable
from jobmill.core.values import Claim, Exchanged, Settlement
from jobmill.worker.worker import Worker
from tests.helpers import FaultyStore, until


def faulty() -> tuple[Client, FaultyStore]:
    store = FaultyStore()
    return jobmill.connect(store=store), store


@pytest.mark.slow
async def test_a_job_longer_than_its_lease_runs_once() -> None:
    jobs = jobmill.connect("memory://")
    go = asyncio.Event()
    runs = 0

    @jobs.handler()
    async def long() -> None:
        nonlocal runs
        runs += 1
        await go.wait()

    async with Worker(jobs, lease="1500ms"), Worker(jobs, lease="1500ms"):
        enqueued = await long.enqueue()
        started = await until(lambda: _running(enqueued))
        # Two leases later it is still the same claim.
        await until(lambda: jobs.store.now() > started.started_ms + 3_000)
        go.set()
        await enqueued.result(timeout=5)
    assert runs == 1
    assert (await enqueued.job()).claims == 1


async def _running(enqueued: jobmill.Enqueued[Any]) -> jobmill.Job | None:
    job = await enqueued.job()
    return job if job.state == "running" else None


async def test_cancelling_a_running_job_stops_its_handler() -> None:
    jobs = jobmill.connect("memory://")
    stopped = asyncio.Event()
    told: list[str] = []
    jobs.on("*")(lambda event: told.append(event.type))

    @jobs.handler()
    async def long() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with Worker(jobs, lease="900ms"):
        enqueued = await long.enqueue()
        await until(lambda: _running(enqueued))
        assert (await jobs.cancel(enqueued.id)).ids == [enqueued.id]
        await asyncio.wait_for(stopped.wait(), 5)
    assert (await enqueued.job()).state == "cancelled"
    assert sorted(told) == ["cancelled", "claimed", "enqueued"]


async def test_a_worker_that_cannot_extend_a_lease_stops_the_job_when_the_lease_ends() -> None:
    jobs, store = faulty()
    stopped = asyncio.Event()
    lost: list[str] = []
    jobs.on("lease_lost")(lambda event: lost.append(event.job_id))

    @jobs.handler()
    async def long(context: jobmill.Context) -> None:
        if context.fence > 1:
            return
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with Worker(jobs, lease="400ms"):
        enqueued = await long.enqueue()
        await until(lambda: _running(enqueued))
        store.faults["extend"] = StoreUnavailable("gone")
        await asyncio.wait_for(stopped.wait(), 5)
        store.faults.clear()
        # The lost run wrote nothing; the job is claimed again when its lease has ended, and that counts a crash.
        await enqueued.result(timeout=10)
    job = await enqueued.job()
    assert (job.claims, job.crashes, job.errors) == (2, 1, 0)
    assert lost == [enqueued.id]


async def test_jobs_that_finish_while_the_store_is_unavailable_are_settled_later() -> None:
    jobs, store = faulty()
    go = asyncio.Event()
    runs = 0

    @jobs.handler()
    async def work() -> str:
        nonlocal runs
        runs += 1
        await go.wait()
        return "done"

    async with Worker(jobs) as worker:
        enqueued = await work.enqueue()
        await until(lambda: runs == 1)
        store.faults["exchange"] = StoreUnavailable("gone")
        go.set()
        before = len(store.calls)
        await until(lambda: store.calls[before:].count("exchange") >= 2)
        assert worker.watchdog.store_error == "StoreUnavailable: gone"
        store.faults.clear()
        assert await enqueued.result(timeout=10) == "done"
        assert runs == 1
        await until(lambda: worker.watchdog.store_error is None)


async def test_a_settlement_that_raises_in_the_store_does_not_block_others() -> None:
    jobs, store = faulty()

    def choke(settlements: list[Settlement], claim: Claim | None) -> BaseException | None:
        poisoned = any(b"poison" in settlement.result_json for settlement in settlements)
        return RuntimeError("a bug of the store's") if poisoned else None

    store.faults["exchange"] = choke

    @jobs.handler()
    async def work(say: str) -> str:
        return say

    async with Worker(jobs):
        bad, good = await jobs.enqueue_many([work.draft("poison"), work.draft("fine")])
        assert await good.result(timeout=5) == "fine"
        await until(lambda: _state(bad, "failed"))
    assert "refused" in str((await bad.job()).error)


async def _state(enqueued: jobmill.Enqueued[Any], state: str) -> bool:
    return (await enqueued.job()).state == state


async def test_every_loop_survives_an_exception() -> None:
    jobs, store = faulty()
    errors: list[str] = []
    jobs.on("error")(lambda error, job: errors.append(str(error)))

    @jobs.handler()
    async def talks(context: jobmill.Context) -> str:
        context.log("x")
        return "ok"

    for verb in ("exchange", "extend", "report", "wait_for_work"):
        store.faults[verb] = RuntimeError(f"{verb} is broken")
    async with Worker(jobs, lease="150ms"):
        await until(lambda: "exchange is broken" in errors)
        del store.faults["exchange"]
        await until(lambda: "wait_for_work is broken" in errors)
        del store.faults["wait_for_work"]
        enqueued = await talks.enqueue()
        await until(lambda: "report is broken" in errors)
        store.faults.clear()
        assert await enqueued.result(timeout=10) == "ok"


class ForgetfulStore(FaultyStore):
    """Like a store that cannot filter a claim by name: it returns jobs of any name."""

    async def exchange(self, settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        if claim is not None:
            claim = Claim(
                queues=claim.queues,
                names={**claim.names, "stranger": 10},
                n=claim.n,
                lease_ms=claim.lease_ms,
                worker=claim.worker,
                token=claim.token,
            )
        return await super().exchange(settlements, claim)


async def test_a_job_of_an_unknown_name_is_released_with_a_delay_and_never_failed() -> None:
    jobs = jobmill.connect(store=ForgetfulStore())

    @jobs.handler()
    async def known() -> None: ...

    async with Worker(jobs):
        enqueued = await jobs.enqueue("stranger", {"x": 1})
        job = await until(lambda: _given_back(enqueued))
    assert (job.state, job.errors, job.crashes) == ("waiting", 0, 0)
    assert job.due_ms - job.updated_ms == 2000


async def _given_back(enqueued: jobmill.Enqueued[Any]) -> jobmill.Job | None:
    job = await enqueued.job()
    return job if job.claims == 1 and job.state == "waiting" else None
