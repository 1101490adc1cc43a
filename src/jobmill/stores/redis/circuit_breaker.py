"""Queues that cannot be used now: a worker of several queues goes on with the others."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from jobmill.errors import InvalidValue, StoreError, StoreUnavailable

log = logging.getLogger("jobmill")

# A claim leaves a queue out for so long, and says so as often: trying may take until a deadline, each time.
AWAY_MS = 1_000
ERROR_MS = 5_000
# A name that cannot be used here never will be.
NEVER_MS = 2**53

Trouble = StoreError | InvalidValue


class Troubles:
    """What one process knows: a node that is down, a key that is not BullMQ's, a name without the hash tag it needs."""

    def __init__(self) -> None:
        self._until_ms: dict[str, int] = {}

    def spare(self, queues: Iterable[str], settled_in: Iterable[str], now_ms: int) -> list[str]:
        """Those to try: not those with trouble, unless something must be settled there, or no other is left."""
        queues = list(queues)
        if not self._until_ms:
            return queues
        tried = [queue for queue in queues if queue in settled_in or self._until_ms.get(queue, 0) <= now_ms]
        return tried or queues

    def next_try_ms(self, queues: Iterable[str]) -> int | None:
        """When the first that is spared is to be tried again."""
        times = [self._until_ms.get(queue, NEVER_MS) for queue in queues] if self._until_ms else []
        return min((time for time in times if time < NEVER_MS), default=None)

    def note(self, tried: Iterable[str], found: dict[str, Trouble], now_ms: int) -> None:
        """What came of trying."""
        for queue in tried:
            error = found.get(queue)
            if error is not None:
                if self._until_ms.get(queue, 0) <= now_ms:  # else another call in flight has said so
                    log.warning("queue %s is left out: %s", queue, error)
                self._until_ms[queue] = _until_ms(error, now_ms)
            elif self._until_ms:
                self._until_ms.pop(queue, None)


def _until_ms(error: Trouble, now_ms: int) -> int:
    if isinstance(error, InvalidValue):
        return NEVER_MS
    return now_ms + (AWAY_MS if isinstance(error, StoreUnavailable) else ERROR_MS)
