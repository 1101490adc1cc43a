"""The same clients as in tests/client."""

from __future__ import annotations

from tests.client.conftest import clock, jobs, store

__all__ = ["clock", "jobs", "store"]
