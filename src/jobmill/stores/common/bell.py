"""The bell: wakes tasks of this process that wait for work."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable


class Bell:
    """Counts rings by queue, so that no ring is missed between the last query for work and falling asleep.

    Take `count(queues)` before the query, and pass it to `wait`: a ring in between ends the wait at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of_all = 0
        self._of_queue: dict[str, int] = {}
        self._sleepers: list[tuple[frozenset[str], asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    @property
    def sleepers(self) -> int:
        """How many tasks wait."""
        return len(self._sleepers)

    def count(self, queues: Iterable[str]) -> int:
        """How often one of these queues was rung."""
        return self._of_all + sum(self._of_queue.get(queue, 0) for queue in queues)

    def ring(self, queues: Iterable[str] | None = None) -> None:
        """Say that there may be work in these queues; None: in any. Callable from any thread."""
        with self._lock:
            if queues is None:
                self._of_all += 1
                woken, self._sleepers = self._sleepers, []
            else:
                rung = set(queues)
                for queue in rung:
                    self._of_queue[queue] = self._of_queue.get(queue, 0) + 1
                woken = [one for one in self._sleepers if not rung.isdisjoint(one[0])]
                if woken:
                    self._sleepers = [one for one in self._sleepers if rung.isdisjoint(one[0])]
        for _, loop, future in woken:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                loop.call_soon_threadsafe(_wake, future)

    async def wait(
        self,
        queues: Iterable[str],
        seconds: float,
        seen: int | None = None,
        on_sleep: Callable[[], None] | None = None,
    ) -> bool:
        """Wait until one of these queues is rung, at most this long; whether it was.

        `seen`: the count before the last query; where the bell was rung since, this returns at once. `on_sleep` is
        called when the wait has really begun.
        """
        wanted = frozenset(queues)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        sleeper = (wanted, loop, future)
        with self._lock:
            if seen is not None and self.count(wanted) != seen:
                return True
            self._sleepers.append(sleeper)
        try:
            if on_sleep is not None:
                on_sleep()
            await asyncio.wait((future,), timeout=max(0.0, seconds))
            return future.done()
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._sleepers.remove(sleeper)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
