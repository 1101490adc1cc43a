"""Threads for sync handlers. They are daemons, so that a handler that never returns cannot block the process's exit."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

#: sqlite3 releases the GIL at every step, and next to a busy thread each step then waits for a whole switch interval.
#: Measured with one busy thread, settle + claim of 50 jobs: 55 to 71 times slower at the default 5 ms, 6 to 9 times at
#: 0.5 ms.
SWITCH_INTERVAL_S = 0.0005

_Call = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Threads:
    """A pool that grows to the largest number of threads that were busy at once."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run the call in a thread; cancelling the future does not stop it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._busy += 1
        future.add_done_callback(self._on_done)
        if self._busy > self._threads:
            if self._threads == 0:
                _shorten_interval(1)
            self._threads += 1
            threading.Thread(target=self._work, name=f"jobmill-handler-{self._threads}", daemon=True).start()
        context = contextvars.copy_context()
        self._calls.put((lambda: context.run(call), loop, future))
        return future

    def close(self) -> None:
        """Let each thread end when it is idle."""
        for _ in range(self._threads):
            self._calls.put(None)
        if self._threads > 0:
            _shorten_interval(-1)
        self._threads = 0

    def _on_done(self, _: asyncio.Future[Any]) -> None:
        self._busy -= 1

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            call, loop, future = item
            result: Any = None
            error: BaseException | None = None
            try:
                result = call()
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(_set_result, future, result, error)
            except RuntimeError:
                return  # the loop is closed, so nothing waits for the result


# How many pools of this process want a short switch interval, and the interval before the first of them.
_shortened_by = 0
_default_interval = 0.0


def _shorten_interval(sign: int) -> None:
    global _shortened_by, _default_interval  # noqa: PLW0603 - the interval is process-wide
    if sign > 0 and _shortened_by == 0:
        _default_interval = sys.getswitchinterval()
        sys.setswitchinterval(min(_default_interval, SWITCH_INTERVAL_S))
    _shortened_by += sign
    if _shortened_by == 0:
        sys.setswitchinterval(_default_interval)


def _set_result(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        # A future cannot hold a StopIteration; the user sees the same text.
        future.set_exception(RuntimeError(f"the handler raised StopIteration({error.value!r})"))
    else:
        future.set_exception(error)
