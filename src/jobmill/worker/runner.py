"""The runner: runs one attempt of one job, from payload to outcome, in the event loop, a thread or a process."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from jobmill.core.lifecycle import Errored, Outcome, Released
from jobmill.errors import InvalidValue
from jobmill.worker import outcomes
from jobmill.worker.context import WorkerContext
from jobmill.worker.running import Run


class Runner:
    """Starts runs. `on_over` gets each run with its outcome, and `on_free` each run whose slot is free.

    The outcome is None if the lease was lost: another worker may run the job by now.
    """

    def __init__(
        self,
        context: WorkerContext,
        on_over: Callable[[Run, Outcome | None], None],
        on_free: Callable[[Run], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._context = context
        self._usage = context.usage
        self._on_over = on_over
        self._on_free = on_free

    def start(self, run: Run) -> None:
        """Start a task for the run; never raises."""
        if run.rules.timeout_ms is not None:
            self._context.deadlines.add(run, run.rules.timeout_ms)
        # The job id as the name of the task helps in debuggers, and is cheaper than a name that asyncio generates.
        run.task = self._loop.create_task(self._run(run), name=run.claimed.job.id)

    async def _run(self, run: Run) -> None:
        run.started = True
        if self._usage is not None:
            self._usage.began(run)
        error: BaseException | None = None
        outcome: Outcome | None
        try:
            outcome = await self._attempt(run)
        except BaseException as raised:
            error = None if isinstance(raised, asyncio.CancelledError) else raised
            outcome = self._interrupted(run, raised)
        if run.why == "lost":
            outcome = None
        elif run.why == "timeout":
            # The handler may have caught the cancellation and returned a value, but that was after the timeout.
            outcome = outcomes.timed_out(run.rules.timeout_ms or 0, run.handler, run.claimed.job.attempt)
        if isinstance(outcome, Errored):
            outcome = self._report_error(run, outcome, error)
        run.over = True
        if self._usage is not None:
            self._usage.ended(run)
        self._on_over(run, outcome)
        if not run.in_thread:
            self._on_free(run)

    async def _attempt(self, run: Run) -> Outcome:
        handler = run.handler
        if handler.isolate:
            from jobmill.worker.isolate.parent import run_isolated

            return await run_isolated(handler, run.claimed.job, run.report)
        try:
            arguments = handler.arguments.decode(run.claimed.job.payload_json)
        except InvalidValue as error:
            # The payload will not fit at the next attempt either.
            return Errored(error=error.without_value(), final=True)
        call: Any = handler.fn
        if handler.arguments.takes_context:
            call = functools.partial(call, run.context)
        if handler.is_async:
            return outcomes.returned(await call(**arguments), handler)
        return outcomes.returned(await self._in_thread(run, functools.partial(call, **arguments)), handler)

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
        if run.why == "shutdown" or (run.why is None and self._context.cut_off()):
            # If a handler raises because the worker stops, this does not count as an error of the job.
            return Released()
        if isinstance(error, asyncio.CancelledError):
            return Errored(error="the handler cancelled itself")
        return outcomes.raised(error, run.handler, run.claimed.job.attempt)

    def _report_error(self, run: Run, outcome: Errored, error: BaseException | None) -> Errored:
        """Pass every error to the hooks and to the backoff function of the user.

        A timeout or a process that died has no exception in this process: a TimeoutError or RuntimeError stands for it.
        """
        run.error = error
        if error is None:
            error = TimeoutError(outcome.error) if run.why == "timeout" else RuntimeError(outcome.error)
            if outcome.delay_ms is None:
                outcome = outcomes.with_own_delay(outcome, error, run.handler, run.claimed.job.attempt)
        self._context.hooks.error(error, run.claimed.job)
        return outcome
