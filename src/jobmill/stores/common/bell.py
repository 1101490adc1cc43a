"""The bell: wakes tasks of this process that wait for work."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable


class Bell:
    """Counts rings by queue, so that no ring is missed between the last query for work and falling asleep.

    Take `count(queues)` before the query, and pass it to `wait`: a ring in between ends the wait at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Rings by queue; those of None are for all queues.
        self._rings: Counter[str | None] = Counter()
        self._sleepers: list[tuple[frozenset[str], asyncio.Future[None]]] = []

    @property
    def sleepers(self) -> int:
        """How many tasks wait."""
        return len(self._sleepers)

    def count(self, queues: Iterable[str]) -> int:
        """How often one of these queues was rung."""
        return self._rings[None] + sum(self._rings[queue] for queue in queues)

    def ring(self, queues: Iterable[str] | None = None) -> None:
        """Say that there may be work in these queues; None: in any. Callable from any thread."""
        rung = None if queues is None else set(queues)
        with self._lock:
            self._rings.update((None,) if rung is None else rung)
            woken = [one for one in self._sleepers if rung is None or not rung.isdisjoint(one[0])]
            self._sleepers = [one for one in self._sleepers if one not in woken] if woken else self._sleepers
        for _, future in woken:
            with contextlib.suppress(RuntimeError):  # its loop has ended
                future.get_loop().call_soon_threadsafe(wake, future)

    async def wait(
        self, queues: Iterable[str], seconds: float, seen: int | None = None, on_sleep: Callable[[], None] | None = None
    ) -> bool:
        """Wait until one of these queues is rung, at most this long; whether it was.

        `seen`: the count before the last query; where the bell was rung since, this returns at once. `on_sleep` is
        called when the wait has really begun.
        """
        sleeper = (frozenset(queues), asyncio.get_running_loop().create_future())
        with self._lock:
            if seen is not None and self.count(sleeper[0]) != seen:
                return True
            self._sleepers.append(sleeper)
        try:
            if on_sleep is not None:
                on_sleep()
            await asyncio.wait(sleeper[1:], timeout=max(0.0, seconds))
            return sleeper[1].done()
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._sleepers.remove(sleeper)


def wake(future: asyncio.Future[None]) -> None:
    """Complete the future that a sleeping task awaits."""
    if not future.done():
        future.set_result(None)
