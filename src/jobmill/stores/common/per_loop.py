"""What a store holds for each event loop: connections belong to the loop that made them, a store to none."""

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

# How long the loop of another thread gets to close its resources: it may be blocked, because it waits for this call.
ELSEWHERE_SECONDS = 3.0


class Held(Protocol):
    """A resource of one event loop."""

    async def close(self) -> None:
        """Close everything, within about three seconds."""

    def abandon(self) -> None:
        """Forget everything, when the loop does not run and nothing can be awaited on it."""


H = TypeVar("H", bound=Held)


class _Kept(Generic[H]):
    """Closed when its loop ends, by whichever comes first."""

    def __init__(self, held: H) -> None:
        self.held = held
        self._end = self._wait_for_the_end()
        # asyncio.run closes generators that have begun, and so what an application has not closed itself.
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
    """One for each loop that asks, made when it first does."""

    def __init__(self, make: Callable[[], H]) -> None:
        self._make = make
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._by_loop: dict[asyncio.AbstractEventLoop, _Kept[H]] = {}
        _all.add(self)

    def here(self) -> H:
        """That of the running loop."""
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
        """Close all, each in its own loop."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        with self._lock:
            by_loop, self._by_loop = self._by_loop, {}
        await asyncio.gather(*(_close(loop, kept) for loop, kept in by_loop.items()))

    def close_at_exit(self) -> None:
        """The process ends: loops of other threads (`jobs.sync`) close what they hold."""
        if self._pid == os.getpid():
            by_loop, self._by_loop = self._by_loop, {}
            closing = [_run_in(loop, kept.close()) for loop, kept in by_loop.items()]
            wait([one for one in closing if one is not None], ELSEWHERE_SECONDS)

    def _leave_to_parent(self) -> None:
        """This process was forked: sockets and selectors are shared with the parent, and must not be touched."""
        # Not even by the collector, which would deregister the sockets from the parent's selector.
        import ctypes

        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._by_loop))
        self._by_loop = {}
        # A thread of the parent, which does not exist here, may have held the lock.
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
    """Run something in the loop of another thread; None where that does not run."""
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
