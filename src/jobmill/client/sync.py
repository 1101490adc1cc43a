"""The one door for code without an event loop: a loop in a thread of its own that runs what the client offers."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
import threading
from collections.abc import AsyncGenerator, Awaitable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from jobmill.client.queue import Queue
from jobmill.errors import JobmillError

if TYPE_CHECKING:
    from jobmill.client.client import Client

T = TypeVar("T")


class Sync:
    """`jobs.sync(send.enqueue(to="ada"))` runs one call to its end; `jobs.sync.get(id)` is short for the same."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None
        self._lock = threading.Lock()

    def __call__(self, call: Awaitable[T]) -> T:
        """Run one call to its end and return what it returns; a loop that runs in this thread waits meanwhile."""
        loop, thread = self._started()
        if thread is threading.current_thread():
            if inspect.iscoroutine(call):
                call.close()
            raise JobmillError("jobs.sync was called by code that jobs.sync runs, and would wait for itself: await it")
        future = asyncio.run_coroutine_threadsafe(_awaited(call), loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise JobmillError("jobs.sync was closed by another thread before this call had ended") from None
        except BaseException:
            # Ctrl-C ends the wait, and then the call as well.
            future.cancel()
            raise

    def close(self) -> None:
        """Close the client and end the thread; the next call starts a new one."""
        self(self._client.close())
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            loop, thread = running
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def __getattr__(self, name: str) -> Any:
        """A method of the client, run to its end; what it iterates over, iterated."""
        return getattr(_Door(self, self._client), name)

    def here(self, call: Coroutine[Any, Any, T]) -> T:
        """Run one call in this thread: a connection given as `within=` is often bound to the thread that made it."""
        self(self._client.open())
        context = contextvars.copy_context()
        with asyncio.Runner() as runner:
            answer = runner.run(call, context=context)
        # What the call noted for its caller (that a transaction is open) is the caller's to know.
        for variable, value in context.items():
            variable.set(value)
        return answer

    def iterated(self, items: AsyncGenerator[Any, Any]) -> Iterator[Any]:
        """What an async generator yields, one by one."""
        end = object()
        try:
            while (item := self(_next(items, end))) is not end:
                yield item
        finally:
            self(items.aclose())

    def _started(self) -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
        with self._lock:
            # A process that was forked has the loop, but not the thread that ran it.
            if self._running is None or not self._running[1].is_alive():
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_run, args=(loop,), name="jobmill-sync", daemon=True)
                thread.start()
                self._running = loop, thread
            return self._running


class _Door:
    """The methods of a client, or of one of its queues, for code without a loop."""

    def __init__(self, sync: Sync, target: Client | Queue) -> None:
        self._sync = sync
        self._target = target

    def __getattr__(self, name: str) -> Any:
        """A method, run to its end."""
        method = getattr(self._target, name)
        if not callable(method):
            raise AttributeError(f"jobs.sync has methods only, and {name!r} is none")

        def run(*args: Any, **kwargs: Any) -> Any:
            answer: Any = method(*args, **kwargs)
            if inspect.isasyncgen(answer):
                return self._sync.iterated(answer)
            if isinstance(answer, Queue):
                return _Door(self._sync, answer)
            if not inspect.iscoroutine(answer):
                return answer
            return self._sync(answer) if kwargs.get("within") is None else self._sync.here(answer)

        return run


def _run(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
        loop.run_until_complete(_cancel_the_rest())
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


async def _cancel_the_rest() -> None:
    """Other threads may still wait for their calls, and would wait for ever."""
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


async def _awaited(call: Awaitable[T]) -> T:
    return await call


async def _next(items: AsyncGenerator[Any, Any], end: object) -> Any:
    try:
        return await anext(items)
    except StopAsyncIteration:
        return end
