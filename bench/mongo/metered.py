"""A run on MongoDB and what the server spent on it."""

from __future__ import annotations

from bench.child import Child
from bench.figures import RATE, Ran
from bench.lab import Lab
from bench.metering import CLIENT, SERVER, followed


def metered(lab: Lab, child: Child[Ran]) -> tuple[Ran, float]:
    """What a run came to, and the server's CPU seconds meanwhile."""
    ran, before, after = followed(child, lab.servers.mongo.cpu_seconds)
    return ran, after - before


def record(lab: Lab, what: str, who: str, ran: Ran, server_s: float) -> None:
    """Record rate and cost of both sides."""
    lab.record(what, who, RATE, ran.jobs / ran.seconds)
    lab.record(what, who, CLIENT, ran.cpu_seconds / ran.jobs * 1e6)
    lab.record(what, who, SERVER, server_s / ran.jobs * 1e6)


def record_metered(lab: Lab, what: str, who: str, child: Child[Ran]) -> Ran:
    """Record rate and cost of both sides, and tell what it came to."""
    ran, server_s = metered(lab, child)
    record(lab, what, who, ran, server_s)
    return ran
