"""The verb purge: remove final jobs that are past their retention."""

from __future__ import annotations

from jobmill.core.changes import removed_event
from jobmill.core.job import RUNS_KEPT_MS
from jobmill.core.values import Purged
from jobmill.stores.sqlite.codec import SubjectRow, as_json, subject_of
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.feed import feeding, publish


def purge(context: SqliteContext, limit: int = 1_000) -> Purged:
    """Remove jobs that are too old, then those that are not among the last of their queue and state."""
    found: dict[int, SubjectRow] = {row[0]: row for row in context.rows("purge_old", (context.now_ms, limit + 1))}
    for queue, state, keep_last in context.rows("keep_last"):
        if len(found) <= limit:
            rows = context.rows("purge_surplus", (queue, state, keep_last, limit + 1))
            found.update((row[0], row) for row in rows)
    runs = context.write("purge_runs", (context.now_ms - RUNS_KEPT_MS, limit))
    removed = list(found.values())[:limit]
    context.write("remove", (as_json([row[0] for row in removed]),))
    if feeding(context):
        publish(context, [removed_event(subject_of(row), context.now_ms) for row in removed])
    return Purged(len(removed), more=len(found) > limit or runs == limit)
