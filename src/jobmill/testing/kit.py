"""The kit: everything that one test of an application uses, around its client."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from jobmill.client.query import matching
from jobmill.core.values import Filter
from jobmill.testing.clock import ManualClock
from jobmill.testing.drain_jobs import Drain
from jobmill.testing.enqueued_jobs import EnqueuedJobs
from jobmill.testing.faults import Crash, CrashPoint, FlakyStore, Losable
from jobmill.testing.inline import Inline
from jobmill.testing.run_job import RunJob
from jobmill.testing.runs import JobRunner, shown_call
from jobmill.testing.store_calls import StoreCalls
from jobmill.testing.stores import ROOM, make_store, prepare
from jobmill.testing.travel import Travel

if TYPE_CHECKING:
    from jobmill.client.client import Client
    from jobmill.core.job import Job

#: 2030-01-01T00:00Z: a day on which no certificate and no calendar of a test surprises.
START_MS = 1_893_456_000_000


def clock_for(client: Client) -> ManualClock:
    """The clock of a test: it begins in 2030, or at the present where the application gives times and not delays."""
    return ManualClock(round(time.time() * 1000) if client.gives_times else START_MS)


class LeftoverJobWarning(UserWarning):
    """A test ended with a job that still ran, or with a failed job that nobody had read."""


class Kit:
    """For the time of a `with`, a client uses a new, empty store with a clock that only the test moves.

    `store` is memory, sqlite, postgres, redis or mongo, or a URL. The environment variables JOBMILL_TEST_POSTGRES,
    JOBMILL_TEST_REDIS and JOBMILL_TEST_MONGO have the URLs of servers. There, tests use a schema, a prefix of keys or a
    collection of their own, which is emptied first; `room` is its name.
    """

    def __init__(
        self, client: Client, store: str = "memory", *, clock: ManualClock | None = None, room: str = ROOM
    ) -> None:
        self.jobs = client
        self.clock = clock_for(client) if clock is None else clock
        self._folder = tempfile.TemporaryDirectory(prefix="jobmill-test-") if store == "sqlite" else None
        folder = Path("." if self._folder is None else self._folder.name)
        self.store = make_store(store, self.clock, folder, room)
        self._calls = StoreCalls(self.store)
        self._swap = client.using(self.store, everywhere=True)
        self._runner = JobRunner(client, self.store, self._calls)
        self.drain = Drain(client, self._runner)
        self.travel = Travel(client, self._runner, self.clock)
        self.run_job = RunJob(client, self.clock)
        self.enqueued = EnqueuedJobs(client, self._calls)

    def inline(self) -> Inline:
        """For the time of a `with`, jobs run when they are enqueued."""
        return Inline(self._swap.bound, self._runner)

    def crash(self, *, after: CrashPoint) -> Crash:
        """For the time of a `with`, the worker of the next attempt dies after this step: claim, effect or settle."""
        return Crash(self._calls, self.store, after)

    def flaky_store(
        self, p: float, on: Collection[str] = ("exchange",), *, seed: int = 0, lose: Losable = "call"
    ) -> FlakyStore:
        """For the time of a `with`, calls of these verbs fail with this probability.

        `lose="call"`: the call does not reach the store. "answer": the store has applied it, but the caller does not
        learn that. "either": each as often as the other.
        """
        return FlakyStore(self._calls, p, on, seed, lose)

    # ------------------------------------------------------------------------------------------------ begin and end

    @property
    def _needs_closing(self) -> bool:
        return self.store.name != "memory"

    def __enter__(self) -> Kit:
        """Empty the store; the client uses it from now on."""
        self._swap.__enter__()
        try:
            if self._needs_closing:
                self.jobs.sync(prepare(self.store))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The client uses its own store again. Warns of jobs that a test has forgotten, unless it failed anyway."""
        try:
            leftovers = [] if error is not None else self.jobs.sync(self._leftovers())
        finally:
            self._close()
        for text in leftovers:
            warnings.warn(LeftoverJobWarning(text), stacklevel=2)

    def _close(self) -> None:
        try:
            if self._needs_closing:
                self.jobs.sync(self.store.close())
        finally:
            self._swap.__exit__(None, None, None)
            if self._folder is not None:
                self._folder.cleanup()

    async def close_here(self) -> None:
        """Close the connections of this event loop, which may end before the kit does. The next call opens them."""
        if self._needs_closing:
            await self.jobs.close()

    async def _leftovers(self) -> list[str]:
        await self.jobs.open()
        store = self._calls.direct
        running = [job async for job in matching(store, Filter(states=("running",)))]
        failed = [job async for job in matching(store, Filter(states=("failed",)))]
        return [
            *(f"the test ended while the job {shown_call(job)} was running" for job in running),
            *(_unread(job) for job in failed if job.id not in self._calls.read),
        ]


def _unread(job: Job) -> str:
    """The error with its traceback, which the test has not seen."""
    last = job.attempts[-1] if job.attempts else None
    shown = (job.error or "") if last is None or last.traceback is None else last.traceback
    return f"the job {shown_call(job)} failed, and the test did not read it:\n{shown.rstrip()}"
