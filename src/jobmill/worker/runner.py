"""The runner: runs one attempt of one job, from payload to outcome, in the event loop, a thread or a process."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

from msgspec import structs

from jobmill.core.job import Job
from jobmill.core.lifecycle import Errored, Outcome, Released, Succeeded
from jobmill.core.values import Settlement
from jobmill.errors import InvalidValue, StoreUnavailable
from jobmill.handlers import logs
from jobmill.handlers.durable import Suspend
from jobmill.handlers.observers import Begun
from jobmill.worker import durable, outcomes
from jobmill.worker.context import WorkerContext
from jobmill.worker.running import Run


class Runner:
    """Starts runs. `on_over` gets each run with its outcome, and `on_free` each run whose slot is free.

    The outcome is None if the lease was lost: another worker may run the job by now.
    """

    def __init__(
        self,
        context: WorkerContext,
        on_over: Callable[[Run, Outcome | None], Settlement | None],
        on_free: Callable[[Run], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._has_task_factory = self._loop.get_task_factory() is not None
        self._context = context
        self._usage = context.usage
        self._around = context.hooks.around
        self._around_functions = self._around.functions
        self._observers = context.hooks.observers.run
        self._on_over = on_over
        self._on_free = on_free

    def start(self, run: Run) -> None:
        """Start a task for the run; never raises."""
        if run.rules.timeout_ms is not None:
            self._context.deadlines.add(run, run.rules.timeout_ms)
        # The job id as the name of the task helps in debuggers, and is cheaper than a name that asyncio generates.
        # `create_task` of uvloop generates one all the same: 1.6 % of the instructions of a job on SQLite.
        work: Any = self._run_observed(run) if self._observers else self._run(run)
        if self._has_task_factory:
            run.task = self._loop.create_task(work, name=run.claimed.job.id)
        else:
            run.task = asyncio.Task(work, loop=self._loop, name=run.claimed.job.id)

    async def _run_observed(self, run: Run) -> None:
        if logs.readers:
            logs.current_run.set(run)
        begun = Begun(self._observers, run.context)
        begun.end(run.end(await self._run(run)))

    async def _run(self, run: Run) -> Settlement | None:
        run.started = monotonic()
        if logs.readers:  # a task has its own context, which threads and tasks of the handler inherit
            logs.current_run.set(run)
        if self._usage is not None:
            self._usage.began(run)
        try:
            outcome: Outcome | None = await self._attempt(run)
        except BaseException as raised:
            outcome = self._interrupted(run, raised)
        if run.why is not None:
            outcome = self._stopped(run, outcome)
        if isinstance(outcome, Errored):
            outcome = self._report_error(run, outcome)
        run.over = monotonic()
        if logs.readers:
            run.task = None  # the context of the task has the run: this breaks the cycle
        if self._usage is not None:
            self._usage.ended(run)
        decided = self._on_over(run, outcome)
        if not run.in_thread:
            self._on_free(run)
        return decided

    def _stopped(self, run: Run, outcome: Outcome | None) -> Outcome | None:
        """The outcome of a run that was stopped from outside; None if its lease was lost."""
        if run.why == "timeout":
            # The handler may have caught the cancellation and returned a value, but that was after the timeout.
            return outcomes.timed_out(run.rules.timeout_ms or 0, run.handler, run.claimed.job.attempt)
        return None if run.why == "lost" else outcome

    async def _attempt(self, run: Run) -> Outcome:
        handler = run.handler
        if handler.isolate or handler.arguments.takes_context or run.claimed.job.dependencies:
            return await self._attempt_in_flow(run)
        try:
            arguments = handler.arguments.decode(run.claimed.job.payload_json)
        except InvalidValue as error:
            return outcomes.unfit(error)
        if handler.is_async and not self._around_functions:
            return outcomes.returned(await handler.fn(**arguments), handler)
        return outcomes.returned(await self._surrounded(run, functools.partial(handler.fn, **arguments)), handler)

    async def _attempt_in_flow(self, run: Run) -> Outcome:
        """An attempt with a context, which can take steps and wait; or with results of other jobs; or isolated."""
        handler, job, store = run.handler, run.claimed.job, self._context.store
        takes_context = handler.arguments.takes_context
        try:
            if takes_context and job.dependencies and durable.may_have_recorded(job):
                result = await durable.ended_before(store, job)
                if result is not None:
                    return Succeeded(bytes(result))
            if job.dependencies:
                job = structs.replace(job, payload_json=await durable.filled_payload(store, job))
            if handler.isolate:
                return await self._isolated(run, job)
        except StoreUnavailable:
            return Released()  # the handler has not run: an outage of the store is no error of the job
        try:
            arguments = handler.arguments.decode(job.payload_json)
        except InvalidValue as error:
            return outcomes.unfit(error)
        call: Any = handler.fn
        if takes_context:
            call = functools.partial(handler.fn, durable.prepare(run, store, self._loop))
        if handler.is_async and not self._around_functions:
            value = await call(**arguments)
        else:
            value = await self._surrounded(run, functools.partial(call, **arguments))
        outcome = outcomes.returned(value, handler)
        if run.is_durable or (takes_context and durable.may_have_recorded(job)):
            outcome = await durable.end(run.context, outcome)
        return outcome

    def _surrounded(self, run: Run, call: Callable[[], Any]) -> Awaitable[Any]:
        """Call the handler in a thread, or inside of the functions of `jobs.around`, or both."""
        if not self._around_functions:
            return self._in_thread(run, call)
        in_thread = functools.partial(self._in_thread, run)
        return self._around.run(run.context, call, is_async=run.handler.is_async, in_thread=in_thread)

    async def _isolated(self, run: Run, job: Job) -> Outcome:
        if self._context.isolation is None:
            from jobmill.worker.isolate.isolation import Isolation

            self._context.isolation = Isolation(self._context.handlers)
        access = durable.StoreAccess(self._context.store, run) if run.handler.arguments.takes_context else None
        return await self._context.isolation.run(run.handler, job, run.report, run.trace_id, access)

    async def _in_thread(self, run: Run, call: Callable[[], Any]) -> Any:
        future = self._context.threads.run(call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if future.done():
                # The thread ended at the same moment: its result counts.
                return future.result()
            # The thread continues: its slot is free when it ends, and its result is dropped.
            run.in_thread = True

            def ended(done: asyncio.Future[Any]) -> None:
                done.exception()  # retrieved, so that asyncio does not log it
                self._on_free(run)

            future.add_done_callback(ended)
            raise

    def _interrupted(self, run: Run, error: BaseException) -> Outcome:
        if isinstance(error, Suspend):
            return error.outcome or Released()
        run.error = None if isinstance(error, asyncio.CancelledError) else error
        if run.why == "shutdown" or (run.why is None and self._context.cut_off()):
            # If a handler raises because the worker stops, this does not count as an error of the job.
            return Released()
        if isinstance(error, asyncio.CancelledError):
            return Errored(error="the handler cancelled itself")
        return outcomes.raised(error, run.handler, run.claimed.job.attempt)

    def _report_error(self, run: Run, outcome: Errored) -> Errored:
        """Pass every error to the hooks and to the backoff function of the user.

        A timeout or a process that died has no exception in this process: a TimeoutError or RuntimeError stands for it.
        """
        error = run.error
        if error is None:
            error = TimeoutError(outcome.error) if run.why == "timeout" else RuntimeError(outcome.error)
            if outcome.delay_ms is None:
                outcome = outcomes.with_own_delay(outcome, error, run.handler, run.claimed.job.attempt)
        job, now_ms = run.claimed.job, self._context.store.now()
        self._context.counts.errored(run.series, job, outcome.error_type, outcome.location, now_ms)
        run.shown_error, run.errored = error, outcome
        self._context.hooks.error(error, run.claimed.job)
        return outcome
