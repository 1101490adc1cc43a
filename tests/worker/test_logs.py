"""What operators see in the log of a worker."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

import jobmill
from jobmill import Client
from jobmill.worker.worker import Worker

FIELDS = ("job_id", "job_name", "queue", "attempt", "worker")


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if text in record.getMessage()]


async def failed(enqueued: jobmill.Enqueued[Any]) -> None:
    with pytest.raises(jobmill.JobFailed):
        await enqueued.result(timeout=10)


@pytest.mark.parametrize("verbose", [False, True])
async def test_an_attempt_with_a_retry_is_a_warning_and_the_last_one_an_error(
    jobs: Client, caplog: pytest.LogCaptureFixture, verbose: bool
) -> None:
    caplog.set_level(logging.DEBUG if verbose else logging.INFO, "jobmill")

    @jobs.handler(max_attempts=2, backoff="1ms", queue="bills")
    async def charge() -> None:
        raise ValueError("no money")

    async with Worker(jobs, name="till-1"):
        enqueued = await charge.enqueue()
        await failed(enqueued)
    retrying, last = lines(caplog, f"job {enqueued.id} (charge), attempt")
    assert (retrying.levelno, last.levelno) == (logging.WARNING, logging.ERROR)
    assert retrying.getMessage().endswith("attempt 1 errored, retrying: ValueError: no money")
    assert last.getMessage().endswith("attempt 2 errored, failed: ValueError: no money")
    assert bool(retrying.exc_info) == verbose
    assert last.exc_info is not None
    assert isinstance(last.exc_info[1], ValueError)
    assert [vars(last)[field] for field in FIELDS] == [enqueued.id, "charge", "bills", 2, "till-1"]
    assert vars(retrying)["attempt"] == 1


async def test_a_timeout_and_an_unfit_payload_have_no_traceback(jobs: Client, caplog: pytest.LogCaptureFixture) -> None:
    @jobs.handler(max_attempts=1, timeout=0.01)
    async def slow(n: int) -> None:
        await asyncio.sleep(60)

    async with Worker(jobs):
        await failed(await slow.enqueue(n=1))
        await failed(await jobmill.connect(store=jobs.store).enqueue("slow", {"n": "x"}))
    timeout, unfit = lines(caplog, "(slow), attempt 1 errored, failed")
    assert (timeout.levelno, timeout.exc_info) == (logging.ERROR, None)
    assert (unfit.levelno, unfit.exc_info) == (logging.ERROR, None)


async def test_success_is_not_logged(jobs: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jobmill")

    @jobs.handler()
    async def fine() -> None: ...

    async with Worker(jobs):
        enqueued = await fine.enqueue()
        await enqueued.result(timeout=10)
    assert not lines(caplog, enqueued.id)
