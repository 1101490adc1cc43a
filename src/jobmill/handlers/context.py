"""The context of a run: what a handler can read and report while it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, ParamSpec, overload

from jobmill.core.durations import Duration
from jobmill.core.job import LOG_LEVELS, Job, LogEntry, LogLevel, Progress
from jobmill.core.limits import check_progress, log_line
from jobmill.errors import InvalidValue, JobmillError, Snooze

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers know it without the package; typing has defaults from 3.13 on

    from jobmill.handlers.draft import Draft
    from jobmill.handlers.durable import DurableRun, RunAccess, SyncSteps

    S = TypeVar("S", default=object, covariant=True)
else:
    from typing import TypeVar

    S = TypeVar("S", covariant=True)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

#: Takes progress or a log line of one job. It returns at once, and may be called from any thread.
ReportFunction = Callable[[Progress | LogEntry], None]


#: The state where no lifespan yields one.
NO_STATE: Any = object()


class Context(Generic[S]):
    """A handler gets a context if its first parameter is annotated with this class.

    `Context[Shop]` says that the state is a Shop.
    """

    __slots__ = ("_durable", "_report", "_state", "access", "cancelled", "job", "trace_id", "wait")

    def __init__(self, job: Job, report: ReportFunction, state: Any = NO_STATE) -> None:
        self.job = job
        self._report = report
        self._state = state
        self._durable: DurableRun | None = None
        #: Set by the worker: how steps are recorded, and how code without an event loop waits for that.
        self.access: RunAccess | None = None
        self.wait: Callable[[Coroutine[Any, Any, Any]], Any] = asyncio.run
        #: Whether the handler should stop: the job was cancelled or timed out, its lease is lost, or the worker stops.
        #: Async handlers and isolated processes are stopped. A handler in a thread has to check this.
        self.cancelled = False
        #: The trace that this run belongs to, as 32 hexadecimal digits, if `jobmill.otel` traces it.
        self.trace_id: str | None = None

    @property
    def state(self) -> S:
        """What the application's lifespan has yielded."""
        if self._state is NO_STATE:
            raise JobmillError("this run has no state: no function with @jobs.lifespan yields one")
        state: S = self._state
        return state

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.job.attempt

    @property
    def fence(self) -> int:
        """A number that grows with every claim of this job. A resource can refuse writes with a smaller fence."""
        return self.job.claims

    def progress(self, value: float, message: str | None = None) -> None:
        """Report how far the job is, 0 to 100. The value is stored soon; this call does not wait for it."""
        self._report(Progress(check_progress(value), None if message is None else log_line(str(message))))

    def log(self, text: object, level: LogLevel = "info") -> None:
        """Add a line to the job's log, which keeps the last 1,000 lines, of at most 64 KiB each.

        The line keeps the number of the attempt and its level: "debug", "info", "warning" or "error".
        """
        if level not in LOG_LEVELS:
            raise InvalidValue("level", "one of " + ", ".join(LOG_LEVELS), level)
        self._report(LogEntry(log_line(str(text)), level))

    # ------------------------------------------------------------------------------------------------ durable runs

    @property
    def durable(self) -> DurableRun:
        """What this run has recorded and waits for."""
        if self._durable is None:
            from jobmill.handlers.durable import DurableRun

            if self.access is None:
                raise JobmillError("this run has no store: steps and waits need a worker, see jobmill.testing")
            self._durable = DurableRun(self.job, self.access)
        return self._durable

    @property
    def is_durable(self) -> bool:
        """Whether this run has taken a step or waited."""
        return self._durable is not None

    @property
    def sync(self) -> SyncSteps:
        """The methods below for handlers that are not async: `context.sync.step(...)`."""
        from jobmill.handlers.durable import SyncSteps

        return SyncSteps(self.durable, self.wait)

    @overload
    async def step(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    @overload
    async def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R: ...
    async def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function, and record its result before this returns. Later runs of the job get the recorded result.

        The function may be called twice, if the worker dies between its effect and the record: pass `key(name)` to
        services that take an idempotency key. A handler must take the same steps in the same order in every run.
        """
        return await self.durable.step(name, function, args, kwargs)

    def key(self, name: str) -> str:
        """A key for the next step of this name, the same in every run of this job."""
        return self.durable.key(name)

    async def run(self, draft: Draft[R]) -> R:
        """Run another job and return its result. This run is suspended meanwhile, and its slot is free.

        Raises DependencyFailed if that job fails or is cancelled.
        """
        result: R = (await self.durable.run_all([draft]))[0]
        return result

    async def run_all(self, drafts: Iterable[Draft[R]]) -> list[R]:
        """Run other jobs at the same time and return their results, in order. This run is suspended meanwhile."""
        results: list[R] = await self.durable.run_all(list(drafts))
        return results

    async def add(self, *drafts: Draft[Any]) -> None:
        """Add jobs that belong to this one: they are enqueued when the handler has returned, and it ends after them.

        So jobs that wait for this job also wait for those. If the handler fails, nothing is added.
        """
        self.durable.add(drafts)

    async def sleep(self, name: str, duration: Duration) -> None:
        """Suspend this run for a time; its slot is free meanwhile. The time counts from the first call of this name."""
        await self.durable.sleep(name, duration)

    async def wait_for(self, name: str, kind: type[T], timeout: Duration | None = None) -> T | None:
        """Suspend this run until `jobs.signal(id, name, value)` is called; the value, or None after the timeout."""
        value: T | None = await self.durable.wait_for(name, kind, timeout)
        return value

    def snooze(self, delay: Duration) -> NoReturn:
        """End this run and run the job again after `delay`; no attempt is counted."""
        raise Snooze(delay)
