"""What all verbs of the memory store stand on: the shelf, one step at a time, and who is told afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from jobmill.core.events import Event, job_event
from jobmill.core.job import Keep
from jobmill.core.values import LogLine
from jobmill.stores.memory.queue import QueueRecord
from jobmill.stores.memory.shelf import Entry, Shelf


class Base:
    """Jobs, log lines and queues, under one lock."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._lock = threading.RLock()
        self._shelf = Shelf()
        self._logs: dict[str, deque[LogLine]] = {}
        self._queues: dict[str, QueueRecord] = {}
        self._event_id = 0
        self._sleepers: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def now(self) -> int:
        """The clock that was passed in."""
        return self._clock()

    @contextlib.contextmanager
    def _step(self, *, wakes: bool = False) -> Iterator[int]:
        """One atomic step at one instant; where it may have made work, sleeping workers look again."""
        with self._lock:
            yield self.now()
            for loop, event in self._sleepers if wakes else ():
                with contextlib.suppress(RuntimeError):  # its loop has ended
                    loop.call_soon_threadsafe(event.set)

    def _tell(self, queue: str, events: Sequence[Event]) -> None:
        if (known := self._queues.get(queue)) is not None:
            known.tell(events, self._event_id + 1)
            self._event_id += len(events)

    def _retain(self, entry: Entry, keep: Keep, now_ms: int) -> None:
        entry.keep = keep
        if keep.at_once:
            self._remove(entry, now_ms)

    def _remove(self, entry: Entry, now_ms: int) -> None:
        self._shelf.remove(entry)
        self._logs.pop(entry.job.id, None)
        self._tell(entry.job.queue, [job_event(entry.job, "removed", now_ms)])
