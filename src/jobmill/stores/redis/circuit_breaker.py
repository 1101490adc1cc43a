"""Queues that cannot be used now: a worker of several queues continues with the others."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from jobmill.errors import InvalidValue, StoreError, StoreUnavailable

log = logging.getLogger("jobmill")

# How long claims leave a queue out, and how often the log says so: each attempt may take until its deadline.
UNAVAILABLE_MS = 1_000
ERROR_MS = 5_000
# A queue name that is invalid here stays so.
INVALID_UNTIL_MS = 2**53

QueueError = StoreError | InvalidValue


class CircuitBreaker:
    """What one process knows: a node that is down, a key that is not BullMQ's, a name without the hash tag it needs."""

    def __init__(self) -> None:
        #: By queue: until when claims leave it out. Usually empty.
        self.open_until_ms: dict[str, int] = {}

    def usable(self, queues: Collection[str], settled_in: Collection[str], now_ms: int) -> list[str]:
        """The queues to try: all where none is left over, and always those in which something must be settled."""
        tried = [one for one in queues if one in settled_in or self.open_until_ms.get(one, 0) <= now_ms]
        return tried or list(queues)

    def next_try_ms(self, queues: Iterable[str]) -> int | None:
        """When the first queue that is left out is tried again."""
        times = (self.open_until_ms.get(queue, INVALID_UNTIL_MS) for queue in queues)
        return min((time for time in times if time < INVALID_UNTIL_MS), default=None)

    def note(self, tried: Iterable[str], failures: dict[str, QueueError], now_ms: int) -> None:
        """Learn from an attempt."""
        for queue in tried:
            error = failures.get(queue)
            if error is None:
                self.open_until_ms.pop(queue, None)
                continue
            if self.open_until_ms.get(queue, 0) <= now_ms:  # otherwise another call in flight has logged it
                log.warning("queue %s is left out: %s", queue, error)
            self.open_until_ms[queue] = _until_ms(error, now_ms)


def _until_ms(error: QueueError, now_ms: int) -> int:
    if isinstance(error, InvalidValue):
        return INVALID_UNTIL_MS
    return now_ms + (UNAVAILABLE_MS if isinstance(error, StoreUnavailable) else ERROR_MS)
