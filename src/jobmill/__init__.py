"""Jobmill: one job queue for Python, on the database that you already have.

Layers, high to low; each may import only what is below it:

    cli                                   the commands
    testing                               a clock for tests; the contract that stores must pass
    client, sync, worker, stores          enqueue and look; claim, run and settle; databases behind the port
    crontab                               beside them: any collection or table as a crontab
    bullmq, harmonyk                      beside them: the words of other systems
    handlers, context, events, metering   what users define and are told, and its options
    store                                 THE PORT
    core                                  pure decisions: no I/O, no clock, no chance
    errors

What stands below is imported when it is first used, so that the commands start at once.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jobmill._version import __version__

if TYPE_CHECKING:
    from jobmill.client import Client, Enqueued, connect
    from jobmill.context import Context
    from jobmill.core.changes import Changed, Count, LogLine, Page, QueueSettings, Stats
    from jobmill.core.facts import Event
    from jobmill.core.job import Job, Keep, Progress, State
    from jobmill.core.retry import Backoff, exponential, fixed
    from jobmill.core.usage import Usage
    from jobmill.errors import (
        Fail,
        Gone,
        HandlerNotFound,
        Invalid,
        JobCancelled,
        JobFailed,
        JobmillError,
        MissingExtra,
        PayloadTooLarge,
        ResultTimeout,
        SchemaTooNew,
        SchemaTooOld,
        Snooze,
        StoreAway,
        StoreBusy,
        StoreError,
        UnsafeStore,
    )
    from jobmill.worker.tick import Tick
    from jobmill.worker.worker import Worker

__all__ = [
    "Backoff",
    "Changed",
    "Client",
    "Context",
    "Count",
    "Enqueued",
    "Event",
    "Fail",
    "Gone",
    "HandlerNotFound",
    "Invalid",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobmillError",
    "Keep",
    "LogLine",
    "MissingExtra",
    "Page",
    "PayloadTooLarge",
    "Progress",
    "QueueSettings",
    "ResultTimeout",
    "SchemaTooNew",
    "SchemaTooOld",
    "Snooze",
    "State",
    "Stats",
    "StoreAway",
    "StoreBusy",
    "StoreError",
    "Tick",
    "UnsafeStore",
    "Usage",
    "Worker",
    "__version__",
    "connect",
    "exponential",
    "fixed",
]

_HOMES = {
    "jobmill.client": ("Client", "Enqueued", "connect"),
    "jobmill.context": ("Context",),
    "jobmill.core.changes": ("Changed", "Count", "LogLine", "Page", "QueueSettings", "Stats"),
    "jobmill.core.facts": ("Event",),
    "jobmill.core.job": ("Job", "Keep", "Progress", "State"),
    "jobmill.core.retry": ("Backoff", "exponential", "fixed"),
    "jobmill.core.usage": ("Usage",),
    "jobmill.errors": (
        "Fail",
        "Gone",
        "HandlerNotFound",
        "Invalid",
        "JobCancelled",
        "JobFailed",
        "JobmillError",
        "MissingExtra",
        "PayloadTooLarge",
        "ResultTimeout",
        "SchemaTooNew",
        "SchemaTooOld",
        "Snooze",
        "StoreAway",
        "StoreBusy",
        "StoreError",
        "UnsafeStore",
    ),
    "jobmill.worker.tick": ("Tick",),
    "jobmill.worker.worker": ("Worker",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """The public names, and the modules of the package."""
    if name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'jobmill' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What the package exports."""
    return sorted({*globals(), *__all__})
