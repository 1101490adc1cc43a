"""The log of a command: lines on stderr, as text or as JSON. Isolated processes of the command log the same way."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

from jobmill.handlers.logs import JobLogFilter

#: Fields that lines about a job carry.
JOB_FIELDS = ("job_id", "job_name", "queue", "attempt", "fence", "worker", "outcome", "took_ms", "trace_id")

#: How this process logs, for the isolated processes that it starts; empty in a process that is not ours to configure.
options: dict[str, Any] = {}


def log_to_stderr(*, verbose: bool = False, quiet: bool, log_format: str) -> None:
    """Log to stderr, including the logs of handlers. A module may add its own logging configuration.

    If there is one already, as that of Django, it stays. Then a warning says which options have no effect.
    """
    ignored = [*(("--quiet",) if quiet else ()), *(("--log-format",) if log_format != "text" else ())]
    if ignored and logging.getLogger().handlers:
        why = "your logging configuration has handlers of the root logger: change them instead"
        logging.getLogger("jobmill").warning("%s: no effect, because %s", " and ".join(ignored), why)
    configure(verbose=verbose, quiet=quiet, log_format=log_format)


def configure(*, verbose: bool, quiet: bool, log_format: str) -> None:
    """Add a handler to the root logger, unless it has one."""
    options.update(verbose=verbose, quiet=quiet, log_format=log_format)
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    handler.addFilter(JobLogFilter())
    logging.basicConfig(level=logging.WARNING if quiet else logging.INFO, handlers=[handler])
    if verbose:
        logging.getLogger("jobmill").setLevel(logging.DEBUG)


class TextFormatter(logging.Formatter):
    """Time, level and message. A line of the application inside a run begins with the id of the job."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name in logging
        """The line without its traceback. Jobmill's own messages name their job."""
        if "job_id" in vars(record) and record.name != "jobmill":
            record.message = f"job {vars(record)['job_id']}: {record.message}"
        return super().formatMessage(record)


class JsonFormatter(logging.Formatter):
    """Time, level, logger and message, the fields of the job, and the traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as JSON."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {field: vars(record)[field] for field in JOB_FIELDS if field in vars(record)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()
