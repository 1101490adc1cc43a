"""Hints about jobs: wake tasks of this process that wait for the end, or the cancel, of some jobs."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Container, Iterable

from jobmill.stores.common.bell import wake


class JobHints:
    """The tasks that wait for a hint, each with the ids of its jobs. It is true while a task waits."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: list[tuple[Container[str], asyncio.Future[None]]] = []

    def __bool__(self) -> bool:
        """Whether a task waits."""
        return bool(self._waiters)

    def tell(self, ids: Iterable[str] | None = None) -> None:
        """Wake the tasks that wait for one of these jobs; None: all tasks. Callable from any thread."""
        told = None if ids is None else list(ids)
        with self._lock:
            # Only membership is asked: the ids of a waiter may change in another thread meanwhile.
            woken = [one for one in self._waiters if told is None or any(id in one[0] for id in told)]
            self._waiters = [one for one in self._waiters if one not in woken] if woken else self._waiters
        for _, future in woken:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                future.get_loop().call_soon_threadsafe(wake, future)

    async def wait(self, ids: Container[str], seconds: float) -> None:
        """Wait for a hint about one of these jobs, at most this long. `ids` may change meanwhile."""
        waiter = (ids, asyncio.get_running_loop().create_future())
        with self._lock:
            self._waiters.append(waiter)
        try:
            await asyncio.wait(waiter[1:], timeout=max(0.0, seconds))
        finally:
            with self._lock:
                self._waiters = [one for one in self._waiters if one is not waiter]


async def poll(
    ids: Collection[str], seconds: float, every: float, find_ended: Callable[[list[str]], Awaitable[Collection[str]]]
) -> None:
    """Wait until one of these running jobs was cancelled, for a store that cannot notify workers of it.

    Jobs that run for less than `every` seconds are not queried, so that short jobs cost nothing.
    """
    until, known = time.monotonic() + seconds, set(ids)
    while (left := until - time.monotonic()) > 0:
        await asyncio.sleep(min(every, left))
        present = set(ids)
        still, known = present & known, present
        # A job that its worker settles in this moment is not among the ids any more.
        if still and any(id in ids for id in await find_ended(list(still))):
            return
