"""The context of a run: what a handler can read and report while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from jobmill.core.durations import Duration
from jobmill.core.job import Job, Progress
from jobmill.core.limits import check_progress, log_line
from jobmill.errors import Snooze

#: Takes progress or a log line of one job. It returns at once, and may be called from any thread.
ReportFunction = Callable[[Progress | str], None]


class Context:
    """A handler gets a context if its first parameter is annotated with this class."""

    __slots__ = ("_report", "cancelled", "job", "trace_id")

    def __init__(self, job: Job, report: ReportFunction) -> None:
        self.job = job
        self._report = report
        #: Whether the handler should stop: the job was cancelled or timed out, its lease is lost, or the worker stops.
        #: Async handlers and isolated processes are stopped. A handler in a thread has to check this.
        self.cancelled = False
        #: The trace that this run belongs to, as 32 hexadecimal digits, if `jobmill.otel` traces it.
        self.trace_id: str | None = None

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

    def log(self, text: object) -> None:
        """Add a line to the job's log, which keeps the last 1,000 lines, of at most 64 KiB each."""
        self._report(log_line(str(text)))

    def snooze(self, delay: Duration) -> NoReturn:
        """End this run and run the job again after `delay`; no attempt is counted."""
        raise Snooze(delay)
