"""Claims ahead: jobs that a worker has claimed and may not have started when it dies."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import secrets
from collections.abc import Callable, Sequence

import pytest

from jobmill.client.client import Client
from jobmill.core.job import LIVE, JobOptions
from jobmill.core.lifecycle import Policy, begin
from jobmill.core.values import AHEAD, Claim, Claimed, Exchanged, Filter, Report, Settlement
from jobmill.store import Store
from jobmill.testing.contract.harness import Harness, ProcessHarness
from jobmill.testing.contract.support import (
    LEASE_MS,
    NAME,
    QUEUE,
    claim_one,
    look,
    new,
    put,
    put_one,
    release,
    retry,
    settle,
    started,
    succeed,
)
from jobmill.worker.worker import Worker

MAX_CRASHES = 2
#: A worker that runs this number of quick jobs measures them, and claims ahead.
QUICK = 1_000
POISON = "poison"


async def claim_ahead(store: Store) -> Claimed:
    """Claim one job as a worker whose slots are all occupied."""
    return await claim_one(store, token=AHEAD + secrets.token_hex(16))


async def lose(harness: Harness) -> None:
    """The worker dies, and its leases end."""
    await harness.advance(LEASE_MS / 1000)


class AheadContract:
    """What a store knows of claims ahead."""

    async def test_the_first_lost_claim_ahead_is_no_crash(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        first = await claim_ahead(harness.store)
        assert (first.uncounted, first.job.unstarted) == (False, 0)
        await lose(harness)
        again = await claim_one(harness.store)
        assert (again.recovered_from, again.uncounted) == ("worker-1", True)
        assert (again.job.crashes, again.job.unstarted, again.job.claims) == (0, 1, 2)
        job = await look(harness.store, id)
        assert (job.crashes, job.unstarted) == (0, 1)

    @pytest.mark.parametrize("token", ["", AHEAD])
    async def test_the_second_loss_is_a_crash(self, harness: Harness, token: str) -> None:
        await put_one(harness.store)
        await claim_ahead(harness.store)
        await lose(harness)
        await claim_one(harness.store, token=token + secrets.token_hex(16))
        await lose(harness)
        again = await claim_one(harness.store)
        assert (again.recovered_from, again.uncounted) == ("worker-1", False)
        assert (again.job.crashes, again.job.unstarted) == (1, 1)

    async def test_a_loss_after_another_attempt_is_a_crash(self, harness: Harness) -> None:
        await put_one(harness.store)
        await claim_ahead(harness.store)
        await lose(harness)
        again = await claim_one(harness.store)
        assert await settle(harness.store, retry(again, delay_ms=0)) == ["done"]
        await claim_ahead(harness.store)
        await lose(harness)
        last = await claim_one(harness.store)
        assert (last.uncounted, last.job.crashes, last.job.unstarted) == (False, 1, 1)

    async def test_only_the_last_claim_decides(self, harness: Harness) -> None:
        await put_one(harness.store)
        assert await settle(harness.store, release(await claim_ahead(harness.store))) == ["done"]
        await claim_one(harness.store)
        await lose(harness)
        again = await claim_one(harness.store)
        assert (again.uncounted, again.job.crashes, again.job.unstarted) == (False, 1, 0)

    async def test_a_crash_before_a_claim_ahead_still_counts(self, harness: Harness) -> None:
        await started(harness.store)
        await lose(harness)
        again = await claim_ahead(harness.store)
        assert (again.uncounted, again.job.crashes) == (False, 1)
        await lose(harness)
        last = await claim_one(harness.store)
        assert (last.uncounted, last.job.crashes, last.job.unstarted) == (True, 1, 1)

    async def test_the_lease_of_a_claim_ahead_is_like_any_other(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        claimed = await claim_ahead(harness.store)
        await harness.advance(10)
        assert await harness.store.extend([claimed.lease], LEASE_MS) == []
        await harness.advance(10)
        assert await harness.store.report([Report(lease=claimed.lease, lines=("here",))]) == []
        assert await settle(harness.store, succeed(claimed)) == ["done"]
        job = await look(harness.store, id)
        assert (job.state, job.crashes, job.claims, job.attempts) == ("succeeded", 0, 1, ())

    async def test_the_loss_is_among_the_attempts(self, harness: Harness) -> None:
        id = await put_one(harness.store)
        await claim_ahead(harness.store)
        await lose(harness)
        again = await claim_one(harness.store)
        assert begin(again, Policy(max_crashes=1), harness.store.now()) is None
        assert await settle(harness.store, succeed(again)) == ["done"]
        job = await look(harness.store, id)
        (lost,) = job.attempts
        assert (lost.outcome, lost.started, lost.worker, lost.number) == ("crashed", False, "worker-1", 1)
        assert (job.state, job.crashes) == ("succeeded", 0)


class ProcessAheadContract:
    """The same with worker processes that die."""

    @pytest.mark.slow
    async def test_a_handler_that_ends_its_process_fails_after_its_crashes(self, harness: ProcessHarness) -> None:
        # The others die with it, sometimes the same ones each time.
        patient = JobOptions(max_crashes=10)
        quick = [new(payload={"kills": False}, priority=1, options=patient) for _ in range(QUICK)]
        ids = await put(harness.store, *quick)
        deaths = 0
        while await asyncio.to_thread(_work, harness.opener):
            deaths += 1
            assert deaths <= MAX_CRASHES + 1
        dead = await look(harness.store, POISON)
        assert deaths == MAX_CRASHES + 1, "the loss of the first claim, which was a claim ahead, did not count"
        assert (dead.state, dead.crashes, dead.unstarted) == ("failed", MAX_CRASHES, 1)
        states = [job and job.state for job in await harness.store.get(ids)]
        assert states == ["succeeded"] * QUICK


def _work(opener: Callable[[], Store]) -> int | None:
    """Run a worker in a process of its own until no job is left, or until it dies. Returns its exit code."""
    process = multiprocessing.get_context("spawn").Process(target=_run_worker, args=(opener,))
    process.start()
    process.join(60)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode


def _run_worker(opener: Callable[[], Store]) -> None:
    asyncio.run(_drain(Client(opener())))


async def _drain(jobs: Client) -> None:
    store, exchange = jobs.store, jobs.store.exchange
    poison = new(POISON, payload={"kills": True}, options=JobOptions(max_crashes=MAX_CRASHES))

    one_at_a_time = asyncio.Lock()

    async def enqueue_first(settlements: Sequence[Settlement], claim: Claim | None) -> Exchanged:
        async with one_at_a_time:  # or a claim of another loop, which is not ahead, could be the first to have it
            if claim is not None and claim.is_ahead:
                await store.enqueue([poison])  # this claim ahead has it; later it is there already
            return await exchange(settlements, claim)

    store.exchange = enqueue_first  # type: ignore[method-assign]

    @jobs.handler(name=NAME)
    async def send(kills: bool) -> None:
        if kills:
            os._exit(1)
        await asyncio.sleep(0.002)  # on a store inside this process, quicker handlers are not claimed ahead

    async with jobs, Worker(jobs, queues=[QUEUE], concurrency=4, lease="1s"):
        while await store.count(Filter(states=LIVE)):  # noqa: ASYNC110  (in the database, perhaps of other processes)
            await asyncio.sleep(0.05)
