"""A thread that runs blocking calls: callers on any event loop submit functions and await the answers.

Calls that are submitted while a batch runs go together into the next batch. The answers of a batch go back with one
wake-up for each event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from jobmill.errors import StoreError
from jobmill.stores.sqlite.context import SqliteContext

T = TypeVar("T")

Work = Callable[[SqliteContext], Any]
_Call = tuple[Work, asyncio.Future[Any]]


#: What a call returned, or the exception that it raised.
Answer = Any


class WorkThread:
    """One thread that runs batches of work with `run`, which answers each and never raises.

    It holds `in_use` while it uses its connection.
    """

    def __init__(self, name: str, run: Callable[[Sequence[Work]], Sequence[Answer]], in_use: threading.Lock) -> None:
        self._run = run
        self._in_use = in_use
        # Work and where its answer goes; or a function that is called before the next batch; or None at the end.
        self._calls: queue.SimpleQueue[_Call | Callable[[], None] | None] = queue.SimpleQueue()
        self._open = True
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[SqliteContext], T]) -> asyncio.Future[T]:
        """Submit work and await the answer. Cancelling the await does not cancel the work."""
        if not self._open:
            raise StoreError("the store is closed; open it first")
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put((work, future))
        return future

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call a function on the thread, before the next batch."""
        self._calls.put(function)

    def close(self) -> None:
        """Finish what was submitted, and end the thread."""
        if self._open:
            self._open = False
            self._calls.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _serve(self) -> None:
        while True:
            calls = [self._calls.get()]
            with contextlib.suppress(queue.Empty):
                while True:
                    calls.append(self._calls.get_nowait())
            for function in filter(callable, calls):
                with contextlib.suppress(Exception), self._in_use:
                    function()
            if batch := [call for call in calls if isinstance(call, tuple)]:
                with self._in_use:
                    answers = self._run([work for work, _ in batch])
                _answer(batch, answers)
            if None in calls:
                return


def _answer(calls: Sequence[_Call], answers: Sequence[Answer]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Answer]]] = {}
    for (_, future), answer in zip(calls, answers, strict=True):
        by_loop.setdefault(future.get_loop(), []).append((future, answer))
    for loop, own in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_deliver, own)


def _deliver(answers: Sequence[tuple[asyncio.Future[Any], Answer]]) -> None:
    for future, answer in answers:
        if future.done():
            continue  # the caller was cancelled
        if isinstance(answer, BaseException):
            future.set_exception(answer)
        else:
            future.set_result(answer)
