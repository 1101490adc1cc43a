"""The one door for code without an event loop: a loop in a thread of its own that runs what the client offers."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from jobmill.client import Client

T = TypeVar("T")


class Sync:
    """`jobs.sync(send.enqueue(to="ada"))` runs one call to its end; `jobs.sync.get(id)` is short for the same."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock = threading.Lock()

    def __call__(self, call: Awaitable[T]) -> T:
        """Run one call to its end and return what it returns."""
        return asyncio.run_coroutine_threadsafe(_awaited(call), self._running_loop()).result()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """A method of the client, run to its end; what it iterates over, iterated."""
        method = getattr(self._client, name)
        if not callable(method):
            raise AttributeError(f"jobs.sync has the client's methods, and {name!r} is none")

        def run(*args: Any, **kwargs: Any) -> Any:
            answer = method(*args, **kwargs)
            if inspect.isasyncgen(answer):
                return self._iterated(answer)
            return self(answer) if inspect.isawaitable(answer) else answer

        return run

    def _iterated(self, items: AsyncIterator[T]) -> Iterator[T]:
        end = object()
        while True:
            item = self(_next(items, end))
            if item is end:
                return
            yield item

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(target=self._loop.run_forever, name="jobmill-sync", daemon=True).start()
            return self._loop


async def _awaited(call: Awaitable[T]) -> T:
    return await call


async def _next(items: AsyncIterator[T], end: object) -> Any:
    try:
        return await anext(items)
    except StopAsyncIteration:
        return end
