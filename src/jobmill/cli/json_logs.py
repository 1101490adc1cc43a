"""Log records as JSON, one object per line."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Any

import msgspec

#: Fields that lines about a job carry.
JOB_FIELDS = ("job_id", "job_name", "queue", "attempt", "worker")


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
