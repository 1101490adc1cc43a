"""The running jobs: one run for each job whose lease this worker holds."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sized
from functools import partial
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from jobmill.core.job import Progress
from jobmill.core.lifecycle import Errored, Policy
from jobmill.core.usage import RunEnded
from jobmill.core.values import Claimed, Settlement
from jobmill.handlers.context import Context, ReportFunction
from jobmill.handlers.handler import Handler
from jobmill.handlers.observers import RunEnd
from jobmill.worker.counts import Series
from jobmill.worker.lifespans import Lifespans
from jobmill.worker.logs import tally_key

#: Why a run is stopped from outside. lost: the store says that the lease has ended, or its time ran out on our clock.
Why: TypeAlias = Literal["timeout", "lost", "shutdown"]


class Run(Struct, eq=False):
    """One attempt of a claimed job."""

    claimed: Claimed
    handler: Handler[..., Any]
    rules: Policy
    #: When the lease ends on this worker's own clock.
    expires: float
    series: Series
    _report: Callable[[Claimed, Progress | str], None]
    #: Has the state that all runs of this worker share.
    _shared: Lifespans = Lifespans(())
    _context: Context | None = None
    task: asyncio.Task[Any] | None = None
    why: Why | None = None
    #: How a run that this worker has lost counts as usage.
    lost_as: RunEnded | None = None
    #: When the handler was called and when its run was over, on this worker's own clock; 0 before that.
    started: float = 0.0
    over: float = 0.0
    #: What the handler raised, for the log.
    error: BaseException | None = None
    #: The same for hooks and observers, or an exception that stands for it; and the outcome.
    shown_error: BaseException | None = None
    errored: Errored | None = None
    #: The job is settled but its thread still runs: a thread cannot be stopped, and it occupies a slot.
    in_thread: bool = False

    @property
    def report(self) -> ReportFunction:
        """Takes progress and log lines of this run."""
        return partial(self._report, self.claimed)

    @property
    def context(self) -> Context:
        """The context for the handler; made only for handlers that take one."""
        if self._context is None:
            self._context = Context(self.claimed.job, self.report, self._shared.state)
        return self._context

    @property
    def trace_id(self) -> str | None:
        """The trace that this run belongs to."""
        return None if self._context is None else self._context.trace_id

    def end(self, decided: Settlement | None) -> RunEnd:
        """How the run ended, for observers; None: it was lost."""
        if decided is None or decided.outcome == "crashed":  # crashed jobs are settled without a run
            return RunEnd(outcome="lost")
        errored = self.errored
        return RunEnd(
            outcome=decided.outcome,
            error=self.shown_error,
            error_type=None if errored is None else errored.error_type,
            traceback=None if errored is None else errored.traceback,
            failed=tally_key(decided) == "failed",
        )

    def stop(self, why: Why) -> None:
        """Stop the run from outside. The first reason counts, except that a lost run is never settled."""
        if self.over:
            return
        if self.why is not None:
            if why == "lost":
                self.why = why
            return
        self.why = why
        if self._context is not None:
            self._context.cancelled = True
        if self.started:
            self._cancel()
        else:
            # A task that is cancelled before its first step runs no code, and so would never report its end.
            asyncio.get_running_loop().call_soon(self._cancel)

    def _cancel(self) -> None:
        if self.task is not None:
            self.task.cancel()


class HeldIds(Collection[str]):
    """The ids of the jobs that run, or wait for a slot, as a view.

    Without those that wait for their settlement, or are lost already.
    """

    def __init__(self, runs: dict[str, Run]) -> None:
        self._runs = runs

    def __contains__(self, id: object) -> bool:
        """Whether the worker has the job."""
        run = self._runs.get(id)  # type: ignore[call-overload]  # anything may be asked for
        return run is not None and not run.over and run.why != "lost"

    def __iter__(self) -> Iterator[str]:
        """The ids of this moment."""
        return iter([id for id in self._runs if id in self])

    def __len__(self) -> int:
        """How many jobs the worker has."""
        return len(list(self))


class RunningJobs:
    """All runs whose lease this worker holds, until their settlement is written."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        #: Set when a job begins while no other runs.
        self.begun = asyncio.Event()
        #: How many runs each job name has, for the handlers that limit their concurrency.
        self.of_name: Counter[str] = Counter()
        #: Called when a limited name has room again, or when there may be many jobs: any exchanger may claim then.
        self.wakes: list[Callable[[], None]] = []
        #: The jobs that wait in each exchanger for a free slot: their leases are held as those of the others.
        self.waiting: list[Sized] = []

    @property
    def started(self) -> int:
        """How many jobs run now."""
        return len(self.runs) - sum(map(len, self.waiting))

    @property
    def ids(self) -> HeldIds:
        """The ids of the jobs that the worker has now, also of those that it claims later."""
        return HeldIds(self.runs)

    def drop(self, run: Run) -> None:
        """Remove a run whose lease is over: the job is settled, or lost."""
        if self.runs.get(run.claimed.job.id) is run:
            del self.runs[run.claimed.job.id]

    def free_room(self, name: str) -> None:
        """A run of a limited name has ended."""
        self.of_name[name] -= 1
        self.wake_all()

    def wake_all(self) -> None:
        """Wake all exchangers."""
        for wake in self.wakes:
            wake()
