"""A clock that stands still until a test moves it."""

from __future__ import annotations


class ManualClock:
    """Give it to a store as `clock=`; `advance` moves time without anybody sleeping."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        """The time in milliseconds."""
        return self.now_ms

    def advance(self, seconds: float) -> None:
        """Move time on."""
        self.now_ms += round(seconds * 1000)
