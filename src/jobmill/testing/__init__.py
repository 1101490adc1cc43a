"""For tests: a clock that only moves when told to, running what is due, and the contract that every store must pass."""

from __future__ import annotations

from jobmill.testing.clock import ManualClock
from jobmill.testing.drain import drain

__all__ = ["ManualClock", "drain"]
