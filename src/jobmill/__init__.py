"""Jobmill: one job queue for Python, on the database that you already have.

The names below, except the errors, are imported when they are first used, so that the commands start quickly.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jobmill._version import __version__
from jobmill.errors import (
    DependencyFailed,
    Fail,
    HandlerNotFound,
    InvalidValue,
    JobCancelled,
    JobFailed,
    JobmillError,
    JobNotFound,
    LoginRefused,
    MissingExtra,
    PayloadTooLarge,
    ResultTimeout,
    SchemaTooNew,
    SchemaTooOld,
    Snooze,
    StepFailed,
    StepsChanged,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    UnsafeStore,
)

if TYPE_CHECKING:
    from jobmill.client.client import Client, connect
    from jobmill.core.announcing import WorkerCard
    from jobmill.core.audit import AuditEntry, AuditPage
    from jobmill.core.changes import Changed
    from jobmill.core.due import Held
    from jobmill.core.events import Event
    from jobmill.core.findings import Finding
    from jobmill.core.job import Attempt, Job, Keep, Progress, State
    from jobmill.core.queue_settings import LaneRule, LaneSettings
    from jobmill.core.reasons import Reason
    from jobmill.core.retry import Backoff, exponential, fixed
    from jobmill.core.tallies import Tally
    from jobmill.core.usage import Usage
    from jobmill.core.values import Count, Depth, Lane, LogLine, Page, Pause, QueueSettings, Stats
    from jobmill.dashboard import Access, Dashboard
    from jobmill.handlers.context import Context
    from jobmill.handlers.draft import Draft, Group
    from jobmill.handlers.enqueued import Enqueued
    from jobmill.handlers.flow import Flow, FlowProgress
    from jobmill.handlers.handler import Handler
    from jobmill.handlers.logs import JobLogFilter, JobLogHandler
    from jobmill.handlers.observers import RunEnd
    from jobmill.handlers.placeholders import JobOutcome
    from jobmill.worker.tick import Tick
    from jobmill.worker.worker import Worker

__all__ = [
    "Access",
    "Attempt",
    "AuditEntry",
    "AuditPage",
    "Backoff",
    "Changed",
    "Client",
    "Context",
    "Count",
    "Dashboard",
    "DependencyFailed",
    "Depth",
    "Draft",
    "Enqueued",
    "Event",
    "Fail",
    "Finding",
    "Flow",
    "FlowProgress",
    "Group",
    "Handler",
    "HandlerNotFound",
    "Held",
    "InvalidValue",
    "Job",
    "JobCancelled",
    "JobFailed",
    "JobLogFilter",
    "JobLogHandler",
    "JobNotFound",
    "JobOutcome",
    "JobmillError",
    "Keep",
    "Lane",
    "LaneRule",
    "LaneSettings",
    "LogLine",
    "LoginRefused",
    "MissingExtra",
    "Page",
    "Pause",
    "PayloadTooLarge",
    "Progress",
    "QueueSettings",
    "Reason",
    "ResultTimeout",
    "RunEnd",
    "SchemaTooNew",
    "SchemaTooOld",
    "Snooze",
    "State",
    "Stats",
    "StepFailed",
    "StepsChanged",
    "StoreBusy",
    "StoreError",
    "StoreUnavailable",
    "Tally",
    "Tick",
    "UnsafeStore",
    "Usage",
    "Worker",
    "WorkerCard",
    "__version__",
    "connect",
    "exponential",
    "fixed",
]

_HOMES = {
    "jobmill.client.client": ("Client", "connect"),
    "jobmill.handlers.enqueued": ("Enqueued",),
    "jobmill.handlers.draft": ("Draft", "Group"),
    "jobmill.handlers.flow": ("Flow", "FlowProgress"),
    "jobmill.handlers.handler": ("Handler",),
    "jobmill.handlers.placeholders": ("JobOutcome",),
    "jobmill.handlers.context": ("Context",),
    "jobmill.handlers.logs": ("JobLogFilter", "JobLogHandler"),
    "jobmill.handlers.observers": ("RunEnd",),
    "jobmill.core.announcing": ("WorkerCard",),
    "jobmill.core.audit": ("AuditEntry", "AuditPage"),
    "jobmill.core.changes": ("Changed",),
    "jobmill.core.due": ("Held",),
    "jobmill.core.findings": ("Finding",),
    "jobmill.core.queue_settings": ("LaneRule", "LaneSettings"),
    "jobmill.core.reasons": ("Reason",),
    "jobmill.core.tallies": ("Tally",),
    "jobmill.core.values": ("Count", "Depth", "Lane", "LogLine", "Page", "Pause", "QueueSettings", "Stats"),
    "jobmill.core.events": ("Event",),
    "jobmill.core.job": ("Attempt", "Job", "Keep", "Progress", "State"),
    "jobmill.core.retry": ("Backoff", "exponential", "fixed"),
    "jobmill.core.usage": ("Usage",),
    "jobmill.dashboard": ("Access", "Dashboard"),
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
