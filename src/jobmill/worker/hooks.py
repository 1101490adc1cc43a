"""The hooks: gives facts and errors to the hooks in this process, in their order, beside the loops that make them."""

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
    """A slow hook makes the line longer, never a loop slower."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._line: HandoffQueue[tuple[Any, ...]] = HandoffQueue("hooks", self._tell)

    @property
    def task(self) -> asyncio.Task[None] | None:
        """In which the hooks are called."""
        return self._line.task

    @property
    def wants_events(self) -> bool:
        """Whether anybody listens to facts: if not, nobody needs to make them."""
        return self._hooks.wants_events

    def start(self) -> None:
        """Begin to tell."""
        self._line.start()

    def events(self, events: Iterable[Event]) -> None:
        """Put facts in line."""
        for event in events:
            self._line.put((event,))

    def moment(self, what: str, *args: Any) -> None:
        """Put a moment in line."""
        self._line.put((what, *args))

    def error(self, error: BaseException, job: Job | None) -> None:
        """Put an error in line."""
        self.moment("error", error, job)

    async def stop(self, timeout: float = 5.0) -> None:
        """ReportFunction what is in line, within reason."""
        await self._line.stop(timeout)

    async def _tell(self, line: deque[tuple[Any, ...]]) -> None:
        while line:
            told = line.popleft()
            if isinstance(told[0], Event):
                await self._hooks.call_event(told[0])
            else:
                await self._hooks.call_moment(*told)
