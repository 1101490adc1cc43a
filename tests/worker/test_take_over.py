"""Jobs of a dead worker: an idle worker takes them over when their lease has ended, and does not spin until then."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator
from functools import partial

import pytest

import jobmill
from jobmill import Client
from jobmill.core.values import Claim, Claimed
from jobmill.worker.worker import Worker
from tests.helpers import FaultyStore, until
from tests.kit.measure import best_of


@pytest.fixture
async def jobs(store_url: str, store_name: str) -> AsyncIterator[Client]:
    async with jobmill.connect(store_url) as client:
        if store_name in ("postgres", "mongo"):
            await client.store.migrate()
        yield client


async def claimed_by_hand(jobs: Client, lease_ms: int) -> Claimed:
    """Claim a job as a worker that then dies."""
    token = secrets.token_hex(16)
    claim = Claim(queues=("default",), names={"work": 1}, n=1, lease_ms=lease_ms, worker="dead-1", token=token)
    (claimed,) = (await jobs.store.exchange([], claim)).claimed
    assert isinstance(claimed, Claimed)
    return claimed


@pytest.mark.alone
@pytest.mark.extended("sqlite", "postgres", "mongo")  # the contract has it for each store, by the clock of the test
async def test_a_job_is_taken_over_at_most_a_second_after_its_lease(
    jobs: Client, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.handler()
    async def work() -> None: ...

    async def late_ms() -> float:
        caplog.clear()
        enqueued = await work.enqueue()
        claimed = await claimed_by_hand(jobs, 2_300)
        async with Worker(jobs, name="worker-2"):
            await enqueued.result(timeout=20)
        taken_over.append(await enqueued.job())
        assert taken_over[-1].started_ms is not None
        assert taken_over[-1].started_ms >= claimed.lease.until_ms
        return taken_over[-1].started_ms - claimed.lease.until_ms

    taken_over: list[jobmill.Job] = []
    assert await best_of(late_ms, below=1_001) <= 1_000
    job = taken_over[-1]
    (record,) = [record for record in caplog.records if "recovered" in record.getMessage()]
    assert record.levelno == logging.WARNING
    assert record.getMessage() == f"job {job.id} (work) was recovered from worker dead-1, whose lease had ended"
    extra = vars(record)
    assert (extra["job_id"], extra["job_name"], extra["queue"]) == (job.id, "work", "default")
    assert (extra["attempt"], extra["worker"]) == (1, "worker-2")


def is_after(store: FaultyStore, ms: int) -> bool:
    return store.now() >= ms


@pytest.mark.slow
async def test_a_lease_that_is_extended_wakes_an_idle_worker_seldom() -> None:
    store = FaultyStore()
    jobs = jobmill.connect(store=store)

    @jobs.handler()
    async def work() -> None: ...

    enqueued = await work.enqueue()
    lease = (await claimed_by_hand(jobs, 1_200)).lease
    async with Worker(jobs, lease="1200ms"):
        before = len(store.calls)
        for turn in range(6):
            await until(partial(is_after, store, lease.until_ms - 800 + 400 * turn))
            assert await store.extend([lease], 1_200) == []
        # A claim each 400 ms, when the end of the lease was to be, and two as it begins.
        assert store.calls[before:].count("exchange") <= 12
        assert (await enqueued.job()).claims == 1
        await enqueued.result(timeout=10)
