"""The handoff queue: a task passes items from a loop to a consumer, so that a slow consumer cannot block the loop."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

#: The maximum number of items that the consumer gets in one call.
MAX_BATCH = 500
#: How long a cancelled task may take to end before it is abandoned.
GRACE_S = 1.0


class HandoffQueue(Generic[T]):
    """Slow consumers grow the queue; they never block the producer. A full queue accepts no more items.

    `consume` gets a batch of items, in order, and removes those that it has consumed. With `collect_s` the queue waits
    that long for more items, or until the batch is full.
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
        """The number of items that are not consumed yet."""
        return len(self._waiting) + len(self._batch)

    def start(self) -> None:
        """Start the task."""
        self.task = asyncio.create_task(self._run(), name=f"jobmill {self._name}")

    def put(self, item: T) -> bool:
        """Add an item without waiting; False if the queue is full."""
        if len(self._waiting) >= self._max_items:
            return False
        self._waiting.append(item)
        self._something.set()
        if len(self._waiting) >= MAX_BATCH:
            self._enough.set()
        return True

    async def stop(self, timeout: float = 5.0) -> int:
        """Let the consumer take the rest within this time. Returns the number of items that are dropped then."""
        if self.task is None:
            return 0
        self._ending = True
        self._something.set()
        self._enough.set()
        if self.task.done():
            # All tasks were cancelled at once, as asyncio.run does at its end.
            self.start()
        await asyncio.wait([self.task], timeout=timeout)
        left = len(self)
        # Clear before the task is cancelled: a consumer that swallows the cancellation must not get more items.
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
