"""The lifespans and the `jobs.around` functions of an application in an isolated process.

They run in an event loop in a thread of its own. So a handler that is not async stays in the main thread, as it is
without them, and the loop goes on meanwhile.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from typing import Any

from jobmill.core.lifecycle import Outcome
from jobmill.handlers.context import Context
from jobmill.handlers.handler import Handler
from jobmill.handlers.hooks import Hooks
from jobmill.worker import outcomes
from jobmill.worker.isolate.past import end_of
from jobmill.worker.lifespans import Lifespans


class Inside:
    """Runs attempts inside of the functions of one application, one at a time."""

    def __init__(self, hooks: Hooks) -> None:
        self._around = hooks.around
        self._lifespans = Lifespans(hooks.lifespans)
        #: Whether the last attempt has left tasks running.
        self.has_left_tasks = False
        #: What the main thread has to call; None when the attempt is over.
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="jobmill-around", daemon=True)
        self._thread.start()

    @property
    def state(self) -> Any:
        """What a lifespan has yielded."""
        return self._lifespans.state

    def open(self) -> None:
        """Open the lifespans. Raises what they raise."""
        asyncio.run_coroutine_threadsafe(self._lifespans.open(), self._loop).result()

    def run(self, handler: Handler[..., Any], context: Context, call: Callable[[], Any]) -> Outcome:
        """Run one attempt to its outcome."""
        attempt = asyncio.run_coroutine_threadsafe(self._attempt(handler, context, call), self._loop)
        attempt.add_done_callback(lambda _: self._calls.put(None))
        while (waiting := self._calls.get()) is not None:
            waiting()
        return attempt.result()

    def close(self) -> None:
        """Close the lifespans, and end the loop with the tasks that handlers left running."""
        asyncio.run_coroutine_threadsafe(self._lifespans.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run_loop(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop):
            self._loop.run_forever()

    async def _attempt(self, handler: Handler[..., Any], context: Context, call: Callable[[], Any]) -> Outcome:
        before = asyncio.all_tasks()
        try:
            value = await self._around.run(context, call, is_async=handler.is_async, in_thread=self._in_main_thread)
            return end_of(handler, context, value)
        except BaseException as error:  # also SystemExit, which would stop the loop
            return outcomes.raised(error, handler, context.attempt)
        finally:
            self.has_left_tasks = bool(asyncio.all_tasks() - before)

    async def _in_main_thread(self, call: Callable[[], Any]) -> Any:
        result: asyncio.Future[Any] = self._loop.create_future()
        variables = contextvars.copy_context()

        def run() -> None:
            try:
                resolve, value = result.set_result, variables.run(call)
            except BaseException as error:
                # A future cannot hold a StopIteration; the user sees the same text.
                is_stop = isinstance(error, StopIteration)
                raised = RuntimeError(f"the handler raised {error!r}") if is_stop else error
                resolve, value = result.set_exception, raised
            self._loop.call_soon_threadsafe(resolve, value)

        self._calls.put(run)
        return await result
