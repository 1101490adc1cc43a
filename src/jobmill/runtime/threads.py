"""Threads for sync handlers: daemons, so that one that never ends cannot keep the process from ending."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any

#: sqlite3 gives the GIL up at every step; beside a busy thread each step then waits for a whole switch interval. Settle
#: + claim of 50 jobs, measured beside one busy thread: 55 to 71 times slower at the usual 5 ms, 6 to 9 times at 0.5 ms.
SWITCH_INTERVAL_S = 0.0005

_Call = tuple[Callable[[], Any], asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class Threads:
    """As many threads as were ever busy at once."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._threads = 0
        self._busy = 0
        self._hurries = False

    def run(self, call: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run the call in a thread; cancelling the future does not stop it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._hurries:
            self._hurries = True
            _hurry(1)
        self._busy += 1
        future.add_done_callback(self._one_less)
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(target=self._work, name=f"jobmill-handler-{self._threads}", daemon=True).start()
        context = contextvars.copy_context()
        self._calls.put((lambda: context.run(call), loop, future))
        return future

    def close(self) -> None:
        """Let idle threads end, and busy ones when they are done."""
        for _ in range(self._threads):
            self._calls.put(None)
        self._threads = 0
        if self._hurries:
            self._hurries = False
            _hurry(-1)

    def _one_less(self, _: asyncio.Future[Any]) -> None:
        self._busy -= 1

    def _work(self) -> None:
        while (asked := self._calls.get()) is not None:
            call, loop, future = asked
            result: Any = None
            error: BaseException | None = None
            try:
                result = call()
            except BaseException as raised:
                error = raised
            try:
                loop.call_soon_threadsafe(_answer, future, result, error)
            except RuntimeError:
                return  # the loop has ended, and nobody waits


# How many workers of this process want short switch intervals, and what it was before the first of them.
_hurried = 0
_usual_interval = 0.0


def _hurry(sign: int) -> None:
    global _hurried, _usual_interval  # noqa: PLW0603 - the interval is the whole process's
    if sign > 0 and _hurried == 0:
        _usual_interval = sys.getswitchinterval()
        sys.setswitchinterval(min(_usual_interval, SWITCH_INTERVAL_S))
    _hurried += sign
    if _hurried == 0:
        sys.setswitchinterval(_usual_interval)


def _answer(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    elif isinstance(error, StopIteration):
        # A future cannot carry StopIteration; what the user sees is the same text.
        future.set_exception(RuntimeError(f"the handler raised StopIteration({error.value!r})"))
    else:
        future.set_exception(error)
