"""The teller: gives facts and errors to the hooks in this process, in their order, beside the loops that make them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from jobmill.core.facts import Event
from jobmill.core.job import Job
from jobmill.events import Hooks


class Teller:
    """A slow hook makes the line longer, never a loop slower."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._line: asyncio.Queue[tuple[Any, ...]] = asyncio.Queue()
        #: In which the hooks are called.
        self.task: asyncio.Task[None] | None = None

    @property
    def wants_events(self) -> bool:
        """Whether anybody listens to facts: if not, nobody needs to make them."""
        return self._hooks.wants_events

    def start(self) -> None:
        """Begin to tell."""
        self.task = asyncio.create_task(self._run(), name="jobmill teller")

    def facts(self, events: Iterable[Event]) -> None:
        """Put facts in line."""
        for event in events:
            self._line.put_nowait((event,))

    def moment(self, what: str, *args: Any) -> None:
        """Put a moment in line."""
        self._line.put_nowait((what, *args))

    def error(self, error: BaseException, job: Job | None) -> None:
        """Put an error in line."""
        self.moment("error", error, job)

    async def stop(self, timeout: float = 5.0) -> None:
        """Tell what is in line, within reason."""
        if self.task is None:
            return
        told = asyncio.ensure_future(self._line.join())
        # When everything is cancelled at once, the line is not told any more.
        await asyncio.wait([told, self.task], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        self.task.cancel()
        await asyncio.wait([told, self.task])
        self.task = None

    async def _run(self) -> None:
        while True:
            told = await self._line.get()
            try:
                if isinstance(told[0], Event):
                    await self._hooks.tell(told[0])
                else:
                    await self._hooks.moment(*told)
            finally:
                self._line.task_done()
