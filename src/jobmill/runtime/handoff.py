"""The handoff queue: items from a loop to a consumer that must not block it, passed on by a task of its own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

#: How many items the consumer gets at most in one call.
MAX_BATCH = 500
#: How long a cancelled task may take to end before it is left alone.
GRACE_S = 1.0


class HandoffQueue(Generic[T]):
    """Slow consumers grow the queue; they never block the producer. A full queue takes nothing more.

    `consume` gets some items, in order, and removes from them what it has consumed. With `collect_s` the queue waits
    that long for more items, or until there is a full batch.
    """

    def __init__(
        self,
        name: str,
        consume: Callable[[deque[T]], Awaitable[None]],
        *,
        max_items: int = sys.maxsize,
        collect_s: float = 0.0,
    ) -> None:
        self._name = name
        self._consume = consume
        self._max_items = max_items
        self._collect_s = collect_s
        self._waiting: deque[T] = deque()
        self._batch: deque[T] = deque()
        self._something = asyncio.Event()
        self._enough = asyncio.Event()
        self._ending = False
        #: The task that calls the consumer.
        self.task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many items are not consumed yet."""
        return len(self._waiting) + len(self._batch)

    def start(self) -> None:
        """Start the task."""
        self.task = asyncio.create_task(self._run(), name=f"jobmill {self._name}")

    def put(self, item: T) -> bool:
        """Add an item without waiting; whether there was room."""
        if len(self._waiting) >= self._max_items:
            return False
        self._waiting.append(item)
        self._something.set()
        if len(self._waiting) >= MAX_BATCH:
            self._enough.set()
        return True

    async def stop(self, timeout: float = 5.0) -> int:
        """Have the rest consumed within this time, and drop what is left; how many items those are."""
        if self.task is None:
            return 0
        self._ending = True
        self._something.set()
        self._enough.set()
        if self.task.done():
            # Everything was cancelled at once, as asyncio.run does at its end.
            self.start()
        await asyncio.wait([self.task], timeout=timeout)
        left = len(self)
        # Before it is cancelled: a consumer that swallows the cancellation must not get the next item.
        self._waiting.clear()
        self._batch.clear()
        self.task.cancel()
        await asyncio.wait([self.task], timeout=GRACE_S)
        self.task = None
        return left

    async def _run(self) -> None:
        while len(self) or not self._ending:
            if not len(self):
                self._something.clear()
                await self._something.wait()
                continue
            if not self._batch:
                await self._collect()
            await self._consume(self._batch)

    async def _collect(self) -> None:
        if self._collect_s and len(self._waiting) < MAX_BATCH and not self._ending:
            self._enough.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._enough.wait(), self._collect_s)
        for _ in range(min(MAX_BATCH, len(self._waiting))):
            self._batch.append(self._waiting.popleft())
