"""The context of a run: what a handler can read and report while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NoReturn

from jobmill.core.durations import Duration
from jobmill.core.job import LOG_LEVELS, Job, LogEntry, LogLevel, Progress
from jobmill.core.limits import check_progress, log_line
from jobmill.errors import InvalidValue, JobmillError, Snooze

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers know it without the package; typing has defaults from 3.13 on

    S = TypeVar("S", default=object, covariant=True)
else:
    from typing import TypeVar

    S = TypeVar("S", covariant=True)

#: Takes progress or a log line of one job. It returns at once, and may be called from any thread.
ReportFunction = Callable[[Progress | LogEntry], None]


#: The state where no lifespan yields one.
NO_STATE: Any = object()


class Context(Generic[S]):
    """A handler gets a context if its first parameter is annotated with this class.

    `Context[Shop]` says that the state is a Shop.
    """

    __slots__ = ("_report", "_state", "cancelled", "job", "trace_id")

    def __init__(self, job: Job, report: ReportFunction, state: Any = NO_STATE) -> None:
        self.job = job
        self._report = report
        self._state = state
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

    def snooze(self, delay: Duration) -> NoReturn:
        """End this run and run the job again after `delay`; no attempt is counted."""
        raise Snooze(delay)
