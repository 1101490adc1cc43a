"""Batching: what is asked for while a call is in flight goes into the next one.

Batches grow by themselves under load and add no delay when idle.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from jobmill.errors import StoreUnavailable

T = TypeVar("T")
R = TypeVar("R")

_Asked = tuple[Sequence[T], "asyncio.Future[list[R]]"]


class Batcher(Generic[T, R]):
    """Turns concurrent calls with a few items each into few calls with many items."""

    def __init__(self, call: Callable[[list[T]], Awaitable[list[R]]], most: int = 1_000) -> None:
        self._call = call
        self._most = most
        # One line of waiting callers per event loop: futures belong to their loop.
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line[T, R]] = WeakKeyDictionary()

    async def __call__(self, items: Sequence[T]) -> list[R]:
        """The answers for these items, in order."""
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            line = self._lines[loop] = _Line(self._call, self._most)
        return await line.ask(loop, items)


class _Line(Generic[T, R]):
    def __init__(self, call: Callable[[list[T]], Awaitable[list[R]]], most: int) -> None:
        self._call = call
        self._most = most
        self._asked: list[_Asked[T, R]] = []
        self._serving: asyncio.Task[None] | None = None

    async def ask(self, loop: asyncio.AbstractEventLoop, items: Sequence[T]) -> list[R]:
        future: asyncio.Future[list[R]] = loop.create_future()
        self._asked.append((items, future))
        if self._serving is None:
            # In no caller's context: what one of them has noted for itself is not true of the others.
            self._serving = loop.create_task(self._serve(), context=contextvars.Context())
        return await future

    async def _serve(self) -> None:
        try:
            while self._asked:
                await self._answer(self._take())
        finally:
            self._serving = None
            # Somebody waits still only where a call was cancelled, and would wait for ever.
            waiting, self._asked = self._asked, []
            _fail(waiting, StoreUnavailable("the call was cancelled"))

    def _take(self) -> list[_Asked[T, R]]:
        """The longest run of callers that fits; a single caller's items are never split."""
        size = taken = 0
        for items, _ in self._asked:
            if taken and size + len(items) > self._most:
                break
            size += len(items)
            taken += 1
        batch, self._asked = self._asked[:taken], self._asked[taken:]
        return batch

    async def _answer(self, batch: list[_Asked[T, R]]) -> None:
        try:
            answers = await self._call([item for items, _ in batch for item in items])
        except BaseException as error:
            if len(batch) > 1 and not isinstance(error, StoreUnavailable) and isinstance(error, Exception):
                # One of them is to blame: the others should not pay for it.
                for one in batch:
                    await self._answer([one])
                return
            _fail(batch, error if isinstance(error, Exception) else StoreUnavailable("the call was cancelled"))
            if not isinstance(error, Exception):
                raise
            return
        at = 0
        for items, future in batch:
            if not future.done():
                future.set_result(answers[at : at + len(items)])
            at += len(items)


def _fail(asked: list[_Asked[T, R]], error: Exception) -> None:
    for _, future in asked:
        if not future.done():
            future.set_exception(error)
