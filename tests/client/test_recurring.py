"""Recurring jobs as an application states them: at each start, with the same key."""

from __future__ import annotations

import pytest

import jobmill
from jobmill import Client
from jobmill.stores.memory import MemoryStore
from jobmill.testing import ManualClock, drain


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def jobs(clock: ManualClock) -> Client:
    return jobmill.connect(store=MemoryStore(clock=clock))


async def test_stating_an_interval_again_does_not_run_it_again(jobs: Client, clock: ManualClock) -> None:
    runs: list[str] = []

    @jobs.handler
    async def clean(what: str) -> None:
        runs.append(what)

    for start in ("first", "second"):
        await clean.options(every="1h", key="clean").enqueue(what=start)
        await drain(jobs)
        clock.advance(60)
    assert runs == ["first"]
    clock.advance(3600)
    await drain(jobs)
    assert runs == ["first", "second"], "the payload is the newer one, the rhythm the old one"
    assert [job.runs async for job in jobs.find_all()] == [2]


async def test_a_missed_slot_still_runs_when_the_application_starts_again(jobs: Client, clock: ManualClock) -> None:
    runs: list[int] = []

    @jobs.handler
    async def report() -> None:
        runs.append(clock())

    await report.options(cron="@hourly", key="report").enqueue()
    clock.advance(3 * 3600)
    await report.options(cron="@hourly", key="report").enqueue()
    await drain(jobs)
    assert len(runs) == 1, "three slots were missed, and run once"


async def test_another_rule_or_an_explicit_time_takes_over(jobs: Client, clock: ManualClock) -> None:
    @jobs.handler
    async def clean() -> None: ...

    enqueued = await clean.options(every="1h", key="clean", delay="30m").enqueue()
    await clean.options(every="2h", key="clean").enqueue()
    assert (await enqueued.job()).due_ms == clock()
    again = await clean.options(every="2h", key="clean", delay="5m").enqueue()
    assert (again.status, (await enqueued.job()).due_ms) == ("updated", clock() + 300_000)


async def test_drain_returns_the_runs_and_stops_at_its_limit(jobs: Client) -> None:
    @jobs.handler(max_attempts=1)
    async def work(n: int) -> None:
        if n % 2:
            raise ValueError("odd")

    await jobs.enqueue_many(work.draft(n) for n in range(250))
    runs = await drain(jobs, max_jobs=200)
    assert (len(runs), len(runs.succeeded), len(runs.errored)) == (200, 100, 100)
    runs = await drain(jobs, concurrency=20)
    assert (len(runs), all(run.failed for run in runs.errored)) == (50, True)


async def test_no_timeout_for_one_job_of_a_handler_that_has_one(jobs: Client) -> None:
    @jobs.handler(timeout="1ms")
    async def work() -> None: ...

    plain = await (await work.options(timeout=None).enqueue()).job()
    assert plain.options.timeout_ms == 0
    assert jobmill.core.lifecycle.policy(plain.options, work.policy).timeout_ms is None
    assert work.policy.timeout_ms == 1
