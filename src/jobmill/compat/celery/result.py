"""Celery's AsyncResult: the state and the result of a job."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, cast

from jobmill.compat.celery.binding import SHARED, Binding
from jobmill.compat.tagged import from_tagged
from jobmill.core.job import Job
from jobmill.errors import Fail, JobCancelled, JobFailed, JobNotFound

R = TypeVar("R")

_STATES = {"running": "STARTED", "succeeded": "SUCCESS", "failed": "FAILURE", "cancelled": "REVOKED"}


class TaskRevokedError(Fail):
    """The job expired before it could start, or was revoked."""


class AsyncResult(Generic[R]):
    """The job with this id. A job that is not in the store is PENDING, as in Celery."""

    def __init__(self, id: str, binding: Binding = SHARED) -> None:
        self.id = self.task_id = id
        self._client = binding.client

    def __repr__(self) -> str:
        """The id."""
        return f"<AsyncResult: {self.id}>"

    def _job(self) -> Job | None:
        try:
            return self._client.sync.get(self.id)
        except JobNotFound:
            return None

    def get(self, timeout: float | None = None, *, propagate: bool = True, interval: float | None = None) -> R:
        """Wait for the result. JobFailed has the error of the job as text; a TimeoutError comes after `timeout`."""
        try:
            return cast(R, from_tagged(self._client.sync.result(self.id, timeout=timeout)))
        except JobFailed as error:
            if not propagate:
                return cast(R, error)
            if isinstance(error, JobCancelled) or is_expired(error.job):
                raise TaskRevokedError(str(error)) from error
            raise

    @property
    def state(self) -> str:
        """PENDING, STARTED, RETRY, SUCCESS, FAILURE or REVOKED."""
        job = self._job()
        if job is None or job.state == "waiting":
            return "RETRY" if job is not None and job.errors else "PENDING"
        return "REVOKED" if is_expired(job) else _STATES[job.state]

    @property
    def status(self) -> str:
        """The state."""
        return self.state

    @property
    def result(self) -> Any:
        """The result or the error (JobFailed) of a final job; None before."""
        return self.get(timeout=0, propagate=False) if self.ready() else None

    @property
    def traceback(self) -> str | None:
        """The traceback of the last attempt that did not succeed."""
        job = self._job()
        return job.attempts[-1].traceback if job is not None and job.attempts else None

    def ready(self) -> bool:
        """Whether the job is final."""
        return (job := self._job()) is not None and job.is_final

    def successful(self) -> bool:
        """Whether the job succeeded."""
        return self.state == "SUCCESS"

    def failed(self) -> bool:
        """Whether the job failed."""
        return self.state == "FAILURE"

    def revoke(self, *, terminate: bool = False) -> None:
        """Cancel the job; with `terminate`, also one that runs."""
        if terminate or ((job := self._job()) is not None and job.state == "waiting"):
            self._client.sync.cancel(self.id)

    def forget(self) -> None:
        """Remove a final job, with its result."""
        if self.ready():
            self._client.sync.remove(self.id)


def is_expired(job: Job) -> bool:
    """Whether the job failed because it expired."""
    return job.error_type == f"{TaskRevokedError.__module__}.{TaskRevokedError.__qualname__}"
