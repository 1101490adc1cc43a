"""`run_job`: one attempt of one job, as a worker would run it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from jobmill.client.client import Client
from jobmill.core.changes import Reschedule
from jobmill.core.values import NOW
from jobmill.handlers.handler import BoundHandler, Handler
from jobmill.stores.memory import MemoryStore
from jobmill.testing.runs import JobRun, JobRunner

if TYPE_CHECKING:
    from jobmill.testing.clock import ManualClock
    from jobmill.testing.enqueued_jobs import HasPath

P = ParamSpec("P")
R = TypeVar("R")


class RunJob:
    """The fixture `run_job`: `await run_job(send, to="ada")`; in a sync test, `run_job.sync(send, to="ada")`."""

    def __init__(self, client: Client, clock: ManualClock | Callable[[], int]) -> None:
        self._client = client
        self._clock = clock

    @overload
    async def __call__(self, handler: BoundHandler[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobRun[R]: ...
    @overload
    async def __call__(self, handler: HasPath, /, *args: Any, **kwargs: Any) -> JobRun[Any]: ...
    async def __call__(self, handler: BoundHandler[..., Any] | HasPath, /, *args: Any, **kwargs: Any) -> JobRun[Any]:
        """Run a handler once, with these arguments, and return how it ended; an error is returned, not raised.

        Everything is as on a worker: the arguments become JSON and are decoded again, and there is a context, the
        timeout, and what the application has around runs. The job itself is in a store of its own; what the handler
        enqueues is in the store of the test. For options, give `send.options(timeout="1s")`. A task of Django gets its
        own arguments: `run_job.sync(send_receipt, 7)`.
        """
        if isinstance(handler, BoundHandler):
            draft = handler.draft(*args, **kwargs)
        else:
            draft = self._client.handler_named(handler.module_path).draft(args=list(args), kwargs=kwargs)
        of_name = handler if isinstance(handler, Handler) else self._client.handler_named(draft.name)
        alone = copy.copy(of_name)
        alone.declared = None  # its recurring job is not what the test wants to run
        store = MemoryStore(clock=self._clock)
        (enqueued,) = await Client(store).enqueue_many([draft])
        await store.change([enqueued.id], Reschedule(NOW))
        runner = JobRunner(self._client, store)
        runner.registry.only = {draft.name: alone}
        async with runner.lifespans() as lifespans:
            runs = await runner.tick(1, lifespans)
        if not runs:
            raise AssertionError(f"{draft} did not run")
        return runs[0]

    @overload
    def sync(self, handler: BoundHandler[P, R], /, *args: P.args, **kwargs: P.kwargs) -> JobRun[R]: ...
    @overload
    def sync(self, handler: HasPath, /, *args: Any, **kwargs: Any) -> JobRun[Any]: ...
    def sync(self, handler: Any, /, *args: Any, **kwargs: Any) -> JobRun[Any]:
        """The same for a sync test."""
        return self._client.sync(self(handler, *args, **kwargs))
