"""What a handler may ask and tell while it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from jobmill.core.job import Job, Progress
from jobmill.core.limits import check_progress, storable
from jobmill.errors import Snooze
from jobmill.handlers.options import Duration

#: Takes progress, or a log line, of one job; returns at once, from any thread.
Tell = Callable[[Progress | str], None]


class Context:
    """A handler whose first parameter is annotated with this gets one."""

    __slots__ = ("_cancelled", "job", "tell")

    def __init__(self, job: Job, tell: Tell) -> None:
        self.job = job
        #: For the worker: where progress and log lines go.
        self.tell = tell
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
        """Whether this run is over for the store (cancelled, timed out, lease lost, shutdown): stop soon.

        Async handlers and isolated processes are stopped; a handler in a thread has to look here.
        """
        return self._cancelled

    def progress(self, value: float, message: str | None = None) -> None:
        """Tell how far the job is, 0 to 100; kept and told soon, not awaited."""
        self.tell(Progress(check_progress(value), None if message is None else storable(str(message))))

    def log(self, text: object) -> None:
        """Add a line to the job's log (the last 1,000 are kept)."""
        self.tell(storable(str(text)))

    def snooze(self, delay: Duration) -> NoReturn:
        """End this run and have the job run again after `delay`; no attempt is counted."""
        raise Snooze(delay)

    def cancel(self) -> None:
        """For the worker: this run is over."""
        self._cancelled = True
