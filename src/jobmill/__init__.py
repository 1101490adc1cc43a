"""Jobmill: one job queue for Python, on the database that you already have.

Layers, high to low; each may import only what is below it:

    cli                                   the commands
    testing                               a clock for tests; the contract that stores must pass
    client, sync, worker, stores          enqueue and look; claim, run and settle; databases behind the port
    handlers, context, events, options    what users define and are told
    store                                 THE PORT
    core                                  pure decisions: no I/O, no clock, no chance
    errors
"""

from __future__ import annotations

from jobmill._version import __version__
from jobmill.client import Client, Enqueued, connect
from jobmill.context import Context
from jobmill.core.changes import Changed, Count, Page, Stats
from jobmill.core.facts import Event
from jobmill.core.job import Job, Keep, Progress, State
from jobmill.core.retry import Backoff, exponential, fixed
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
    Snooze,
    StoreAway,
    StoreBusy,
    StoreError,
    UnsafeStore,
)

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
    "MissingExtra",
    "Page",
    "PayloadTooLarge",
    "Progress",
    "ResultTimeout",
    "SchemaTooNew",
    "Snooze",
    "State",
    "Stats",
    "StoreAway",
    "StoreBusy",
    "StoreError",
    "UnsafeStore",
    "__version__",
    "connect",
    "exponential",
    "fixed",
]
