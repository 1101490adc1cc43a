"""The clock that decides which documents are due. As in mongodb-cron, it is the clock of the process that locks."""

from __future__ import annotations

import time


def process_ms() -> int:
    """Milliseconds since 1970, rounded down."""
    return time.time_ns() // 1_000_000
