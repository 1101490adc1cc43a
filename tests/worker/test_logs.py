"""What operators see in the log of a worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import pytest

import jobmill
from jobmill import Client
from jobmill.core.values import Claim
from jobmill.testing import ManualClock
from jobmill.worker import janitor, stderr_log
from jobmill.worker.worker import Worker
from tests.helpers import until
from tests.stores_under_test import make_store

FIELDS = ("job_id", "job_name", "queue", "attempt", "worker")


@pytest.fixture
def jobs() -> Client:
    return jobmill.connect("memory://")


def lines(caplog: pytest.LogCaptureFixture, text: str) -> list[logging.LogRecord]:
    return [record for record in caplog.records if text in record.getMessage()]


async def failed(enqueued: jobmill.Enqueued[Any]) -> None:
    with pytest.raises(jobmill.JobFailed):
        await enqueued.result(timeout=10)


async def test_a_job_that_fails_with_its_dependency_is_a_warning_that_says_why(
    jobs: Client, caplog: pytest.LogCaptureFixture
) -> None:
    @jobs.handler(max_attempts=1)
    async def charge() -> None:
        raise ValueError("no money")

    @jobs.handler
    async def send() -> None: ...

    async with Worker(jobs, name="till-1"):
        first = charge.draft()
        last = await jobs.chain(first, send.draft()).enqueue()
        await failed(last)
    (line,) = lines(caplog, f"job {last.id}")
    assert line.levelno == logging.WARNING
    assert line.getMessage().startswith(f"job {last.id} (send) failed and did not run: dependency ")
    assert line.getMessage().endswith(" failed: ValueError: no money")
    assert [record.levelno for record in lines(caplog, "(charge)")] == [logging.ERROR]


@pytest.mark.parametrize("verbose", [False, True])
async def test_an_attempt_with_a_retry_is_a_warning_and_the_last_one_an_error(
    jobs: Client, caplog: pytest.LogCaptureFixture, verbose: bool
) -> None:
    caplog.set_level(logging.DEBUG if verbose else logging.INFO, "jobmill")

    @jobs.handler(max_attempts=2, backoff="1ms", queue="bills")
    async def charge() -> None:
        await asyncio.sleep(0.02)
        raise ValueError("no money")

    async with Worker(jobs, name="till-1"):
        enqueued = await charge.enqueue()
        await failed(enqueued)
    retrying, last = lines(caplog, f"job {enqueued.id} (charge), attempt")
    assert (retrying.levelno, last.levelno) == (logging.WARNING, logging.ERROR)
    assert retrying.getMessage().endswith("attempt 1 errored, retrying in 1ms: ValueError: no money")
    assert last.getMessage().endswith("attempt 2 errored, failed: ValueError: no money")
    assert bool(retrying.exc_info) == verbose
    assert last.exc_info is not None
    assert isinstance(last.exc_info[1], ValueError)
    assert last.exc_info[2] is not None
    assert last.exc_info[2].tb_frame.f_code.co_name == "charge"
    assert [vars(last)[field] for field in FIELDS] == [enqueued.id, "charge", "bills", 2, "till-1"]
    assert vars(retrying)["attempt"] == 1
    assert [(vars(one)["fence"], vars(one)["outcome"]) for one in (retrying, last)] == [(1, "errored"), (2, "errored")]
    assert 10 <= vars(last)["took_ms"] < 10_000


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


@pytest.mark.parametrize(
    ("quiet", "log_format", "named"),
    [(False, "text", None), (True, "text", "--quiet"), (True, "json", "--quiet and --log-format")],
)
def test_options_without_effect_are_warned_of(
    quiet: bool,
    log_format: str,
    named: str | None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stderr_log, "options", {})
    # pytest adds handlers to the root logger, as LOGGING of Django can.
    stderr_log.log_to_stderr(quiet=quiet, log_format=log_format)
    found = [line.getMessage().partition(": no effect")[0] for line in caplog.records]
    assert found == ([] if named is None else [named])


async def test_success_is_not_logged(jobs: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "jobmill")

    @jobs.handler()
    async def fine() -> None: ...

    async with Worker(jobs):
        enqueued = await fine.enqueue()
        await enqueued.result(timeout=10)
    assert not lines(caplog, enqueued.id)


# ---------------------------------------------------------------------------------------------------- no handler


NO_HANDLER = "this worker has no handler"


class Overdue:
    """A queue whose jobs are overdue, and a worker that has a handler for `send_mail` only."""

    def __init__(self, store_url: str) -> None:
        self.clock = ManualClock()
        self.jobs = jobmill.connect(store=make_store(store_url, self.clock))

        @self.jobs.handler()
        async def send_mail() -> None: ...

    async def turns(self, seconds: float) -> None:
        """Let time pass, and the janitor take a turn."""
        purged = asyncio.Event()
        purge = self.jobs.store.purge

        async def noticed(limit: int = 1_000) -> Any:
            purged.set()
            return await purge(limit)

        self.clock.advance(seconds)
        self.jobs.store.purge = noticed  # type: ignore[method-assign]
        await asyncio.wait_for(purged.wait(), 10)


@pytest.fixture
async def overdue(store_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Overdue]:
    monkeypatch.setattr(janitor, "EVERY_S", 0.01)
    overdue = Overdue(store_url)
    async with overdue.jobs:
        yield overdue


async def test_overdue_jobs_without_a_handler_are_warned_of_every_ten_minutes(
    overdue: Overdue, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = overdue.jobs
    first = await jobs.enqueue("send_mial")
    await jobs.enqueue("send_mial", delay="1h")
    await jobs.enqueue("resize", queue="other")
    async with Worker(jobs, name="worker-1"):
        await overdue.turns(1)
        await jobs.enqueue("too_new")
        await overdue.turns(58)
        assert not lines(caplog, NO_HANDLER)
        await overdue.turns(2)
        (record,) = await until(lambda: lines(caplog, NO_HANDLER))
        await overdue.turns(599)
        assert len(lines(caplog, NO_HANDLER)) == 1
        await overdue.turns(1)
        again = await until(lambda: lines(caplog, NO_HANDLER)[1:])
    assert record.getMessage() == (
        "this worker has no handler for 'send_mial', and such jobs in queue 'default' have been due for more than a "
        "minute (number of jobs: 1); the nearest name that it knows is 'send_mail'"
    )
    assert record.levelno == logging.WARNING
    assert [vars(record)[field] for field in FIELDS] == [first.id, "send_mial", "default", 1, "worker-1"]
    assert sorted(vars(one)["job_name"] for one in again) == ["send_mial", "too_new"]


async def test_queues_that_no_job_and_no_handler_has_are_warned_of(
    overdue: Overdue, caplog: pytest.LogCaptureFixture
) -> None:
    jobs = overdue.jobs

    @jobs.handler(queue="mail")
    async def declared() -> None: ...

    await jobs.enqueue("resize", queue="images", delay="1h")
    async with Worker(jobs, name="worker-1", queues=["default", "mail", "images", "mial", "xyz"]):
        await overdue.turns(1)
        await overdue.turns(1)
    assert [record.getMessage() for record in lines(caplog, "claims from the queue")] == [
        "worker worker-1 claims from the queue 'mial', which no job and no handler has; the nearest name is 'mail'",
        "worker worker-1 claims from the queue 'xyz', which no job and no handler has",
    ]
    caplog.clear()
    await jobs.tick(queues=["mial"])  # often, and not by hand
    assert not lines(caplog, "claims from the queue")


async def test_a_count_that_is_too_large_to_be_exact(overdue: Overdue, caplog: pytest.LogCaptureFixture) -> None:
    await overdue.jobs.enqueue_many([overdue.jobs.draft("unknown") for _ in range(150)])
    async with Worker(overdue.jobs):
        await overdue.turns(61)
        (record,) = await until(lambda: lines(caplog, NO_HANDLER))
    assert record.getMessage().endswith("(number of jobs: 100 or more)")


async def test_jobs_that_another_worker_runs_are_not_warned_of(
    overdue: Overdue, caplog: pytest.LogCaptureFixture
) -> None:
    await overdue.jobs.enqueue_many([overdue.jobs.draft("theirs") for _ in range(3)])
    await overdue.jobs.enqueue("nobodys")
    claim = Claim(queues=("default",), names={"theirs": 1}, n=1, lease_ms=900_000, worker="other", token="t")
    assert len((await overdue.jobs.store.exchange([], claim)).claimed) == 1
    async with Worker(overdue.jobs):
        await overdue.turns(61)
        await until(lambda: lines(caplog, "'nobodys'"))
    assert not lines(caplog, "'theirs'")
