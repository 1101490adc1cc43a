"""The verb purge: remove final jobs that are past their retention."""

from __future__ import annotations

from jobmill.core.announcing import CARD_KEPT_MS
from jobmill.core.audit import AUDIT_KEPT_MS
from jobmill.core.changes import removed_event
from jobmill.core.job import RUNS_KEPT_MS
from jobmill.core.tallies import TALLIES_KEPT_MS
from jobmill.core.values import Purged, QueueChange
from jobmill.stores.sqlite.codec import SubjectRow, as_json, subject_of
from jobmill.stores.sqlite.context import SqliteContext
from jobmill.stores.sqlite.feed import feeding, publish
from jobmill.stores.sqlite.flows import known_edges
from jobmill.stores.sqlite.queues import configure, known_queues


def purge(context: SqliteContext, limit: int = 1_000) -> Purged:
    """Remove jobs that are too old, then those that are not among the last of their queue and state."""
    found: dict[int, SubjectRow] = {row[0]: row for row in context.rows("purge_old", (context.now_ms, limit + 1))}
    for queue, state, keep_last in context.rows("keep_last"):
        if len(found) <= limit:
            rows = context.rows("purge_surplus", (queue, state, keep_last, limit + 1))
            found.update((row[0], row) for row in rows)
    runs = context.write("purge_runs", (context.now_ms - RUNS_KEPT_MS, limit))
    entries = context.write("purge_entries", (context.now_ms - AUDIT_KEPT_MS, limit))
    context.write("purge_taken_keys", (context.now_ms,))
    context.write("purge_lanes", (context.now_ms,))
    context.write("purge_workers", (context.now_ms - CARD_KEPT_MS,))
    for step_ms, kept_ms in TALLIES_KEPT_MS.items():
        context.write("purge_tallies", (step_ms, context.now_ms - kept_ms))
    for queue, row in list(known_queues(context).items()):
        if row.settings.at(context.now_ms) is not row.settings:
            configure(context, queue, QueueChange())
    removed = list(found.values())[:limit]
    last = removed
    while last:
        seqs = as_json([row[0] for row in last])
        last = context.rows("freed", (seqs, context.now_ms, limit - len(removed))) if known_edges(context) else []
        context.write("remove", (seqs,))
        removed += last
    if feeding(context):
        publish(context, [removed_event(subject_of(row), context.now_ms) for row in removed])
    return Purged(len(removed), more=len(found) > limit or limit in (len(removed), runs, entries))
