"""The time that decides what is due: like the originals', that of the process which locks."""

from __future__ import annotations

import time


def process_ms() -> int:
    """Milliseconds since 1970, rounded down."""
    return time.time_ns() // 1_000_000
