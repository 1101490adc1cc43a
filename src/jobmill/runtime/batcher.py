"""The batcher: requests that arrive while a call is in flight share the next call.

So batches grow under load, and an idle batcher adds no delay.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from itertools import islice
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from jobmill.errors import StoreUnavailable

T = TypeVar("T")
R = TypeVar("R")

_Request = tuple[Sequence[T], "asyncio.Future[list[R]]"]


class Batcher(Generic[T, R]):
    """Turns concurrent calls with a few items each into few calls with many items."""

    def __init__(self, call: Callable[[list[T]], Awaitable[list[R]]], max_items: int = 1_000) -> None:
        self._call = call
        self._max_items = max_items
        # One per event loop: futures belong to their loop.
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopBatcher[T, R]] = WeakKeyDictionary()

    def __call__(self, items: Sequence[T]) -> Coroutine[Any, Any, list[R]]:
        """The results for these items, in order."""
        loop = asyncio.get_running_loop()
        batcher = self._by_loop.get(loop)
        if batcher is None:
            batcher = self._by_loop[loop] = _LoopBatcher(self._call, self._max_items)
        return batcher.ask(loop, items)


class _LoopBatcher(Generic[T, R]):
    def __init__(self, call: Callable[[list[T]], Awaitable[list[R]]], max_items: int) -> None:
        self._call = call
        self._max_items = max_items
        self._requests: list[_Request[T, R]] = []
        self._serving: asyncio.Task[None] | None = None

    async def ask(self, loop: asyncio.AbstractEventLoop, items: Sequence[T]) -> list[R]:
        future: asyncio.Future[list[R]] = loop.create_future()
        self._requests.append((items, future))
        if self._serving is None:
            # In an empty context: the context variables of one caller do not apply to the others.
            self._serving = loop.create_task(self._serve(), context=contextvars.Context())
        return await future

    async def _serve(self) -> None:
        batch: list[_Request[T, R]] = []
        try:
            while self._requests:
                batch = self._take()
                await self._answer(batch)
        except BaseException:  # the call was cancelled, and these callers would wait for ever
            waiting, self._requests = batch + self._requests, []
            _fail(waiting, StoreUnavailable("the call was cancelled"))
            raise
        finally:
            self._serving = None

    def _take(self) -> list[_Request[T, R]]:
        """As many requests as fit into one call; the items of one request are never split."""
        size = taken = 0
        for items, _ in self._requests:
            if taken and size + len(items) > self._max_items:
                break
            size += len(items)
            taken += 1
        batch, self._requests = self._requests[:taken], self._requests[taken:]
        return batch

    async def _answer(self, batch: list[_Request[T, R]]) -> None:
        try:
            results = iter(await self._call([item for items, _ in batch for item in items]))
        except Exception as error:
            await self._answer_error(batch, error)
            return
        for items, future in batch:
            own = list(islice(results, len(items)))
            if not future.done():
                future.set_result(own)

    async def _answer_error(self, batch: list[_Request[T, R]], error: Exception) -> None:
        if len(batch) == 1 or isinstance(error, StoreUnavailable):
            _fail(batch, error)
            return
        # One of the requests caused the error: send each alone, so that the others succeed.
        for request in batch:
            await self._answer([request])


def _fail(requests: list[_Request[T, R]], error: Exception) -> None:
    for _, future in requests:
        if not future.done():
            future.set_exception(error)
