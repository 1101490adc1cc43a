"""Jobs as values, for tests that need no store."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from jobmill.core.job import Job, LogEntry, Progress
from jobmill.core.values import Claimed, Lease
from jobmill.handlers.context import Context

NOW = 1_700_000_000_000
TOKEN = "t0ken"


def job(**fields: Any) -> Job:
    """A waiting job, but for what is said."""
    usual: dict[str, Any] = {
        "id": "job-1",
        "name": "send",
        "queue": "mail",
        "payload_json": Raw(b"{}"),
        "state": "waiting",
        "priority": 0,
        "due_ms": NOW,
        "created_ms": NOW,
        "updated_ms": NOW,
    }
    return Job(**usual | fields)


def claimed(**fields: Any) -> Claimed:
    """A running job under a lease."""
    one = job(**{"state": "running", "claims": 1, "worker": "worker-1"} | fields)
    return Claimed(one, Lease(one.id, TOKEN, one.queue, one.name, NOW + 15_000))


def context(told: list[Progress | LogEntry] | None = None, **fields: Any) -> Context:
    """What a handler is given; `told` gets what it tells."""
    return Context(
        job(**{"state": "running"} | fields), (told if told is not None else list[Progress | LogEntry]()).append
    )
