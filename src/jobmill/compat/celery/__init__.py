"""Celery's interface on Jobmill: `shared_task`, `delay`, `apply_async`, `retry` and `AsyncResult`; docs/moving-in.md.

    from jobmill.compat.celery import bind, shared_task

    @shared_task(bind=True, max_retries=5)
    def send(self, to): ...

    jobs = jobmill.connect()
    bind(jobs)

Like Celery's, these calls block. A task is a handler of the client, with the name that it had in Celery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jobmill.compat.celery.app import App
from jobmill.compat.celery.canvas import GroupResult, chain, chord, group
from jobmill.compat.celery.options import refusal
from jobmill.compat.celery.result import AsyncResult, TaskRevokedError
from jobmill.compat.celery.task import MaxRetriesExceededError, Request, Retry, Signature, Task

__all__ = [
    "App",
    "AsyncResult",
    "GroupResult",
    "MaxRetriesExceededError",
    "Request",
    "Retry",
    "Signature",
    "Task",
    "TaskRevokedError",
    "bind",
    "chain",
    "chord",
    "group",
    "shared_task",
]

_shared = App(shared=True)
shared_task = _shared.task
bind = _shared.bind


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        raise ImportError(refusal(name))
