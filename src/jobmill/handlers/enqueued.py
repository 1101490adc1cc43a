"""What `enqueue` returns: the id of the job, what the store did, and a way to the result."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

from jobmill.core.durations import Duration
from jobmill.core.job import Job
from jobmill.core.values import Receipt
from jobmill.errors import JobmillError
from jobmill.handlers.flow import Flow, ManagesFlows

R = TypeVar("R", covariant=True)


class ReadsJobs(ManagesFlows, Protocol):
    """The methods of a client that an Enqueued uses."""

    async def get(self, id: str) -> Job:
        """The job with this id."""

    async def result(self, id: str, *, timeout: Duration | None = None) -> Any:
        """Wait until the job is final and return its result."""


class Enqueued(Generic[R]):
    """One enqueued job. `R` is the type that its handler returns.

    `id` is the id of the new job, or of the job that existed already. `status` is created, exists (same id), duplicate
    (a live job has the unique key) or updated (a live recurring job).
    """

    __slots__ = ("_client", "_flow", "id", "status")

    def __init__(self, client: ReadsJobs, receipt: Receipt) -> None:
        self._client = client
        self.id = receipt.id
        self.status = receipt.status

    @property
    def created(self) -> bool:
        """Whether this call created the job."""
        return self.status == "created"

    @property
    def flow(self) -> Flow:
        """The flow that the job was enqueued with: the jobs that it waits for, and those that wait for it."""
        # Only a job in a flow has the attribute: to set it for each job would cost all of them.
        flow: str | None = getattr(self, "_flow", None)
        if flow is None:
            raise JobmillError(f"job {self.id!r} was enqueued alone, not with jobs that it waits for: it has no flow")
        return Flow(self._client, flow)

    def in_flow(self, flow: str | None) -> Enqueued[R]:
        """This, as part of a flow."""
        self._flow = flow
        return self

    def __repr__(self) -> str:
        """Id and status."""
        return f"Enqueued(id={self.id!r}, status={self.status!r})"

    async def job(self) -> Job:
        """The job in its current state; JobNotFound if it is not in the store."""
        return await self._client.get(self.id)

    async def result(self, timeout: Duration | None = None) -> R:
        """Wait until the job is final and return its result, as the type that its handler returns."""
        result: R = await self._client.result(self.id, timeout=timeout)
        return result
