"""Durable runs in a worker: results of other jobs as arguments, and how a run reaches its store."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from msgspec import Raw

from jobmill.core.flows import Dependency, Recorded, Step
from jobmill.core.job import Job
from jobmill.core.lifecycle import Outcome, Succeeded
from jobmill.errors import JobmillError, StoreUnavailable
from jobmill.handlers.context import Context
from jobmill.handlers.durable import returned_before
from jobmill.handlers.placeholders import filled
from jobmill.store import Store
from jobmill.worker.running import Run

#: The number of dependencies that one call reads.
PAGE = 1_000


async def filled_payload(store: Store, job: Job) -> Raw:
    """The payload of a job with the results of the jobs that it has waited for."""
    if b'{"$' not in bytes(job.payload_json):
        return job.payload_json
    return filled(job.payload_json, await all_dependencies(store, job.id))


async def all_dependencies(store: Store, id: str) -> list[Dependency]:
    """All edges of a job, by their numbers."""
    found = page = await store.dependencies(id, 0, PAGE)
    while len(page) == PAGE:
        page = await store.dependencies(id, len(found), PAGE)
        found = found + page
    return found


class StoreAccess:
    """How a run reaches its store."""

    def __init__(self, store: Store, run: Run) -> None:
        self._store = store
        self._run = run
        self._job = run.claimed.job

    async def recorded(self) -> Recorded:
        """What earlier runs of the job have recorded. A signal may have come before the first run, too."""
        return await self._store.recorded(self._job.id)

    async def dependencies(self) -> Sequence[Dependency]:
        """The jobs that this job has waited for."""
        return await all_dependencies(self._store, self._job.id) if self._job.dependencies else []

    async def record(self, step: Step) -> bool:
        """Store a step under the lease. If that is lost, the run is stopped."""
        is_recorded = await self._store.record_step(self._run.claimed.lease, step)
        if not is_recorded:
            self._run.stop("lost")
        return is_recorded

    def now_ms(self) -> int:
        """The time of the store."""
        return self._store.now()


def prepare(run: Run, store: Store, loop: asyncio.AbstractEventLoop) -> Context:
    """The context of a run, able to take steps."""
    context = run.context
    context.access = StoreAccess(store, run)

    def wait(call: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(call, loop).result()

    context.wait = wait
    return context


def may_have_recorded(job: Job) -> bool:
    """Whether an earlier run of the job may have recorded steps, which this run must take as well."""
    return job.claims > 1 and job.recurrence is None


async def ended_before(store: Store, job: Job) -> Raw | None:
    """The result of a handler that has returned already, and whose job has waited for jobs that it added."""
    recorded = await store.recorded(job.id)
    return returned_before(recorded, await all_dependencies(store, job.id)) if recorded.steps else None


async def end(context: Context, outcome: Outcome) -> Outcome:
    """The handler has returned. It must not have caught its suspension, and must have taken all recorded steps."""
    took_steps = context.is_durable
    if context.durable.suspended is not None:
        raise JobmillError("the handler caught Suspend, which ends a run that waits: let BaseException pass")
    try:
        await context.durable.check_end()
    except StoreUnavailable:
        if took_steps:
            raise
        return outcome  # most handlers never take steps: their work counts, although this could not be checked
    return await context.durable.finish(outcome) if isinstance(outcome, Succeeded) else outcome
