"""The janitor: removes final jobs after their retention, in small batches."""

from __future__ import annotations

from random import Random

from jobmill.store import Store

EVERY_S = 30.0
BATCH = 500
PAUSE_S = 0.05


class Janitor:
    """Every worker may purge at any time: the store removes each job once."""

    def __init__(self, store: Store, random: Random) -> None:
        self._store = store
        self._random = random

    async def turn(self) -> float:
        """Purge one batch. The next one follows at once if there is more, else in about half a minute, with jitter."""
        purged = await self._store.purge(BATCH)
        return PAUSE_S if purged.more else EVERY_S * (0.5 + self._random.random())
