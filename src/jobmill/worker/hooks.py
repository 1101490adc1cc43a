"""The hook queue: passes events, moments and errors to the application's hooks, in order, without blocking a loop."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from jobmill.core.events import Event
from jobmill.core.job import Job
from jobmill.handlers.hooks import Hooks
from jobmill.runtime.handoff import HandoffQueue


class HookQueue(HandoffQueue[tuple[Any, ...]]):
    """A slow hook grows the queue; it never delays a loop."""

    def __init__(self, hooks: Hooks, worker: object) -> None:
        super().__init__("hooks", self._call_hooks)
        self._hooks = hooks
        self.observers = hooks.observers
        self.around = hooks.around
        self._worker = worker

    @property
    def wants_events(self) -> bool:
        """Whether any hook is called on events; if not, no events are made."""
        return self._hooks.wants_events

    def events(self, events: Iterable[Event]) -> None:
        """Add events to the queue."""
        for event in events:
            self.put((event,))

    def idle(self) -> None:
        """The worker has no more jobs to run."""
        if self._hooks.has("idle"):
            self.put(("idle", self._worker))

    def error(self, error: BaseException, job: Job | None = None) -> None:
        """An error of a job, or of a loop."""
        if self._hooks.has("error"):
            self.put(("error", error, job))

    async def _call_hooks(self, waiting: deque[tuple[Any, ...]]) -> None:
        while waiting:
            item = waiting.popleft()
            if isinstance(item[0], Event):
                await self._hooks.call_event(item[0])
            else:
                await self._hooks.call_moment(*item)
