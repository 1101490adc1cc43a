"""The janitor: removes final jobs after their retention, in small batches."""

from __future__ import annotations

from jobmill.worker.context import WorkerContext

EVERY_S = 30.0
BATCH = 500
PAUSE_S = 0.05


async def purge(context: WorkerContext) -> float:
    """Purge one batch. The next one follows at once if there is more, else in about half a minute, with jitter.

    Every worker may purge at any time: the store removes each job once.
    """
    purged = await context.store.purge(BATCH)
    return PAUSE_S if purged.more else EVERY_S * (0.5 + context.random.random())
