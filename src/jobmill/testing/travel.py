"""`travel`: moves the clock of a test from due time to due time, and runs what is due on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from jobmill.client.query import matching
from jobmill.core.durations import Duration, to_ms
from jobmill.core.values import Filter
from jobmill.store import Store
from jobmill.testing.clock import ManualClock
from jobmill.testing.drain_jobs import MAX_RUNS, drain_inside, too_many
from jobmill.testing.runs import JobRunner, JobRuns
from jobmill.worker.lifespans import Lifespans

if TYPE_CHECKING:
    from jobmill.client.client import Client


class Travel:
    """The fixture `travel`: `await travel("3h")`; in a sync test, `travel.sync("3h")`."""

    def __init__(self, client: Client, runner: JobRunner, clock: ManualClock) -> None:
        self._client = client
        self._runner = runner
        self._clock = clock

    async def __call__(
        self, duration: Duration, *, errors: Literal["raise", "keep"] = "raise", max_jobs: int | None = None
    ) -> JobRuns:
        """Let this time pass. Each job that becomes due meanwhile runs at its due time, in order. Returns the runs.

        Delayed jobs, retries, recurring jobs, jobs whose worker died and queues that were paused for a time become due.
        `errors="raise"` raises the first error of a handler here, with the clock at that time.
        """
        end_ms = self._clock() + to_ms(duration, "duration")
        async with self._runner.lifespans() as lifespans:
            return await self._travel(end_ms, lifespans, errors, max_jobs)

    async def _travel(
        self, end_ms: int, lifespans: Lifespans, errors: Literal["raise", "keep"], max_jobs: int | None
    ) -> JobRuns:
        runs = JobRuns()
        while True:
            left = (MAX_RUNS if max_jobs is None else max_jobs) - len(runs)
            runs += await drain_inside(self._runner, lifespans, errors, False, max(1, left), 1)
            if len(runs) >= (max_jobs or MAX_RUNS):
                if max_jobs is None:
                    raise too_many(runs)
                return runs
            next_ms = await _next_ms(self._runner.reads)
            if next_ms is None or next_ms > end_ms:
                self._clock.now_ms = max(self._clock.now_ms, end_ms)
                return runs
            self._clock.now_ms = next_ms

    def sync(
        self, duration: Duration, *, errors: Literal["raise", "keep"] = "raise", max_jobs: int | None = None
    ) -> JobRuns:
        """The same for a sync test."""
        return self._client.sync(self(duration, errors=errors, max_jobs=max_jobs))


async def _next_ms(store: Store) -> int | None:
    """When a job may be claimable next: one is due, a lease ends, a rate limit has room, or a pause ends."""
    now_ms = store.now()
    waiting = Filter(states=("waiting",), due_after_ms=now_ms + 1, held=False)
    times: list[int | None] = [job.due_ms async for job in matching(store, waiting)]
    running = [job.id async for job in matching(store, Filter(states=("running",)))]
    if running:
        times += await store.lease_ends(running)
    times += [depth.limited_until_ms for depth in await store.depths()]
    times += [None if one.pause is None else one.pause.until_ms for one in (await store.settings()).values()]
    return min((time for time in times if time is not None and time > now_ms), default=None)
