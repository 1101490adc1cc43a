"""A run on SQLite: there is no server that could spend anything on it."""

from __future__ import annotations

from bench.child import Child
from bench.figures import RATE, Ran
from bench.lab import Lab
from bench.metering import CLIENT, followed


def record_metered(lab: Lab, what: str, who: str, child: Child[Ran]) -> Ran:
    """Record rate and cost, and tell what it came to."""
    ran, *_ = followed(child, lambda: None)
    lab.record(what, who, RATE, ran.jobs / ran.seconds)
    lab.record(what, who, CLIENT, ran.cpu_seconds / ran.jobs * 1e6)
    return ran
