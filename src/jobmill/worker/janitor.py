"""The janitor: removes final jobs that are past their retention, a little at a time."""

from __future__ import annotations

from random import Random

from jobmill.store import Store

EVERY_S = 30.0
AT_ONCE = 500
BETWEEN_S = 0.05


class Janitor:
    """Any worker may purge at any time; the store removes each job once."""

    def __init__(self, store: Store, random: Random) -> None:
        self._store = store
        self._random = random

    async def turn(self) -> float:
        """Purge some; soon again when there is more, else in half a minute, not in step with other workers."""
        purged = await self._store.purge(AT_ONCE)
        return BETWEEN_S if purged.more else EVERY_S * (0.5 + self._random.random())
