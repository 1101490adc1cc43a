"""Resources of a store, one for each event loop: a connection belongs to the loop that made it, a store to no loop."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

# How long the event loop of another thread may take to close its resources. It may be blocked: its thread may wait for
# this call.
ELSEWHERE_SECONDS = 3.0


class LoopResource(Protocol):
    """A resource of one event loop."""

    async def close(self) -> None:
        """Close everything, within about three seconds."""

    def abandon(self) -> None:
        """Forget everything, when the loop does not run and nothing can be awaited on it."""


H = TypeVar("H", bound=LoopResource)


class _Kept(Generic[H]):
    """A resource of one loop. `close` closes it, or the end of its loop does if that comes first."""

    def __init__(self, held: H) -> None:
        self.held = held
        self._end = self._wait_for_the_end()
        # asyncio.run closes async generators that have begun, and so also resources that the application left open.
        with contextlib.suppress(StopIteration):
            self._end.asend(None).send(None)

    async def close(self) -> None:
        await self._end.aclose()

    async def _wait_for_the_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await self.held.close()


class PerLoop(Generic[H]):
    """One resource for each event loop. It is made when the loop first calls `here`."""

    def __init__(self, make: Callable[[], H]) -> None:
        self._make = make
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, _Kept[H]] = {}
        _all.add(self)

    def here(self) -> H:
        """The resource of the running loop."""
        loop = asyncio.get_running_loop()
        if self._pid != os.getpid():
            self._leave_to_parent()
        kept = self._by_loop.get(loop)
        if kept is None:
            with self._lock:
                # Loops that have ended take their connections with them.
                for gone in [one for one in self._by_loop if one.is_closed()]:
                    self._by_loop.pop(gone).held.abandon()
                kept = self._by_loop[loop] = _Kept(self._make())
        return kept.held

    async def close(self) -> None:
        """Close all resources, each in its own loop."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        with self._lock:
            by_loop, self._by_loop = self._by_loop, {}
        await asyncio.gather(*(_close(loop, kept) for loop, kept in by_loop.items()))

    def close_at_exit(self) -> None:
        """Close the resources of loops in other threads (`jobs.sync`), because the process ends."""
        if self._pid == os.getpid():
            by_loop, self._by_loop = self._by_loop, {}
            closing = [_run_in(loop, kept.close()) for loop, kept in by_loop.items()]
            wait([one for one in closing if one is not None], ELSEWHERE_SECONDS)

    def _leave_to_parent(self) -> None:
        """Drop the resources of the parent: this process was forked and shares its sockets and selectors."""
        # The garbage collector must not free them: that would remove the sockets from the selector of the parent.
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._by_loop))
        self._by_loop = {}
        # At the fork, a thread of the parent may have held the lock. That thread does not exist in this process.
        self._lock = threading.Lock()
        self._pid = os.getpid()


async def _close(loop: asyncio.AbstractEventLoop, kept: _Kept[Any]) -> None:
    if loop is asyncio.get_running_loop():
        await kept.close()
        return
    closing = _run_in(loop, kept.close())
    if closing is None:
        kept.held.abandon()
    else:
        await asyncio.wait([asyncio.wrap_future(closing)], timeout=ELSEWHERE_SECONDS)


def _run_in(loop: asyncio.AbstractEventLoop, call: Coroutine[Any, Any, None]) -> Future[None] | None:
    """Run a coroutine in the loop of another thread. None if that loop does not run."""
    if loop.is_running():
        with contextlib.suppress(RuntimeError):  # closed in this moment
            return asyncio.run_coroutine_threadsafe(call, loop)
    call.close()
    return None


_all: WeakSet[PerLoop[Any]] = WeakSet()


@atexit.register
def _close_at_exit() -> None:
    for one in list(_all):
        one.close_at_exit()
