"""A job as a TaskResult of Django."""

from __future__ import annotations

import contextlib
import re
from datetime import datetime
from typing import Any

from jobmill.core.durations import to_datetime
from jobmill.core.job import Attempt, Job
from jobmill.django.interface import InvalidTask, TaskError, TaskResult, TaskResultStatus

_STATUS = {
    "waiting": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "succeeded": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
}
_PATH = re.compile(r"\w+(\.\w+)*")
#: In place of a worker that is not known: of an attempt that the store no longer keeps.
UNKNOWN_WORKER = "unknown"


def result_of(job: Job, task: Any, alias: str, priority_base: int) -> Any:
    """The result of a Task, from its job."""
    payload = job.payload if isinstance(job.payload, dict) else {}
    result = TaskResult(
        task=_as_enqueued(task, job, alias, priority_base),
        id=job.id,
        status=_STATUS[job.state],
        enqueued_at=job.created_at,
        started_at=_first_start(job),
        last_attempted_at=job.started_at,
        finished_at=job.finished_at,
        args=payload.get("args") or [],
        kwargs=payload.get("kwargs") or {},
        backend=alias,
        errors=_errors(job),
        worker_ids=_workers(job),
    )
    if job.state == "succeeded":
        object.__setattr__(result, "_return_value", job.result)
    return result


def new_result(task: Any, id: str, args: list[Any], kwargs: dict[str, Any], alias: str, at: datetime) -> Any:
    """The result of a Task that was enqueued now."""
    return TaskResult(
        task=task,
        id=id,
        status=TaskResultStatus.READY,
        enqueued_at=at,
        started_at=None,
        last_attempted_at=None,
        finished_at=None,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=[],
        worker_ids=[],
    )


def succeeded(result: Any, value: Any, at: datetime) -> Any:
    """The result of a run that has ended well."""
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL)
    object.__setattr__(result, "finished_at", at)
    object.__setattr__(result, "_return_value", value)
    return result


def _as_enqueued(task: Any, job: Job, alias: str, priority_base: int) -> Any:
    """The Task with the queue, the priority and the time of this job, unless they are no longer valid for a Task."""
    with contextlib.suppress(InvalidTask):
        changes: dict[str, Any] = {"queue_name": job.queue, "backend": alias}
        changes["priority"] = min(max(priority_base - job.priority, -100), 100)
        if job.due_ms > job.created_ms and job.due_at is not None:
            changes["run_after"] = job.due_at
        return task.using(**changes)
    return task


def _first_start(job: Job) -> datetime | None:
    started = [one.started_ms for one in job.attempts if one.started_ms is not None]
    return to_datetime(started[0]) if started else job.started_at


def _workers(job: Job) -> list[str]:
    """A worker for each attempt, so that their number is the number of attempts."""
    workers = [one.worker or UNKNOWN_WORKER for one in job.attempts]
    if job.state in ("running", "succeeded"):
        workers.append(job.worker or UNKNOWN_WORKER)
    attempts = job.errors + job.crashes + (job.state in ("running", "succeeded"))
    return [UNKNOWN_WORKER] * (attempts - len(workers)) + workers


def _errors(job: Job) -> list[Any]:
    errors = [TaskError(exception_class_path=_class_path(one), traceback=_traceback(one)) for one in job.attempts]
    if job.state == "cancelled":
        errors.append(TaskError(exception_class_path="jobmill.errors.JobCancelled", traceback=""))
    elif job.state == "failed" and not errors:
        errors.append(TaskError(exception_class_path="builtins.Exception", traceback=job.error or ""))
    return errors


def _class_path(attempt: Attempt) -> str:
    if attempt.outcome == "crashed":
        return "builtins.RuntimeError"
    path = attempt.error_type or "Exception"
    if _PATH.fullmatch(path) is None:  # a class of a function: nobody can import it
        path = "Exception"
    return path if "." in path else f"builtins.{path}"


def _traceback(attempt: Attempt) -> str:
    return attempt.traceback or attempt.error or ""
