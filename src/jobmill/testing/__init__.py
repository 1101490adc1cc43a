"""For tests: a clock that only moves when told to, and the contract that every store must pass."""

from __future__ import annotations

from jobmill.testing.clock import ManualClock

__all__ = ["ManualClock"]
