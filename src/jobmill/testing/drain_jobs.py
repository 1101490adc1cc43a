"""`drain`: runs due jobs in the current process, for tests of applications."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from jobmill.client.query import matching
from jobmill.core import limits
from jobmill.core.changes import Reschedule
from jobmill.core.values import NOW, Filter
from jobmill.errors import InvalidValue, JobmillError
from jobmill.testing.runs import JobRunner, JobRuns
from jobmill.worker.lifespans import Lifespans

if TYPE_CHECKING:
    from jobmill.client.client import Client

#: What happens to an error of a handler. raise: the test gets it. keep: the job keeps it, and waits for its retry, as
#: on a worker. retry: the same, and the retry runs at once.
Errors: TypeAlias = Literal["raise", "keep", "retry"]

#: More runs in one test are taken for jobs that enqueue themselves for ever, unless the test gives a number.
MAX_RUNS = 10_000


async def drain(
    jobs: Client,
    *,
    errors: Errors = "keep",
    later: bool = False,
    max_jobs: int | None = None,
    concurrency: int = 1,
) -> JobRuns:
    """Run due jobs of all queues in this process, one after the other, until none is due or `max_jobs` have run.

    The store's clock decides when delayed jobs and retries are due. With `later`, jobs that are due later run as well,
    except recurring jobs; the clock stays. With `concurrency`, jobs are claimed in groups and run at the same time.
    """
    return await drain_with(JobRunner(jobs, jobs.store), errors, later, max_jobs, concurrency)


class Drain:
    """The fixture `drain`: `await drain()`; in a sync test, `drain.sync()`."""

    def __init__(self, client: Client, runner: JobRunner) -> None:
        self._client = client
        self._runner = runner

    async def __call__(
        self, *, errors: Errors = "raise", later: bool = False, max_jobs: int | None = None, concurrency: int = 1
    ) -> JobRuns:
        """Run due jobs, one after the other, until none is due or `max_jobs` have run. Returns the runs.

        `errors="raise"` raises the first error of a handler here. `errors="keep"` leaves errors to the jobs, which wait
        for their retries. `errors="retry"` runs the retries at once. With `later`, jobs that are due later run as well,
        in the order of their due times, except recurring jobs; the clock stays. With `concurrency`, jobs are claimed in
        groups and run at the same time.
        """
        return await drain_with(self._runner, errors, later, max_jobs, concurrency)

    def sync(
        self, *, errors: Errors = "raise", later: bool = False, max_jobs: int | None = None, concurrency: int = 1
    ) -> JobRuns:
        """The same for a sync test."""
        return self._client.sync(self(errors=errors, later=later, max_jobs=max_jobs, concurrency=concurrency))


async def drain_with(runner: JobRunner, errors: Errors, later: bool, max_jobs: int | None, concurrency: int) -> JobRuns:
    """Run due jobs with this runner, as `Drain` describes it."""
    async with runner.lifespans() as lifespans:
        return await drain_inside(runner, lifespans, errors, later, max_jobs, concurrency)


async def drain_inside(
    runner: JobRunner, lifespans: Lifespans, errors: Errors, later: bool, max_jobs: int | None, concurrency: int
) -> JobRuns:
    """The same with lifespans that are open."""
    if errors not in get_args(Errors):
        raise InvalidValue("errors", "one of " + ", ".join(get_args(Errors)), errors)
    limits.check_int(concurrency, "concurrency", 1, 10_000)
    limit = MAX_RUNS if max_jobs is None else limits.check_int(max_jobs, "max_jobs", 1)
    runs = JobRuns()
    while len(runs) < limit:
        new = await runner.tick(min(concurrency, limit - len(runs)), lifespans)
        if new is None:
            if not await _bring_forward(runner, retries=errors == "retry", later=later):
                return runs
            continue
        runs += new
        if errors == "raise":
            new.raise_first_error()
    if max_jobs is None:
        raise too_many(runs)
    return runs


def too_many(runs: JobRuns) -> JobmillError:
    """Jobs seem to run for ever."""
    names = ", ".join(f"{name} {count:,} times" for name, count in Counter(runs.names).most_common(3))
    advice = "does a job enqueue itself? Give max_jobs= for more"
    return JobmillError(f"{len(runs):,} jobs have run and more are due ({names}): {advice}")


async def _bring_forward(runner: JobRunner, *, retries: bool, later: bool) -> bool:
    """Make the next job that is due later due now, if such jobs should run; False if there is none."""
    if not retries and not later:
        return False
    wanted = Filter(states=("waiting",), due_after_ms=runner.reads.now() + 1, held=False)
    found = [
        job
        async for job in matching(runner.reads, wanted)
        if (retries and job.errors) or (later and job.recurrence is None)
    ]
    if not found:
        return False
    first = min(found, key=lambda job: job.due_ms)
    return bool((await runner.reads.change([first.id], Reschedule(NOW))).ids)
