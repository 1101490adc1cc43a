"""What type checkers see of the test kit. Nothing here runs: `dev.py check` has mypy read it."""

from __future__ import annotations

from typing import assert_type

import jobmill
from jobmill import Client, Context, Job
from jobmill.stores.memory import MemoryStore
from jobmill.testing import (
    Crash,
    Drain,
    EnqueuedJobs,
    FlakyStore,
    JobRun,
    JobRuns,
    JobsTestCase,
    Kit,
    MakesCrash,
    MakesFlakyStore,
    ManualClock,
    RunJob,
    Travel,
    drain,
)

jobs: Client = jobmill.connect("memory://")


@jobs.handler
async def send(to: str, subject: str = "hello") -> str:
    return to


@jobs.handler
def count(context: Context, upto: int) -> list[int]:
    return list(range(upto))


async def fixtures(
    jobs: Client,
    enqueued: EnqueuedJobs,
    drain: Drain,
    travel: Travel,
    run_job: RunJob,
    crash: MakesCrash,
    flaky_store: MakesFlakyStore,
    jobmill_clock: ManualClock,
) -> None:
    assert_type(enqueued.one(send, to="ada", delay="1h"), Job)
    assert_type(enqueued.all("send"), list[Job])
    assert_type(await enqueued.soon(send, timeout="1s"), Job)
    assert_type(await drain(errors="keep", later=True, max_jobs=5), JobRuns)
    assert_type(drain.sync(), JobRuns)
    assert_type(await travel("3h"), JobRuns)
    assert_type(await run_job(send, to="ada"), JobRun[str])
    assert_type((await run_job(count, upto=3)).result, list[int])
    assert_type(run_job.sync(send.options(timeout="1s"), "ada").result, str)
    with crash(after="effect") as crashed:
        assert_type(crashed, Crash)
    async with flaky_store(0.5, on=("exchange", "enqueue"), seed=3, lose="answer") as flaky:
        assert_type(flaky, FlakyStore)

    await drain(errors="ignore")  # type: ignore[arg-type]
    await run_job(send, too="ada")  # type: ignore[call-overload]
    await run_job(count, upto="three")  # type: ignore[call-overload]
    crash(after="lunch")  # type: ignore[arg-type]
    flaky_store("often")  # type: ignore[arg-type]


async def another_store() -> None:
    with jobs.using(MemoryStore()) as same:
        assert_type(same, Client)
    async with jobs.using(MemoryStore(), everywhere=True) as same:
        assert_type(same, Client)
    assert_type(await drain(jobs), JobRuns)
    with Kit(jobs, "sqlite") as kit:
        assert_type(kit.drain, Drain)
    jobs.using("memory://")  # type: ignore[arg-type]


class Tests(JobsTestCase):
    jobs = jobs

    async def test_it(self) -> None:
        assert_type(await self.drain(), JobRuns)
        assert_type(self.enqueued.one(send), Job)
