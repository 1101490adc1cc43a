"""The hook queue: passes events, moments and errors to the application's hooks, in order, without blocking a loop."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any

from jobmill.core.events import Event
from jobmill.core.job import Job
from jobmill.handlers.hooks import Hooks
from jobmill.runtime.handoff import HandoffQueue


class HookQueue:
    """A slow hook grows the queue; it never delays a loop."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._queue: HandoffQueue[tuple[Any, ...]] = HandoffQueue("hooks", self._call_hooks)

    @property
    def task(self) -> asyncio.Task[None] | None:
        """The task that calls the hooks."""
        return self._queue.task

    @property
    def wants_events(self) -> bool:
        """Whether any hook is called on events; if not, no events are made."""
        return self._hooks.wants_events

    def start(self) -> None:
        """Start to call hooks."""
        self._queue.start()

    def events(self, events: Iterable[Event]) -> None:
        """Add events to the queue."""
        for event in events:
            self._queue.put((event,))

    def moment(self, name: str, *args: Any) -> None:
        """Add a moment to the queue, if it has hooks."""
        if self._hooks.has(name):
            self._queue.put((name, *args))

    def error(self, error: BaseException, job: Job | None) -> None:
        """Add an error to the queue, if errors have hooks."""
        self.moment("error", error, job)

    async def stop(self, timeout: float = 5.0) -> None:
        """Call the hooks for what is in the queue, within this time."""
        await self._queue.stop(timeout)

    async def _call_hooks(self, waiting: deque[tuple[Any, ...]]) -> None:
        while waiting:
            item = waiting.popleft()
            if isinstance(item[0], Event):
                await self._hooks.call_event(item[0])
            else:
                await self._hooks.call_moment(*item)
