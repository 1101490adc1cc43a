"""The verb purge: final jobs past their own retention leave."""

from __future__ import annotations

from jobmill.core.values import Purged
from jobmill.stores.sqlite.change import Row, remove
from jobmill.stores.sqlite.context import Context


def purge(context: Context, limit: int) -> Purged:
    """Remove jobs that are too old, then those that are not among the last of their queue and state."""
    gone: dict[int, Row] = {row[0]: row for row in context.rows("purge_old", (context.now_ms, limit + 1))}
    for queue, state, keep_last in context.rows("keep_last"):
        if len(gone) <= limit:
            rows = context.rows("purge_surplus", (queue, state, keep_last, limit + 1))
            gone.update((row[0], row) for row in rows)
    remove(context, list(gone.values())[:limit])
    return Purged(min(len(gone), limit), more=len(gone) > limit)
