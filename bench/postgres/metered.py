"""A run and what the server spent on it: the child halts when it begins and ends, and the parent looks."""

from __future__ import annotations

from bench.child import BEGUN, SETTLED, Child
from bench.figures import RATE, Ran
from bench.lab import Lab

CLIENT, SERVER, WAL = "client CPU us/job", "server CPU us/job", "WAL B/job"


def record_metered(lab: Lab, what: str, who: str, child: Child[Ran]) -> None:
    """Follow a child that halts at BEGUN and at SETTLED, and record rate and cost of both sides."""
    server = lab.postgres
    with child:
        child.wait_for(BEGUN)
        before = server.spent()
        child.go_on()
        child.wait_for(SETTLED)
        after = server.spent()
        child.go_on()
        ran = child.result()
    lab.record(what, who, RATE, ran.jobs / ran.seconds)
    lab.record(what, who, CLIENT, ran.cpu_seconds / ran.jobs * 1e6)
    lab.record(what, who, SERVER, (after.cpu_seconds - before.cpu_seconds) / ran.jobs * 1e6)
    lab.record(what, who, WAL, (after.wal_bytes - before.wal_bytes) / ran.jobs)
