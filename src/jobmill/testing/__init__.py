"""Tools for tests: a clock that the test moves, `drain`, which runs due jobs, and the contract of stores."""

from __future__ import annotations

from jobmill.testing.clock import ManualClock
from jobmill.testing.drain import drain

__all__ = ["ManualClock", "drain"]
