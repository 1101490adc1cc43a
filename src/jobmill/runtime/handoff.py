"""A line: what waits to be handed on, and the task that does so beside the loops that put it there."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

#: What is handed on in one go.
AT_ONCE = 500
#: How long a task that was cancelled may take to end before it is left to itself.
GRACE_S = 1.0


class Line(Generic[T]):
    """Whoever is slow at its end makes the line longer, never a loop slower; a full line takes nothing more.

    `hand_on` gets some of what waits, in order, and takes out of it what it has handed on. With `collect_s` the line
    waits so long for company, or until there is enough for one go.
    """

    def __init__(
        self,
        name: str,
        hand_on: Callable[[deque[T]], Awaitable[None]],
        *,
        most: int = sys.maxsize,
        collect_s: float = 0.0,
    ) -> None:
        self._name = name
        self._hand_on = hand_on
        self._most = most
        self._collect_s = collect_s
        self._waiting: deque[T] = deque()
        self._in_hand: deque[T] = deque()
        self._something = asyncio.Event()
        self._enough = asyncio.Event()
        self._ending = False
        #: In which things are handed on.
        self.task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        """How many are not yet handed on."""
        return len(self._waiting) + len(self._in_hand)

    def start(self) -> None:
        """Begin to hand on."""
        self.task = asyncio.create_task(self._run(), name=f"jobmill {self._name}")

    def put(self, thing: T) -> bool:
        """Put something in line, without waiting; whether there was room."""
        if len(self._waiting) >= self._most:
            return False
        self._waiting.append(thing)
        self._something.set()
        if len(self._waiting) >= AT_ONCE:
            self._enough.set()
        return True

    async def stop(self, timeout: float = 5.0) -> int:
        """Hand on what is in line, within reason, and forget the rest; how many those are."""
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
        # Before it is cancelled: whoever swallows that must not be handed the next thing.
        self._waiting.clear()
        self._in_hand.clear()
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
            if not self._in_hand:
                await self._collect()
            await self._hand_on(self._in_hand)

    async def _collect(self) -> None:
        if self._collect_s and len(self._waiting) < AT_ONCE and not self._ending:
            self._enough.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._enough.wait(), self._collect_s)
        for _ in range(min(AT_ONCE, len(self._waiting))):
            self._in_hand.append(self._waiting.popleft())
