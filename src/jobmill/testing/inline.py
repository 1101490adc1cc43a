"""`inline`: jobs run when they are enqueued."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from jobmill.client.bound_store import BoundStore
from jobmill.core.values import NewJob, Receipt
from jobmill.testing.drain_jobs import drain_with
from jobmill.testing.runs import JobRunner


class Inline:
    """Jobs run inside the call that enqueues them, if they are due: encoded as JSON, claimed, run and settled.

    An error of a handler is raised by the call that enqueued the job. Jobs that are due later wait.
    """

    def __init__(self, bound: BoundStore, runner: JobRunner) -> None:
        self._bound = bound
        self._runner = runner
        self._enqueue = bound.enqueue
        self._transactional = bound.transactional

    def __enter__(self) -> Inline:
        """From now on, jobs run when they are enqueued."""
        self._bound.enqueue = self._enqueue_and_run
        if self._bound.store.name == "memory":
            self._bound.transactional = self
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """From now on, jobs wait."""
        self._bound.enqueue = self._enqueue
        self._bound.transactional = self._transactional

    async def _enqueue_and_run(self, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        receipts = await self._enqueue(new_jobs)
        await drain_with(self._runner, "raise", False, None, 1)
        return receipts

    async def enqueue_within(self, connection: Any, new_jobs: Sequence[NewJob]) -> list[Receipt]:
        """The memory store has no transactions: the jobs run at once, as if the transaction had committed."""
        return await self._enqueue_and_run(new_jobs)

    def check_unlocked(self) -> None:
        """Nothing is locked."""
