"""The runner: one attempt of one job, from payload to Outcome, in the loop, in a thread or in a process of its own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from typing import Any

from msgspec import structs

from jobmill.core.lifecycle import Errored, Outcome, Released
from jobmill.errors import InvalidValue
from jobmill.runtime.threads import Threads
from jobmill.worker import outcomes
from jobmill.worker.deadlines import Deadlines
from jobmill.worker.hooks import HookQueue
from jobmill.worker.running import Run
from jobmill.worker.usage import UsageLog

#: Told when a run is over: its outcome, or None when it is not ours to settle; and when its slot is free.
OnOver = Callable[[Run, Outcome | None], None]
OnFree = Callable[[Run], None]


class Runner:
    """Starts runs; what they come to goes to the callbacks."""

    def __init__(
        self,
        threads: Threads,
        deadlines: Deadlines,
        hooks: HookQueue,
        usage: UsageLog | None = None,
        cut_off: Callable[[], bool] = lambda: False,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._threads = threads
        self._deadlines = deadlines
        self._hooks = hooks
        self._usage = usage
        self._cut_off = cut_off

    def start(self, run: Run, on_over: OnOver, on_free: OnFree) -> None:
        """Begin; never raises."""
        if run.rules.timeout_ms is not None:
            self._deadlines.add(run, run.rules.timeout_ms)
        # Named by its job, which helps whoever looks at tasks, and is cheaper than a name that asyncio makes up.
        run.task = self._loop.create_task(self._run(run, on_over, on_free), name=run.claimed.job.id)

    async def _run(self, run: Run, on_over: OnOver, on_free: OnFree) -> None:
        run.started = True
        if self._usage is not None:
            self._usage.began(run)
        error: BaseException | None = None
        outcome: Outcome | None
        try:
            outcome = await self._attempt(run, on_free)
        except asyncio.CancelledError:
            outcome = self._stopped(run)
        except BaseException as raised:
            error = raised
            outcome = self._raised(run, raised)
        if run.why == "lost":
            outcome = None
        elif run.why == "timeout" and run.rules.timeout_ms is not None:
            # Whatever the handler made of being stopped, its time was over.
            outcome = outcomes.timed_out(run.rules.timeout_ms)
        if isinstance(outcome, Errored):
            outcome = self._told(run, outcome, error)
        run.over = True
        if self._usage is not None:
            self._usage.ended(run)
        on_over(run, outcome)
        if not run.in_thread:
            on_free(run)

    async def _attempt(self, run: Run, on_free: OnFree) -> Outcome | None:
        handler = run.handler
        if handler.isolate:
            return await self._in_process(run)
        try:
            arguments = handler.arguments.decode(run.claimed.job.payload_json)
        except InvalidValue as error:
            # It will not fit at the next attempt either.
            return Errored(error=str(error), final=True)
        call: Any = handler.fn
        if handler.arguments.takes_context:
            call = functools.partial(call, run.context)
        if handler.is_async:
            return outcomes.returned(await call(**arguments))
        return outcomes.returned(await self._in_thread(run, functools.partial(call, **arguments), on_free))

    async def _in_thread(self, run: Run, call: Callable[[], Any], on_free: OnFree) -> Any:
        future = self._threads.run(call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if future.done():
                # It ended in the same moment: what it came to counts.
                return future.result()
            # The thread runs on: its slot is free when it ends, and whatever it comes to then is nobody's.
            run.in_thread = True

            def ended(done: asyncio.Future[Any]) -> None:
                done.exception()  # looked at, so that asyncio does not complain about it
                on_free(run)

            future.add_done_callback(ended)
            raise

    async def _in_process(self, run: Run) -> Outcome:
        from jobmill.worker.isolate.parent import Isolated

        return await Isolated(run.handler, run.claimed.job, run.report).run()

    def _stopped(self, run: Run) -> Outcome | None:
        if run.why == "shutdown" or (run.why is None and self._cut_off()):
            return Released()
        return Errored(error="the handler cancelled itself") if run.why is None else None

    def _raised(self, run: Run, error: BaseException) -> Outcome:
        if run.why == "shutdown" or (run.why is None and self._cut_off()):
            # What a handler raises on being stopped is no error of its job.
            return Released()
        return outcomes.raised(error, run.handler, run.claimed.job.attempt)

    def _told(self, run: Run, outcome: Errored, error: BaseException | None) -> Errored:
        """Every error is told to the hooks and to the user's own backoff, also one that no exception of ours stands for
        (a timeout, a process that died)."""
        if error is None:
            error = RuntimeError(outcome.error)
            if run.handler.own_backoff is not None and outcome.delay_ms is None:
                delay_ms = outcomes.own_delay(error, run.handler, run.claimed.job.attempt)
                outcome = structs.replace(outcome, delay_ms=delay_ms)
        self._hooks.error(error, run.claimed.job)
        return outcome
