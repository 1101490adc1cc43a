"""A clock that only the test moves."""

from __future__ import annotations

from datetime import datetime

from jobmill.core.durations import to_datetime


class ManualClock:
    """Pass it to a store as `clock=`. `advance` moves the time, so that a test does not sleep."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """The time in milliseconds."""
        return self.now_ms

    @property
    def now(self) -> datetime:
        """The time as an aware datetime in UTC."""
        return to_datetime(self.now_ms)

    def advance(self, seconds: float) -> None:
        """Move the time forward, without running anything."""
        self.now_ms += round(seconds * 1000)
