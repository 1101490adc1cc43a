"""Lifespans: what an application opens when a worker starts and closes when it stops, such as database pools."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from jobmill.errors import JobmillError
from jobmill.handlers.context import NO_STATE
from jobmill.handlers.hooks import Lifespan
from jobmill.runtime.tasks import being_cancelled, end
from jobmill.worker.outcomes import described, location

log = logging.getLogger("jobmill")

#: How long each lifespan may take to close.
CLOSE_S = 10.0

#: A lifespan that is open, with its name.
_Entered: TypeAlias = tuple[str, AbstractAsyncContextManager[Any]]


class Lifespans:
    """The lifespans of one worker. One task opens and closes all of them, because some libraries require that."""

    def __init__(self, lifespans: Sequence[Lifespan]) -> None:
        self._lifespans = lifespans
        #: What one of the lifespans has yielded: `context.state`.
        self.state: Any = NO_STATE
        self._users = 0
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Open all lifespans, in order. If one raises, close those that are open, and raise a JobmillError.

        If they are open already, they stay open until `close` has been called as often as this.
        """
        self._users += 1
        if self._users > 1 or not self._lifespans:
            return
        self._closing = asyncio.Event()
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.get_running_loop().create_task(self._live(opened), name="jobmill lifespans")
        try:
            await asyncio.wait((self._task, opened), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._closing.set()
            await end([self._task])
            raise
        if self._task.done():
            self._task.result()

    async def close(self) -> None:
        """Close all lifespans, the last one first. Each has ten seconds; what they raise is logged."""
        if not self._users:
            return
        self._users -= 1
        if self._users or self._task is None:
            return
        self._closing.set()
        done, _ = await asyncio.wait([self._task], timeout=CLOSE_S * len(self._lifespans) + 1)
        if not done:
            log.error("a lifespan ignores that it was cancelled, and was abandoned")
        elif not self._task.cancelled():
            self._task.exception()  # retrieved: `open` has raised it
        self._task, self.state = None, NO_STATE

    async def __aenter__(self) -> Lifespans:
        """Open all lifespans."""
        try:
            await self.open()
        except BaseException:  # `__aexit__` is not called
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close all lifespans."""
        await self.close()

    async def _live(self, opened: asyncio.Future[None]) -> None:
        entered: list[_Entered] = []
        try:
            for lifespan in tuple(self._lifespans):
                await self._enter(lifespan, entered)
            opened.set_result(None)
            await self._until_closing()
        finally:
            for name, manager in reversed(entered):
                await _exit(name, manager)

    async def _enter(self, lifespan: Lifespan, entered: list[_Entered]) -> None:
        name = getattr(lifespan, "__qualname__", repr(lifespan))
        try:
            manager = lifespan()
            value = await manager.__aenter__()
        except BaseException as error:  # also SystemExit, which would stop the event loop
            if being_cancelled(error):
                raise
            where = location(error)
            at = "" if where is None else f" ({where})"
            raise JobmillError(f"the lifespan {name} raised {described(error)}{at}") from error
        entered.append((name, manager))
        if value is not None:
            if self.state is not NO_STATE:
                raise JobmillError(f"the lifespan {name} yields a state, but an earlier lifespan has yielded one")
            self.state = value

    async def _until_closing(self) -> None:
        try:
            await self._closing.wait()
        except asyncio.CancelledError:
            # At its end asyncio.run cancels all tasks at once. Handlers may use the state until the worker has stopped.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._closing.wait()


async def _exit(name: str, manager: AbstractAsyncContextManager[Any]) -> None:
    deadline = asyncio.timeout(CLOSE_S)
    try:
        async with deadline:
            await manager.__aexit__(None, None, None)
    except BaseException:  # whatever it is, the other lifespans must be closed
        if deadline.expired():
            log.error("the lifespan %s did not close within %g s and was cancelled", name, CLOSE_S)
        else:
            log.exception("the lifespan %s raised an error when it was closed; no job is affected", name)
