"""A run on Redis and what the server spent on it."""

from __future__ import annotations

from bench.child import Child
from bench.figures import RATE, Ran
from bench.lab import Lab
from bench.metering import CLIENT, SERVER, followed


def record_metered(lab: Lab, what: str, who: str, child: Child[Ran]) -> Ran:
    """Record rate and cost of both sides, and tell what it came to."""
    ran, before, after = followed(child, lab.servers.redis.cpu_seconds)
    lab.record(what, who, RATE, ran.jobs / ran.seconds)
    lab.record(what, who, CLIENT, ran.cpu_seconds / ran.jobs * 1e6)
    lab.record(what, who, SERVER, (after - before) / ran.jobs * 1e6)
    return ran
