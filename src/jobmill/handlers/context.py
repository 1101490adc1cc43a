"""The context of a run: what a handler may ask and report while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from jobmill.core.job import Job, Progress
from jobmill.core.limits import check_progress, storable
from jobmill.errors import Snooze
from jobmill.handlers.options import Duration

#: Takes progress, or a log line, of one job; returns at once and may be called from any thread.
ReportFunction = Callable[[Progress | str], None]


class Context:
    """A handler gets one when its first parameter is annotated with this class."""

    __slots__ = ("_cancelled", "_report", "job")

    def __init__(self, job: Job, report: ReportFunction) -> None:
        self.job = job
        self._report = report
        self._cancelled = False

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self.job.attempt

    @property
    def fence(self) -> int:
        """Grows with every claim of this job: let a resource refuse writes that carry a smaller one."""
        return self.job.claims

    @property
    def cancelled(self) -> bool:
        """Whether the handler should stop: the job was cancelled or timed out, its lease is lost, or the worker stops.

        Async handlers and isolated processes are stopped; a handler in a thread has to check this itself.
        """
        return self._cancelled

    def progress(self, value: float, message: str | None = None) -> None:
        """Report how far the job is, 0 to 100. It is stored soon after; this call does not wait for it."""
        self._report(Progress(check_progress(value), None if message is None else storable(str(message))))

    def log(self, text: object) -> None:
        """Add a line to the job's log (the last 1,000 are kept)."""
        self._report(storable(str(text)))

    def snooze(self, delay: Duration) -> NoReturn:
        """End this run and run the job again after `delay`; no attempt is counted."""
        raise Snooze(delay)

    def cancel(self) -> None:
        """Called by the worker when the run should end."""
        self._cancelled = True
