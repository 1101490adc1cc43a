"""Log lines of an application inside a run: they carry the fields of its job, and may go to the job's log as well."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Protocol

from jobmill.core.job import LogLevel
from jobmill.handlers.context import Context


class HasContext(Protocol):
    """A run. Its context is made only when it is needed."""

    @property
    def context(self) -> Context:
        """The context of the run."""


#: The run that the current code belongs to. Each run has a task or a process of its own, so it is never reset.
current_run: ContextVar[HasContext] = ContextVar("jobmill_run")

#: Those of the classes below that this process has made an object of. Runs set the variable only if there is one: it
#: takes 1.3 % of the instructions of a job in the memory store.
readers: set[type] = set()


class JobLogFilter(logging.Filter):
    """Adds `job_id`, `job_name`, `queue`, `attempt`, `fence` and `worker` to records that are made inside a run.

    It adds `trace_id` too if `jobmill.otel` traces the run. Add the filter to a handler: a filter of a logger does not
    see the records of the loggers below it.
    """

    def __init__(self, name: str = "") -> None:
        super().__init__(name)
        readers.add(type(self))

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; those that the record has already stay."""
        context = _context_of(record)
        if context is not None:
            job = context.job
            fields = {"job_id": job.id, "job_name": job.name, "queue": job.queue, "worker": job.worker}
            if context.trace_id is not None:
                fields["trace_id"] = context.trace_id
            vars(record).update(fields | {"attempt": job.attempt, "fence": context.fence} | vars(record))
        return True


class JobLogHandler(logging.Handler):
    """Copies records that are made inside a run to the log of its job, as `context.log` does."""

    def __init__(self, level: int | str = logging.NOTSET) -> None:
        super().__init__(level)
        readers.add(type(self))

    def emit(self, record: logging.LogRecord) -> None:
        """Add a line to the log of the job; outside of a run, do nothing."""
        try:
            context = _context_of(record)
            if context is not None:
                context.log(self.format(record), _level_of(record))
        except Exception:
            self.handleError(record)


def _level_of(record: logging.LogRecord) -> LogLevel:
    if record.levelno >= logging.ERROR:
        return "error"
    if record.levelno >= logging.WARNING:
        return "warning"
    return "info" if record.levelno >= logging.INFO else "debug"


def _context_of(record: logging.LogRecord) -> Context | None:
    """The context of the run that made this record. Jobmill's own lines about a job have their fields already."""
    run = current_run.get(None)
    return None if run is None or record.name.partition(".")[0] == "jobmill" else run.context
