"""The JobsRepository of Harmonyk's design notes, on the store of a client."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol

from msgspec import Struct, structs

from jobmill.core import limits
from jobmill.core.changes import Seize
from jobmill.core.durations import instant_ms
from jobmill.core.events import settlement_events
from jobmill.core.lifecycle import DEFAULT_POLICY, Errored, Succeeded, policy, settle
from jobmill.core.values import Claimed, Lease, Refused, Settlement
from jobmill.errors import InvalidValue, StoreError, StoreUnavailable
from jobmill.handlers.options import EnqueueOptions
from jobmill.harmonyk.rules import PRESET, STATUS_OF, Status, status
from jobmill.worker.outcomes import ERROR_KEPT, with_own_delay

if TYPE_CHECKING:
    from jobmill.client.client import Client

#: The lease of a seized job: long enough for two calls to a slow store. If this process dies between the two calls,
#: workers can claim the job again after this time.
SEIZED_MS = 15_000
#: Marking a job is given up after this number of attempts, if another process takes over the job each time.
TURNS = 10


class Marked(Struct, frozen=True, kw_only=True):
    """The result of marking a job: whether it changed the job, and the job's status now.

    A job that was final already is not changed; `status` then says how it had ended.
    """

    changed: bool
    status: Status


class JobsRepository(Protocol):
    """Where Harmonyk's application keeps its jobs. `Repository` is one; a test may use another."""

    async def enqueue(
        self,
        type: str,
        org_id: str | None = None,
        payload: dict[str, Any] | None = None,
        run_at: datetime | None = None,
    ) -> str:
        """Store a job that runs at `run_at`, or now. Return its id."""

    async def mark_success(self, id: str) -> Marked | None:
        """End the job as succeeded."""

    async def mark_failure(self, id: str, error: str) -> Marked | None:
        """A run of the job has failed. The job is queued again by the retry rule, or fails if no run is left."""


class Repository:
    """A JobsRepository over any client's store.

    Its jobs are ordinary jobs, which workers run. Unless the job or its handler says otherwise, they retry by
    Harmonyk's rule: after 1, 2, 4, 8 and 16 s, six runs in all.
    """

    def __init__(self, jobs: Client) -> None:
        self._jobs = jobs
        self._worker = f"{socket.gethostname()}-{os.getpid()}-repository"

    async def enqueue(
        self,
        type: str,
        org_id: str | None = None,
        payload: dict[str, Any] | None = None,
        run_at: datetime | None = None,
        *,
        dedupe: bool = False,
        within: Any = None,
    ) -> str:
        """Enqueue a job for the handler named `type`. Return the id of the job.

        With `dedupe`, if there is a live job with the same type, `org_id` and payload, no new job is stored and the id
        of that job is returned. `within` is a connection of the caller: the job becomes part of its transaction.
        """
        options: EnqueueOptions = {"dedupe": dedupe}
        if org_id is not None:
            options["tenant"] = limits.check_tenant(org_id, "org_id")
        if run_at is not None:
            instant_ms(run_at, "run_at")
            options["due_at"] = run_at
        draft = self._jobs.draft(limits.check_name(type, "type"), payload, **options)
        stored = structs.replace(draft.options.stored, preset=PRESET)
        draft = structs.replace(draft, options=structs.replace(draft.options, stored=stored))
        return (await self._jobs.enqueue_many([draft], within=within))[0].id

    async def mark_success(self, id: str) -> Marked:
        """End a live job as succeeded; a worker that runs it loses its lease. JobNotFound when there is no such job."""
        return await self._mark(id, None)

    async def mark_failure(self, id: str, error: str) -> Marked:
        """Count an error of a live job; a worker that runs it loses its lease. JobNotFound when there is no such job.

        The job is queued again after the delay of its retry rule, or failed when no run is left; the error is kept.
        """
        if not isinstance(error, str):
            raise InvalidValue("error", "a text", error)
        return await self._mark(id, limits.storable(error[:ERROR_KEPT]))

    async def _mark(self, id: str, error: str | None) -> Marked:
        limits.check_known_id(id)
        await self._jobs.open()
        # A caller that is cancelled (a request that was given up) must not leave the job seized.
        return await asyncio.shield(asyncio.ensure_future(self._seize_and_settle(id, error)))

    async def _seize_and_settle(self, id: str, error: str | None) -> Marked:
        for _ in range(TURNS):
            seized = await self._seize(id)
            if seized is not None:
                decided = self._decided(seized, error)
                if await self._settle(decided):
                    return Marked(changed=True, status=STATUS_OF[decided.state])
            elif (job := await self._jobs.get(id)).is_final:
                return Marked(changed=False, status=status(job))
        raise StoreUnavailable(
            f"job {id!r} was claimed or changed {TURNS} times while it was being marked; try again later"
        )

    async def _seize(self, id: str) -> Claimed | None:
        """Take the job under a new lease. None if the job is not live."""
        store = self._jobs.store
        change = Seize(token=secrets.token_hex(16), worker=self._worker, lease_ms=SEIZED_MS)
        until_ms = store.now() + SEIZED_MS
        if not (await store.change([id], change)).ids:
            return None
        (job,) = await store.get([id])
        return (
            None
            if job is None
            else Claimed(job, Lease(id, change.token, job.queue, job.name, until_ms, None, job.lane))
        )

    def _decided(self, seized: Claimed, error: str | None) -> Settlement:
        """The settlement of the job, decided by the same rules as after a run in a worker."""
        job = seized.job
        handler = self._jobs.handlers.get(job.name)
        rules = policy(job.options, DEFAULT_POLICY if handler is None else handler.policy)
        outcome: Succeeded | Errored = Succeeded()
        if error is not None:
            outcome = Errored(error=error)
            if handler is not None:
                outcome = with_own_delay(outcome, RuntimeError(error), handler, job.attempt)
        return settle(seized, outcome, rules, self._jobs.store.now(), random.random())

    async def _settle(self, decided: Settlement) -> bool:
        """Write the settlement. Return False if another process took over the job in the meantime."""
        answer = await self._jobs.store.exchange([decided], None)
        (settled,) = answer.settled
        if isinstance(settled, Refused):
            raise StoreError(f"job {decided.lease.id!r} cannot be marked: {settled.why}")
        if settled == "done" and self._jobs.hooks.wants_events:
            for event in settlement_events(decided, answer.now_ms):
                await self._jobs.hooks.call_event(event)
        return settled == "done"
